"""The slot's files: the Python mirror agrees with the C header, and pages survive dead writers and hostile tenants."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import page_writer, region
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import RegionError
from hypothesis import given
from hypothesis import strategies as st

from tests import ROOT


@pytest.fixture(autouse=True, scope="module")
def writer(page_library: Path) -> Iterator[Path]:
    """Stands where the hook in force would be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_writer, "DEFAULT_LIBRARY", page_library)
        yield page_library


HEADER = ROOT / "files" / "hook" / "include"
UUID_A = "GPU-11111111-2222-3333-4444-555555555555"
UUID_B = "MIG-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"

# Python name of an offset or size -> the C expression it must equal.
LAYOUT = {
    "ABI_VERSION": (region.ABI_VERSION, "TENFOLD_ABI_VERSION"),
    "CONFIG_MAGIC": (region.CONFIG_MAGIC, "TENFOLD_CONFIG_MAGIC"),
    "STATE_MAGIC": (region.STATE_MAGIC, "TENFOLD_STATE_MAGIC"),
    "GPUS_MAX": (region.GPUS_MAX, "TENFOLD_GPUS_MAX"),
    "SLOTS_MAX": (region.SLOTS_MAX, "TENFOLD_SLOTS_MAX"),
    "UUID_CHARS": (region.UUID_CHARS, "TENFOLD_UUID_CHARS"),
    "BYTES_MASK": (region.BYTES_MASK, "TENFOLD_BYTES_MASK"),
    "CONFIG_BYTES": (region.CONFIG_BYTES, "TENFOLD_CONFIG_BYTES"),
    "STATE_BYTES": (region.STATE_BYTES, "sizeof(struct tenfold_state)"),
    "HEADER_BYTES": (region.HEADER_BYTES, "sizeof(struct tenfold_header)"),
    "HEADER.size": (region.HEADER.size, "sizeof(struct tenfold_header)"),
    "header.magic": (0, "offsetof(struct tenfold_header, magic)"),
    "header.abi_version": (8, "offsetof(struct tenfold_header, abi_version)"),
    "header.header_bytes": (12, "offsetof(struct tenfold_header, header_bytes)"),
    "header.file_bytes": (16, "offsetof(struct tenfold_header, file_bytes)"),
    "header.generation": (24, "offsetof(struct tenfold_header, generation)"),
    "header.active": (32, "offsetof(struct tenfold_header, active)"),
    "copy 0": (region.COPY_OFFSETS[0], "TENFOLD_CONFIG_COPY_OFFSET(0)"),
    "copy 1": (region.COPY_OFFSETS[1], "TENFOLD_CONFIG_COPY_OFFSET(1)"),
    "COPY_BYTES": (region.COPY_BYTES, "sizeof(struct tenfold_config_copy)"),
    "copy.checksum": (0, "offsetof(struct tenfold_config_copy, checksum)"),
    "copy.generation": (8, "offsetof(struct tenfold_config_copy, generation)"),
    "copy.gpu_count": (16, "offsetof(struct tenfold_config_copy, gpu_count)"),
    "copy.policy": (20, "offsetof(struct tenfold_config_copy, policy)"),
    "copy.view": (24, "offsetof(struct tenfold_config_copy, view)"),
    "copy.gpus": (region.COPY_HEAD.size, "offsetof(struct tenfold_config_copy, gpus)"),
    "GPU_CONFIG.size": (region.GPU_CONFIG.size, "sizeof(struct tenfold_gpu_config)"),
    "gpu.uuid": (0, "offsetof(struct tenfold_gpu_config, uuid)"),
    "gpu.memory_limit_bytes": (48, "offsetof(struct tenfold_gpu_config, memory_limit_bytes)"),
    "gpu.overhead_reserve_bytes": (56, "offsetof(struct tenfold_gpu_config, overhead_reserve_bytes)"),
    "gpu.core_limit_percent": (64, "offsetof(struct tenfold_gpu_config, core_limit_percent)"),
    "gpu.mode": (68, "offsetof(struct tenfold_gpu_config, mode)"),
    "gpu.priority": (72, "offsetof(struct tenfold_gpu_config, priority)"),
    "gpu.neighbours": (76, "offsetof(struct tenfold_gpu_config, neighbours)"),
    "gpu.pressure": (80, "offsetof(struct tenfold_gpu_config, pressure)"),
    "gpu.overhead": (84, "offsetof(struct tenfold_gpu_config, overhead)"),
    "overheads": (region.OVERHEADS.index("reserved"), "TENFOLD_OVERHEAD_RESERVED"),
    "priority mode": (region.MODES.index("priority"), "TENFOLD_MODE_PRIORITY"),
    "pressures": (region.PRESSURES.index("equal"), "TENFOLD_PRESSURE_EQUAL"),
    "higher": (region.PRESSURES.index("higher"), "TENFOLD_PRESSURE_HIGHER"),
    "BUSY_OFFSET": (region.BUSY_OFFSET, "TENFOLD_BUSY_OFFSET"),
    "BUSY_WINDOWS": (region.BUSY_WINDOWS, "TENFOLD_BUSY_WINDOWS"),
    "BUSY_WINDOW.size": (region.BUSY_WINDOW.size, "sizeof(struct tenfold_busy_window)"),
    "busy.checksum": (0, "offsetof(struct tenfold_busy_window, checksum)"),
    "busy.uuid": (8, "offsetof(struct tenfold_busy_window, uuid)"),
    "busy.from_ns": (24, "offsetof(struct tenfold_busy_window, from_ns)"),
    "busy.to_ns": (32, "offsetof(struct tenfold_busy_window, to_ns)"),
    "busy.busy_ns": (40, "offsetof(struct tenfold_busy_window, busy_ns)"),
    "GPU_STATE_STRIDE": (region.GPU_STATE_STRIDE, "sizeof(struct tenfold_gpu_state)"),
    "state.counters": (region.HEADER_BYTES, "offsetof(struct tenfold_state, slots_high_water)"),
    "state.open_fallbacks": (region.HEADER_BYTES + 8, "offsetof(struct tenfold_state, open_fallbacks)"),
    "state.unknown_entry_points": (region.HEADER_BYTES + 16, "offsetof(struct tenfold_state, unknown_entry_points)"),
    "state.reaped": (region.HEADER_BYTES + 24, "offsetof(struct tenfold_state, reaped)"),
    "STATE_GPUS_OFFSET": (region.STATE_GPUS_OFFSET, "offsetof(struct tenfold_state, gpus)"),
    "STATE_SLOTS_OFFSET": (region.STATE_SLOTS_OFFSET, "offsetof(struct tenfold_state, slots)"),
    "gpu_state.used": (48, "offsetof(struct tenfold_gpu_state, used)"),
    "gpu_state.gpu_time_us": (56, "offsetof(struct tenfold_gpu_state, gpu_time_us)"),
    "gpu_state.refusals": (64, "offsetof(struct tenfold_gpu_state, refusals)"),
    "gpu_state.probe": (72, "offsetof(struct tenfold_gpu_state, probe)"),
    "SLOT_STRIDE": (region.SLOT_STRIDE, "sizeof(struct tenfold_slot)"),
    "slot.identity": (0, "offsetof(struct tenfold_slot, identity)"),
    "slot.start_ticks": (8, "offsetof(struct tenfold_slot, start_ticks)"),
    "slot.pid_namespace": (16, "offsetof(struct tenfold_slot, pid_namespace)"),
    "slot.pid": (24, "offsetof(struct tenfold_slot, pid)"),
    "slot.driver_pid": (40, "offsetof(struct tenfold_slot, driver_pid)"),
    "SLOT_OVERHEAD_OFFSET": (region.SLOT_OVERHEAD_OFFSET, "offsetof(struct tenfold_slot, overhead_bytes)"),
    "SLOT_USED_OFFSET": (region.SLOT_USED_OFFSET, "offsetof(struct tenfold_slot, used)"),
    "modes": (region.MODES.index("off"), "TENFOLD_MODE_OFF"),
    "elastic": (region.MODES.index("elastic"), "TENFOLD_MODE_ELASTIC"),
    "open": (region.POLICIES.index("open"), "TENFOLD_POLICY_OPEN"),
    "view clocks": (1 << region.VIEWS.index("clocks"), "TENFOLD_VIEW_CLOCKS"),
    "view compute mode": (1 << region.VIEWS.index("compute_mode"), "TENFOLD_VIEW_COMPUTE_MODE"),
}


