"""What slots are told of their GPU time: readings of a fake NVML, processes of a made-up /proc, pages in real slot folders."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tenfold_device_plugin._domain import page_writer, region
from tenfold_device_plugin._domain.gpu_time import Sample
from tenfold_device_plugin.gpu_times import AWAKE_SECONDS, BLIND_ROUNDS, ROUND_SECONDS, GpuTimes
from tenfold_device_plugin.pages import Pages
from tenfold_device_plugin.processes import Processes
from tests.unit.device_plugin.bench import CARD_A, CARD_B, FakeCards, ManualClock

DEVICE = "0:77"
LAG_SECONDS = 0.125


class FakeNvml(FakeCards):
    """Each process has used a share of the card since the last reading; what it is asked for is kept."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.percent: dict[str, dict[int, int]] = {}
        self.asked: list[tuple[str, int]] = []
        self.supported = True

    def samples(self, uuid: str, since_us: int) -> list[Sample] | None:
        self.asked.append((uuid, since_us))
        at_us = int((self.clock.now().timestamp() - LAG_SECONDS) * 1e6)
        return [Sample(pid, at_us, percent) for pid, percent in self.percent.get(uuid, {}).items()] if self.supported else None


class Node:
    """Slots, processes, and a round of the plugin twice a second."""

    def __init__(self, folder: Path, page_library: Path) -> None:
        hook = folder / "hook" / "0.1.0-11111111"
        hook.mkdir(parents=True)
        for name in ("libtenfold.so", "ld.so.preload"):
            (hook / name).touch()
        self.library = hook / page_writer.LIBRARY
        shutil.copy(page_library, self.library)
        (folder / "hook" / "current").symlink_to(hook.name)
        self.clock = ManualClock()
        self.nvml = FakeNvml(self.clock)
        self.pages = Pages(folder / "slots", folder / "hook")
        self.proc = folder / "proc"
        self.slots: list[str] = []
        self._process("self", 1, f"30 1 {DEVICE} / {folder} rw - tmpfs tmpfs rw\n", "node")
        self._process("1", 1, "", "node")
        self.times = self.fresh()

    def fresh(self) -> GpuTimes:
        """As after a restart of the plugin."""
        return GpuTimes(self.pages, self.clock, self.nvml, Processes(self.proc))

    def slot(self, letter: str, cores: int = 30, mode: str = "hard", cards: Sequence[str] = (CARD_A,)) -> str:
        name = letter * 32
        quotas = [region.GpuQuota(card, 8 << 30, cores, mode) for card in cards]
        region.create_slot(self.pages.folder(name), quotas, library=self.library)
        self.slots.append(name)
        return name

    def process(self, pid: int, slot: str | None, started: int = 500, namespace: str = "its own") -> None:
        """In a slot's container, or (None) without the mounts of any."""
        mounts = "700 600 0:90 / / rw - overlay overlay rw\n"
        if slot:
            mounts += f"711 700 {DEVICE} /slots/{slot}/config /run/tenfold/config ro - tmpfs tmpfs rw\n"
        self._process(str(pid), started, mounts, namespace)

    def _process(self, pid: str, started: int, mounts: str, namespace: str) -> None:
        folder = self.proc / pid
        (folder / "ns").mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(f"{pid} (a) ) b) S " + " ".join(["0"] * 18) + f" {started} 0 0\n")
        (folder / "mountinfo").write_text(mounts)
        (folder / "ns" / "mnt").unlink(missing_ok=True)
        (folder / "ns" / "mnt").symlink_to(namespace)

    def end(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))

    def work(self, card: str = CARD_A, **percent: int) -> None:
        """work(p7=30): pid 7 has used 30 % since the last reading."""
        self.nvml.percent[card] = {int(name[1:]): share for name, share in percent.items()}

    def claim(self, *slots: str) -> None:
        for slot in slots:
            with open(self.pages.folder(slot) / "state", "r+b") as stream:
                offset = region.STATE_GPUS_OFFSET + 56
                (before,) = struct.unpack("<Q", os.pread(stream.fileno(), 8, offset))
                os.pwrite(stream.fileno(), struct.pack("<Q", before + 1000), offset)

    def round(self, *claiming: str, seconds: float = ROUND_SECONDS) -> dict[str, list[region.BusyWindow]]:
        self.clock.advance(seconds)
        self.claim(*claiming)
        return self.times.tell(self.slots)

    def rounds(self, count: int, claiming: Iterable[str]) -> dict[str, list[region.BusyWindow]]:
        told: dict[str, list[region.BusyWindow]] = {}
        for _ in range(count):
            told = self.round(*claiming)
        return told

    def share(self, slot: str, card: str = CARD_A) -> float | None:
        """Percent of the window that the page tells of; None: nothing."""
        window = region.read_busy(self.pages.folder(slot)).get(card)
        return round(100 * window.busy_ns / (window.to_ns - window.from_ns), 3) if window else None


