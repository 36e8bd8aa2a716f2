"""Clean-up of slots whose pod is gone: CDI file, slot folder, ledger entry, in this order. And of what containers leave in living ones.

Owns the rule when a slot is dead: its pod is not among the node's pods (or has ended for good), the kubelet names nobody who holds its
ids by that slot, and both have been so for the grace time. What is alive is never touched, nor what we are not sure about.
"""

from __future__ import annotations

import logging

from . import log
from .binding import Binder
from .errors import CdiError, Refused
from .state import Slot, is_terminal

__all__ = ["Collector"]


class Collector:
    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        self._dead_since: dict[str, float] = {}

    def collect(self) -> list[str]:
        """Remove dead slots and return their names; nothing before the pods are known or while the kubelet does not answer."""
        bookings, parts = self._binder.bookings, self._binder.parts
        self._cut_grown_states()
        if not bookings.synced:
            return []
        try:
            held = {holder.ids for holder in parts.pod_resources.holders()}
        except Refused:
            return []
        now = bookings.clock.monotonic()
        with bookings.changed:
            candidates = {slot.name for slot in bookings.ledger.slots.values() if not self._may_live(slot, held)}
            self._dead_since = {name: self._dead_since.get(name, now) for name in candidates}
            dead = [name for name, since in self._dead_since.items() if now - since >= bookings.settings.slot_grace_seconds]
            removed = [name for name in dead if self._remove_files(name)]
            if removed:
                bookings.ledger.remove(slots=removed)
        self._remove_strays()
        return removed

    def _cut_grown_states(self) -> None:
        bookings, parts = self._binder.bookings, self._binder.parts
        with bookings.changed:
            owned = [slot for slot in bookings.ledger.slots.values() if slot.owner_uid]
        for slot in owned:
            try:
                surplus_bytes = parts.pages.cut_state(slot.name)
            except OSError as error:
                log.say(logging.WARNING, f"cannot look at the state of slot {slot.name}, ignoring: {error}", slot=slot.name)
                continue
            pod = bookings.pods.get(slot.owner_uid)
            if surplus_bytes and pod is not None:
                words = f"container {slot.owner_container!r} has lengthened its slice's state by {surplus_bytes} bytes; cut back"
                bookings.reporter.tell(pod, "VgpuStateCut", words, warning=True, reason_word="state", container=slot.owner_container)

    def _may_live(self, slot: Slot, held: set[frozenset[str]]) -> bool:
        bookings = self._binder.bookings
        if slot.owner_uid:
            pod = bookings.pods.get(slot.owner_uid)
            return pod is not None and not is_terminal(pod)
        return frozenset(slot.ids) in held

    def _remove_files(self, name: str) -> bool:
        parts = self._binder.parts
        try:
            parts.cdi_folder.remove(name)
            parts.pages.remove(name)
        except (CdiError, OSError) as error:
            log.say(logging.WARNING, f"cannot remove slot {name}, trying again later: {error}", slot=name)
            return False
        log.say(logging.INFO, f"removed slot {name}: its pod is gone", slot=name)
        return True

    def _remove_strays(self) -> None:
        """Files of slots that the ledger does not know, left by a removal that was cut short."""
        bookings, parts = self._binder.bookings, self._binder.parts
        if bookings.ledger.recovered_from:
            return  # the ledger forgot something: what it does not know may be alive
        with bookings.changed:
            strays = (parts.cdi_folder.slots() | parts.pages.slots()) - set(bookings.ledger.slots)
            for name in strays:
                self._remove_files(name)
