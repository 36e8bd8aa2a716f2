"""Calls that programs make around the ones that matter here: each answers as documented and takes no GPU time of its own."""

from __future__ import annotations

import struct

import pytest

from .bench import INVALID_VALUE, MIB, NOT_SUPPORTED, SPIN, Machine, out


def test_occupancy_follows_threads_blocks_and_shared_memory(machine: Machine) -> None:
    with machine.process().start() as process:
        spin = process.load_spin()
        blocks = [
            process.must("cuOccupancyMaxActiveBlocksPerMultiprocessor", out("i32"), spin, threads, shared)
            for threads, shared in ((1024, 0), (32, 0), (256, 80 * 1024), (1024, 200 * 1024))
        ]
        assert blocks == [2, 32, 2, 0]
        grid, block = process.must("cuOccupancyMaxPotentialBlockSize", out("i32"), out("i32"), spin, None, 0, 0)
        assert (grid, block) == (216, 1024)


def test_written_values_reach_host_memory(machine: Machine) -> None:
    with machine.process().start() as process:
        cell = process.must("cuMemAllocHost_v2", out("u64"), 16)
        process.must("cuStreamWriteValue64_v2", 0, cell, 0x1122334455667788, 0)
        process.must("cuStreamBatchMemOp_v2", 0, 1, ["in", struct.pack("<i4xQQI20x", 2, cell + 8, 7, 0).hex()], 0)
        assert process.must("cuMemcpyDtoH_v2", out("bytes:16"), cell, 16) == "88776655443322110700000000000000"


def test_waiting_for_values_is_not_supported_and_the_attribute_says_so(machine: Machine) -> None:
    with machine.process().start() as process:
        assert process.cuda("cuStreamWaitValue32_v2", 0, process.alloc(512), 1, 0)[0] == NOT_SUPPORTED
        assert process.cuda("cuStreamBatchMemOp_v2", 0, 1, ["in", struct.pack("<i44x", 1).hex()], 0)[0] == NOT_SUPPORTED
        assert process.must("cuDeviceGetAttribute", out("i32"), 94, 0) == 0


def test_hints_need_managed_memory(machine: Machine) -> None:
    with machine.process().start() as process:
        managed, plain = process.must("cuMemAllocManaged", out("u64"), MIB, 1), process.alloc(MIB)
        on_card, on_host = 1 | 0 << 32, 2
        process.must("cuMemPrefetchAsync", managed, MIB, 0, 0)
        process.must("cuMemPrefetchAsync_v2", managed, MIB, on_card, 0, 0)
        process.must("cuMemAdvise_v2", managed, MIB, 3, on_host)
        process.must("cuMemAdvise", managed, MIB, 1, 0)
        assert process.cuda("cuMemPrefetchAsync", plain, MIB, 0, 0)[0] == INVALID_VALUE
        assert process.cuda("cuMemPrefetchAsync", managed, 3 * MIB, 0, 0)[0] == INVALID_VALUE


def test_a_linked_text_runs(machine: Machine) -> None:
    with machine.process().start() as process:
        linker = process.must("cuLinkCreate_v2", 0, None, None, out("u64"))
        process.must("cuLinkAddData_v2", linker, 1, SPIN, len(SPIN), "spin", 0, None, None)
        image, _ = process.must("cuLinkComplete", linker, out("u64"), out("u64"))
        module = process.must("cuModuleLoadData", out("u64"), image)
        process.must("cuLinkDestroy", linker)
        process.function = process.must("cuModuleGetFunction", out("u64"), module, "tenfold_spin")
        process.launch(1000)
        process.synchronize()
        assert machine.usage(process)["gpu_time_ns"] == 1_000_000


def test_libraries_and_kernels_launch(machine: Machine) -> None:
    with machine.process().start() as process:
        library = process.must("cuLibraryLoadData", out("u64"), SPIN, None, None, 0, None, None, 0)
        process.function = process.must("cuLibraryGetKernel", out("u64"), library, "tenfold_spin")
        process.launch(1000)
        process.function = process.must("cuKernelGetFunction", out("u64"), process.function)
        process.launch(1000)
        process.synchronize()
        assert machine.usage(process)["gpu_time_ns"] == 2_000_000
        assert process.cuda("cuLibraryGetKernel", out("u64"), library, "nothing")[0] == 500
        process.must("cuLibraryUnload", library)


def test_a_kernel_outlives_the_context_it_first_ran_in(machine: Machine) -> None:
    with machine.process().start() as process:
        library = process.must("cuLibraryLoadData", out("u64"), SPIN, None, None, 0, None, None, 0)
        process.function = process.must("cuLibraryGetKernel", out("u64"), library, "tenfold_spin")
        process.launch(1000)
        process.must("cuCtxDestroy_v2", process.context)
        process.must("cuCtxCreate_v2", out("u64"), 0, 0)
        process.launch(1000)
        process.synchronize()
        assert machine.usage(process)["launches"] == 2


def test_stream_attributes_are_kept_and_copied(machine: Machine) -> None:
    with machine.process().start() as process:
        first, second = (process.must("cuStreamCreate", out("u64"), 0) for _ in range(2))
        process.must("cuStreamSetAttribute", first, 3, ["in", "05" + "00" * 63])
        process.must("cuStreamCopyAttributes", second, first)
        assert process.must("cuStreamGetAttribute", second, 3, out("bytes:64"))[:2] == "05"


def test_batch_copies(machine: Machine) -> None:
    with machine.process().start() as process:
        stream = process.must("cuStreamCreate", out("u64"), 0)
        source, target = (process.must("cuMemAllocHost_v2", out("u64"), 64) for _ in range(2))
        process.must("cuMemsetD8_v2", source, 0x33, 64)
        words = [["pointers", [target]], ["pointers", [source]], ["pointers", [64]], 1, None, None, 0, stream]
        process.must("cuMemcpyBatchAsync_v2", *words)
        assert process.must("cuMemcpyDtoH_v2", out("bytes:2"), target, 2) == "3333"
        assert process.cuda("cuMemcpyBatchAsync_v2", *words[:-1], 0)[0] == 400


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
        assert process.cuda("cuModuleLoad", out("u64"), "/no/such/file.ptx")[0] == 301
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