def quota(uuid: str = UUID_A, memory: int = 8 << 30, cores: int = 10, **rest: object) -> region.GpuQuota:
    return region.GpuQuota(uuid, memory, cores, **rest)  # type: ignore[arg-type]


@pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler on this machine")
def test_every_offset_equals_the_c_header(tmp_path: Path) -> None:
    lines = "\n".join(f'printf("%llu\\n", (unsigned long long)({expression}));' for _value, expression in LAYOUT.values())
    source = tmp_path / "layout.c"
    source.write_text(f'#include <stdio.h>\n#include "tenfold_region.h"\nint main(void) {{\n{lines}\nreturn 0;\n}}\n')
    compiler = shutil.which("gcc") or "cc"
    subprocess.run(
        [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{HEADER}", "-o", str(tmp_path / "layout"), str(source)], check=True
    )
    printed = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout.split()
    assert dict(zip(LAYOUT, map(int, printed))) == {name: value for name, (value, _expression) in LAYOUT.items()}


class TestCreating:
    def test_files_have_the_modes_and_sizes_that_the_container_needs(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path / "slot", [quota()])
        config, state = (tmp_path / "slot" / name for name in ("config", "state"))
        assert stat.S_IMODE(config.stat().st_mode) == 0o444
        assert stat.S_IMODE(state.stat().st_mode) == 0o666
        assert config.stat().st_size == region.CONFIG_BYTES
        assert state.stat().st_size == region.STATE_BYTES

    def test_every_block_is_allocated_so_that_a_full_tmpfs_is_no_bus_error(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota()])
        assert (tmp_path / "state").stat().st_blocks * 512 >= region.STATE_BYTES

    def test_a_fresh_state_names_its_cards_and_uses_nothing(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota(), quota(UUID_B)])
        state = region.read_state(tmp_path)
        assert [(gpu.uuid, gpu.used_bytes, gpu.gpu_time_us, gpu.processes) for gpu in state.gpus] == [(UUID_A, 0, 0, 0), (UUID_B, 0, 0, 0)]

    def test_creating_again_keeps_the_page_file_and_replaces_the_state(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota()])
        config_inode, state_inode = (tmp_path / "config").stat().st_ino, (tmp_path / "state").stat().st_ino
        page = region.create_slot(tmp_path, [quota(cores=30)])
        assert (tmp_path / "config").stat().st_ino == config_inode
        assert (tmp_path / "state").stat().st_ino != state_inode
        assert page.gpus[0].core_limit_percent == 30
        assert region.read_state(tmp_path).generation == 2

    def test_another_abi_is_refused_with_both_numbers(self, tmp_path: Path) -> None:
        with pytest.raises(RegionError, match="hook ABI 7 is not supported, expected 1"):
            region.create_slot(tmp_path, [quota()], 7)

    def test_a_failed_creation_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(RegionError, match="core_limit_percent"):
            region.create_slot(tmp_path / "slot", [quota(cores=101)])
        assert not (tmp_path / "slot").exists()


