"""Calls that programs make around the ones that matter here: each answers as documented and takes no GPU time of its own."""

from __future__ import annotations

import struct

import pytest

from .bench import INVALID_VALUE, MIB, NOT_SUPPORTED, SPIN, Machine, out


def test_written_values_reach_host_memory(machine: Machine) -> None:
    with machine.process().start() as process:
        cell = process.must("cuMemAllocHost_v2", out("u64"), 16)
        for address, kind, value in ((cell, 5, 0x1122334455667788), (cell + 8, 2, 7)):
            process.must("cuStreamBatchMemOp_v2", 0, 1, ["in", struct.pack("<i4xQQI20x", kind, address, value, 0).hex()], 0)
        assert process.must("cuMemcpyDtoH_v2", out("bytes:16"), cell, 16) == "88776655443322110700000000000000"


def test_waiting_for_values_is_not_supported_and_the_attribute_says_so(machine: Machine) -> None:
    with machine.process().start() as process:
        assert process.cuda("cuStreamWaitValue32_v2", 0, process.alloc(512), 1, 0)[0] == NOT_SUPPORTED
        assert process.cuda("cuStreamBatchMemOp_v2", 0, 1, ["in", struct.pack("<i44x", 1).hex()], 0)[0] == NOT_SUPPORTED
        assert process.must("cuDeviceGetAttribute", out("i32"), 94, 0) == 0


def test_only_managed_memory_is_prefetched(machine: Machine) -> None:
    with machine.process().start() as process:
        managed, plain = process.must("cuMemAllocManaged", out("u64"), MIB, 1), process.alloc(MIB)
        on_card = 1 | 0 << 32
        process.must("cuMemPrefetchAsync", managed, MIB, 0, 0)
        process.must("cuMemPrefetchAsync_v2", managed, MIB, on_card, 0, 0)
        assert process.cuda("cuMemPrefetchAsync", plain, MIB, 0, 0)[0] == INVALID_VALUE
        assert process.cuda("cuMemPrefetchAsync", managed, 3 * MIB, 0, 0)[0] == INVALID_VALUE


def test_copies_cost_gpu_time_when_the_model_says_so(bare_machine: Machine) -> None:
    machine = bare_machine.init(copy_bytes_per_us=1000)
    with machine.process().start() as process:
        process.must("cuMemsetD8_v2", process.alloc(MIB), 0, 1_000_000)
        assert machine.usage(process)["gpu_time_ns"] == 1_000_000


def test_errors_of_modules(machine: Machine) -> None:
    with machine.process().start() as process:
        assert process.cuda("cuModuleLoadData", out("u64"), "this is no program")[0] == 200
        module = process.must("cuModuleLoadData", out("u64"), SPIN)
        assert process.cuda("cuModuleGetFunction", out("u64"), module, "tenfold")[0] == 500
        process.must("cuModuleUnload", module)
        assert process.cuda("cuModuleUnload", module)[0] == 400


def test_modules_weigh_what_the_model_says(bare_machine: Machine) -> None:
    machine = bare_machine.init(module_bytes=2 * MIB)
    with machine.process().start() as process:
        module = process.must("cuModuleLoadData", out("u64"), SPIN)
        assert machine.card()["used_bytes"] == 2 * MIB
        process.must("cuModuleUnload", module)
        assert machine.card()["used_bytes"] == 0


@pytest.mark.parametrize(("attribute", "value"), [(16, 108), (75, 8), (76, 0), (39, 2048), (83, 1), (115, 1), (38, 40 * MIB)])
def test_device_attributes_come_from_the_profile(machine: Machine, attribute: int, value: int) -> None:
    with machine.process().start() as process:
        assert process.must("cuDeviceGetAttribute", out("i32"), attribute, 0) == value


def test_a_prohibited_card_admits_nobody(machine: Machine) -> None:
    machine.tool("set", "--card", "0", "compute_mode=2")
    with machine.process() as process:
        process.must("cuInit", 0)
        assert process.must("cuDeviceGetAttribute", out("i32"), 20, 0) == 2
        assert process.cuda("cuCtxCreate_v2", out("u64"), 0, 0)[0] == 100


def test_an_exclusive_card_admits_one_process(machine: Machine) -> None:
    machine.tool("set", "--card", "0", "compute_mode=3")
    with machine.process().start() as first, machine.process() as second:
        first.must("cuCtxCreate_v2", out("u64"), 0, 0)
        second.must("cuInit", 0)
        assert second.cuda("cuCtxCreate_v2", out("u64"), 0, 0)[0] == 46
        first.kill()
        second.must("cuCtxCreate_v2", out("u64"), 0, 0)
