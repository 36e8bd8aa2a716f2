"""A container's way to its slice: ids are preferred, a slot name is given out for them, the container is about to start.

Owns the order of these steps. What the pod has was decided before (``bookings``); pages, mounts and CDI files are ``pages``' and ``cdi``'s.
No call of the kubelet waits for the API server except PreStart's own look at the pod.

Nothing here guesses a pod: Allocate gives out a random name for a set of ids, and PreStart, when the kubelet can say who holds these
ids, ties the name to a pod UID for ever. Pod-resources names a pod and no UID, and a namesake may be there already: so a slot is tied only
to the pod and container that the kubelet's checkpoint says it was given to, where that can be read.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from . import cdi, log
from ._domain import wire
from ._domain.errors import WireError
from .bookings import Bookings, booking_order, words_of
from .cdi import CdiFolder, NvidiaSpec
from .checkpoint import Checkpoint
from .cluster import Cluster
from .errors import CdiError, ClusterUnavailable, PermanentRefusal, Refused
from .pages import Pages
from .podresources import Holder, PodResources, owner_of
from .state import Booking, ContainerShare, JsonObject, Slot, device_ids, effective_request, is_leaving, preferred_ids

__all__ = ["Binder", "Parts"]

SLOT_BYTES = 16  # 128 bits: names can't be guessed and never repeat
WAIT_STEP_SECONDS = 1.0  # a waiting PreStart looks again at least this often; pod changes wake it at once
HINT_SECONDS = 60.0  # a container that was hinted at is not hinted at again within this time


@dataclass(frozen=True)
class Parts:
    """What a container's start is made of."""

    cluster: Cluster
    pod_resources: PodResources
    checkpoint: Checkpoint
    pages: Pages
    cdi_folder: CdiFolder
    nvidia_spec: NvidiaSpec