class TestThePage:
    @given(
        memory=st.integers(0, region.BYTES_MASK),
        cores=st.integers(0, 100),
        mode=st.sampled_from(region.MODES),
        priority=st.integers(-(2**31), 2**31 - 1),
        policy=st.sampled_from(region.POLICIES),
        view=st.sets(st.sampled_from(region.VIEWS)),
    )
    def test_what_is_written_is_read(
        self, tmp_path_factory: pytest.TempPathFactory, memory: int, cores: int, mode: str, priority: int, policy: str, view: set[str]
    ) -> None:
        folder = tmp_path_factory.mktemp("slot")
        told = quota(memory=memory, cores=cores, mode=mode, priority=priority, neighbours=3, pressure="lower", overhead="reserved")
        gpus = [told, quota(UUID_B)]
        region.create_slot(folder, gpus, policy=policy, view=sorted(view))
        page = region.read_config(folder)
        assert (page.gpus, page.policy, set(page.view), page.generation) == (gpus, policy, view, 1)

    def test_each_write_is_in_place_and_raises_the_generation(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota()])
        inode = (tmp_path / "config").stat().st_ino
        for number in range(2, 6):
            page = region.write_config(tmp_path, [quota(cores=number)])
            assert page.generation == number
        assert (tmp_path / "config").stat().st_ino == inode
        assert region.read_config(tmp_path).gpus[0].core_limit_percent == 5

    def test_a_damaged_active_copy_falls_back_to_the_other(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota(cores=10)])
        region.write_config(tmp_path, [quota(cores=20)])
        damage(tmp_path / "config", region.COPY_OFFSETS[1] + 70)
        assert region.read_config(tmp_path).gpus[0].core_limit_percent == 10

    def test_two_damaged_copies_are_an_error_not_a_guess(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota()])
        for offset in region.COPY_OFFSETS:
            damage(tmp_path / "config", offset + 70)
        with pytest.raises(RegionError, match="both copies"):
            region.read_config(tmp_path)

    def test_two_writers_never_interleave(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota()])
        children = []
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                for step in range(40):
                    region.write_config(tmp_path, [quota(cores=step)])
                os._exit(0)
            children.append(pid)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0]
        assert region.read_config(tmp_path).generation == 81

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (quota("GPU-1"), "card UUID is 'GPU-1'"),
            (quota(memory=-1), "memory_limit_bytes"),
            (quota(memory=1 << 42), "memory_limit_bytes"),
            (quota(mode="soft"), "mode of card"),
            (quota(cores=101), "core_limit_percent"),
            (quota(overhead="guessed"), "overhead of card .* is 'guessed', expected one of measured, reserved"),
        ],
    )
    def test_wrong_quotas_are_refused_by_name(self, tmp_path: Path, wrong: region.GpuQuota, message: str) -> None:
        region.create_slot(tmp_path, [quota()])
        before = (tmp_path / "config").read_bytes()
        with pytest.raises(RegionError, match=message):
            region.write_config(tmp_path, [wrong])
        assert (tmp_path / "config").read_bytes() == before

    def test_one_card_twice_and_too_many_cards_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(RegionError, match="appears twice"):
            region.create_slot(tmp_path, [quota(), quota()])
        many = [quota(f"GPU-{number:08x}-0000-0000-0000-000000000000") for number in range(17)]
        with pytest.raises(RegionError, match="at most 16 cards"):
            region.create_slot(tmp_path, many)


