"""What must hold of a card's engine whatever its tenants do, in virtual time: c/timeline_laws.c says each law in words."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from . import bench


@pytest.fixture(scope="module")
def laws(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("laws") / "timeline_laws"
    sources = [bench.HERE / "c" / "timeline_laws.c", *sorted((bench.SIMULATOR / "src" / "core").glob("*.c"))]
    flags = [
        "-std=c11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-missing-field-initializers",
        "-O1",
        "-fsanitize=address,undefined",
    ]
    bench.run(["gcc", *flags, "-o", str(program), *map(str, sources)])
    return program


@pytest.mark.parametrize("seed", range(1, 9))
def test_the_laws_hold(laws: Path, seed: int) -> None:
    done = subprocess.run(
        [str(laws), str(seed)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=0"},
    )
    assert done.returncode == 0, done.stderr