class Binder:
    """What the kubelet asks for, answered from the bookings. Thread-safe, under the bookings' lock."""

    def __init__(self, bookings: Bookings, parts: Parts) -> None:
        self.bookings = bookings
        self.parts = parts
        self._hinted: dict[tuple[str, str], float] = {}
        self._said = log.Once()
        self._is_recovered = False
        self._published: set[str] = set()  # since this process began: the kubelet hears of a change a moment later

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Ids of the card that the next pod's annotation names: a hint, so that the kubelet's ids say something to people."""
        with self.bookings.changed:
            hint = self._next_hint(size)
            return preferred_ids([share.uuid for share in hint.shares] if hint else [], available, must_include, size)

    def _next_hint(self, size: int) -> ContainerShare | None:
        now = self.bookings.clock.monotonic()
        self._hinted = {key: at for key, at in self._hinted.items() if now - at < HINT_SECONDS}
        for pod in sorted(self.bookings.pods.values(), key=booking_order):
            booking = self.bookings.ledger.bookings.get(pod["metadata"]["uid"])
            if booking is None or (pod.get("status") or {}).get("phase") != "Pending" or self.bookings.ledger.slots_of_pod(booking.uid):
                continue
            for container in booking.containers:
                if len(container.shares) == size and (booking.uid, container.name) not in self._hinted:
                    self._hinted[(booking.uid, container.name)] = now
                    return container
        return None

    def device_ids(self) -> list[str]:
        """What the kubelet may give out now, and needs for restarts of what it has given out."""
        with self.bookings.changed:
            held = [device_id for slot in self.bookings.ledger.slots.values() for device_id in slot.ids]
            ids = device_ids([card.uuid for card in self.bookings.inventory.cards], self.bookings.terms.slices, held)
            self._published.update(ids)
            return ids

    def allocate(self, requests: Sequence[Sequence[str]]) -> list[str]:
        """A slot name for each set of ids, on disk before it is returned. Errors: Refused for ids never published, LedgerError.

        Which card an id was made for does not matter: the pod's booking says what it gets.
        """
        with self.bookings.changed:
            for ids in requests:
                strangers = sorted(set(ids) - self._published)
                if strangers or not ids:
                    raise Refused(
                        "unknown_ids", f"the kubelet allocates ids that this node does not have: {', '.join(strangers) or 'none'}"
                    )
            slots = [Slot(secrets.token_hex(SLOT_BYTES), tuple(sorted(ids))) for ids in requests]
            self.bookings.ledger.put_slots(slots)
        for slot in slots:
            log.say(logging.INFO, f"slot {slot.name} stands for {', '.join(slot.ids)}", slot=slot.name)
        return [slot.name for slot in slots]

    def recover_slots(self) -> None:
        """Once, if the ledger has lost what was written last: slots that the kubelet has given to pods that are here.

        Errors: LedgerError.
        """
        with self.bookings.changed:
            if self._is_recovered or not self.bookings.synced:
                return
            found = []
            for name, to in self.parts.checkpoint.recipients().items() if self.bookings.ledger.recovered_from else ():
                pod, slot = self.bookings.pods.get(to.uid), self.bookings.ledger.slots.get(name, Slot(name, to.ids))
                if pod is not None and not slot.owner_uid:
                    found.append(slot.owned_by(to.uid, pod["metadata"]["namespace"], pod["metadata"]["name"], to.container))
            if found:
                self.bookings.ledger.put_slots(found)
                log.say(logging.WARNING, f"took {len(found)} slots from the kubelet's record: {', '.join(slot.name for slot in found)}")
            self._is_recovered = True

    def prepare_start(self, ids: Sequence[str]) -> None:
        """Make the slots of these ids usable by the container that is about to start, and by no other pod.

        Ends prestart_wait seconds after it began, or as soon as the kubelet and the API server have answered (5 and twice api_timeout
        at most). Errors: Refused (the kubelet tries again), LedgerError. A refusal is reported here, once.
        """
        deadline = self.bookings.clock.monotonic() + self.bookings.settings.prestart_wait_seconds
        pod: JsonObject | None = None
        holder: Holder | None = None
        try:
            with self.bookings.changed:
                slots = self.bookings.ledger.slots_of_ids(ids)
            if not slots:
                raise Refused(
                    "unknown_slot", f"no slot is recorded for {', '.join(sorted(ids))}; delete the pod, a new one gets a new slot"
                )
            holder = owner_of(ids, self.parts.pod_resources.holders())
            uid, pod = self._identify(holder, slots)
            booking = self._booking_for(uid, pod, holder.container, any(slot.owner_uid == uid for slot in slots), deadline)
            self._open_slots(ids, holder, uid, pod, booking)
        except Refused as refusal:
            self.bookings.reporter.refused(pod, refusal, start=True, container=holder.container if holder else None)
            raise

    def _identify(self, holder: Holder, slots: Sequence[Slot]) -> tuple[str, JsonObject | None]:
        """UID (and object) of the pod that the kubelet names; by the record alone when the API server is away."""
        try:
            pod = self.parts.cluster.pod(holder.namespace, holder.pod)
        except ClusterUnavailable as error:
            owners = {slot.owner_uid for slot in slots if (slot.owner_namespace, slot.owner_pod) == (holder.namespace, holder.pod)}
            if len(owners) == 1 and all(slot.owner_uid for slot in slots):
                (uid,) = owners
                words = f"restarting by its record, the API server is away: {error}"
                log.of_pod(logging.WARNING, words, holder.namespace, holder.pod, uid, container=holder.container)
                return uid, None
            raise Refused("api_unavailable", f"cannot ask whose pod {holder.namespace}/{holder.pod} is: {error}") from error
        if pod is None:
            raise Refused("unknown_owner", f"the kubelet names pod {holder.namespace}/{holder.pod}, which does not exist")
        node_name = pod["spec"].get("nodeName")
        if node_name != self.bookings.settings.node_name:
            raise Refused("unknown_owner", f"pod {holder.namespace}/{holder.pod} is bound to {node_name!r}, not to this node")
        with self.bookings.changed:
            self._slots_for(slots[0].ids, holder, pod["metadata"]["uid"], pod)
        return pod["metadata"]["uid"], pod

    def _slots_for(self, ids: Sequence[str], holder: Holder, uid: str, pod: JsonObject | None) -> list[Slot]:
        """The slots of these ids that are this pod's, or may become its own. Errors: Refused when there is none.

        The caller holds the lock.
        """
        recipients = self.parts.checkpoint.recipients()
        problem = self.parts.checkpoint.problem
        if problem:
            self._said.fails("checkpoint", f"a namesake's start is not told apart by the kubelet's record: {problem}")
        else:
            self._said.works("checkpoint")
        containers = {holder.container, *(each["name"] for each in ((pod or {}).get("spec") or {}).get("initContainers") or [])}
        found, others = [], set()
        for slot in self.bookings.ledger.slots_of_ids(ids):
            to = recipients.get(slot.name)
            is_contradicted = to is not None and (to.uid != uid or to.container not in containers)
            if slot.owner_uid == uid or (not slot.owner_uid and not is_contradicted):
                found.append(slot)
            else:
                others.add(f"{to.uid}, container {to.container!r}" if to else slot.owner_uid)
        if not found:
            raise Refused(
                "foreign_slot",
                f"every slot of these ids belongs to another pod than {holder.namespace}/{holder.pod} ({uid}): {', '.join(sorted(others))}",
            )
        return found

    def _booking_for(self, uid: str, pod: JsonObject | None, container: str, has_started: bool, deadline: float) -> Booking:
        """The pod's booking, with cards that can serve this container.

        Made now if need be: after waiting for pods that are leaving (without the lock), then on another card.
        """
        with self.bookings.changed:
            if pod is not None:
                self.bookings.add_fetched(pod)
            while True:
                booking = self.bookings.ledger.bookings.get(uid)
                fault = self._fault(booking, container, has_started) if booking and pod else ""
                if booking is not None and not fault:
                    return booking
                if pod is None:
                    raise Refused("not_booked", "nothing is booked for this pod and the API server is away")
                remaining = deadline - self.bookings.clock.monotonic()
                try:
                    if booking is not None:
                        return self.bookings.rebook(self.bookings.pods.get(uid, pod), booking, container, patient=remaining > 0)
                    return self.bookings.book(self.bookings.pods.get(uid, pod), patient=remaining > 0)
                except Refused as refusal:
                    if refusal.reason != "waiting" or remaining <= 0:
                        if fault:
                            raise Refused(refusal.reason, f"{fault}; {refusal}") from refusal
                        raise
                self.bookings.changed.wait(min(remaining, WAIT_STEP_SECONDS))

    def _fault(self, booking: Booking, container: str, has_started: bool) -> str:
        """Why this container needs other cards: it begins on healthy ones and returns to those that are there. Empty: it does not."""
        cards = {card.uuid: card for card in self.bookings.inventory.cards}
        share = booking.container(container)
        for uuid in [each.uuid for each in share.shares] if share else []:
            if uuid not in cards:
                return f"card {uuid!r}, which it was booked on, is gone"
            if not has_started and not cards[uuid].healthy:
                return f"card {uuid!r}, which it was booked on, is out of service: {cards[uuid].fault}"
        return ""

    def _open_slots(self, ids: Sequence[str], holder: Holder, uid: str, pod: JsonObject | None, booking: Booking) -> None:
        with self.bookings.changed:
            share = self.bookings.ledger.bookings.get(uid, booking).enforced(holder.container)  # its quota may have changed just now
            if share is None:
                raise PermanentRefusal("no_share", f"container {holder.container!r} holds ids, but the scheduler books nothing for it")
            slots = self._slots_for(ids, holder, uid, pod)
            nvidia = self._nvidia()
            claimed = [slot if slot.owner_uid else slot.owned_by(uid, holder.namespace, holder.pod, holder.container) for slot in slots]
            if claimed != slots:
                self.bookings.ledger.put_slots(claimed)
            for slot in claimed:
                mounts = self.parts.pages.start(slot.name, share.shares, self._neighbours(slot))
                try:
                    spec = cdi.slot_spec(nvidia, slot.name, [card.uuid for card in share.shares], mounts)
                    self.parts.cdi_folder.write(slot.name, spec)
                except CdiError as error:
                    raise Refused("cdi", str(error)) from error
        for slot in claimed:
            words = f"container {holder.container!r} may start with {words_of(share)}"
            log.of_pod(logging.INFO, words, holder.namespace, holder.pod, uid, container=holder.container, slot=slot.name)

    def _neighbours(self, slot: Slot) -> Counter[str]:
        """How many slots of other containers are on each card, by UUID."""
        mine = (slot.owner_uid, slot.owner_container)
        return Counter(
            share.uuid
            for other, _booking, container in self.bookings.owned_slots()
            if (other.owner_uid, other.owner_container) != mine
            for share in container.shares
        )

    def _nvidia(self) -> JsonObject:
        try:
            return self.parts.nvidia_spec.read()
        except CdiError as error:
            raise Refused("cdi", str(error)) from error

    def lacking_allocate(self) -> list[JsonObject]:
        """Bound pods for which the kubelet has not called Allocate yet: they would fail for good without us.

        A kubelet that does not answer calls nobody: then nothing is lacking.
        """
        with self.bookings.changed:
            waiting = [
                pod
                for uid, pod in self.bookings.pods.items()
                if effective_request(pod, wire.RESOURCE_NUMBER)
                and (pod.get("status") or {}).get("phase") == "Pending"
                and not is_leaving(pod)
                and uid not in self.bookings.ledger.refusals
            ]
        try:
            holders = {(holder.namespace, holder.pod, holder.container) for holder in self.parts.pod_resources.holders()}
        except Refused:
            return []
        return [pod for pod in waiting if not self._kubelet_knows(pod, holders)]

    def _kubelet_knows(self, pod: JsonObject, holders: set[tuple[str, str, str]]) -> bool:
        try:
            requests = wire.requesting_containers(pod)
        except WireError:
            return True  # never starts anyway
        metadata = pod["metadata"]
        return all((metadata["namespace"], metadata["name"], request.name) in holders for request in requests if request.request.number)

    def rewrite_pages(self, uid: str, containers: Sequence[ContainerShare] | None = None) -> int:
        """Put these quotas, else the ledger's, in force in the pages that a pod's containers have; how many. A start writes the others.

        Errors: Refused.
        """
        with self.bookings.changed:
            booking = self.bookings.ledger.bookings.get(uid)
            if containers is None and booking is not None:
                containers = [share for each in booking.containers if (share := booking.enforced(each.name))]
            shares = {container.name: container.shares for container in containers or ()}
            slots = [slot for slot in self.bookings.ledger.slots_of_pod(uid) if slot.owner_container in shares]
            written = [slot for slot in slots if self.parts.pages.exists(slot.name)]
            for slot in written:
                self.parts.pages.rewrite(slot.name, shares[slot.owner_container])
            return len(written)
