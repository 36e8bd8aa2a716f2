"""aarch64, the other machine that has NVIDIA cards: the hook cross-compiled, and run under an emulator on a driver of that machine."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import hook_elf, hook_verify, region

from tests.hook import workshop
from tests.hook.workshop import MIB, Machine, Session, Slot

pytestmark = pytest.mark.full

COMPILER = "aarch64-linux-gnu-gcc"
# qemu gives its own environment to the program it runs
EMULATOR = ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu")


@pytest.fixture(scope="module")
def other_hook() -> Path:
    if not workshop.has(COMPILER):
        pytest.skip(f"{COMPILER} is not installed (Debian: gcc-aarch64-linux-gnu)")
    return workshop.build_hook("hook-aarch64", CC=COMPILER)


@pytest.fixture(scope="module")
def other_driver(other_hook: Path) -> Path:
    del other_hook  # it skips where there is no compiler
    if not workshop.has(EMULATOR[0]):
        pytest.skip(f"{EMULATOR[0]} is not installed (Debian: qemu-user-static)")
    return workshop.build_simulator("simulator-aarch64", CC=COMPILER)


def test_it_cross_compiles_with_the_same_exports(other_hook: Path, hook: Path) -> None:
    library = hook_elf.read_library(other_hook / "libtenfold.so")
    assert (library.machine, library.needed, library.needed_glibc) == ("aarch64", ("libc.so.6",), "2.17")
    assert library.exported == hook_elf.read_library(hook / "libtenfold.so").exported
    assert library.constructors == 0
    writer = hook_elf.read_library(other_hook / "libtenfold_page.so")
    assert (writer.machine, writer.needed, writer.needed_glibc) == ("aarch64", ("libc.so.6",), "2.17")
    assert writer.exported == hook_verify.PAGE_SYMBOLS


def test_dlsym_keeps_its_caller(other_hook: Path, tmp_path: Path) -> None:
    if not workshop.has(EMULATOR[0]):
        pytest.skip(f"{EMULATOR[0]} is not installed (Debian: qemu-user-static)")
    driver = tmp_path / "libcuda.so.1"
    source = workshop.PROGRAMS / "private_driver.c"
    soname = "-Wl,-soname,libcuda.so.1"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-w", soname, "-o", str(driver), str(source)], check=True, timeout=60)
    program = workshop.compile_program("next", cc=COMPILER, suffix="-aarch64")
    variables = ["-E", f"LD_PRELOAD={other_hook / 'libtenfold.so'}", "-E", f"LD_LIBRARY_PATH={tmp_path}"]
    done = subprocess.run([*EMULATOR, *variables, str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["next-same", "driver-hooked", "absent-null", "alloc-closed"]


class TestSlice:
    """The promises of a slice, once each: bytes, view, time, and all of them changed while the program runs."""

    @pytest.fixture
    def slot(self, simulator: Path, other_driver: Path, other_hook: Path, tmp_path: Path) -> Slot:
        # the machine is a file of 64-bit little-endian numbers on both; this machine's tool makes it and reads its truth
        machine = Machine.make(simulator, tmp_path)
        truth = Machine(other_driver, machine.state)
        truth.uuids = machine.uuids
        return Slot(tmp_path / "slot", other_hook, truth, [region.GpuQuota(machine.uuids[0], 64 * MIB, 30)]).create()

    @pytest.mark.timing
    def test_limits_hold_and_change_in_a_running_program(self, slot: Slot, simulator: Path) -> None:
        truth = Machine(simulator, slot.machine.state)
        with Session(slot, EMULATOR) as session:
            filled = session.ask(f"fill {2 * MIB} {512 * MIB}")
            assert (filled["result"], filled["allocated_bytes"]) == (2, 64 * MIB)
            assert slot.used_bytes == truth.allocated_bytes() == 64 * MIB
            assert session.ask("view")["total_bytes"] == 64 * MIB
            slot.change(memory_limit_bytes=96 * MIB)
            assert session.ask(f"fill {2 * MIB} {512 * MIB}")["allocated_bytes"] == 96 * MIB
            assert slot.used_bytes == truth.allocated_bytes() == 96 * MIB
            assert session.ask("drain")["result"] == 0
            assert slot.used_bytes == truth.allocated_bytes() == 0
            assert within(session, 30)
            slot.change(core_limit_percent=70)
            assert within(session, 70)

    def test_a_killed_program_gives_everything_back(self, slot: Slot) -> None:
        with Session(slot, EMULATOR) as session:
            session.ask(f"fill {2 * MIB} {32 * MIB}")
        deadline = time.monotonic() + 10
        with Session(slot, EMULATOR) as session:
            while session.ask(f"fill {2 * MIB} {512 * MIB}")["allocated_bytes"] != 64 * MIB:
                assert time.monotonic() < deadline, "what the dead program had is still charged"
                session.ask("drain")


def within(session: Session, limit_percent: float) -> bool:
    """One of several windows; an emulated program and a busy host lose some."""
    return any(abs(session.share_percent(2000, 400) - limit_percent) <= 6 for _ in range(5))
