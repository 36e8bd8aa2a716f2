"""A pod's way to its slice, step by step: seen bound, booked, ids allocated, container about to start.

Owns the order of these steps and the one lock under which the ledger changes. Each decision is ``booking``'s or ``state``'s; what must
survive is in ``ledger``; annotations are written by the writer thread (``main``) from what ``annotation_repairs`` returns, so that no
kubelet call waits for the API server except PreStart's own look at the pod.

Nothing here guesses a pod: Allocate gives out a random name for a set of ids, and PreStart, when the kubelet can say who holds these
ids, ties the name to a pod UID for ever.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import cdi, log
from ._domain import wire
from ._domain.errors import RegionError, WireError
from .booking import Node, asks_for_slice, decide, desired_annotations
from .cdi import CdiFolder, NvidiaSpec
from .clock import Clock
from .cluster import Change, Cluster
from .errors import CdiError, ClusterUnavailable, PermanentRefusal, Refused
from .ledger import Ledger
from .pages import Pages
from .podresources import Holder, PodResources, owner_of
from .reports import Reporter
from .scan import Inventory
from .settings import Settings
from .state import Booking, ContainerShare, JsonObject, Slot, Terms, card_of_id, effective_request, is_leaving, is_terminal, preferred_ids

__all__ = ["Binder", "Parts"]

SLOT_BYTES = 16  # 128 bits: names can't be guessed and never repeat
WAIT_STEP_SECONDS = 1.0  # a waiting PreStart looks again at least this often; pod changes wake it at once
HINT_SECONDS = 60.0  # a container that was hinted at is not hinted at again within this time
ADMISSION_ERROR = "UnexpectedAdmissionError"  # Kubernetes v1.35.4, pkg/kubelet/lifecycle/predicate.go
FETCHED_SECONDS = 30.0  # a pod that PreStart fetched is kept this long even if the watch does not show it yet


@dataclass(frozen=True)
class Parts:
    """What the binder works with."""

    settings: Settings
    clock: Clock
    ledger: Ledger
    cluster: Cluster
    pod_resources: PodResources
    pages: Pages
    cdi_folder: CdiFolder
    nvidia_spec: NvidiaSpec
    inventory: Inventory
    reporter: Reporter


class Binder:
    """Thread-safe: called by the watch, the kubelet's calls and the writer thread."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.ledger = parts.ledger
        self.changed = threading.Condition()  # holds an RLock: the lock of the ledger
        self.pods: dict[str, JsonObject] = {}
        self.synced = False
        self.terms = Terms(slices_override=parts.settings.slices_per_card)
        self._fetched: dict[str, float] = {}
        self._departed: dict[str, float] = {}
        self._hinted: dict[tuple[str, str], float] = {}

    # --- pods come and go -----------------------------------------------------------------------------------------------

    def take(self, change: Change) -> None:
        """One step of the pod watch. Errors: LedgerError."""
        kind, found = change
        with self.changed:
            if kind == "SYNCED":
                self._replace_all(found)
            elif kind == "DELETED":
                self._departs(found["metadata"]["uid"])
            else:
                self.pods[found["metadata"]["uid"]] = found
                self._fetched.pop(found["metadata"]["uid"], None)
            self._settle()

    def settle(self) -> None:
        """Decide anew, because cards or tiers have changed. Errors: LedgerError."""
        with self.changed:
            self._settle()

    def settle_departed(self) -> None:
        """Decide anew if shares may have fallen free by time alone. Errors: LedgerError."""
        with self.changed:
            if self._departed:
                self._settle()

    def _replace_all(self, found: Iterable[JsonObject]) -> None:
        now = self.parts.clock.monotonic()
        listed = {pod["metadata"]["uid"]: pod for pod in found}
        for uid in set(self.pods) - set(listed):
            if now - self._fetched.get(uid, -FETCHED_SECONDS) < FETCHED_SECONDS:
                listed[uid] = self.pods[uid]
            else:
                self._departs(uid)
        for uid in (set(self.ledger.bookings) | set(self.ledger.refusals)) - set(listed) - set(self._departed):
            self._departed[uid] = self.parts.clock.monotonic()  # gone while we were not looking
        # What the list shows is confirmed; what is only kept stays in doubt.
        self._fetched = {uid: at for uid, at in self._fetched.items() if uid in self.pods and listed.get(uid) is self.pods[uid]}
        self.pods = listed
        self.synced = True

    def _departs(self, uid: str) -> None:
        """The pod object is gone; what it had is released as soon as nothing says that it is still in use."""
        self.pods.pop(uid, None)
        self._fetched.pop(uid, None)
        self._departed[uid] = self.parts.clock.monotonic()
        self.parts.reporter.forget(uid)

    def _settle(self) -> None:
        if not self.synced:
            return
        self._release_gone()
        for pod in sorted(self.pods.values(), key=_booking_order):
            if pod["metadata"]["uid"] not in self.ledger.bookings and self._wants_booking(pod):
                self._try_book(pod)
        self.changed.notify_all()

    def _release_gone(self) -> None:
        now = self.parts.clock.monotonic()
        grace = self.parts.settings.forced_grace_seconds
        over = {uid for uid, since in self._departed.items() if now - since >= grace or not self._shows_memory(uid)}
        over |= {uid for uid, pod in self.pods.items() if is_terminal(pod)}
        known = [uid for uid in over if uid in self.ledger.bookings or uid in self.ledger.refusals]
        if known:
            for uid in known:
                booking = self.ledger.bookings.get(uid)
                if booking is not None:
                    log.say(
                        logging.INFO,
                        f"pod {booking.namespace}/{booking.name} is gone, its share of {', '.join(sorted(booking.cards))} is free",
                        namespace=booking.namespace,
                        pod=booking.name,
                        uid=uid,
                    )
            self.ledger.remove(uids=known)
        for uid in over:
            self._departed.pop(uid, None)

    def _shows_memory(self, uid: str) -> bool:
        """Whether processes of a pod say that they hold device memory.

        After a deletion in order they have ended. Deleted by force, the object goes first and they may go on until the kubelet has killed
        them; a process that was killed leaves its numbers behind, so this is asked for a short time only.
        """
        for slot in self.ledger.slots_of_pod(uid):
            try:
                if any(gpu.processes and gpu.used_bytes for gpu in self.parts.pages.state(slot.name).gpus):
                    return True
            except RegionError:
                continue  # no state, no process
        return False

    def _wants_booking(self, pod: JsonObject) -> bool:
        if is_terminal(pod) or not asks_for_slice(pod) or pod["spec"].get("nodeName") != self.parts.settings.node_name:
            return False
        return not (is_leaving(pod) and (pod.get("status") or {}).get("phase") != "Running")

    def _try_book(self, pod: JsonObject) -> None:
        try:
            self._book(pod, patient=True)
        except Refused as refusal:
            if refusal.reason != "waiting":
                self.parts.reporter.refused(pod, refusal, start=False)

    def _book(self, pod: JsonObject, patient: bool) -> Booking:
        """Decide and keep. Errors: Refused, LedgerError. The caller holds the lock."""
        uid, settings = pod["metadata"]["uid"], self.parts.settings
        known = self.ledger.refusals.get(uid)
        if known is not None:
            raise PermanentRefusal(*known)
        node = Node(settings.node_name, self.parts.inventory.cards, self.terms, settings.schedulers)
        try:
            booking = decide(pod, node, self.ledger.bookings.values(), self._leaving(), patient)
        except PermanentRefusal as refusal:
            if refusal.reason == "bypass":  # its evidence vanishes: the kubelet soon reports the pod as scheduled
                self.ledger.put_refusal(uid, refusal.reason, str(refusal))
            raise
        self.ledger.put_booking(booking)
        self._departed.pop(uid, None)
        words = f"booked {_shares(booking)}"
        if booking.source == "moved":
            self.parts.reporter.moves += 1
            self.parts.reporter.tell(pod, "VgpuMoved", f"{words}: the scheduler's choice is taken")
        else:
            log.say(
                logging.INFO,
                f"pod {booking.namespace}/{booking.name}: {words} by its {booking.source}",
                namespace=booking.namespace,
                pod=booking.name,
                uid=uid,
                tier=booking.tier or None,
            )
        return booking

    def live_bookings(self) -> list[Booking]:
        """Bookings of pods that exist: those of departed ones are about to fall free, and the scheduler counts them as free already."""
        with self.changed:
            return [booking for uid, booking in self.ledger.bookings.items() if uid not in self._departed]

    def _leaving(self) -> set[str]:
        return {uid for uid, pod in self.pods.items() if is_leaving(pod)} | set(self._departed)

    # --- the kubelet's calls --------------------------------------------------------------------------------------------

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Ids of the card that the next pod's annotation names: a hint, so that the kubelet's ids say something to people."""
        with self.changed:
            hint = self._next_hint(size)
            return preferred_ids([share.uuid for share in hint.shares] if hint else [], available, must_include, size)

    def _next_hint(self, size: int) -> ContainerShare | None:
        now = self.parts.clock.monotonic()
        self._hinted = {key: at for key, at in self._hinted.items() if now - at < HINT_SECONDS}
        for pod in sorted(self.pods.values(), key=_booking_order):
            booking = self.ledger.bookings.get(pod["metadata"]["uid"])
            if booking is None or (pod.get("status") or {}).get("phase") != "Pending" or self.ledger.slots_of_pod(booking.uid):
                continue
            for container in booking.containers:
                if len(container.shares) == size and (booking.uid, container.name) not in self._hinted:
                    self._hinted[(booking.uid, container.name)] = now
                    return container
        return None

    def allocate(self, requests: Sequence[Sequence[str]]) -> list[str]:
        """A slot name for each set of ids, on disk before it is returned. Errors: Refused for unknown cards, LedgerError."""
        with self.changed:
            known = {card.uuid for card in self.parts.inventory.cards}
            for ids in requests:
                strangers = sorted({device_id for device_id in ids if card_of_id(device_id) not in known})
                if strangers or not ids:
                    raise Refused(
                        "unknown_ids", f"the kubelet allocates ids that this node does not have: {', '.join(strangers) or 'none'}"
                    )
            slots = [Slot(secrets.token_hex(SLOT_BYTES), tuple(sorted(ids))) for ids in requests]
            self.ledger.put_slots(slots)
        for slot in slots:
            log.say(logging.INFO, f"slot {slot.name} stands for {', '.join(slot.ids)}", slot=slot.name)
        return [slot.name for slot in slots]

    def prepare_start(self, ids: Sequence[str]) -> None:
        """Make the slots of these ids usable by the container that is about to start, and by no other pod.

        Ends prestart_wait seconds after it began, or as soon as the kubelet and the API server have answered (5 and twice api_timeout
        at most). Errors: Refused (the kubelet tries again), LedgerError. A refusal is reported here, once.
        """
        deadline = self.parts.clock.monotonic() + self.parts.settings.prestart_wait_seconds
        pod: JsonObject | None = None
        holder: Holder | None = None
        try:
            with self.changed:
                slots = self.ledger.slots_of_ids(ids)
            if not slots:
                raise Refused(
                    "unknown_slot", f"no slot is recorded for {', '.join(sorted(ids))}; delete the pod, a new one gets a new slot"
                )
            holder = owner_of(ids, self.parts.pod_resources.holders())
            uid, pod = self._identify(holder, slots)
            booking = self._booking_for(uid, pod, deadline)
            share = booking.container(holder.container)
            if share is None:
                raise PermanentRefusal("no_share", f"container {holder.container!r} holds ids, but the scheduler books nothing for it")
            self._open_slots(ids, holder, uid, share)
        except Refused as refusal:
            self.parts.reporter.refused(pod, refusal, start=True, container=holder.container if holder else None)
            raise

    def _identify(self, holder: Holder, slots: Sequence[Slot]) -> tuple[str, JsonObject | None]:
        """UID (and object) of the pod that the kubelet names; by the record alone when the API server is away."""
        try:
            pod = self.parts.cluster.pod(holder.namespace, holder.pod)
        except ClusterUnavailable as error:
            owners = {slot.owner_uid for slot in slots if (slot.owner_namespace, slot.owner_pod) == (holder.namespace, holder.pod)}
            if len(owners) == 1 and all(slot.owner_uid for slot in slots):
                log.say(
                    logging.WARNING,
                    f"pod {holder.namespace}/{holder.pod}: restarting by its record, the API server is away: {error}",
                    namespace=holder.namespace,
                    pod=holder.pod,
                    container=holder.container,
                )
                return owners.pop(), None
            raise Refused("api_unavailable", f"cannot ask whose pod {holder.namespace}/{holder.pod} is: {error}") from error
        if pod is None:
            raise Refused("unknown_owner", f"the kubelet names pod {holder.namespace}/{holder.pod}, which does not exist")
        node_name = pod["spec"].get("nodeName")
        if node_name != self.parts.settings.node_name:
            raise Refused("unknown_owner", f"pod {holder.namespace}/{holder.pod} is bound to {node_name!r}, not to this node")
        return pod["metadata"]["uid"], pod

    def _booking_for(self, uid: str, pod: JsonObject | None, deadline: float) -> Booking:
        """The pod's booking; made now if need be, after waiting for pods that are leaving (without the lock), then on another card."""
        with self.changed:
            if pod is not None:
                if uid not in self.pods:
                    self._fetched[uid] = self.parts.clock.monotonic()
                self.pods[uid] = pod
            while True:
                booking = self.ledger.bookings.get(uid)
                if booking is not None and (pod is None or self._cards_are_present(booking)):
                    return booking
                if pod is None:
                    raise Refused("not_booked", "nothing is booked for this pod and the API server is away")
                remaining = deadline - self.parts.clock.monotonic()
                self._release_gone()
                try:
                    return self._book(self.pods.get(uid, pod), patient=remaining > 0)
                except Refused as refusal:
                    if refusal.reason != "waiting" or remaining <= 0:
                        raise
                self.changed.wait(min(remaining, WAIT_STEP_SECONDS))

    def _cards_are_present(self, booking: Booking) -> bool:
        """A card that was pulled cannot serve a start: such a booking is made anew."""
        return booking.cards <= {card.uuid for card in self.parts.inventory.cards}

    def _open_slots(self, ids: Sequence[str], holder: Holder, uid: str, share: ContainerShare) -> None:
        with self.changed:
            slots = [slot for slot in self.ledger.slots_of_ids(ids) if slot.owner_uid in ("", uid)]
            if not slots:
                raise Refused("foreign_slot", f"every slot of these ids belongs to another pod than {holder.namespace}/{holder.pod}")
            nvidia = self._nvidia()
            claimed = [slot if slot.owner_uid else slot.owned_by(uid, holder.namespace, holder.pod, holder.container) for slot in slots]
            if claimed != slots:
                self.ledger.put_slots(claimed)
            for slot in claimed:
                mounts = self.parts.pages.start(slot.name, share.shares)
                try:
                    spec = cdi.slot_spec(nvidia, slot.name, [card.uuid for card in share.shares], mounts)
                    self.parts.cdi_folder.write(slot.name, spec)
                except CdiError as error:
                    raise Refused("cdi", str(error)) from error
        for slot in claimed:
            log.say(
                logging.INFO,
                f"container {holder.namespace}/{holder.pod}/{holder.container} may start with {_container_shares(share)}",
                namespace=holder.namespace,
                pod=holder.pod,
                uid=uid,
                container=holder.container,
                slot=slot.name,
            )

    def _nvidia(self) -> JsonObject:
        try:
            return self.parts.nvidia_spec.read()
        except CdiError as error:
            raise Refused("cdi", str(error)) from error

    # --- the writer thread's questions ----------------------------------------------------------------------------------

    def annotation_repairs(self) -> list[tuple[JsonObject, dict[str, str]]]:
        """Booked pods whose annotations do not say so, with what to write: bind-phase after booking, vanished ones, a move."""
        with self.changed:
            repairs = []
            for uid, booking in self.ledger.bookings.items():
                pod = self.pods.get(uid)
                if pod is None or is_terminal(pod):
                    continue
                patch = desired_annotations(pod, booking, self.parts.settings.node_name)
                if patch:
                    repairs.append((pod, patch))
            return repairs

    def put_pod(self, pod: JsonObject) -> None:
        """A pod as the API server answered to our own write, unless the watch has seen it go."""
        with self.changed:
            if pod["metadata"]["uid"] in self.pods:
                self.pods[pod["metadata"]["uid"]] = pod

    def unbooked(self) -> list[JsonObject]:
        """Pods of this node that want a slice and have no booking, refused ones aside."""
        with self.changed:
            return [
                pod
                for uid, pod in self.pods.items()
                if uid not in self.ledger.bookings and uid not in self.ledger.refusals and self._wants_booking(pod)
            ]

    def verify_fetched(self) -> None:
        """Ask again for pods that PreStart has fetched and the watch never showed: their deletion may have been in between.

        Errors: ClusterUnavailable, LedgerError.
        """
        now = self.parts.clock.monotonic()
        with self.changed:
            doubtful = [self.pods[uid] for uid, at in self._fetched.items() if now - at >= FETCHED_SECONDS and uid in self.pods]
        for pod in doubtful:
            uid = pod["metadata"]["uid"]
            found = self.parts.cluster.pod(pod["metadata"]["namespace"], pod["metadata"]["name"])
            with self.changed:
                if found is not None and found["metadata"]["uid"] == uid:
                    self._fetched[uid] = now
                elif uid in self._fetched:
                    self._departs(uid)
                    self._settle()

    def lacking_allocate(self) -> list[JsonObject]:
        """Bound pods for which the kubelet has not called Allocate yet: they would fail for good without us.

        A kubelet that does not answer calls nobody: then nothing is lacking.
        """
        with self.changed:
            waiting = [
                pod
                for uid, pod in self.pods.items()
                if effective_request(pod, wire.RESOURCE_NUMBER)
                and (pod.get("status") or {}).get("phase") == "Pending"
                and not is_leaving(pod)
                and uid not in self.ledger.refusals
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

    def failed_at_admission(self) -> int:
        """Pods that the kubelet turned away for want of ids, mostly because it saw them before we were registered; they are lost."""
        with self.changed:
            return sum(
                1
                for pod in self.pods.values()
                if (pod.get("status") or {}).get("reason") == ADMISSION_ERROR and effective_request(pod, wire.RESOURCE_NUMBER)
            )

    def rewrite_pages(self, uid: str) -> int:
        """Put the ledger's quotas of a running pod in force again; how many pages were written. Errors: Refused."""
        with self.changed:
            booking = self.ledger.bookings.get(uid)
            written = 0
            for slot in self.ledger.slots_of_pod(uid) if booking else []:
                share = booking.container(slot.owner_container) if booking else None
                if share is not None:
                    self.parts.pages.rewrite(slot.name, share.shares)
                    written += 1
            return written


def _booking_order(pod: JsonObject) -> tuple[bool, str, str]:
    """Running pods first: what is in use must be booked before what could still go elsewhere. Then by the scheduler's bind time."""
    metadata = pod["metadata"]
    bound = (metadata.get("annotations") or {}).get(wire.POD_BIND_TIME_ANNOTATION, "")
    return ((pod.get("status") or {}).get("phase") != "Running", bound.rjust(20, "0"), metadata.get("creationTimestamp", ""))


def _shares(booking: Booking) -> str:
    return "; ".join(f"{container.name}: {_container_shares(container)}" for container in booking.containers)


def _container_shares(container: ContainerShare) -> str:
    return ", ".join(f"{share.memory_mib} MiB, {share.cores_percent} percent of {share.uuid}" for share in container.shares) or "no card"
