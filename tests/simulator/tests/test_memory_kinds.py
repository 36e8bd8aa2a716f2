"""Memory that is more than an address: physical handles and mappings, arrays, shared and external memory."""

from __future__ import annotations

import struct

import pytest

from .bench import BLOCK, INVALID_HANDLE, INVALID_VALUE, MIB, NOT_SUPPORTED, OUT_OF_MEMORY, Machine, Process, out


def properties(device: int = 0, *, location: int = 1, handle_types: int = 0) -> list[str]:
    return ["in", struct.pack("<iiiiQBBHI", 1, handle_types, location, device, 0, 0, 0, 0, 0).hex()]


def array(width: int, height: int, depth: int | None = None, *, kind: int = 0x20, channels: int = 1, flags: int = 0) -> list[str]:
    if depth is None:
        return ["in", struct.pack("<QQII", width, height, kind, channels).hex()]
    return ["in", struct.pack("<QQQIII4x", width, height, depth, kind, channels, flags).hex()]


class TestPhysicalMemory:
    def create(self, process: Process, size: int = 4 * BLOCK, **options: int) -> int:
        handle: int = process.must("cuMemCreate", out("u64"), size, properties(**options), 0)
        return handle

    def reserve(self, process: Process, size: int = 16 * BLOCK) -> int:
        address: int = process.must("cuMemAddressReserve", out("u64"), size, 0, 0, 0)
        return address

    def test_a_handle_takes_memory_and_a_range_takes_none(self, machine: Machine) -> None:
        with machine.process().start() as process:
            self.reserve(process)
            assert machine.card()["used_bytes"] == 0
            self.create(process)
            usage = machine.usage(process)
            assert (usage["requested_bytes"], usage["allocated_bytes"], usage["reserved_bytes"]) == (4 * BLOCK,) * 3

    def test_sizes_are_multiples_of_the_granularity(self, machine: Machine) -> None:
        with machine.process().start() as process:
            assert process.must("cuMemGetAllocationGranularity", out("u64"), properties(), 0) == BLOCK
            assert process.cuda("cuMemCreate", out("u64"), BLOCK + 512, properties(), 0)[0] == INVALID_VALUE

    def test_memory_goes_with_the_last_holder_whichever_it_is(self, machine: Machine) -> None:
        with machine.process().start() as process:
            for release_first in (True, False):
                handle, address = self.create(process), self.reserve(process)
                process.must("cuMemMap", address, 4 * BLOCK, 0, handle, 0)
                last = [("cuMemRelease", [handle]), ("cuMemUnmap", [address, 4 * BLOCK])]
                for symbol, words in last if release_first else reversed(last):
                    assert machine.card()["used_bytes"] == 4 * BLOCK
                    process.must(symbol, *words)
                assert machine.card()["used_bytes"] == 0
                process.must("cuMemAddressFree", address, 16 * BLOCK)

    def test_a_retained_handle_counts(self, machine: Machine) -> None:
        with machine.process().start() as process:
            handle, address = self.create(process), self.reserve(process)
            process.must("cuMemMap", address, 4 * BLOCK, 0, handle, 0)
            again = process.must("cuMemRetainAllocationHandle", out("u64"), address + 512)
            assert again == handle
            process.must("cuMemRelease", handle)
            process.must("cuMemUnmap", address, 4 * BLOCK)
            assert machine.card()["used_bytes"] == 4 * BLOCK
            process.must("cuMemRelease", again)
            assert machine.card()["used_bytes"] == 0
            assert process.cuda("cuMemRelease", again)[0] == INVALID_VALUE

    def test_two_mappings_of_one_handle_are_charged_once(self, machine: Machine) -> None:
        with machine.process().start() as process:
            handle, address = self.create(process), self.reserve(process)
            process.must("cuMemMap", address, 4 * BLOCK, 0, handle, 0)
            process.must("cuMemMap", address + 4 * BLOCK, 4 * BLOCK, 0, handle, 0)
            process.must("cuMemRelease", handle)
            assert machine.card()["used_bytes"] == 4 * BLOCK
            process.must("cuMemUnmap", address, 8 * BLOCK)
            assert machine.card()["used_bytes"] == 0

    def test_mappings_need_a_free_reserved_range(self, machine: Machine) -> None:
        with machine.process().start() as process:
            handle, address = self.create(process), self.reserve(process)
            assert process.cuda("cuMemMap", address + 13 * BLOCK, 4 * BLOCK, 0, handle, 0)[0] == INVALID_VALUE
            process.must("cuMemMap", address, 4 * BLOCK, 0, handle, 0)
            assert process.cuda("cuMemMap", address + 2 * BLOCK, 4 * BLOCK, 0, handle, 0)[0] == INVALID_VALUE
            assert process.cuda("cuMemAddressFree", address, 16 * BLOCK)[0] == INVALID_VALUE
            assert process.cuda("cuMemUnmap", address + BLOCK, BLOCK)[0] == INVALID_VALUE
            assert process.cuda("cuMemFree_v2", address)[0] == INVALID_VALUE

    def test_memory_of_the_device_asked_for_not_of_the_current_context(self, machine: Machine) -> None:
        with machine.process().start(0) as process:
            self.create(process, device=1)
            assert [machine.card(index)["used_bytes"] for index in (0, 1)] == [0, 4 * BLOCK]

    def test_host_locations_take_no_card_memory(self, machine: Machine) -> None:
        with machine.process().start() as process:
            self.create(process, location=2)
            assert machine.card()["used_bytes"] == 0

    def test_more_than_the_card_is_out_of_memory(self, machine: Machine) -> None:
        with machine.process().start() as process:
            assert process.cuda("cuMemCreate", out("u64"), 81922 * MIB, properties(), 0)[0] == OUT_OF_MEMORY

    def test_an_imported_handle_is_charged_to_its_exporter(self, machine: Machine) -> None:
        with machine.process().start() as process:
            handle = self.create(process, handle_types=1)
            descriptor = process.must("cuMemExportToShareableHandle", out("i32"), handle, 1, 0)
            imported = process.must("cuMemImportFromShareableHandle", out("u64"), descriptor, 1)
            assert imported != handle
            assert machine.card()["used_bytes"] == 4 * BLOCK
            process.must("cuMemRelease", imported)
            assert machine.card()["used_bytes"] == 4 * BLOCK
            process.must("cuMemRelease", handle)
            assert machine.card()["used_bytes"] == 0

    def test_fabric_handles_are_not_supported(self, machine: Machine) -> None:
        with machine.process().start() as process:
            assert process.cuda("cuMemCreate", out("u64"), BLOCK, properties(handle_types=8), 0)[0] == NOT_SUPPORTED


