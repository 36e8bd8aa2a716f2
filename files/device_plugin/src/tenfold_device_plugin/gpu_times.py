"""Tells every slice with a core limit how much of a card's time was its own, as NVML shows it to the node.

Owns the moments (one reading a card and round, the windows between readings) and the memory of which process is whose. The rule is the
domain's ``gpu_time``, NVML is ``scan``'s, /proc is ``processes``'; the page is written by the domain's ``region``, beside its copies and
without a new generation. One call per card for all slots replaces one per process inside the containers, which need neither NVML nor the
driver's ``utility`` capability for it.

A card is left alone while nobody with a limit on it has worked for a while, and where no slot has one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from . import log
from ._domain import gpu_time, page_writer, pressure, region
from ._domain.errors import RegionError
from ._domain.gpu_time import Reading, Source
from ._domain.region import BusyWindow
from .clock import Clock
from .pages import PageMemory, Pages
from .processes import Processes
from .scan import CardSource

__all__ = ["ROUND_SECONDS", "GpuTimes"]

ROUND_SECONDS = 0.5  # also the length of a window; tests/hook/virtual_time has the model with which limits hold
AWAKE_SECONDS = 5.0  # so long after its last claim of GPU time a slot may still be at work on one kernel; a hook looks no further back
ROUNDING_US = 1000  # time stamps are rounded: a moment later than the last one, so that its sample does not come again
WINDOW_LEAST_US = 450_000  # the hook compares sums: over less than this, their edges weigh more than their contents
WINDOW_MOST_US = 2_000_000  # it remembers no longer ones
CLOCK_STEP_US = 50_000  # between two readings somebody has set the clock
BLIND_ROUNDS = 20  # so many in which nobody was known: that is no process that just ended
FORGET_ROUNDS = 20


@dataclass(frozen=True)
class Point:
    """Where a card's next window begins, on both clocks."""

    wall_us: int
    monotonic_us: int


@dataclass
class Known:
    """Whose a process is, for as long as it lives."""

    started_ticks: int
    owner: str
    seen_round: int


