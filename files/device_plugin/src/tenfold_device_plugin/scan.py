"""The cards of this node and their health, through NVML.

Owns the two forms of a card source (NVML, absent), the memory of cards that have gone silent, and that of critical errors, which is on
the disk, so that a new plugin does not offer a card that the one before took out. What a sick card means for the scheduler is ``state``'s.
A card turns healthy again when NVML answers for it and no critical error came for a while; one that is gone is forgotten when nothing is
booked on it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from . import log
from ._domain import files
from ._domain.gpu_time import Sample
from .clock import Clock
from .errors import CardsUnavailable
from .state import Card

__all__ = ["AbsentCards", "CardSource", "CardUse", "Inventory", "NvmlCards", "Xids", "open_source"]

MIB = 2**20
# Errors of the application, not of the card. Source: NVIDIA k8s-device-plugin v0.17, internal/rm/health.go; XID 43 and 31 are a
# program's own doing, 109 a context switch time-out.
HARMLESS_XIDS = frozenset({13, 31, 43, 45, 68, 109})
XIDS_PER_SCAN = 64  # bounds one look; the rest is seen at the next


@dataclass(frozen=True)
class CardUse:
    """What NVML says is used of a card by everybody. Units: bytes, percent of the last sampling window (None: not supported)."""

    used_bytes: int
    total_bytes: int
    busy_percent: int | None


class CardSource(Protocol):
    def scan(self) -> list[Card]:
        """All cards in NVML's order. Errors: CardsUnavailable."""

    def use(self) -> dict[str, CardUse]:
        """By UUID, for metrics; cards that do not answer are left out."""

    def samples(self, uuid: str, since_us: int) -> list[Sample] | None:
        """Who has used a card since then (us of CLOCK_REALTIME), one line a process; empty: nobody. None: it does not tell."""


@dataclass(frozen=True)
class AbsentCards:
    """No NVML on this node; says why, every time."""

    reason: str

    def scan(self) -> list[Card]:
        raise CardsUnavailable(self.reason)

    def use(self) -> dict[str, CardUse]:
        return {}

    def samples(self, uuid: str, since_us: int) -> list[Sample] | None:  # noqa: ARG002 (the interface's names)
        return None


class Xids:
    """Critical errors by card, each held for a while after it came, also by the next process. Losing the file loses the holds alone."""

    def __init__(self, path: Path | None, clock: Clock, hold_seconds: float) -> None:
        self._path = path
        self._clock = clock
        self._hold_seconds = hold_seconds
        self._found: dict[str, tuple[int, float]] = {}  # XID, and when it came on the steady clock
        if path is None:
            return
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            for uuid, (xid, at) in json.loads(path.read_text(encoding="utf-8")).items():
                age_seconds = max(0.0, clock.now().timestamp() - float(at))  # the date may have been set back
                self._found[str(uuid)] = (int(xid), clock.monotonic() - age_seconds)

    def put(self, uuid: str, xid: int) -> None:
        self._found[uuid] = (xid, self._clock.monotonic())
        if self._path is None:
            return
        offset = self._clock.now().timestamp() - self._clock.monotonic()
        held = {each: (number, at + offset) for each, (number, at) in self._found.items() if self.held(each)}
        try:
            files.write(self._path, json.dumps(held))
        except OSError as error:
            log.say(logging.WARNING, f"a new plugin will not know of XID {xid}, ignoring: cannot write '{self._path}': {error}", card=uuid)

    def held(self, uuid: str) -> int:
        """The error that keeps a card out of service; 0: none."""
        xid, at = self._found.get(uuid, (0, 0.0))
        return xid if xid and self._clock.monotonic() - at < self._hold_seconds else 0


