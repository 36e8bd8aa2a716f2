"""Green contexts: their memory is the primary context's, their work is limited, and the last to go gives back the context's overhead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hook import scripts
from tests.hook.workshop import MIB, Machine, Slot

CONTEXT, MODULE = 20, 6  # MiB; less than what is allocated, so that what stays charged by mistake is not taken for overhead
OOM = 2
GREEN = """
def make_green():
    resource, descriptor, green, context = (c.c_ubyte * 144)(), c.c_void_p(), c.c_void_p(), c.c_void_p()
    assert cuda.cuDeviceGetDevResource(c.c_int(0), resource, c.c_int(1)) == 0
    assert cuda.cuDevResourceGenerateDesc(c.byref(descriptor), resource, c.c_uint(1)) == 0
    assert cuda.cuGreenCtxCreate(c.byref(green), descriptor, c.c_int(0), c.c_uint(1)) == 0
    assert cuda.cuCtxFromGreenCtx(c.byref(context), green) == 0
    return green, context
def comes_true(condition):
    end = time.monotonic() + 15
    while not condition() and time.monotonic() < end: time.sleep(0.01)
    return condition()
def used(): return LIMIT - cuda.info()[0]
assert cuda.cuInit(0) == 0
primary = c.c_void_p()
"""


@pytest.fixture
def machine(simulator: Path, tmp_path: Path) -> Machine:
    return Machine.make(simulator, tmp_path, context_bytes=CONTEXT * MIB, module_bytes=MODULE * MIB, driver="550")


def run(slot: Slot, body: str, timeout: float = 60) -> dict[str, object]:
    return scripts.run(slot, GREEN.replace("LIMIT", str(slot.gpus[0].memory_limit_bytes)) + body, timeout=timeout)


def test_memory_of_a_green_context_stays_with_the_primary_one_and_goes_with_it(make_slot: Callable[..., Slot]) -> None:
    slot = make_slot(memory_mib=512)
    seen = run(
        slot,
        f"""
assert cuda.cuDevicePrimaryCtxRetain(c.byref(primary), 0) == 0
green, context = make_green()
assert cuda.cuCtxSetCurrent(context) == 0
blocks = [cuda.alloc(32 * MIB) for _ in range(3)]
assert cuda.cuGreenCtxDestroy(green) == 0
assert cuda.cuCtxSetCurrent(primary) == 0
say(results=[result for result, _ in blocks], held=comes_true(lambda: used() == ({CONTEXT} + 96) * MIB))
assert cuda.cuMemFree_v2(blocks.pop()[1]) == 0
say(freed=comes_true(lambda: used() == ({CONTEXT} + 64) * MIB), over=cuda.alloc(512 * MIB)[0])
assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0
cuda.start()
say(released=comes_true(lambda: used() == {CONTEXT} * MIB))
""",
    )
    assert seen == {"results": [0, 0, 0], "held": True, "freed": True, "over": OOM, "released": True}


def test_the_last_green_context_gives_back_memory_and_overhead(make_slot: Callable[..., Slot]) -> None:
    """Nobody else holds the primary context."""
    slot = make_slot(memory_mib=512)
    seen = run(
        slot,
        f"""
greens = [make_green(), make_green()]
assert cuda.cuCtxSetCurrent(greens[0][1]) == 0
assert cuda.alloc(64 * MIB)[0] == 0
f = cuda.spin()
assert cuda.cuGreenCtxDestroy(greens[0][0]) == 0
assert cuda.cuCtxSetCurrent(greens[1][1]) == 0
assert cuda.alloc(32 * MIB)[0] == 0
say(held=comes_true(lambda: used() == ({CONTEXT + MODULE} + 96) * MIB))
assert cuda.cuGreenCtxDestroy(greens[1][0]) == 0
cuda.start()
say(left=comes_true(lambda: used() == {CONTEXT} * MIB), all=cuda.alloc((512 - {CONTEXT}) * MIB)[0])
""",
    )
    assert seen == {"held": True, "left": True, "all": 0}


def test_work_in_its_streams_is_limited(make_slot: Callable[..., Slot]) -> None:
    slot = make_slot(memory_mib=512, cores=30)
    seen = run(
        slot,
        """
green, context = make_green()
assert cuda.cuCtxSetCurrent(context) == 0
f, stream, event = cuda.spin(), c.c_void_p(), c.c_void_p()
assert cuda.cuGreenCtxStreamCreate(c.byref(stream), green, c.c_uint(1), c.c_int(0)) == 0
assert cuda.cuEventCreate(c.byref(event), c.c_uint(0)) == 0
began = time.monotonic()
for _ in range(30):
    assert cuda.launch(f, 10000, stream) == 0 and cuda.cuGreenCtxRecordEvent(green, event) == 0 and cuda.cuEventSynchronize(event) == 0
say(seconds=time.monotonic() - began)
""",
    )
    # 300 ms of work; a limit of 30 % makes a second of it, less what was saved before (a quarter of a second's worth)
    assert float(str(seen["seconds"])) > 0.7


def test_it_may_be_destroyed_with_work_in_flight(make_slot: Callable[..., Slot]) -> None:
    """Its streams' work goes on and is measured by events of the primary context, or lost with its own; nobody waits for what is lost."""
    slot = make_slot(memory_mib=512, cores=60)
    seen = run(
        slot,
        """
assert cuda.cuDevicePrimaryCtxRetain(c.byref(primary), 0) == 0
assert cuda.cuCtxSetCurrent(primary) == 0
f = cuda.spin()
results = set()
began = time.monotonic()
for _ in range(30):
    green, context = make_green()
    stream = c.c_void_p()
    assert cuda.cuGreenCtxStreamCreate(c.byref(stream), green, c.c_uint(1), c.c_int(0)) == 0
    results |= {cuda.launch(f, 300, stream) for _ in range(5)}
    assert cuda.cuCtxSetCurrent(context) == 0
    results |= {cuda.launch(f, 300) for _ in range(2)}
    results.add(cuda.cuGreenCtxDestroy(green))
    assert cuda.cuCtxSetCurrent(primary) == 0
    results |= {cuda.launch(f, 300), cuda.cuStreamDestroy_v2(stream)}
results.add(cuda.cuCtxSynchronize())
say(results=sorted(results), is_quick=time.monotonic() - began < 15)
""",
        timeout=120,
    )
    assert seen == {"results": [0], "is_quick": True}