class TestArrays:
    def test_an_array_takes_what_its_requirements_say(self, machine: Machine) -> None:
        with machine.process().start() as process:
            handle = process.must("cuArrayCreate_v2", out("u64"), array(1024, 1024))
            size = struct.unpack("<QQ", bytes.fromhex(process.must("cuArrayGetMemoryRequirements", out("bytes:32"), handle, 0))[:16])[0]
            assert machine.usage(process)["allocated_bytes"] == size == 4 * MIB
            process.must("cuArrayDestroy", handle)
            assert machine.card()["used_bytes"] == 0
            assert process.cuda("cuArrayDestroy", handle)[0] == INVALID_HANDLE

    @pytest.mark.parametrize(("kind", "channels", "element_bytes"), [(1, 1, 1), (0x10, 2, 4), (0x20, 4, 16)])
    def test_formats_and_channels(self, machine: Machine, kind: int, channels: int, element_bytes: int) -> None:
        with machine.process().start() as process:
            process.must("cuArray3DCreate_v2", out("u64"), array(256, 256, 64, kind=kind, channels=channels))
            assert machine.usage(process)["requested_bytes"] == 256 * 256 * 64 * element_bytes

    def test_an_array_that_does_not_fit_is_out_of_memory(self, machine: Machine) -> None:
        with machine.process().start() as process:
            assert process.cuda("cuArray3DCreate_v2", out("u64"), array(131072, 65536, 16))[0] == OUT_OF_MEMORY

    def test_sparse_arrays_take_nothing(self, machine: Machine) -> None:
        with machine.process().start() as process:
            process.must("cuArray3DCreate_v2", out("u64"), array(1024, 1024, 4, flags=0x40))
            assert machine.card()["used_bytes"] == 0

    def test_a_mipmap_takes_the_sum_of_its_levels(self, machine: Machine) -> None:
        with machine.process().start() as process:
            handle = process.must("cuMipmappedArrayCreate", out("u64"), array(1024, 1024, 0), 3)
            assert machine.usage(process)["requested_bytes"] == 4 * (1024**2 + 512**2 + 256**2)
            assert process.cuda("cuArrayDestroy", handle)[0] == INVALID_HANDLE
            process.must("cuMipmappedArrayDestroy", handle)
            assert machine.card()["used_bytes"] == 0

    def test_bad_descriptors_are_invalid(self, machine: Machine) -> None:
        with machine.process().start() as process:
            for bad in (array(0, 4), array(4, 4, kind=0x77), array(4, 4, channels=3)):
                assert process.cuda("cuArrayCreate_v2", out("u64"), bad)[0] == INVALID_VALUE


class TestSharedMemory:
    def test_opened_memory_is_charged_to_its_maker_alone(self, machine: Machine) -> None:
        with machine.process().start() as maker, machine.process().start() as user:
            address = maker.alloc(4 * BLOCK)
            handle = ["struct", maker.must("cuIpcGetMemHandle", out("bytes:64"), address)]
            first = user.must("cuIpcOpenMemHandle_v2", out("u64"), handle, 1)
            assert user.must("cuIpcOpenMemHandle_v2", out("u64"), handle, 1) == first
            assert machine.usage(user)["reserved_bytes"] == 0
            assert machine.card()["used_bytes"] == 4 * BLOCK
            assert user.cuda("cuMemFree_v2", first)[0] == INVALID_VALUE
            user.must("cuIpcCloseMemHandle", first)
            user.must("cuIpcCloseMemHandle", first)
            assert user.cuda("cuIpcCloseMemHandle", first)[0] == INVALID_VALUE

    def test_a_handle_is_void_in_its_own_process_and_after_its_makers_death(self, machine: Machine) -> None:
        with machine.process().start() as maker, machine.process().start() as user:
            handle = ["struct", maker.must("cuIpcGetMemHandle", out("bytes:64"), maker.alloc(BLOCK))]
            assert maker.cuda("cuIpcOpenMemHandle_v2", out("u64"), handle, 1)[0] == 201
            maker.kill()
            assert user.cuda("cuIpcOpenMemHandle_v2", out("u64"), handle, 1)[0] == INVALID_HANDLE

    def test_external_memory_is_charged_to_nobody(self, machine: Machine) -> None:
        with machine.process().start() as process:
            memory = process.must("cuImportExternalMemory", out("u64"), ["in", struct.pack("<i4xi12xQI68x", 1, 5, 1 << 30, 0).hex()])
            buffer = ["in", struct.pack("<QQI68x", 0, 1 << 20, 0).hex()]
            address = process.must("cuExternalMemoryGetMappedBuffer", out("u64"), memory, buffer)
            assert machine.card()["used_bytes"] == 0
            process.free(address)
            process.must("cuDestroyExternalMemory", memory)
