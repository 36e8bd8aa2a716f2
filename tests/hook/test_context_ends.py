"""Work of contexts that end, or might have: it is measured like any, however short their lives are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hook import scripts, test_green
from tests.hook.workshop import Machine, Slot

LIMIT_PERCENT, KERNEL_US, SECONDS = 30, 100_000, 3
# Each makes a launch of a kernel and the end of a context.
TURNS = {
    "a reference of the primary context is given back, and others are left": """
assert cuda.cuDevicePrimaryCtxRetain(c.byref(primary), 0) == 0
if not count: f = cuda.spin()
launch()
assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0
""",
    "the last reference of the primary context is given back": """
cuda.start(); f = cuda.spin()
launch()
assert cuda.cuCtxSynchronize() == 0
assert cuda.cuDevicePrimaryCtxRelease_v2(0) == cuda.cuDevicePrimaryCtxRelease_v2(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(c.byref(primary), 0) == 0
""",
    "the primary context is reset": """
cuda.start(); f = cuda.spin()
launch()
assert cuda.cuDevicePrimaryCtxReset_v2(0) == 0
""",
    "a context is destroyed": """
second = c.c_void_p(); assert cuda.cuCtxCreate_v2(c.byref(second), c.c_uint(0), 0) == 0
f = cuda.spin()
launch()
assert cuda.cuCtxDestroy_v2(second) == 0
""",
    "a green context is destroyed": """
green, context = make_green(); stream = c.c_void_p()
assert cuda.cuGreenCtxStreamCreate(c.byref(stream), green, c.c_uint(1), c.c_int(0)) == 0
assert cuda.cuCtxSetCurrent(context) == 0
f = cuda.spin()
launch(stream)
assert cuda.cuGreenCtxDestroy(green) == cuda.cuCtxSetCurrent(primary) == 0
""",
}


@pytest.fixture
def machine(simulator: Path, tmp_path: Path) -> Machine:
    return Machine.make(simulator, tmp_path, driver="550")


@pytest.mark.timing
@pytest.mark.parametrize("turn", TURNS)
def test_the_limit_holds_for_work_whose_context_ends_with_every_launch(make_slot: Callable[..., Slot], turn: str) -> None:
    body = f"""
def launch(stream=None):
    assert cuda.launch(f, {KERNEL_US}, stream) == 0
assert cuda.cuDevicePrimaryCtxRetain(c.byref(primary), 0) == cuda.cuCtxSetCurrent(primary) == 0
began, count = time.monotonic(), 0
while time.monotonic() - began < {SECONDS}:
{"".join(f"    {line}" for line in TURNS[turn].strip().splitlines(keepends=True))}
    count += 1
say(busy_seconds=count * {KERNEL_US} / 1e6, seconds=time.monotonic() - began)
"""
    seen = scripts.run(make_slot(memory_mib=2048, cores=LIMIT_PERCENT), test_green.GREEN.replace("LIMIT", "0") + body)
    share_percent = 100 * float(str(seen["busy_seconds"])) / float(str(seen["seconds"]))
    # above it: a quarter of a second may be saved up, and the last kernel runs beyond the end; below it only what a busy host takes
    assert 10 < share_percent < LIMIT_PERCENT + 15, seen


def test_a_program_that_lets_go_of_a_context_with_endless_work_is_not_held_for_good(make_slot: Callable[..., Slot]) -> None:
    seen = scripts.run(
        make_slot(memory_mib=2048, cores=LIMIT_PERCENT),
        test_green.GREEN.replace("LIMIT", "0")
        + """
green, context = make_green(); stream = c.c_void_p()
assert cuda.cuGreenCtxStreamCreate(c.byref(stream), green, c.c_uint(1), c.c_int(0)) == 0
assert cuda.cuCtxSetCurrent(context) == 0
f = cuda.spin()
assert cuda.launch(f, 20_000_000, stream) == 0
began = time.monotonic()
say(result=cuda.cuGreenCtxDestroy(green), is_in_time=time.monotonic() - began < 10)
os._exit(0)
""",
    )
    assert seen == {"result": 0, "is_in_time": True}


@pytest.mark.parametrize("symbol", ["cuStreamDestroy", "cuStreamDestroy_v2"])
def test_no_stream_is_used_that_the_program_has_destroyed(make_slot: Callable[..., Slot], symbol: str) -> None:
    """Short kernels are measured in batches, whose end would be marked at the next wait; by then their stream may be gone."""
    slot = make_slot(memory_mib=2048, cores=80)
    seen = scripts.run(
        slot,
        f"""
cuda.start(); f = cuda.spin(); results = set()
for _ in range(60):
    stream = c.c_void_p(); results.add(cuda.cuStreamCreate(c.byref(stream), c.c_uint(1)))
    results |= {{cuda.launch(f, 50, stream) for _ in range(7)}}
    results.add(cuda.{symbol}(stream))
    results.add(cuda.cuCtxSynchronize())
say(results=sorted(results))
""",
    )
    assert seen == {"results": [0]}
    assert slot.machine.truth()["dead_streams"] == 0