class NvmlCards:
    """Cards by pynvml; NVML is initialised at the first scan and again after it was lost (a driver upgrade takes it away)."""

    def __init__(self, nvml: Any, xids: Xids) -> None:
        self._nvml = nvml
        self._xids = xids
        self._ready = False
        self._events: dict[str, Any] = {}  # a set a card, by UUID: in one for all, a card that is lost makes the others unheard
        self._mute: set[str] = set()

    def scan(self) -> list[Card]:
        try:
            self._open()
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            self._close()
            raise CardsUnavailable(f"NVML does not answer: {error}") from error
        self._hear_xids(count)
        found = [card for card in (self._card(index) for index in range(count)) if card is not None]
        if count and not found:
            raise CardsUnavailable(f"NVML counts {count} cards and shows none of them")
        return found

    def use(self) -> dict[str, CardUse]:
        uses: dict[str, CardUse] = {}
        if not self._ready:
            return uses
        for index in range(self._answer("nvmlDeviceGetCount", default=0)):
            with contextlib.suppress(self._nvml.NVMLError):  # the next scan says which card is sick and why
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                uses[_text(self._nvml.nvmlDeviceGetUUID(handle))] = CardUse(int(memory.used), int(memory.total), self._busy(handle))
        return uses

    def samples(self, uuid: str, since_us: int) -> list[Sample] | None:
        """For any thread, as NVML itself is."""
        if not self._ready or uuid in self._mute:
            return None
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            rows = self._nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except self._nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                self._mute.add(uuid)
                log.say(
                    logging.WARNING, f"card {uuid} does not tell who uses it; hooks on it have to do without the host's word", card=uuid
                )
            # no samples: nobody has worked. The binding also raises "success" where its first call found none.
            return [] if code in (self._nvml.NVML_ERROR_NOT_FOUND, self._nvml.NVML_SUCCESS) else None
        return [Sample(int(row.pid), int(row.timeStamp), int(row.smUtil)) for row in rows]

    def _open(self) -> None:
        if self._ready:
            return
        self._nvml.nvmlInit()
        self._ready = True

    def _close(self) -> None:
        self._ready, self._events = False, {}
        with contextlib.suppress(self._nvml.NVMLError):  # it was not initialised: nothing to give back
            self._nvml.nvmlShutdown()

    def _hear_xids(self, count: int) -> None:
        for index in range(count):
            # Old cards and drivers have no events, a lost card has no more: health is then what NVML answers.
            with contextlib.suppress(self._nvml.NVMLError):
                self._listen(self._nvml.nvmlDeviceGetHandleByIndex(index))
        for uuid, events in list(self._events.items()):
            for _ in range(XIDS_PER_SCAN):
                try:
                    xid = int(self._nvml.nvmlEventSetWait(events, 0).eventData)
                except self._nvml.NVMLError as error:
                    if getattr(error, "value", None) != self._nvml.NVML_ERROR_TIMEOUT:
                        self._answer("nvmlEventSetFree", self._events.pop(uuid), default=None)  # made anew when the card answers
                    break
                if xid not in HARMLESS_XIDS:
                    self._xids.put(uuid, xid)

    def _listen(self, handle: Any) -> None:
        """Errors: NVMLError."""
        uuid = _text(self._nvml.nvmlDeviceGetUUID(handle))
        if uuid not in self._events:
            events = self._nvml.nvmlEventSetCreate()
            self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, events)
            self._events[uuid] = events

    def _card(self, index: int) -> Card | None:
        """One card; None when it does not even say who it is (``Inventory`` remembers it)."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(self._nvml.nvmlDeviceGetUUID(handle))
            name = _text(self._nvml.nvmlDeviceGetName(handle))
            memory_mib = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB
        except self._nvml.NVMLError:
            return None
        return Card(index, uuid, name, memory_mib, self._fault(handle, uuid))

    def _fault(self, handle: Any, uuid: str) -> str:
        xid = self._xids.held(uuid)
        if xid:
            return f"critical XID {xid}"
        if self._answer("nvmlDeviceGetMigMode", handle, default=[0])[0]:
            return "MIG is on; this way of enforcement serves whole cards"
        if self._answer("nvmlDeviceGetComputeMode", handle, default=0):
            return "compute mode is not DEFAULT; a card in exclusive mode cannot be shared"
        return ""

    def _answer(self, call: str, *arguments: Any, default: Any) -> Any:
        """An optional property: cards and drivers without it are as the default says."""
        try:
            return getattr(self._nvml, call)(*arguments)
        except self._nvml.NVMLError:
            return default

    def _busy(self, handle: Any) -> int | None:
        rates = self._answer("nvmlDeviceGetUtilizationRates", handle, default=None)
        return None if rates is None else int(rates.gpu)


class Inventory:
    """The last known cards: one that has gone silent stays known, sick, as long as something is booked on it.

    ``problem`` says why no card answers at all, in NVML's words; empty: one does.
    """

    def __init__(self, source: CardSource) -> None:
        self._source = source
        self.cards: list[Card] = []
        self.problem = "the cards have not been looked at yet"

    def refresh(self, is_booked: Callable[[str], bool]) -> Sequence[Card]:
        """Look again; ``is_booked`` says whether a card, by its UUID, still has pods."""
        try:
            seen = self._source.scan()
        except CardsUnavailable as error:
            self.problem = str(error)
            self.cards = [replace(card, fault=self.problem) for card in self.cards]
            return self.cards
        self.problem = "" if seen else "NVML shows no card"
        uuids = {card.uuid for card in seen}
        gone = [card for card in self.cards if card.uuid not in uuids and is_booked(card.uuid)]
        silent = [replace(card, fault="NVML does not answer for it") for card in gone]
        self.cards = sorted([*seen, *silent], key=lambda card: (card.index, card.fault))
        return self.cards


def open_source(clock: Clock, xid_hold_seconds: float, xid_record: Path | None = None) -> CardSource:
    """NVML where its Python binding is installed; the library itself may come and go. ``xid_record`` outlives the process."""
    try:
        import pynvml
    except ImportError as error:
        return AbsentCards(f"the Python package nvidia-ml-py is missing: {error}")
    return NvmlCards(pynvml, Xids(xid_record, clock, xid_hold_seconds))


def _text(value: str | bytes) -> str:
    """Old bindings return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
