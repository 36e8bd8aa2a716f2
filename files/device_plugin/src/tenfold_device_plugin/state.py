"""Values of late binding and the decisions over them. Pure: no file, no socket, no clock.

Owns what a booking and a slot are, how much of a card is booked, what capacity the node shows, which ids exist and which are preferred.
``ledger`` keeps the values on disk, ``claim`` decides about one pod, ``binding`` carries out. Whether a request fits is the domain's
``fit``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ._domain import fit, wire
from ._domain.errors import QuantityError
from ._domain.quantities import parse_integer
from ._domain.tiers import DEFAULT_MODE, Catalogue

__all__ = [
    "CHANGING",
    "DONE",
    "REFUSED",
    "Booking",
    "Capacity",
    "Card",
    "ContainerShare",
    "Quota",
    "Share",
    "Slot",
    "Terms",
    "between",
    "capacity",
    "card_ledgers",
    "card_of_id",
    "device_ids",
    "effective_request",
    "is_leaving",
    "is_terminal",
    "preferred_ids",
    "register_records",
    "register_type",
]

JsonObject = Mapping[str, Any]

CHANGING, DONE, REFUSED = "changing", "done", "refused"  # phases of a quota
IDS_PER_SLICE = 2  # a terminating pod keeps its ids until its containers are gone; the ledger limits, not the ids


@dataclass(frozen=True)
class Card:
    """A physical card as NVML shows it. Units: memory_mib is NVML's total, rounded down. ``fault`` is empty or says why it is sick."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    fault: str = ""

    @property
    def healthy(self) -> bool:
        return not self.fault


@dataclass(frozen=True)
class Terms:
    """What the catalogue in force (None: none known yet) makes of every card. ``slices`` overrides the catalogue's where it is not 0."""

    catalogue: Catalogue | None = None
    slices_override: int = 0

    @property
    def slices(self) -> int:
        return self.slices_override or (self.catalogue or Catalogue(tiers=())).slices_per_card

    @property
    def revision(self) -> str:
        return self.catalogue.hash8 if self.catalogue else ""

    def published_memory_mib(self, card: Card) -> int:
        return self.catalogue.published_memory_mib(card.memory_mib) if self.catalogue else card.memory_mib


@dataclass(frozen=True)
class Share:
    """What one container has of one card. Units: memory_mib of the card, cores_percent booked, limit_cores_percent enforced (100: none).

    ``mode`` and ``priority`` are the tier's (``_domain.tiers``).
    """

    uuid: str
    memory_mib: int
    cores_percent: int
    limit_cores_percent: int
    mode: str = DEFAULT_MODE
    priority: int = 0


@dataclass(frozen=True)
class ContainerShare:
    """One requesting container; its position in a booking is its segment's."""

    name: str
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class Quota:
    """What became of the newest request for another quota, which is kept in the words of its annotation.

    ``before`` and ``wanted`` are known while ``phase`` is CHANGING: the booking's own shares are then the larger of each number.
    """

    request: str
    phase: str
    message: str = ""
    before: tuple[ContainerShare, ...] = ()
    wanted: tuple[ContainerShare, ...] = ()


def between(
    choose: Callable[[int, int], int], before: Iterable[ContainerShare], wanted: Iterable[ContainerShare]
) -> tuple[ContainerShare, ...]:
    """``choose`` (min or max) of each number of two bookings of the same containers and cards; the rest is as before."""
    return tuple(
        ContainerShare(
            old.name,
            tuple(
                replace(
                    a,
                    memory_mib=choose(a.memory_mib, b.memory_mib),
                    cores_percent=choose(a.cores_percent, b.cores_percent),
                    limit_cores_percent=choose(a.limit_cores_percent or 100, b.limit_cores_percent or 100),
                )
                for a, b in zip(old.shares, new.shares)
            ),
        )
        for old, new in zip(before, wanted)
    )