class TestChanging:
    def test_only_what_is_changed_changes(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota(cores=10), quota(UUID_B)], policy="open", view=("clocks",))
        page = region.change_config(tmp_path, lambda old: replace(old, gpus=[replace(old.gpus[0], pressure="equal"), old.gpus[1]]))
        assert page == region.read_config(tmp_path)
        assert page == region.SlotConfig(2, [quota(cores=10, pressure="equal"), quota(UUID_B)], "open", ("clocks",))

    def test_no_change_is_no_write(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota()])
        before = (tmp_path / "config").read_bytes()
        assert region.change_config(tmp_path, lambda old: old).generation == 1
        assert (tmp_path / "config").read_bytes() == before

    def test_a_write_in_between_is_not_lost(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota(cores=10)])
        asked = []

        def change(old: region.SlotConfig) -> region.SlotConfig:
            asked.append(old.gpus[0].core_limit_percent)
            if len(asked) == 1:
                region.write_config(tmp_path, [quota(cores=77)])
            return replace(old, gpus=[replace(old.gpus[0], neighbours=4)])

        assert region.change_config(tmp_path, change).gpus == [quota(cores=77, neighbours=4)]
        assert asked == [10, 77]

    def test_a_wrong_change_is_refused_and_changes_nothing(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota()])
        with pytest.raises(RegionError, match="pressure on card"):
            region.change_config(tmp_path, lambda old: replace(old, gpus=[quota(pressure="some")]))
        assert region.read_config(tmp_path).generation == 1

    def test_the_generation_alone_tells_of_a_write(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota()])
        assert region.read_generation(tmp_path) == 1
        region.write_config(tmp_path, [quota(cores=5)])
        assert region.read_generation(tmp_path) == 2
        with pytest.raises(RegionError, match="cannot open"):
            region.read_generation(tmp_path / "none")


