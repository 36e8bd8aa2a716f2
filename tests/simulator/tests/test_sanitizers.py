"""Threads of one process do everything at once, with the driver's sources compiled under a sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from . import bench
from .bench import Machine


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_threads_stay_clean(machine: Machine, tmp_path: Path, sanitizer: str) -> None:
    program = tmp_path / "stress"
    sources = [
        bench.HERE / "c" / "stress.c",
        *sorted((bench.SIMULATOR / "src").glob("co*/*.c")),
        *sorted((bench.SIMULATOR / "src").glob("cuda/*.c")),
    ]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O0", "-g1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-pthread"]
    bench.run(["gcc", *flags, "-o", str(program), *map(str, sources)], timeout=120)
    done = subprocess.run(
        [str(program), "1", "4"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1", **machine.environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_clang_builds_it_without_a_warning(tmp_path: Path) -> None:
    if shutil.which("clang") is None:
        pytest.skip("no clang here")
    bench.build(tmp_path, CC="clang")
