"""The card's books: what is asked for, what it takes, and that everything comes back."""

from __future__ import annotations

import pytest

from .bench import BLOCK, CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_VALUE, MIB, OUT_OF_MEMORY, Machine, out

GIB = 1 << 30


def test_a_fresh_card_is_all_free(machine: Machine) -> None:
    with machine.process().start() as process:
        assert process.info() == (81920 * MIB, 81920 * MIB)


def test_large_allocations_take_whole_blocks(machine: Machine) -> None:
    with machine.process().start() as process:
        process.alloc(MIB + 1)
        usage = machine.usage(process)
        assert (usage["requested_bytes"], usage["allocated_bytes"], usage["reserved_bytes"]) == (MIB + 1, BLOCK, BLOCK)


def test_small_allocations_share_a_block_and_the_last_one_gives_it_back(machine: Machine) -> None:
    with machine.process().start() as process:
        addresses = [process.alloc(1) for _ in range(4096)]
        usage = machine.usage(process)
        assert (usage["requested_bytes"], usage["allocated_bytes"], usage["reserved_bytes"]) == (4096, 4096 * 512, BLOCK)
        assert len(set(addresses)) == 4096 and all(address % 512 == 0 for address in addresses)
        for address in addresses:
            process.free(address)
        assert machine.usage(process)["reserved_bytes"] == 0


def test_the_whole_card_can_be_had_and_not_a_byte_more(machine: Machine) -> None:
    with machine.process().start() as process:
        address = process.alloc(81920 * MIB)
        assert process.info()[0] == 0
        assert process.cuda("cuMemAlloc_v2", out("u64"), 1)[0] == OUT_OF_MEMORY
        process.free(address)
        assert process.cuda("cuMemAlloc_v2", out("u64"), 81920 * MIB + 1)[0] == OUT_OF_MEMORY


def test_what_the_driver_keeps_is_in_nvml_total_and_not_in_cuda_total(bare_machine: Machine) -> None:
    machine = bare_machine.init(memory_reserved_mib=600)
    with machine.process().start() as process:
        assert process.info() == (81320 * MIB, 81320 * MIB)
        assert process.must("cuDeviceTotalMem_v2", out("u64"), 0) == 81320 * MIB
    assert machine.card()["total_bytes"] == 81920 * MIB


def test_sizes_that_overflow_are_out_of_memory(machine: Machine) -> None:
    with machine.process().start() as process:
        for size in (2**64 - 1, 2**64 - 512, 2**63):
            assert process.cuda("cuMemAlloc_v2", out("u64"), size)[0] == OUT_OF_MEMORY
        assert process.cuda("cuMemAllocPitch_v2", out("u64"), out("u64"), 2**63, 2**40, 4)[0] == OUT_OF_MEMORY


def test_nothing_is_freed_twice_and_null_is_free(machine: Machine) -> None:
    with machine.process().start() as process:
        address = process.alloc(GIB)
        process.free(address)
        process.free(0)
        assert process.cuda("cuMemFree_v2", address)[0] == INVALID_VALUE
        assert process.cuda("cuMemFree_v2", address + 512)[0] == INVALID_VALUE
        assert machine.card()["used_bytes"] == 0


def test_zero_bytes_and_missing_outputs_are_invalid(machine: Machine) -> None:
    with machine.process().start() as process:
        assert process.cuda("cuMemAlloc_v2", out("u64"), 0)[0] == INVALID_VALUE
        assert process.cuda("cuMemAlloc_v2", None, 512)[0] == INVALID_VALUE
        assert process.cuda("cuMemGetInfo_v2", None, None)[0] == 0


def test_pitch_rows_are_aligned_and_charged_as_aligned(machine: Machine) -> None:
    with machine.process().start() as process:
        _, pitch = process.must("cuMemAllocPitch_v2", out("u64"), out("u64"), 4, 8192, 4)
        usage = machine.usage(process)
        assert pitch == 512
        assert usage["requested_bytes"] == 512 * 8192 == usage["allocated_bytes"]


def test_managed_memory_is_charged_and_usable_by_the_host(machine: Machine) -> None:
    with machine.process().start() as process:
        address = process.must("cuMemAllocManaged", out("u64"), 4 * BLOCK, 1)
        assert machine.usage(process)["reserved_bytes"] == 4 * BLOCK
        process.must("cuMemsetD8_v2", address, 0x5A, 1024)
        target = process.must("cuMemAllocHost_v2", out("u64"), 4096)
        process.must("cuMemcpyDtoH_v2", target, address, 1024)
        assert process.must("cuMemcpyDtoH_v2", out("bytes:4"), target, 4) == "5a5a5a5a"
        process.free(address)
        assert machine.usage(process)["reserved_bytes"] == 0


def test_host_memory_is_never_charged(machine: Machine) -> None:
    with machine.process().start() as process:
        pages = process.must("cuMemHostAlloc", out("u64"), GIB, 0)
        assert machine.usage(process)["reserved_bytes"] == 0
        process.must("cuMemFreeHost", pages)
        assert process.cuda("cuMemFreeHost", pages)[0] == INVALID_VALUE


def test_a_context_takes_its_overhead_once_per_process_and_card(bare_machine: Machine) -> None:
    machine = bare_machine.init(context_bytes=420 * MIB)
    with machine.process().start() as process:
        second = process.must("cuCtxCreate_v2", out("u64"), 0, 0)
        assert machine.usage(process)["context_bytes"] == machine.card()["used_bytes"] == 420 * MIB
        process.must("cuCtxDestroy_v2", second)
        assert machine.card()["used_bytes"] == 420 * MIB
        process.must("cuCtxDestroy_v2", process.context)
        assert machine.card()["used_bytes"] == 0