@dataclass(frozen=True)
class Booking:
    """What a pod has on this node. ``source`` is "annotation", "limits" or "moved"; ``revision`` the catalogue's hash8.

    The shares are what the pod takes of its cards: a live quota changes them, while the requests stay what they are in its object.
    """

    uid: str
    namespace: str
    name: str
    tier: str
    revision: str
    source: str
    containers: tuple[ContainerShare, ...]
    quota: Quota | None = None

    def segments(self) -> list[list[wire.Assignment]]:
        return [
            [wire.Assignment(share.uuid, fit.DEVICE_TYPE, share.memory_mib, share.cores_percent) for share in container.shares]
            for container in self.containers
        ]

    def container(self, name: str) -> ContainerShare | None:
        return next((container for container in self.containers if container.name == name), None)

    def enforced(self, name: str) -> ContainerShare | None:
        """What the container's page may promise: while a quota changes, the smaller of each number."""
        if self.quota is None or self.quota.phase != CHANGING:
            return self.container(name)
        return next((container for container in between(min, self.quota.before, self.quota.wanted) if container.name == name), None)

    @property
    def cards(self) -> frozenset[str]:
        return frozenset(share.uuid for container in self.containers for share in container.shares)


@dataclass(frozen=True)
class Slot:
    """A name that Allocate gave out for a set of ids; who owns it is known from its first PreStart on, and never changes."""

    name: str
    ids: tuple[str, ...]
    owner_uid: str = ""
    owner_namespace: str = ""
    owner_pod: str = ""
    owner_container: str = ""

    def owned_by(self, uid: str, namespace: str, pod: str, container: str) -> Slot:
        return replace(self, owner_uid=uid, owner_namespace=namespace, owner_pod=pod, owner_container=container)


@dataclass(frozen=True)
class Capacity:
    """The two node-status resources. Units: MiB and percent of a card."""

    memory_mib: int
    cores_percent: int


# --- pods -----------------------------------------------------------------------------------------------------------------


def is_terminal(pod: JsonObject) -> bool:
    """All containers of the pod have ended for good; the kubelet reports the phase only then."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_leaving(pod: JsonObject) -> bool:
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def effective_request(pod: JsonObject, resource: str) -> int:
    """What the kubelet and the scheduler count for a pod: the larger of its running containers' sum and any init container's peak.

    Restartable init containers run on beside those that follow. A quantity that is no whole number counts as 0 (the API server refuses
    those). Source: Kubernetes v1.35.4, staging/src/k8s.io/component-helpers/resource/helpers.go, AggregateContainerRequests.
    """
    spec = pod.get("spec") or {}
    running = sum(_requested(container, resource) for container in spec.get("containers") or [])
    sidecars = peak = 0
    for container in spec.get("initContainers") or []:
        amount = _requested(container, resource)
        if container.get("restartPolicy") == "Always":
            sidecars += amount
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + amount)
    return max(running + sidecars, peak)


def _requested(container: JsonObject, resource: str) -> int:
    resources = container.get("resources") or {}
    for kind in ("requests", "limits"):
        amounts = resources.get(kind) or {}
        if resource in amounts:
            try:
                return max(0, parse_integer(amounts[resource]))
            except QuantityError:
                return 0
    return 0


# --- cards ----------------------------------------------------------------------------------------------------------------


def card_ledgers(
    cards: Iterable[Card], bookings: Iterable[Booking], terms: Terms, groups: Mapping[str, str] | None = None
) -> list[fit.CardLedger]:
    """Each card with all bookings on it; a sick card has count 0: nothing new fits.

    Shares on cards that are gone are left out: they cannot be booked against anything. ``groups``: PodGroup by pod UID, for those that
    spread.
    """
    ledgers = [
        fit.CardLedger(card.uuid, terms.slices if card.healthy else 0, terms.published_memory_mib(card), register_type(card.name))
        for card in cards
    ]
    positions = {ledger.uuid: index for index, ledger in enumerate(ledgers)}
    for booking in bookings:
        for container in booking.containers:
            for share in container.shares:
                if share.uuid in positions:
                    index = positions[share.uuid]
                    ledger = ledgers[index].with_usage(share.memory_mib, share.cores_percent)
                    group = (groups or {}).get(booking.uid)
                    ledgers[index] = replace(ledger, pod_groups=ledger.pod_groups | {group}) if group else ledger
    return ledgers


def register_records(cards: Sequence[Card], terms: Terms, in_service: bool, bookings: Collection[Booking]) -> list[wire.RegisterRecord]:
    """What the scheduler reads of this node.

    Count 0 takes a card out, and all of them without ``in_service`` or a catalogue: the scheduler never looks at health. It counts a pod
    once on a card, however many of its containers are there: slices and memory of the others are taken off what the card offers, and a card
    whose cores are all booked is full (cores that it overlooks on other cards cannot be said in this format; a pod placed by them moves).
    """
    empty = card_ledgers(cards, (), terms)
    true = card_ledgers(cards, bookings, terms)
    believed = fit.book_as_volcano(empty, [(booking.uid, booking.segments()) for booking in bookings])
    records = []
    for card, offer, used, seen in zip(cards, empty, true, believed):
        count = offer.count - (used.used_count - seen.used_count)
        if seen.used_cores_percent < used.used_cores_percent >= fit.CORES_PER_CARD_PERCENT:
            count = min(count, seen.used_count)
        records.append(
            wire.RegisterRecord(
                uuid=card.uuid,
                count=max(0, count) if in_service and terms.catalogue else 0,
                memory_mib=max(0, offer.memory_mib - (used.used_memory_mib - seen.used_memory_mib)),
                type=offer.type,
                healthy=card.healthy,
            )
        )
    return records


def register_type(card_name: str) -> str:
    """``NVIDIA-`` and the product name; the annotation's separators cannot be escaped, so they become spaces."""
    return "NVIDIA-" + "".join(" " if character in ",:;" else character for character in card_name)