class TestTheHostsWordOnGpuTime:
    A, B = region.BusyWindow(UUID_A, 10**18, 10**18 + 10**9, 3 * 10**8), region.BusyWindow(UUID_B, 5, 7, 2)

    @pytest.fixture
    def slot(self, tmp_path: Path) -> Path:
        region.create_slot(tmp_path / "slot", [quota(UUID_A), quota(UUID_B)])
        return tmp_path / "slot"

    def tell(self, slot: Path, *windows: region.BusyWindow) -> dict[str, str]:
        return region.tell_busy({str(slot): windows})

    def test_a_page_that_nobody_told_anything_tells_nothing(self, slot: Path) -> None:
        assert region.read_busy(slot) == {}

    def test_what_is_told_is_read_and_no_generation_changes(self, slot: Path) -> None:
        before = region.read_config(slot)
        assert self.tell(slot, self.A, self.B) == {}
        assert region.read_busy(slot) == {UUID_A: self.A, UUID_B: self.B}
        later = replace(self.A, from_ns=self.A.to_ns, to_ns=self.A.to_ns + 10**9, busy_ns=0)
        self.tell(slot, later)
        assert region.read_busy(slot) == {UUID_A: later, UUID_B: self.B}
        assert region.read_config(slot) == before

    def test_it_survives_new_pages_and_another_order_of_cards(self, slot: Path) -> None:
        self.tell(slot, self.A, self.B)
        region.write_config(slot, [quota(UUID_B), quota(UUID_A)])
        region.write_config(slot, [quota(UUID_B, cores=5), quota(UUID_A)])
        assert region.read_busy(slot) == {UUID_A: self.A, UUID_B: self.B}
        region.write_config(slot, [quota(UUID_B)])
        assert region.read_busy(slot) == {UUID_B: self.B}

    def test_of_two_entries_of_one_card_the_newest_counts(self, slot: Path) -> None:
        self.tell(slot, replace(self.A, from_ns=self.A.to_ns, to_ns=self.A.to_ns + 10**9))
        newest = region.read_busy(slot)[UUID_A]
        entry = (slot / "config").read_bytes()[region.BUSY_OFFSET :][: region.BUSY_WINDOW.size]
        self.tell(slot, self.A)
        with (slot / "config").open("r+b") as stream:
            os.pwrite(stream.fileno(), entry, region.BUSY_OFFSET + 9 * region.BUSY_WINDOW.size)
        assert region.read_busy(slot)[UUID_A] == newest

    @pytest.mark.parametrize("bit", [0, 63, 64, 191, 192, 256, 320, 511])
    def test_a_torn_entry_tells_nothing_and_the_next_word_mends_it(self, slot: Path, bit: int) -> None:
        self.tell(slot, self.A, self.B)
        with (slot / "config").open("r+b") as stream:
            offset = region.BUSY_OFFSET + bit // 8
            os.pwrite(stream.fileno(), bytes([os.pread(stream.fileno(), 1, offset)[0] ^ 1 << bit % 8]), offset)
        assert region.read_busy(slot) == {UUID_B: self.B}
        self.tell(slot, self.A)
        assert region.read_busy(slot) == {UUID_A: self.A, UUID_B: self.B}

    def test_cards_that_the_slot_had_once_make_room(self, slot: Path) -> None:
        for number in range(40):
            self.tell(slot, replace(self.A, uuid=f"GPU-{number:08x}-0000-0000-0000-000000000000", to_ns=self.A.to_ns + number))
        newest = replace(self.B, from_ns=2 * 10**18, to_ns=2 * 10**18 + 1, busy_ns=1)
        self.tell(slot, newest)
        assert region.read_busy(slot) == {UUID_B: newest}
        assert region.read_config(slot).gpus == [quota(UUID_A), quota(UUID_B)]

    @pytest.mark.parametrize("wrong", [{"to_ns": 10**18}, {"busy_ns": 10**9 + 1}])
    def test_a_window_that_makes_no_sense_is_refused(self, slot: Path, wrong: dict[str, int]) -> None:
        assert list(self.tell(slot, replace(self.A, **wrong))) == [str(slot)]  # type: ignore[arg-type]
        assert region.read_busy(slot) == {}

    def test_a_slot_that_is_gone_or_damaged_is_named_and_the_others_are_told(self, slot: Path, tmp_path: Path) -> None:
        damaged = tmp_path / "damaged"
        region.create_slot(damaged, [quota()])
        (damaged / "config").write_bytes(bytes(region.CONFIG_BYTES))
        problems = region.tell_busy({str(tmp_path / "gone"): [self.A], str(damaged): [self.A], str(slot): [self.A]})
        assert "No such file" in problems.pop(str(tmp_path / "gone"))
        assert "Protocol error" in problems.pop(str(damaged))
        assert problems == {}
        assert (damaged / "config").read_bytes() == bytes(region.CONFIG_BYTES)
        assert region.read_busy(slot) == {UUID_A: self.A}