def test_destroying_a_context_frees_its_memory_and_no_other(machine: Machine) -> None:
    with machine.process().start() as process:
        kept = process.alloc(BLOCK)
        other = process.must("cuCtxCreate_v2", out("u64"), 0, 0)
        for size in (100, 3 * BLOCK, MIB):
            process.alloc(size)
        process.must("cuCtxDestroy_v2", other)
        process.must("cuCtxSetCurrent", process.context)
        assert machine.usage(process)["reserved_bytes"] == BLOCK
        process.free(kept)


def test_calls_without_a_context_are_refused(machine: Machine) -> None:
    with machine.process() as process:
        assert process.cuda("cuMemAlloc_v2", out("u64"), 512)[0] == 3
        process.must("cuInit", 0)
        assert process.cuda("cuMemAlloc_v2", out("u64"), 512)[0] == INVALID_CONTEXT


def test_a_destroyed_primary_context_is_noticed(machine: Machine) -> None:
    with machine.process() as process:
        process.must("cuInit", 0)
        context = process.must("cuDevicePrimaryCtxRetain", out("u64"), 0)
        assert process.must("cuDevicePrimaryCtxGetState", 0, out("u32"), out("i32")) == [0, 1]
        process.must("cuCtxSetCurrent", context)
        process.alloc(BLOCK)
        process.must("cuDevicePrimaryCtxRelease_v2", 0)
        assert machine.card()["used_bytes"] == 0
        assert process.cuda("cuMemAlloc_v2", out("u64"), 512)[0] == CONTEXT_IS_DESTROYED


def test_a_reset_primary_context_works_again(machine: Machine) -> None:
    with machine.process() as process:
        process.must("cuInit", 0)
        process.must("cuCtxSetCurrent", process.must("cuDevicePrimaryCtxRetain", out("u64"), 0))
        process.alloc(BLOCK)
        process.must("cuDevicePrimaryCtxReset_v2", 0)
        assert machine.card()["used_bytes"] == 0
        process.alloc(BLOCK)
        assert machine.card()["used_bytes"] == BLOCK


def test_cards_keep_separate_books(machine: Machine) -> None:
    with machine.process().start(1) as process:
        process.alloc(BLOCK)
        assert machine.card(0)["used_bytes"] == 0
        assert machine.card(1)["used_bytes"] == BLOCK


@pytest.mark.parametrize("threads", [1, 4])
def test_random_operations_end_at_zero(machine: Machine, threads: int) -> None:
    with machine.process().start() as process:
        assert process.special("in_threads", threads, process.context, 7, 4000 // threads, 8 * MIB) > 1000
        usage = machine.usage(process)
        assert (usage["requested_bytes"], usage["allocated_bytes"], usage["reserved_bytes"]) == (0, 0, 0)
        assert machine.card()["used_bytes"] == 0


class TestPools:
    """Stream-ordered memory: a pool keeps what it reserved until it is trimmed."""

    POOL_STEP = 32 * MIB

    def test_a_pool_grows_in_steps(self, machine: Machine) -> None:
        with machine.process().start() as process:
            process.must("cuMemAllocAsync", out("u64"), 1000, 0)
            usage = machine.usage(process)
            assert (usage["requested_bytes"], usage["allocated_bytes"], usage["reserved_bytes"]) == (1000, 1024, self.POOL_STEP)

    def test_freed_memory_stays_reserved_until_synchronisation(self, machine: Machine) -> None:
        with machine.process().start() as process:
            address = process.must("cuMemAllocAsync", out("u64"), 5 * MIB, 0)
            process.must("cuMemFreeAsync", address, 0)
            assert machine.card()["used_bytes"] == self.POOL_STEP
            process.synchronize()
            assert machine.card()["used_bytes"] == 0

    def test_a_release_threshold_is_kept(self, machine: Machine) -> None:
        with machine.process().start() as process:
            pool = process.must("cuDeviceGetDefaultMemPool", out("u64"), 0)
            process.must("cuMemPoolSetAttribute", pool, 4, ["cell", 64 * MIB])
            address = process.must("cuMemAllocAsync", out("u64"), 200 * MIB, 0)
            process.must("cuMemFreeAsync", address, 0)
            process.synchronize()
            assert machine.card()["used_bytes"] == 64 * MIB
            process.must("cuMemPoolTrimTo", pool, 0)
            assert machine.card()["used_bytes"] == 0

    def test_attributes_tell_reserved_and_used(self, machine: Machine) -> None:
        with machine.process().start() as process:
            process.must("cuMemAllocAsync", out("u64"), 40 * MIB, 0)
            pool = process.must("cuDeviceGetDefaultMemPool", out("u64"), 0)
            assert [process.must("cuMemPoolGetAttribute", pool, attribute, out("u64")) for attribute in (5, 7)] == [64 * MIB, 40 * MIB]

    def test_a_destroyed_pool_outlives_its_handle_until_its_last_allocation(self, machine: Machine) -> None:
        properties = bytearray(88)
        properties[0] = 1  # pinned
        properties[8] = 1  # on a device, ordinal 0
        with machine.process().start() as process:
            pool = process.must("cuMemPoolCreate", out("u64"), ["in", properties.hex()])
            address = process.must("cuMemAllocFromPoolAsync", out("u64"), MIB, pool, 0)
            process.must("cuMemPoolDestroy", pool)
            assert machine.card()["used_bytes"] == self.POOL_STEP
            process.must("cuMemFreeAsync", address, 0)
            assert machine.card()["used_bytes"] == 0
            assert process.cuda("cuMemFreeAsync", address, 0)[0] == INVALID_VALUE