def capacity(pods: Iterable[JsonObject], cards: Iterable[Card], bookings: Collection[Booking], terms: Terms) -> Capacity:
    """vgpu-memory and vgpu-cores of the node: never below what bound pods request, never 0, and above what any card can still hold.

    Below the sum of requests a restarting kubelet would kill running pods; at 0 the scheduler drops the node's per-card ledger.
    """
    bound = [pod for pod in pods if not is_terminal(pod)]
    memory = sum(effective_request(pod, wire.RESOURCE_MEMORY) for pod in bound)
    cores = sum(effective_request(pod, wire.RESOURCE_CORES) for pod in bound)
    for ledger in card_ledgers([card for card in cards if card.healthy], bookings, terms):
        memory += max(0, ledger.memory_mib - ledger.used_memory_mib)
        cores += max(0, fit.CORES_PER_CARD_PERCENT - ledger.used_cores_percent)
    return Capacity(memory_mib=max(1, memory), cores_percent=max(1, cores))


# --- device ids -----------------------------------------------------------------------------------------------------------


def device_ids(uuids: Iterable[str], slices: int, held: Iterable[str]) -> list[str]:
    """Those of all cards, and those that containers hold of cards and slices that are gone: without its id a container does not restart."""
    ids = [f"{uuid}::{number}" for uuid in uuids for number in range(slices * IDS_PER_SLICE)]
    return ids + sorted(set(held) - set(ids))


def card_of_id(device_id: str) -> str:
    return device_id.partition("::")[0]


def preferred_ids(wanted_cards: Sequence[str], available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
    """``size`` of the available ids: those that must be, then one of each wanted card, then others of these cards, then any."""
    chosen = list(dict.fromkeys(must_include))[:size]
    free = [device_id for device_id in available if device_id not in set(chosen)]
    for uuid in wanted_cards:
        if len(chosen) < size and not any(card_of_id(device_id) == uuid for device_id in chosen):
            match = next((device_id for device_id in free if card_of_id(device_id) == uuid), None)
            if match is not None:
                chosen.append(match)
                free.remove(match)
    free.sort(key=lambda device_id: card_of_id(device_id) not in wanted_cards)  # stable: the kubelet's order within
    return chosen + free[: size - len(chosen)]
