"""Clean-up of slots whose pod is gone: CDI file, slot folder, ledger entry, in this order. And of what containers leave in living ones.

Owns the rule when a slot is dead: its pod is not among the node's pods (or has ended for good), nothing is booked for it any more (a
process may outlive its pod), and that has been so for the grace time. A slot that has not been started yet is its pod's by the kubelet's
checkpoint; where that cannot be read, it lives as long as the kubelet names anybody who holds one of its ids, since an init container's may
go on to an app container in part. What is alive is never touched, nor what we are not sure about.
"""

from __future__ import annotations

import logging

from . import log
from .binding import Binder
from .errors import CdiError, Refused
from .state import Slot, is_terminal

__all__ = ["Collector"]

UNSTARTED_SECONDS = 60.0  # a slot that was given out and not started outlives what we know of its pod at least so long


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
            held = {device_id for holder in parts.pod_resources.holders() for device_id in holder.ids}
        except Refused:
            return []
        now = bookings.clock.monotonic()
        with bookings.changed:
            candidates = [slot for slot in bookings.ledger.slots.values() if not self._may_live(slot, held)]
            self._dead_since = {slot.name: self._dead_since.get(slot.name, now) for slot in candidates}
            dead = [slot.name for slot in candidates if now - self._dead_since[slot.name] >= self._grace_seconds(slot)]
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

    def _grace_seconds(self, slot: Slot) -> float:
        grace = self._binder.bookings.settings.slot_grace_seconds
        return grace if slot.owner_uid else max(grace, UNSTARTED_SECONDS)

    def _may_live(self, slot: Slot, held: set[str]) -> bool:
        checkpoint = self._binder.parts.checkpoint
        recipient = checkpoint.recipients().get(slot.name)
        uid = slot.owner_uid or (recipient.uid if recipient else "")
        if uid in self._binder.bookings.ledger.bookings:
            return True  # its pod may be gone and a process of it not
        if not uid and checkpoint.problem:
            return bool(held.intersection(slot.ids))
        pod = self._binder.bookings.pods.get(uid)
        return pod is not None and not is_terminal(pod)

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
            parts.cdi_folder.remove_leftovers()
            strays = (parts.cdi_folder.slots() | parts.pages.slots()) - set(bookings.ledger.slots)
            for name in strays:
                self._remove_files(name)