class GpuTimes:
    """``tell`` is for one thread; ``busy_seconds`` for any."""

    def __init__(self, pages: Pages, clock: Clock, source: CardSource, processes: Processes) -> None:
        self._pages = pages
        self._memory = PageMemory(pages)
        self._clock = clock
        self._source = source
        self._processes = processes
        self._points: dict[str, Point] = {}
        self._claims: dict[tuple[str, str], tuple[int, float]] = {}
        self._known: dict[int, Known] = {}
        self._blind: dict[str, int] = {}
        self._round = 0
        self._lock = threading.Lock()
        self._busy_ns: dict[tuple[str, str], int] = {}

    def tell(self, slots: Iterable[str]) -> dict[str, list[BusyWindow]]:
        """One round over the slots of living containers; what each was told."""
        self._round += 1
        if self._pages.problem():
            return {}  # said elsewhere
        on_card: dict[str, dict[str, bool]] = {}
        for slot, config in self._memory.of(slots).items():
            for quota in config.gpus:
                on_card.setdefault(quota.uuid, {})[slot] = pressure.is_measured(quota)
        self._forget(on_card)
        told: dict[str, list[BusyWindow]] = {}
        for uuid, limited in on_card.items():
            for slot, window in self._windows(uuid, limited).items():
                told.setdefault(slot, []).append(window)
        return self._written(told)

    def busy_seconds(self) -> dict[tuple[str, str], float]:
        """GPU time by slot and card that was seen so far, of slots that live."""
        with self._lock:
            return {key: busy_ns / 1e9 for key, busy_ns in self._busy_ns.items()}

    # --- one card ------------------------------------------------------------------------------------------------------------

    def _windows(self, uuid: str, limited: Mapping[str, bool]) -> dict[str, BusyWindow]:
        if not self._is_awake(uuid, [slot for slot, is_limited in limited.items() if is_limited]):
            self._points.pop(uuid, None)
            return {}
        point = self._points.get(uuid)
        samples = self._source.samples(uuid, point.wall_us + ROUNDING_US if point else 0)
        if not samples:
            self._points.pop(uuid, None)
            return {}
        reading = gpu_time.read(samples, self._owners([sample.pid for sample in samples if sample.percent > 0]))
        end = self._point(reading.newest_us)
        if point is None:
            self._points[uuid] = end
            return {}
        length_us = end.wall_us - point.wall_us
        if length_us < WINDOW_LEAST_US:
            return {}  # the next reading is asked from the same point on
        self._points[uuid] = end
        is_straight = abs(end.monotonic_us - point.monotonic_us - length_us) <= CLOCK_STEP_US
        if length_us > WINDOW_MOST_US or not is_straight or reading.is_empty or self._is_blind(uuid, reading):
            return {}
        windows = {}
        for slot, is_limited in limited.items():
            window = _window(uuid, point, end, reading, slot)
            self._count(slot, window, reading)
            if is_limited:
                windows[slot] = window
        return windows

    def _is_awake(self, uuid: str, slots: Iterable[str]) -> bool:
        """Whether one of them has claimed GPU time of late. A claim is the tenant's own: who hides its work is told nothing of it."""
        now = self._clock.monotonic()
        return any(self._has_worked(slot, uuid, now) for slot in slots)

    def _has_worked(self, slot: str, uuid: str, now: float) -> bool:
        claimed_us, at_seconds = self._claims.get((slot, uuid), (0, -AWAKE_SECONDS))
        try:
            gpu_time_us = region.read_gpu_times_us(self._pages.folder(slot)).get(uuid, 0)
        except RegionError:
            return False
        if gpu_time_us != claimed_us:
            self._claims[slot, uuid] = (gpu_time_us, now)
            return True
        return now - at_seconds < AWAKE_SECONDS

    def _is_blind(self, uuid: str, reading: Reading) -> bool:
        """Somebody works and nobody is known: told as it is, it would read as if all of it was everybody's."""
        if not reading.is_blind:
            self._blind.pop(uuid, None)
            return False
        self._blind[uuid] = self._blind.get(uuid, 0) + 1
        if self._blind[uuid] == BLIND_ROUNDS:
            words = (
                f"card {uuid}: of no process that uses it is known whose it is, so slots are not told their GPU time; "
                "the device plugin needs the node's own /proc (hostPID: true)"
            )
            log.say(logging.WARNING, words, card=uuid)
        return True

    def _point(self, wall_us: int) -> Point:
        """A moment of the wall clock on the steady one, as of now: the closest of three pairs of looks at both."""
        best_us, offset_us = float("inf"), 0.0
        for _ in range(3):
            before, wall, after = self._clock.monotonic(), self._clock.now().timestamp(), self._clock.monotonic()
            if (after - before) * 1e6 < best_us:
                best_us, offset_us = (after - before) * 1e6, (wall - (before + after) / 2) * 1e6
        return Point(wall_us, int(min(wall_us - offset_us, self._clock.monotonic() * 1e6)))

    # --- whose is a process? -------------------------------------------------------------------------------------------------

    def _owners(self, pids: Iterable[int]) -> dict[int, str | None]:
        slots: Source | None = None
        owners: dict[int, str | None] = {}
        for pid in pids:
            started_ticks, known = self._processes.started_ticks(pid), self._known.get(pid)
            if known and started_ticks in (None, known.started_ticks):  # None: it has just ended
                known.seen_round = self._round
                owners[pid] = known.owner
                continue
            self._known.pop(pid, None)
            if started_ticks is None or known:  # known: what was seen may be of the one before
                continue
            slots = slots or self._slots_folder()
            owner = self._owner(pid, slots)
            if owner is not None and self._processes.started_ticks(pid) == started_ticks:
                self._known[pid] = Known(started_ticks, owner, self._round)
                owners[pid] = owner
        return owners

    def _owner(self, pid: int, slots: Source | None) -> str | None:
        mountinfo = self._processes.mountinfo(pid)
        slot = gpu_time.slot_of(mountinfo, slots) if mountinfo and slots else None
        return gpu_time.NODE if slot is None and self._processes.is_of_node(pid) else slot

    def _slots_folder(self) -> Source | None:
        mountinfo = self._processes.mountinfo("self")
        return gpu_time.source_of(mountinfo, str(self._pages.slots_dir.resolve())) if mountinfo else None

    # --- what pages and metrics say ------------------------------------------------------------------------------------------

    def _written(self, told: dict[str, list[BusyWindow]]) -> dict[str, list[BusyWindow]]:
        if not told:
            return {}
        folders = {str(self._pages.folder(slot)): windows for slot, windows in told.items()}
        problems = region.tell_busy(folders, library=self._pages.current_hook() / page_writer.LIBRARY)
        for words in problems.values():  # a slot that has just gone, or is about to
            log.say(logging.DEBUG, f"a slot was not told its GPU time, going on: {words}")
        return {slot: windows for slot, windows in told.items() if str(self._pages.folder(slot)) not in problems}

    def _count(self, slot: str, window: BusyWindow, reading: Reading) -> None:
        own_ns = int(min(100.0, reading.percent.get(slot, 0.0)) / 100 * (window.to_ns - window.from_ns))
        with self._lock:
            self._busy_ns[slot, window.uuid] = self._busy_ns.get((slot, window.uuid), 0) + own_ns

    def _forget(self, on_card: Mapping[str, Mapping[str, bool]]) -> None:
        alive = {(slot, uuid) for uuid, slots in on_card.items() for slot in slots}
        self._points = {uuid: point for uuid, point in self._points.items() if uuid in on_card}
        self._claims = {key: claim for key, claim in self._claims.items() if key in alive}
        self._known = {pid: known for pid, known in self._known.items() if self._round - known.seen_round <= FORGET_ROUNDS}
        with self._lock:
            self._busy_ns = {key: busy_ns for key, busy_ns in self._busy_ns.items() if key in alive}


def _window(uuid: str, begin: Point, end: Point, reading: Reading, slot: str) -> BusyWindow:
    from_ns, to_ns = begin.monotonic_us * 1000, end.monotonic_us * 1000
    return BusyWindow(uuid, from_ns, to_ns, reading.busy_ns(slot, to_ns - from_ns))
