"""Whatever bytes a tenant writes into its state, and whatever stands in its environment: programs neither crash nor hang."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import subprocess
import time
from collections.abc import Callable

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import RegionError

from tests.hook.workshop import MIB, Slot

SEED = int(os.environ.get("TENFOLD_FUZZ_SEED", "20787"))
WORK = "view\nfill 2097152 33554432\nalloc 4096\nview\ndrain\nspin 500 40\nfill 2097152 8388608\nquit\n"


def survive(slot: Slot, note: str, **environment: str) -> str:
    """Run the self-test through its paces; it must end by itself."""
    try:
        done = slot.run([slot.hook / "tenfold-selftest"], stdin=f"open {slot.machine.uuids[0]}\n{WORK}", timeout=25, **environment)
    except subprocess.TimeoutExpired:
        pytest.fail(f"hung: {note} (seed {SEED})")
    assert done.returncode == 0, f"ended with {done.returncode}: {note} (seed {SEED})\n{done.stderr}"
    return done.stdout


def interesting(generator: random.Random) -> bytes:
    """Bytes that break assumptions: all ones, zeros, sign bits, small counters, noise."""
    kind = generator.randrange(6)
    if kind < 4:
        return [b"\xff" * 8, b"\0" * 8, (1 << 63).to_bytes(8, "little"), generator.randrange(1 << 12).to_bytes(8, "little")][kind]
    return generator.randbytes(8 if kind == 4 else 64)


AREAS = {
    "header": (0, 128),
    "cards": (region.STATE_GPUS_OFFSET, region.STATE_GPUS_OFFSET + 2 * region.GPU_STATE_STRIDE),
    "slots": (region.STATE_SLOTS_OFFSET, region.STATE_SLOTS_OFFSET + 8 * region.SLOT_STRIDE),
}


@pytest.mark.parametrize("area", AREAS)
def test_a_state_of_any_bytes_is_survived_from_the_start(make_slot: Callable[..., Slot], area: str) -> None:
    generator = random.Random(f"{SEED} {area}")
    first, last = AREAS[area]
    for number in range(8):
        slot = make_slot(cores=50)
        for _ in range(generator.randrange(1, 24)):
            data = interesting(generator)
            write_at(slot, "state", generator.randrange(first, last) & ~7, data)
        survive(slot, f"area {area}, number {number}")
        with contextlib.suppress(RegionError):
            slot.state()


@pytest.mark.parametrize("area", AREAS)
def test_a_state_that_changes_under_a_running_program_is_survived(make_slot: Callable[..., Slot], area: str) -> None:
    generator = random.Random(f"{SEED} live {area}")
    slot = make_slot(cores=50)
    first, last = AREAS[area]
    program = slot.start([slot.hook / "tenfold-selftest"])
    assert program.stdin is not None
    program.stdin.write(f"open {slot.machine.uuids[0]}\n" + WORK.replace("quit\n", "") * 12 + "quit\n")
    program.stdin.flush()
    with (slot.folder / "state").open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as state:
        deadline = time.monotonic() + 25
        while program.poll() is None and time.monotonic() < deadline:
            offset = generator.randrange(first, last) & ~7
            data = interesting(generator)
            state[offset : offset + len(data)] = data
            time.sleep(0.0005)
    if program.poll() is None:
        program.kill()
        program.communicate()
        pytest.fail(f"hung: area {area} (seed {SEED})")
    program.communicate()
    assert program.returncode == 0, f"area {area} (seed {SEED})"


def test_a_page_of_any_bytes_gives_the_old_limits_or_none_of_the_card(make_slot: Callable[..., Slot]) -> None:
    """Never more than the page that is whole: with a damaged copy the other counts, with none there is no memory."""
    generator = random.Random(f"{SEED} page")
    for number in range(16):
        slot = make_slot(memory_mib=16)
        for _ in range(generator.randrange(1, 6)):
            write_at(slot, "config", generator.randrange(64, region.CONFIG_BYTES - 64) & ~7, interesting(generator))
        answers = survive(slot, f"page {number}")
        assert f'"allocated_bytes": {16 * MIB}' in answers or '"allocated_bytes": 0' in answers, answers


OTHER_VARIABLES = ("CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_MEMORY_SHARED_CACHE", "TENFOLD_SLOT_DIR")


@pytest.mark.parametrize("name", ["CUDA_DEVICE_MEMORY_LIMIT", *(pytest.param(name, marks=pytest.mark.full) for name in OTHER_VARIABLES)])
def test_any_value_of_a_variable_is_survived(make_slot: Callable[..., Slot], name: str) -> None:
    generator = random.Random(f"{SEED} {name}")
    slot = make_slot()
    values = ["", "-", "0" * 400, "9" * 40 + "g", "/", "/proc/self/mem", "/dev/full", "/nonexistent/x", "%s%n", "a" * 5000]
    values += ["".join(chr(generator.randrange(1, 127)) for _ in range(generator.randrange(1, 60))) for _ in range(4)]
    for value in values:
        survive(slot, f"{name}={value!r}", **{"TENFOLD_SLOT_DIR": "", name: value})


def write_at(slot: Slot, name: str, offset: int, data: bytes) -> None:
    path = slot.folder / name
    descriptor = os.open(path, os.O_RDWR)
    size = os.fstat(descriptor).st_size
    os.pwrite(descriptor, data[: max(0, size - offset)], offset)
    os.close(descriptor)
