"""The same driver on aarch64, cross-compiled and under an emulator. The hook on it: tests/hook/test_other_machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from . import bench

pytestmark = pytest.mark.full

COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]

PROGRAM = """
#include <stdint.h>
#include <stdio.h>
int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(uint64_t *, size_t), cuMemGetInfo_v2(size_t *, size_t *);
int main(void)
{
    void *context;
    uint64_t address;
    size_t free_bytes, total_bytes;
    int failed = cuInit(0) || cuCtxCreate_v2(&context, 0, 0) || cuMemAlloc_v2(&address, 5 << 20) ||
                 cuMemGetInfo_v2(&free_bytes, &total_bytes);
    printf("%d %zu\\n", failed, total_bytes - free_bytes);
    return failed;
}
"""


@pytest.fixture(scope="module")
def arm_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for tool in (COMPILER, EMULATOR[0]):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")
    return bench.build(tmp_path_factory.mktemp("arm"), CC=COMPILER)


def test_it_allocates_under_an_emulator(arm_driver: Path, tmp_path: Path) -> None:
    state, source, program = tmp_path / "state", tmp_path / "program.c", tmp_path / "program"
    source.write_text(PROGRAM)
    bench.run([COMPILER, "-o", str(program), str(source), str(arm_driver / bench.CUDA)])
    bench.run(
        [
            *EMULATOR,
            str(arm_driver / "tenfold-sim"),
            "--state",
            str(state),
            "init",
            "--card",
            "a800-80gb",
            "--profiles",
            str(arm_driver / "profiles"),
        ]
    )
    done = subprocess.run(
        [*EMULATOR, "-E", f"LD_LIBRARY_PATH={arm_driver}", str(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "TENFOLD_SIM_STATE": str(state)},
    )
    assert (done.stdout, done.returncode) == (f"0 {6 << 20}\n", 0), done.stderr


def test_its_libraries_need_nothing_newer_than_glibc_2_17(arm_driver: Path) -> None:
    for name in (bench.CUDA, bench.NVML):
        text = bench.run(["readelf", "-V", str(arm_driver / name)])
        assert set(re.findall(r"GLIBC_([0-9.]+)", text)) == {"2.17"}
