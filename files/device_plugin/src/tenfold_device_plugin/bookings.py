"""Who is on this node and what each pod has of its cards.

Owns the lock under which the ledger changes, the picture of the pods, and the moments at which a booking is made, kept or released. One
decision about one pod is ``claim``'s; what must survive is in ``ledger``. Annotations are written by ``writer`` from what
``annotation_repair`` returns; how a container gets what is booked is ``binding``'s.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable

from . import log
from ._domain import wire
from ._domain.errors import RegionError
from .claim import Node, asks_for_slice, decide, decide_again, desired_annotations, group_of
from .clock import Clock
from .cluster import Change
from .errors import LedgerError, PermanentRefusal, Refused
from .ledger import Ledger
from .pages import Pages
from .reports import Reporter
from .scan import Inventory
from .settings import Settings
from .state import CHANGING, Booking, ContainerShare, JsonObject, Slot, Terms, effective_request, is_leaving, is_terminal
from .tenants import Tenants
from .workqueue import NODE, pod_key

__all__ = ["Bookings", "booking_order", "words_of"]

ADMISSION_ERROR = "UnexpectedAdmissionError"  # Kubernetes v1.35.4, pkg/kubelet/lifecycle/predicate.go
PROMPT_SECONDS = 10.0  # so long after a pod has gone its processes are looked for each round; one that is stuck then, now and again:
STUCK_SECONDS = 5.0  # a look costs about 50 us for each process of the node
FETCHED_SECONDS = 30.0  # a pod that PreStart fetched is kept this long even if the watch does not show it yet


class Bookings:
    """Thread-safe: called by the watches, the kubelet's calls, the node's own duties and the writer."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        ledger: Ledger,
        inventory: Inventory,
        pages: Pages,
        tenants: Tenants,
        reporter: Reporter,
        touch: Callable[[str], None],
    ) -> None:
        """``touch`` asks the writer to look at a key."""
        self.settings = settings
        self.clock = clock
        self.ledger = ledger
        self.inventory = inventory
        self.reporter = reporter
        self._pages = pages
        self._tenants = tenants
        self._touch = touch
        self.changed = threading.Condition()  # holds an RLock: the lock of the ledger
        self.pods: dict[str, JsonObject] = {}
        self.synced = False
        self.terms = Terms(slices_override=settings.slices_per_card)
        self._unsettled = False
        self._looked_at = -STUCK_SECONDS
        self._fetched: dict[str, float] = {}
        self._departed: dict[str, float] = {}

    # --- pods come and go -----------------------------------------------------------------------------------------------

    def take(self, change: Change) -> None:
        """One step of the pod watch. A ledger that cannot be written now is written by ``settle_due``."""
        kind, found = change
        with self.changed:
            if kind == "SYNCED":
                self._replace_all(found)
            elif kind == "DELETED":
                self._departs(found["metadata"]["uid"])
            else:
                self._arrives(found)
            with contextlib.suppress(LedgerError):
                self.settle()

    def settle_due(self) -> None:
        """Decide anew if that failed, or if pods are gone and their processes may have ended. Errors: LedgerError."""
        with self.changed:
            departed, now = set(self._departed), self.clock.monotonic()
            is_fresh = self._unsettled or (departed and now - max(self._departed.values()) < PROMPT_SECONDS)
            if not is_fresh and (not departed or now - self._looked_at < STUCK_SECONDS):
                return
            self._looked_at = now
        living = self._tenants.slots()  # without the lock: it looks at every process
        with self.changed:
            over = [uid for uid in departed.intersection(self._departed) if not self._may_live(uid, living)]
            self._release(over)
            for uid in over:
                del self._departed[uid]
            self.settle()

    def settle(self) -> None:
        """Decide anew, because pods, cards or tiers have changed. Errors: LedgerError."""
        with self.changed:
            self._unsettled = True
            if self.synced:
                self._release(uid for uid, pod in self.pods.items() if is_terminal(pod))  # by the kubelet's word all of it has ended
                for pod in sorted(self.pods.values(), key=booking_order):
                    if pod["metadata"]["uid"] not in self.ledger.bookings and self._wants_booking(pod):
                        self._try_book(pod)
                self.changed.notify_all()
                self._touch(NODE)
            self._unsettled = False

    def _replace_all(self, found: Iterable[JsonObject]) -> None:
        now = self.clock.monotonic()
        listed = {pod["metadata"]["uid"]: pod for pod in found}
        for uid in set(self.pods) - set(listed):
            if now - self._fetched.get(uid, -FETCHED_SECONDS) < FETCHED_SECONDS:
                listed[uid] = self.pods[uid]
            else:
                self._departs(uid)
        for uid in (set(self.ledger.bookings) | set(self.ledger.refusals)) - set(listed) - set(self._departed):
            self._departed[uid] = self.clock.monotonic()  # gone while we were not looking
        # What the list shows is confirmed; what is only kept stays in doubt.
        self._fetched = {uid: at for uid, at in self._fetched.items() if uid in self.pods and listed.get(uid) is self.pods[uid]}
        self._departed = {uid: since for uid, since in self._departed.items() if uid not in listed}
        self.pods = listed
        self.synced = True
        for uid in listed:
            self._touch(pod_key(uid))

    def _arrives(self, pod: JsonObject) -> None:
        uid = pod["metadata"]["uid"]
        self.pods[uid] = pod
        self._fetched.pop(uid, None)
        self._departed.pop(uid, None)
        self._touch(pod_key(uid))

    def _departs(self, uid: str) -> None:
        """The pod object is gone; what it had is released as soon as nothing says that it is still in use."""
        self.pods.pop(uid, None)
        self._fetched.pop(uid, None)
        self._departed[uid] = self.clock.monotonic()
        self.reporter.forget(uid)

    def _release(self, uids: Iterable[str]) -> None:
        """Free what these pods have."""
        known = [uid for uid in uids if uid in self.ledger.bookings or uid in self.ledger.refusals]
        for uid in known:
            booking = self.ledger.bookings.get(uid)
            if booking is not None:
                words = f"it is gone, its share of {', '.join(sorted(booking.cards))} is free"
                log.of_pod(logging.INFO, words, booking.namespace, booking.name, uid)
        if known:
            self.ledger.remove(uids=known)

    def _may_live(self, uid: str, living: frozenset[str] | None) -> bool:
        """Whether processes of a pod whose object is gone may go on; ``living`` are the slots that have one.

        After a deletion in order they have ended. Deleted by force, the object goes first, and they go on until the kubelet has killed
        them, or the driver lets them go. Where they cannot be seen, what they say of their memory counts, for a short time: a process that
        was killed leaves its numbers behind.
        """
        slots = self.ledger.slots_of_pod(uid)
        if living is not None:
            return any(slot.name in living for slot in slots)
        return self.clock.monotonic() - self._departed[uid] < self.settings.forced_grace_seconds and self._shows_memory(slots)

    def _shows_memory(self, slots: Iterable[Slot]) -> bool:
        for slot in slots:
            try:
                if any(gpu.processes and gpu.used_bytes for gpu in self._pages.state(slot.name).gpus):
                    return True
            except RegionError:
                continue  # no state, no process
        return False

    def _wants_booking(self, pod: JsonObject) -> bool:
        if is_terminal(pod) or not asks_for_slice(pod) or pod["spec"].get("nodeName") != self.settings.node_name:
            return False
        return not (is_leaving(pod) and (pod.get("status") or {}).get("phase") != "Running")

    def _try_book(self, pod: JsonObject) -> None:
        try:
            self.book(pod, patient=True)
        except Refused as refusal:
            if refusal.reason != "waiting":
                self.reporter.refused(pod, refusal, start=False)

    def book(self, pod: JsonObject, patient: bool) -> Booking:
        """Decide and keep. Errors: Refused, LedgerError. The caller holds the lock."""
        uid = pod["metadata"]["uid"]
        known = self.ledger.refusals.get(uid)
        if known is not None:
            raise PermanentRefusal(*known)
        try:
            booking = decide(pod, self._node(), self.ledger.bookings.values(), self._leaving(), patient)
        except PermanentRefusal as refusal:
            if refusal.reason == "bypass":  # its evidence vanishes: the kubelet soon reports the pod as scheduled
                self.ledger.put_refusal(uid, refusal.reason, str(refusal))
            raise
        self._keep(pod, booking)
        return booking

    def rebook(self, pod: JsonObject, booking: Booking, container: str, patient: bool) -> Booking:
        """Other cards for a container that does not run; its siblings keep theirs.

        Errors: Refused, LedgerError. The caller holds the lock.
        """
        if booking.quota is not None and booking.quota.phase == CHANGING:
            self._touch(pod_key(booking.uid))
            raise Refused("waiting", "waits for the change of its quota to end")
        again = decide_again(pod, booking, container, self._node(), self.ledger.bookings.values(), self._leaving(), patient)
        self._keep(pod, again)
        return again

    def put_quota(self, booking: Booking) -> None:
        """Keep a booking whose quota is another one. Errors: LedgerError. The caller holds the lock."""
        self.ledger.put_booking(booking)
        self._touch(pod_key(booking.uid))
        self._touch(NODE)
        self.changed.notify_all()

    def _node(self) -> Node:
        groups = {uid: group for uid, pod in self.pods.items() if (group := group_of(pod))}
        return Node(self.settings.node_name, self.inventory.cards, self.terms, self.settings.schedulers, groups)

    def _keep(self, pod: JsonObject, booking: Booking) -> None:
        uid = booking.uid
        self.ledger.put_booking(booking)
        self._touch(pod_key(uid))
        self._touch(NODE)
        self._departed.pop(uid, None)
        words = f"booked {_shares(booking)}"
        if booking.source == "moved":
            self.reporter.moves += 1
            self.reporter.tell(pod, "VgpuMoved", f"{words}: the scheduler's choice is taken")
        else:
            words = f"{words} by its {booking.source}"
            log.of_pod(logging.INFO, words, booking.namespace, booking.name, uid, tier=booking.tier or None)

    def live_bookings(self) -> list[Booking]:
        """Bookings of pods that exist: those of departed ones are about to fall free, and the scheduler counts them as free already."""
        with self.changed:
            return [booking for uid, booking in self.ledger.bookings.items() if uid not in self._departed]

    def counted_bookings(self) -> list[Booking]:
        """Those that the scheduler counts on cards: not of pods that are leaving."""
        with self.changed:
            return [booking for booking in self.live_bookings() if not is_leaving(self.pods.get(booking.uid, {}))]

    def is_booked(self, uuid: str) -> bool:
        """Whether any pod has a share of this card."""
        with self.changed:
            return any(uuid in booking.cards for booking in self.ledger.bookings.values())

    def owned_slots(self) -> list[tuple[Slot, Booking, ContainerShare]]:
        """The newest slot of each container that is booked (an init container's older one stands for nobody)."""
        with self.changed:
            newest: dict[tuple[str, str], Slot] = {
                (slot.owner_uid, slot.owner_container): slot for slot in self.ledger.slots.values() if slot.owner_uid
            }
            found = []
            for slot in newest.values():
                booking = self.ledger.bookings.get(slot.owner_uid)
                container = booking.container(slot.owner_container) if booking else None
                if booking and container:
                    found.append((slot, booking, container))
            return found

    def _leaving(self) -> set[str]:
        return {uid for uid, pod in self.pods.items() if is_leaving(pod)} | set(self._departed)

    # --- the writer's questions -----------------------------------------------------------------------------------------

    def annotation_repair(self, uid: str) -> tuple[JsonObject, dict[str, str]] | None:
        """A booked pod whose annotations do not say so, with what to write: bind-phase after booking, vanished ones, a move."""
        with self.changed:
            pod, booking = self.pods.get(uid), self.ledger.bookings.get(uid)
            if pod is None or booking is None or is_terminal(pod):
                return None
            patch = desired_annotations(pod, booking, self.settings.node_name)
            return (pod, patch) if patch else None

    def put_pod(self, pod: JsonObject, instead_of: JsonObject) -> None:
        """A pod as the API server answered to our own write, unless the watch has shown another one since."""
        uid = pod["metadata"]["uid"]
        with self.changed:
            if self.pods.get(uid) is instead_of:
                self.pods[uid] = pod

    def unbooked(self) -> list[JsonObject]:
        """Pods of this node that want a slice and have no booking, refused ones aside."""
        with self.changed:
            return [
                pod
                for uid, pod in self.pods.items()
                if uid not in self.ledger.bookings and uid not in self.ledger.refusals and self._wants_booking(pod)
            ]

    def add_fetched(self, pod: JsonObject) -> None:
        """A pod as PreStart got it from the API server; the watch may not show it yet. The caller holds the lock."""
        uid = pod["metadata"]["uid"]
        if uid not in self.pods:
            self._fetched[uid] = self.clock.monotonic()
        self.pods[uid] = pod
        self._touch(pod_key(uid))

    def in_doubt_seconds(self, uid: str) -> float | None:
        """When to ask again for a pod that PreStart has fetched and the watch never showed: it may be gone. None: no doubt."""
        with self.changed:
            if uid not in self._fetched or uid not in self.pods:
                return None
            return max(0.0, self._fetched[uid] + FETCHED_SECONDS - self.clock.monotonic())

    def confirm(self, uid: str, found: JsonObject | None) -> None:
        """What the API server has of a pod in doubt. Errors: LedgerError."""
        with self.changed:
            if found is not None and found["metadata"]["uid"] == uid:
                self._fetched[uid] = self.clock.monotonic()
            elif uid in self._fetched:
                self._departs(uid)
                self.settle()

    def failed_at_admission(self) -> int:
        """Pods that the kubelet turned away for want of ids, mostly because it saw them before we were registered; they are lost."""
        with self.changed:
            return sum(
                1
                for pod in self.pods.values()
                if (pod.get("status") or {}).get("reason") == ADMISSION_ERROR and effective_request(pod, wire.RESOURCE_NUMBER)
            )


def booking_order(pod: JsonObject) -> tuple[bool, str, str]:
    """Running pods first: what is in use must be booked before what could still go elsewhere. Then by the scheduler's bind time."""
    metadata = pod["metadata"]
    bound = (metadata.get("annotations") or {}).get(wire.POD_BIND_TIME_ANNOTATION, "")
    return ((pod.get("status") or {}).get("phase") != "Running", bound.rjust(20, "0"), metadata.get("creationTimestamp", ""))


def _shares(booking: Booking) -> str:
    return "; ".join(f"{container.name}: {words_of(container)}" for container in booking.containers)


def words_of(container: ContainerShare) -> str:
    return ", ".join(f"{share.memory_mib} MiB, {share.cores_percent} percent of {share.uuid}" for share in container.shares) or "no card"