class TestTheState:
    """The tenant can write anything into it; the host reports numbers or an error, and never maps it."""

    def test_used_bytes_come_without_the_tag(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota()])
        poke(tmp_path / "state", region.STATE_GPUS_OFFSET + 48, struct.pack("<QQQ", 5 << 42 | 1234, 77, 2))
        poke(tmp_path / "state", region.STATE_SLOTS_OFFSET + 3 * region.SLOT_STRIDE, struct.pack("<Q", 1 | 42 << 2))
        poke(tmp_path / "state", region.STATE_SLOTS_OFFSET + 3 * region.SLOT_STRIDE + region.SLOT_USED_OFFSET, struct.pack("<Q", 1234))
        state = region.read_state(tmp_path)
        assert state.gpus == [region.GpuState(UUID_A, 1234, 77, 1, 2)]
        assert state.processes == 1

    def test_a_process_that_holds_nothing_counts_on_the_only_card(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota()])
        attach(tmp_path, 0)
        attach(tmp_path, 1, used={0: 4096})
        state = region.read_state(tmp_path)
        assert (state.processes, state.gpus[0].processes) == (2, 2)

    def test_on_several_cards_a_process_counts_where_it_holds_memory(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota(), quota(UUID_B)])
        attach(tmp_path, 0)
        attach(tmp_path, 1, used={1: 4096})
        attach(tmp_path, 2, used={0: 1, 1: 1})
        state = region.read_state(tmp_path)
        assert (state.processes, [gpu.processes for gpu in state.gpus]) == (3, [1, 2])

    def test_a_dead_process_that_is_being_reaped_does_not_count(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota()])
        attach(tmp_path, 0, used={0: 4096}, reaped=True)
        assert region.read_state(tmp_path).processes == 0

    def test_gpu_times_are_the_states(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota(), quota(UUID_B)])
        poke(tmp_path / "state", region.STATE_GPUS_OFFSET + region.GPU_STATE_STRIDE + 56, struct.pack("<Q", 123456))
        assert region.read_gpu_times_us(tmp_path) == {UUID_A: 0, UUID_B: 123456}
        poke(tmp_path / "state", 0, b"?")
        with pytest.raises(RegionError, match="is no file of a slot"):
            region.read_gpu_times_us(tmp_path)

    def test_overhead_is_the_sum_over_processes_that_hold_a_slot(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path, [quota()])
        for index, (identity, overhead) in enumerate([(1 | 42 << 2, 300), (0, 7000), (1 | 43 << 2, 5 << 42 | 21)]):
            offset = region.STATE_SLOTS_OFFSET + index * region.SLOT_STRIDE
            poke(tmp_path / "state", offset, struct.pack("<Q", identity))
            poke(tmp_path / "state", offset + region.SLOT_OVERHEAD_OFFSET, struct.pack("<Q", overhead))
        assert region.read_state(tmp_path).overhead_bytes == 321

    @pytest.mark.parametrize("size", [0, 63, region.STATE_BYTES - 1, region.STATE_BYTES + 1])
    def test_a_file_of_another_size_is_an_error(self, tmp_path: Path, size: int) -> None:
        region.create_slot(tmp_path, [quota()])
        os.truncate(tmp_path / "state", size)
        with pytest.raises(RegionError, match="bytes, expected"):
            region.read_state(tmp_path)

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        region.create_slot(tmp_path / "a", [quota()])
        region.create_slot(tmp_path / "b", [quota()])
        (tmp_path / "b" / "state").unlink()
        (tmp_path / "b" / "state").symlink_to(tmp_path / "a" / "state")
        with pytest.raises(RegionError, match="cannot open"):
            region.read_state(tmp_path / "b")

    def test_a_pipe_does_not_block(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "state")
        with pytest.raises(RegionError, match="no regular file"):
            region.read_state(tmp_path)

    @given(data=st.binary(min_size=64, max_size=400), offset=st.integers(0, region.STATE_BYTES - 400))
    def test_any_bytes_give_numbers_or_a_region_error(self, tmp_path_factory: pytest.TempPathFactory, data: bytes, offset: int) -> None:
        folder = tmp_path_factory.mktemp("slot")
        region.create_slot(folder, [quota()])
        poke(folder / "state", offset, data)
        try:
            state = region.read_state(folder)
        except RegionError:
            return
        assert all(0 <= gpu.used_bytes <= region.BYTES_MASK and 0 <= gpu.processes <= region.SLOTS_MAX for gpu in state.gpus)


def attach(folder: Path, number: int, used: dict[int, int] | None = None, reaped: bool = False) -> None:
    """Slot ``number`` of the state belongs to a process with these bytes by card index."""
    offset = region.STATE_SLOTS_OFFSET + number * region.SLOT_STRIDE
    poke(folder / "state", offset, struct.pack("<Q", (2 if reaped else 1) | (1000 + number) << 2))
    for index, size_bytes in (used or {}).items():
        poke(folder / "state", offset + region.SLOT_USED_OFFSET + 8 * index, struct.pack("<Q", size_bytes))


def damage(path: Path, offset: int) -> None:
    byte = path.read_bytes()[offset]
    poke(path, offset, bytes([byte ^ 0xFF]))


def poke(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR)
    os.pwrite(descriptor, data, offset)
    os.close(descriptor)
