"""The quota of a running pod, changed because an operator's annotation asks for it: grown, shrunk, or taken back.

Owns the state machine of a change, which is one record in the ledger (``state.Quota``). While it is there the booking holds the larger of
each number, before and wanted, and with it the scheduler's annotation and the node's capacity; the pages promise the smaller. So whatever
step comes last, no card promises more than it has. The change ends as wanted once nothing has spoken against it for a moment, else as
before: pages first, then the ledger, whose booking allows both. A plugin that was killed goes on from the record. Annotations and capacity
are written by ``writer``, as ever, from what is booked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ._domain import wire
from ._domain.errors import RegionError, WireError
from .binding import Binder
from .bookings import words_of
from .claim import claimed_cards, desired_annotations, granted, overbooked, tier_name
from .errors import Refused
from .state import CHANGING, DONE, REFUSED, Booking, ContainerShare, JsonObject, Quota, between, card_ledgers, is_leaving, is_terminal

__all__ = ["HOLD_SECONDS", "PATIENCE_SECONDS", "Quotas"]

REQUEST_CHARACTERS = 1024  # of the annotation: its words are kept in the ledger and in the status
STEP_SECONDS = 0.5
HOLD_SECONDS = 3.0  # two periods of the scheduler (1 s each by default) and the way of what they have bound to our watch
PATIENCE_SECONDS = 30.0  # for the API server to take it, or the container to free memory, whose new allocations are refused meanwhile
MIB = 2**20


class Quotas:
    """For the writer's thread."""

    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        self._bookings = binder.bookings
        self._began: dict[str, float] = {}
        self._clear_since: dict[str, float] = {}

    def step(self, uid: str, is_shown: Callable[[], bool]) -> float | None:
        """Begin, go on with or end the change of this pod's quota; in how many seconds to look again.

        ``is_shown``: whether the node offers no more than the ledger has free. Errors: LedgerError; Refused when a page can't be written
        (the change goes on when it can).
        """
        with self._bookings.changed:
            pod, booking = self._bookings.pods.get(uid), self._bookings.ledger.bookings.get(uid)
            if pod is None or booking is None or is_terminal(pod):
                self._forget(uid)
                return None
            if booking.quota is None or booking.quota.phase != CHANGING:
                text = str((pod["metadata"].get("annotations") or {}).get(wire.QUOTA_ANNOTATION, ""))[:REQUEST_CHARACTERS]
                if not text or is_leaving(pod) or (booking.quota is not None and booking.quota.request == text):
                    return None
                try:
                    booking = self._begin(booking, text)
                except Refused as refusal:
                    self._keep(pod, booking, Quota(text, REFUSED, str(refusal)))
                    return None
            assert booking.quota is not None
            return self._go_on(pod, booking, booking.quota, is_shown)

    def _begin(self, booking: Booking, text: str) -> Booking:
        """The booking with both quotas reserved. Errors: Refused, with the arithmetic; LedgerError."""
        wanted = self._wanted(booking, text)
        reserved = replace(
            booking, containers=between(max, booking.containers, wanted), quota=Quota(text, CHANGING, "", booking.containers, wanted)
        )
        if reserved.segments() != booking.segments():
            others = [other for other in self._bookings.ledger.bookings.values() if other.uid != booking.uid]
            excess = overbooked(reserved.segments(), card_ledgers(self._bookings.inventory.cards, others, self._bookings.terms))
            if excess:
                raise Refused("no_room", excess)
        if problem := self._binder.parts.pages.problem():
            raise Refused("no_hook", problem)
        self._bookings.put_quota(reserved)
        return reserved

    def _wanted(self, booking: Booking, text: str) -> tuple[ContainerShare, ...]:
        try:
            request = wire.decode_quota(text, booking.uid)
        except WireError as error:
            raise Refused("bad_request", str(error)) from error
        names = [container.name for container in booking.containers]
        if request.container and request.container not in names:
            raise Refused("bad_request", f"container {request.container!r} has no slice; those that have: {', '.join(names)}")
        return tuple(
            ContainerShare(container.name, tuple(granted(self._bookings.terms, request, share) for share in container.shares))
            if request.container in ("", container.name)
            else container
            for container in booking.containers
        )

    def _go_on(self, pod: JsonObject, booking: Booking, quota: Quota, is_shown: Callable[[], bool]) -> float | None:
        self._binder.rewrite_pages(booking.uid, between(min, quota.before, quota.wanted))
        now = self._bookings.clock.monotonic()
        grows = booking.segments() != replace(booking, containers=quota.before).segments()
        try:
            obstacle = self._obstacle(pod, booking, quota, is_shown, grows)
        except Refused as refusal:
            self._end(pod, booking, Quota(quota.request, REFUSED, str(refusal)), quota.before)
            return None
        if obstacle:
            self._clear_since.pop(booking.uid, None)
            if now - self._began.setdefault(booking.uid, now) < PATIENCE_SECONDS:
                return STEP_SECONDS
            words = f"waited {PATIENCE_SECONDS:.0f} s: {obstacle}"
            self._end(pod, booking, Quota(quota.request, REFUSED, words), quota.before)
            return None
        remaining = self._clear_since.setdefault(booking.uid, now) + (HOLD_SECONDS if grows else STEP_SECONDS) - now
        if remaining > 0:
            return remaining
        self._end(pod, booking, Quota(quota.request, DONE), quota.wanted)
        return None

    def _obstacle(self, pod: JsonObject, booking: Booking, quota: Quota, is_shown: Callable[[], bool], grows: bool) -> str:
        """What still speaks against the wanted quota; empty: nothing. Errors: Refused for what does not pass."""
        cards = {card.uuid: card for card in self._bookings.inventory.cards}
        for uuid in sorted(booking.cards):
            if uuid not in cards or (grows and not cards[uuid].healthy):
                raise Refused("no_room", f"card {uuid!r} is {'gone' if uuid not in cards else 'out of service: ' + cards[uuid].fault}")
        if grows:
            for other in self._bookings.unbooked():
                if claimed_cards(other) & booking.cards:
                    name = f"{other['metadata']['namespace']}/{other['metadata']['name']}"
                    raise Refused("no_room", f"the scheduler bound pod {name} to the same card meanwhile, which goes first")
            if desired_annotations(pod, booking, self._bookings.settings.node_name):
                return "the API server has not taken the pod's assignment yet"
            if not is_shown():
                return "the node still shows more than is free"
        return self._too_much_used(booking.uid, quota)

    def _too_much_used(self, uid: str, quota: Quota) -> str:
        wanted = {container.name: container for container in quota.wanted}
        for slot, _booking, container in self._bookings.owned_slots():
            if slot.owner_uid != uid or not self._binder.parts.pages.exists(slot.name):
                continue
            try:
                used = {gpu.uuid: gpu.used_bytes for gpu in self._binder.parts.pages.state(slot.name).gpus}
            except RegionError as error:
                return f"what container {container.name!r} uses cannot be read: {error}"
            for share in wanted[container.name].shares:
                if used.get(share.uuid, 0) > share.memory_mib * MIB:
                    megabytes = -(-used[share.uuid] // MIB)
                    return f"container {container.name!r} uses {megabytes} MiB of card {share.uuid!r}, {share.memory_mib} MiB are asked for"
        return ""

    def _end(self, pod: JsonObject, booking: Booking, quota: Quota, containers: tuple[ContainerShare, ...]) -> None:
        self._binder.rewrite_pages(booking.uid, containers)
        tier = tier_name(self._bookings.terms, booking.tier, containers)
        self._keep(pod, replace(booking, containers=containers, tier=tier if quota.phase == DONE else booking.tier), quota)

    def _keep(self, pod: JsonObject, booking: Booking, quota: Quota) -> None:
        self._bookings.put_quota(replace(booking, quota=quota))
        self._forget(booking.uid)
        self._bookings.settle()  # others may fit now
        if quota.phase == DONE:
            shares = "; ".join(f"{container.name}: {words_of(container)}" for container in booking.containers)
            self._bookings.reporter.tell(pod, "VgpuQuotaChanged", f"its quota is now {shares}")
        else:
            self._bookings.reporter.tell(pod, "VgpuQuotaRefused", f"its quota stays what it was: {quota.message}", warning=True)

    def _forget(self, uid: str) -> None:
        self._began.pop(uid, None)
        self._clear_since.pop(uid, None)
