"""The cards of this node and their health, through NVML.

Owns the two forms of a card source (NVML, absent) and the memory of cards that have gone silent. What a sick card means for the
scheduler is ``state``'s. A card turns healthy again when NVML answers for it and no critical error came for a while.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from . import log
from ._domain.gpu_time import Sample
from .clock import Clock
from .errors import CardsUnavailable
from .state import Card

__all__ = ["AbsentCards", "CardSource", "CardUse", "Inventory", "NvmlCards", "open_source"]

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


class NvmlCards:
    """Cards by pynvml; NVML is initialised at the first scan and again after it was lost (a driver upgrade takes it away)."""

    def __init__(self, nvml: Any, clock: Clock, xid_hold_seconds: float) -> None:
        self._nvml = nvml
        self._clock = clock
        self._xid_hold_seconds = xid_hold_seconds
        self._ready = False
        self._events: Any = None
        self._xids: dict[str, tuple[int, float]] = {}
        self._mute: set[str] = set()

    def scan(self) -> list[Card]:
        try:
            self._open()
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            self._close()
            raise CardsUnavailable(f"NVML does not answer: {error}") from error
        self._drain_xids()
        found = [card for card in (self._card(index) for index in range(count)) if card is not None]
        if count and not found:
            raise CardsUnavailable(f"NVML counts {count} cards and shows none of them")
        return found

    def use(self) -> dict[str, CardUse]:
        uses: dict[str, CardUse] = {}
        if not self._ready:
            return uses
        with contextlib.suppress(self._nvml.NVMLError):  # the next scan says which card is sick and why
            for index in range(self._nvml.nvmlDeviceGetCount()):
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
        try:
            events = self._nvml.nvmlEventSetCreate()
            for index in range(self._nvml.nvmlDeviceGetCount()):
                self._nvml.nvmlDeviceRegisterEvents(
                    self._nvml.nvmlDeviceGetHandleByIndex(index), self._nvml.nvmlEventTypeXidCriticalError, events
                )
            self._events = events
        except self._nvml.NVMLError:
            self._events = None  # old cards and drivers have no events; health is then what NVML answers

    def _close(self) -> None:
        self._ready, self._events = False, None
        with contextlib.suppress(self._nvml.NVMLError):  # it was not initialised: nothing to give back
            self._nvml.nvmlShutdown()

    def _drain_xids(self) -> None:
        if self._events is None:
            return
        for _ in range(XIDS_PER_SCAN):
            try:
                event = self._nvml.nvmlEventSetWait(self._events, 0)
                uuid = _text(self._nvml.nvmlDeviceGetUUID(event.device))
            except self._nvml.NVMLError:
                return  # time-out: nothing has happened
            if event.eventData not in HARMLESS_XIDS:
                self._xids[uuid] = (int(event.eventData), self._clock.monotonic())

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
        xid, at = self._xids.get(uuid, (0, 0.0))
        if xid and self._clock.monotonic() - at < self._xid_hold_seconds:
            return f"critical XID {xid}"
        if self._answer("nvmlDeviceGetMigMode", handle, default=[0])[0]:
            return "MIG is on; this way of enforcement serves whole cards"
        if self._answer("nvmlDeviceGetComputeMode", handle, default=0):
            return "compute mode is not DEFAULT; a card in exclusive mode cannot be shared"
        return ""

    def _answer(self, call: str, handle: Any, default: Any) -> Any:
        """An optional property: cards and drivers without it are as the default says."""
        try:
            return getattr(self._nvml, call)(handle)
        except self._nvml.NVMLError:
            return default

    def _busy(self, handle: Any) -> int | None:
        rates = self._answer("nvmlDeviceGetUtilizationRates", handle, default=None)
        return None if rates is None else int(rates.gpu)


class Inventory:
    """The last known cards: one that has gone silent stays known, sick, so that what is booked on it is not forgotten."""

    def __init__(self, source: CardSource) -> None:
        self._source = source
        self.cards: list[Card] = []

    def refresh(self) -> Sequence[Card]:
        try:
            seen = self._source.scan()
        except CardsUnavailable as error:
            self.cards = [replace(card, fault=str(error)) for card in self.cards]
            return self.cards
        uuids = {card.uuid for card in seen}
        silent = [replace(card, fault="NVML does not answer for it") for card in self.cards if card.uuid not in uuids]
        self.cards = sorted([*seen, *silent], key=lambda card: (card.index, card.fault))
        return self.cards


def open_source(clock: Clock, xid_hold_seconds: float) -> CardSource:
    """NVML where its Python binding is installed; the library itself may come and go."""
    try:
        import pynvml
    except ImportError as error:
        return AbsentCards(f"the Python package nvidia-ml-py is missing: {error}")
    return NvmlCards(pynvml, clock, xid_hold_seconds)


def _text(value: str | bytes) -> str:
    """Old bindings return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