@pytest.fixture
def node(tmp_path: Path, page_library: Path) -> Node:
    return Node(tmp_path, page_library)


class TestTelling:
    def test_each_slot_is_told_its_own_between_two_readings(self, node: Node) -> None:
        one, two = node.slot("1"), node.slot("2", cores=60)
        node.process(11, one)
        node.process(12, one)
        node.process(21, two)
        node.work(p11=10, p12=19, p21=59)
        assert node.round(one, two) == {}  # where the first window begins
        generations = [region.read_config(node.pages.folder(slot)).generation for slot in (one, two)]
        assert sorted(node.round(one, two)) == [one, two]
        assert (node.share(one), node.share(two)) == (30.0, 59.5)
        window = region.read_busy(node.pages.folder(one))[CARD_A]
        now_ns = int(node.clock.monotonic() * 1e9)
        assert window.to_ns == pytest.approx(now_ns - LAG_SECONDS * 1e9, abs=1e4)
        assert window.to_ns - window.from_ns == pytest.approx(ROUND_SECONDS * 1e9, abs=1e4)
        assert [region.read_config(node.pages.folder(slot)).generation for slot in (one, two)] == generations

    def test_windows_join_and_each_is_asked_from_the_last_ones_end_on(self, node: Node) -> None:
        one = node.slot("1")
        node.process(11, one)
        node.work(p11=30)
        ends = [node.rounds(2, [one])[one][0], node.round(one)[one][0], node.round(one)[one][0]]
        assert [later.from_ns for later in ends[1:]] == [earlier.to_ns for earlier in ends[:-1]]
        assert [since_us for _uuid, since_us in node.nvml.asked][:1] == [0]
        last_us = int((node.clock.now().timestamp() - LAG_SECONDS - ROUND_SECONDS) * 1e6)
        assert node.nvml.asked[-1][1] == pytest.approx(last_us + 1000, abs=2)

    def test_one_that_did_nothing_is_told_so(self, node: Node) -> None:
        one, two = node.slot("1"), node.slot("2")
        node.process(21, two)
        node.work(p21=40)
        node.rounds(2, [two])
        assert (node.share(one), node.share(two)) == (0.0, 40.5)

    def test_a_slot_of_two_cards_is_told_of_both(self, node: Node) -> None:
        both = node.slot("1", cards=(CARD_A, CARD_B))
        node.process(11, both)
        node.work(p11=20)
        node.work(CARD_B, p11=50)
        for number in range(3):
            with open(node.pages.folder(both) / "state", "r+b") as stream:
                os.pwrite(stream.fileno(), struct.pack("<Q", number + 1), region.STATE_GPUS_OFFSET + region.GPU_STATE_STRIDE + 56)
            node.round(both)
        assert (node.share(both, CARD_A), node.share(both, CARD_B)) == (20.5, 50.5)

    def test_short_readings_are_joined_until_they_make_a_window(self, node: Node) -> None:
        one = node.slot("1")
        node.process(11, one)
        node.work(p11=30)
        node.round(one)
        assert node.round(one, seconds=0.2) == {}
        assert node.round(one, seconds=0.2) == {}
        [window] = node.round(one, seconds=0.2)[one]
        assert window.to_ns - window.from_ns == pytest.approx(6e8, abs=1e4)

    def test_a_window_longer_than_hooks_remember_only_begins_the_next(self, node: Node) -> None:
        one = node.slot("1")
        node.process(11, one)
        node.work(p11=30)
        node.rounds(2, [one])
        assert node.round(one, seconds=3) == {}
        assert list(node.round(one)) == [one]

    def test_a_wall_clock_that_was_set_spoils_one_window(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        one = node.slot("1")
        node.process(11, one)
        node.work(p11=30)
        node.rounds(2, [one])
        real = ManualClock.now
        monkeypatch.setattr(ManualClock, "now", lambda clock: real(clock).replace(year=real(clock).year + 1))
        assert node.round(one) == {}
        assert list(node.round(one)) == [one]


class TestCardsThatAreNotAsked:
    def test_where_no_slot_has_a_core_limit(self, node: Node) -> None:
        for letter, cores, mode in (("1", 0, "hard"), ("2", 100, "hard"), ("3", 30, "off")):
            slot = node.slot(letter, cores, mode)
            node.process(int(letter), slot)
        node.work(p1=20, p2=20, p3=20)
        node.rounds(3, node.slots)
        assert node.nvml.asked == []

    def test_one_without_a_limit_beside_one_with_it_is_seen_and_not_told(self, node: Node) -> None:
        limited, free = node.slot("1"), node.slot("2", 100)
        node.process(11, limited)
        node.process(21, free)
        node.work(p11=30, p21=60)
        assert list(node.rounds(2, node.slots)) == [limited]
        assert node.share(free) is None
        assert node.times.busy_seconds() == {
            (limited, CARD_A): pytest.approx(0.305 * ROUND_SECONDS),
            (free, CARD_A): pytest.approx(0.605 * ROUND_SECONDS),
        }

    def test_while_nobody_works_and_again_when_somebody_does(self, node: Node) -> None:
        one = node.slot("1")
        node.process(11, one)
        node.rounds(3, [])
        assert node.nvml.asked == []
        node.work(p11=30)
        node.rounds(2, [one])
        for _ in range(round(AWAKE_SECONDS / ROUND_SECONDS) - 1):  # one kernel of many seconds: no claim grows
            assert list(node.round()) == [one]
        node.round()
        asked = len(node.nvml.asked)
        node.rounds(3, [])
        assert len(node.nvml.asked) == asked
        assert node.round(one) == {}  # where a window begins anew
        assert list(node.round(one)) == [one]

    def test_that_tell_nothing_leave_the_hooks_to_themselves(self, node: Node) -> None:
        one = node.slot("1")
        node.process(11, one)
        node.nvml.supported = False
        node.rounds(4, [one])
        assert node.share(one) is None

    def test_that_see_nobody_work_tell_nothing(self, node: Node) -> None:
        """A slot that works, and believes a card that says 0 % of everybody for ever, would have no limit."""
        one = node.slot("1")
        node.process(11, one)
        node.work(p11=0)
        node.rounds(4, [one])
        assert node.share(one) is None
        node.work(p11=30)
        node.round(one)
        assert node.share(one) == 30.5


class TestWhoseProcesses:
    def test_it_is_looked_up_once_in_a_process_life(self, node: Node) -> None:
        one = node.slot("1")
        node.process(11, one)
        node.work(p11=30)
        node.rounds(2, [one])
        (node.proc / "11" / "mountinfo").write_text("")  # it has left its mounts behind: it stays what it was
        node.rounds(2, [one])
        assert node.share(one) == 30.5

    def test_of_one_that_has_just_ended_it_is_still_known(self, node: Node) -> None:
        one, two = node.slot("1"), node.slot("2")
        node.process(11, one)
        node.process(21, two)
        node.work(p11=30, p21=20)
        node.rounds(2, node.slots)
        node.end(11)
        node.round(one, two)
        assert (node.share(one), node.share(two)) == (30.5, 20.5)

    def test_another_process_with_the_pid_of_a_dead_one_is_another(self, node: Node) -> None:
        one, two = node.slot("1"), node.slot("2")
        node.process(11, one)
        node.work(p11=30)
        node.rounds(2, node.slots)
        node.process(11, two, started=900)
        node.rounds(2, node.slots)
        assert (node.share(one), node.share(two)) == (0.0, 30.5)

    def test_time_of_a_hidden_process_counts_for_every_slot(self, node: Node) -> None:
        """A tenant that takes a process out of its mounts does not lower what it is charged, and raises its neighbours' at worst to all."""
        one, two = node.slot("1"), node.slot("2")
        node.process(11, one)
        node.process(12, None)
        node.process(21, two)
        node.work(p11=10, p12=30, p21=20)
        node.rounds(2, node.slots)
        assert (node.share(one), node.share(two)) == (41.0, 51.0)
        assert node.times.busy_seconds()[one, CARD_A] == pytest.approx(0.105 * ROUND_SECONDS)

    def test_time_of_the_nodes_own_processes_counts_for_nobody(self, node: Node) -> None:
        one = node.slot("1")
        node.process(11, one)
        node.process(99, None, namespace="node")
        node.work(p11=10, p99=30)
        node.rounds(2, [one])
        assert node.share(one) == 10.5

    def test_a_forged_mount_names_nobody(self, node: Node) -> None:
        one, two = node.slot("1"), node.slot("2")
        node.process(11, one)
        forged = (node.proc / "11" / "mountinfo").read_text().replace(DEVICE, "0:99").replace(one, two)
        (node.proc / "11" / "mountinfo").write_text(forged)
        node.process(21, two)
        node.work(p11=30, p21=20)
        node.rounds(2, node.slots)
        assert (node.share(one), node.share(two)) == (30.5, 51.0)

    def test_without_the_nodes_own_proc_nothing_is_told_and_that_is_said_once(self, node: Node, caplog: pytest.LogCaptureFixture) -> None:
        one = node.slot("1")
        node.work(p11=30)  # a pid of the node, which is nobody here
        with caplog.at_level("WARNING"):
            node.rounds(3 * BLIND_ROUNDS, [one])
        assert node.share(one) is None
        assert caplog.text.count("hostPID") == 1


class TestBadDays:
    def test_a_slot_that_goes_meanwhile_is_no_harm_to_the_others(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        one, two = node.slot("1"), node.slot("2")
        node.process(21, two)
        node.work(p21=20)
        node.rounds(2, node.slots)
        real = region.tell_busy

        def gone_first(*arguments: object, **options: object) -> dict[str, str]:
            shutil.rmtree(node.pages.folder(one))
            return real(*arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(region, "tell_busy", gone_first)
        assert list(node.round(two)) == [two]

    def test_states_and_pages_that_are_damaged_claim_nothing(self, node: Node) -> None:
        one, two = node.slot("1"), node.slot("2")
        node.process(21, two)
        node.work(p21=20)
        (node.pages.folder(one) / "state").write_bytes(b"")
        assert list(node.rounds(2, [two])) == [one, two]
        (node.pages.folder(one) / "config").write_bytes(b"")
        assert list(node.round(two)) == [two]

    def test_without_a_hook_nothing_is_done(self, node: Node) -> None:
        one = node.slot("1")
        node.library.unlink()
        node.rounds(2, [one])
        assert node.nvml.asked == []

    def test_what_was_seen_ends_with_its_slot(self, node: Node) -> None:
        one = node.slot("1")
        node.process(11, one)
        node.work(p11=30)
        node.rounds(3, [one])
        assert list(node.times.busy_seconds()) == [(one, CARD_A)]
        node.slots.clear()
        node.round()
        assert node.times.busy_seconds() == {}

    def test_a_changed_limit_counts_at_once(self, node: Node) -> None:
        one = node.slot("1", cores=100)
        node.process(11, one)
        node.work(p11=30)
        assert node.rounds(3, [one]) == {}
        folder = node.pages.folder(one)
        region.change_config(folder, lambda page: replace(page, gpus=[replace(page.gpus[0], core_limit_percent=30)]), library=node.library)
        assert list(node.rounds(2, [one])) == [one]


class TestProc:
    def test_this_process_is_read_as_the_kernel_shows_it(self) -> None:
        processes = Processes()
        started = processes.started_ticks(os.getpid())
        assert started == int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        assert processes.mountinfo("self") == Path("/proc/self/mountinfo").read_text()
        assert processes.is_of_node(1) in (True, None)

    def test_one_that_is_not_there_is_none(self, tmp_path: Path) -> None:
        processes = Processes(tmp_path)
        assert (processes.started_ticks(7), processes.mountinfo(7), processes.is_of_node(7)) == (None, None, None)
        (tmp_path / "7").mkdir()
        (tmp_path / "7" / "stat").write_text("7 (x) Z")
        assert processes.started_ticks(7) is None
