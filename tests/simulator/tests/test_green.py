"""Green contexts: a part of the multiprocessors, streams of their own, and the primary context's memory for as long as they live."""

from __future__ import annotations

import pytest

from .bench import BLOCK, INVALID_CONTEXT, INVALID_VALUE, MIB, Machine, Process, out

SM = 1
RESOURCE = "bytes:144"
INVALID_RESOURCE_TYPE, INVALID_RESOURCE_CONFIGURATION, STREAM_DETACHED = 914, 915, 917


def multiprocessors(resource: str) -> int:
    return int.from_bytes(bytes.fromhex(resource)[96:100], "little")


def whole(process: Process) -> str:
    resource: str = process.must("cuDeviceGetDevResource", 0, out(RESOURCE), SM)
    return resource


def make_green(process: Process, resource: str = "") -> int:
    descriptor = process.must("cuDevResourceGenerateDesc", out("u64"), ["in", resource or whole(process)], 1)
    green: int = process.must("cuGreenCtxCreate", out("u64"), descriptor, 0, 1)
    return green


@pytest.fixture
def machine(bare_machine: Machine) -> Machine:
    return bare_machine.init(context_bytes=64 * MIB, module_bytes=4 * MIB)


def test_a_card_is_split_in_parts_of_equal_size_and_a_rest(machine: Machine) -> None:
    with machine.process().start() as process:
        assert multiprocessors(whole(process)) == 108
        count, rest = process.must("cuDevSmResourceSplitByCount", None, ["inout", "00000000"], ["in", whole(process)], out(RESOURCE), 0, 15)
        assert (int.from_bytes(bytes.fromhex(count)[:4], "little"), multiprocessors(rest)) == (6, 12)
        part, count = process.must("cuDevSmResourceSplitByCount", out(RESOURCE), ["inout", "01000000"], ["in", whole(process)], None, 0, 1)
        assert (int.from_bytes(bytes.fromhex(count)[:4], "little"), multiprocessors(part)) == (1, 4)
        green = make_green(process, part)
        assert multiprocessors(process.must("cuGreenCtxGetDevResource", green, out(RESOURCE), SM)) == 4


def test_what_makes_no_sense_is_refused(machine: Machine) -> None:
    with machine.process().start() as process:
        assert process.cuda("cuDeviceGetDevResource", 0, out(RESOURCE), 7)[0] == INVALID_RESOURCE_TYPE
        split = process.cuda("cuDevSmResourceSplitByCount", None, ["inout", "00000000"], ["in", whole(process)], None, 0, 109)
        assert split[0] == INVALID_RESOURCE_CONFIGURATION
        green = make_green(process)
        assert process.cuda("cuGreenCtxCreate", out("u64"), green, 0, 1)[0] == INVALID_VALUE
        context = process.must("cuCtxFromGreenCtx", out("u64"), green)
        assert process.cuda("cuCtxDestroy_v2", context)[0] == INVALID_CONTEXT
        process.must("cuGreenCtxDestroy", green)
        assert process.cuda("cuGreenCtxDestroy", green)[0] == INVALID_CONTEXT


def test_it_holds_the_primary_context_and_what_is_made_in_it_is_the_primarys(machine: Machine) -> None:
    with machine.process() as process:
        process.must("cuInit", 0)
        green = make_green(process)
        assert machine.card()["used_bytes"] == 64 * MIB
        context = process.must("cuCtxFromGreenCtx", out("u64"), green)
        process.must("cuCtxSetCurrent", context)
        pointer = process.alloc(BLOCK)
        process.load_spin()
        primary = process.must("cuDevicePrimaryCtxRetain", out("u64"), 0)
        process.must("cuGreenCtxDestroy", green)
        assert machine.card()["used_bytes"] == 68 * MIB + BLOCK
        process.must("cuCtxSetCurrent", primary)
        process.launch(1000)
        process.synchronize()
        process.must("cuMemFree_v2", pointer)
        process.alloc(BLOCK)
        process.must("cuDevicePrimaryCtxRelease_v2", 0)
        assert machine.card()["used_bytes"] == 0


def test_the_last_to_let_go_ends_the_primary_context_with_all_that_is_in_it(machine: Machine) -> None:
    with machine.process() as process:
        process.must("cuInit", 0)
        first, second = make_green(process), make_green(process)
        process.must("cuCtxSetCurrent", process.must("cuCtxFromGreenCtx", out("u64"), first))
        process.alloc(BLOCK)
        process.must("cuGreenCtxDestroy", first)
        assert machine.card()["used_bytes"] == 64 * MIB + BLOCK
        process.must("cuGreenCtxDestroy", second)
        assert machine.card()["used_bytes"] == 0


def test_its_streams_work_and_are_detached_when_it_is_gone(machine: Machine) -> None:
    with machine.process().start() as process:
        process.load_spin()
        green = make_green(process)
        stream = process.must("cuGreenCtxStreamCreate", out("u64"), green, 1, 0)
        process.must("cuDevicePrimaryCtxRetain", out("u64"), 0)
        process.launch(2000, stream=stream)
        event = process.must("cuEventCreate", out("u64"), 0)
        process.must("cuGreenCtxRecordEvent", green, event)
        process.must("cuGreenCtxWaitEvent", green, event)
        process.must("cuEventSynchronize", event)
        assert machine.usage(process)["gpu_time_ns"] == 2_000_000
        late = process.must("cuEventCreate", out("u64"), 0)
        process.launch(3000, stream=stream)
        process.must("cuEventRecord", late, stream)
        process.must("cuGreenCtxDestroy", green)
        process.must("cuEventSynchronize", late)
        assert process.must("cuEventElapsedTime", out("f32"), event, late) >= 3
        assert process.cuda("cuStreamSynchronize", stream)[0] == STREAM_DETACHED
        process.must("cuStreamDestroy_v2", stream)
        process.launch(1000)
        process.synchronize()


def test_a_reset_of_the_primary_context_ends_what_is_left_of_it(machine: Machine) -> None:
    with machine.process().start() as process:
        green = make_green(process)
        context = process.must("cuCtxFromGreenCtx", out("u64"), green)
        process.must("cuDevicePrimaryCtxReset_v2", 0)
        assert process.cuda("cuCtxSetCurrent", context)[0] == INVALID_CONTEXT
        process.must("cuGreenCtxDestroy", green)
        process.alloc(BLOCK)
