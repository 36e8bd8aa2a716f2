"""One pod's claim to cards, judged. Pure: takes the pod, the cards and what is booked, returns a booking or raises why not.

Owns the rule that an annotation is a claim and not a proof: it counts only if it equals the containers' limits and fits this node's
ledger. A claim that no longer fits waits for pods that are leaving, or moves to another card by the scheduler's own rule.
``binding`` asks at the right moments and keeps the answer in ``ledger``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ._domain import fit, wire
from ._domain.errors import TierError, WireError
from ._domain.slices import SliceRequest
from ._domain.tiers import Tier
from .errors import PermanentRefusal, Refused
from .state import Booking, Card, ContainerShare, JsonObject, Quota, Share, Terms, card_ledgers, effective_request

__all__ = [
    "Node",
    "asks_for_slice",
    "claimed_cards",
    "decide",
    "decide_again",
    "desired_annotations",
    "granted",
    "group_of",
    "overbooked",
    "tier_name",
]

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"  # the API's picture of a static pod
MOVE_POLICY = "binpack"
# Volcano v1.15.1: pkg/scheduler/api/devices/nvidia/vgpu/utils.go; no two pods of a group that spreads get one card.
SPREAD_ANNOTATION, SPREAD = "volcano.sh/vgpu-podgroup-policy", "spread"
GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
RESOURCE_PERCENTAGE = "volcano.sh/vgpu-memory-percentage"  # a name that the scheduler can be configured to know, and nodes do not offer
PLACED_TIME = str(2**64 - 1)  # what the scheduler's own plugin writes into vgpu-time when a pod has its cards


@dataclass(frozen=True)
class Node:
    """What a decision needs to know of this node. ``groups`` names the PodGroup of each pod that has one, by UID."""

    name: str
    cards: Sequence[Card]
    terms: Terms
    schedulers: Collection[str]
    groups: Mapping[str, str] = field(default_factory=dict)


def asks_for_slice(pod: JsonObject) -> bool:
    """Whether any container of the pod, init containers included, requests something of a card."""
    resources = (wire.RESOURCE_NUMBER, wire.RESOURCE_MEMORY, wire.RESOURCE_CORES, RESOURCE_PERCENTAGE)
    return any(effective_request(pod, resource) > 0 for resource in resources)


def group_of(pod: JsonObject) -> str:
    """The pod's PodGroup as ``namespace/name``; empty: none."""
    metadata: Mapping[str, Any] = pod.get("metadata") or {}
    name = (metadata.get("annotations") or {}).get(GROUP_ANNOTATION)
    return f"{metadata.get('namespace')}/{name}" if name else ""


def decide(pod: JsonObject, node: Node, bookings: Iterable[Booking], leaving_uids: Collection[str], patient: bool) -> Booking:
    """What this pod gets on this node.

    ``bookings`` are those of the other pods, ``leaving_uids`` the pods among them that will free their shares by themselves. With
    ``patient`` a claim that fits without those raises Refused("waiting"); without, it moves to another card.
    Errors: PermanentRefusal when this pod object can never have a slice; Refused with a reason when it can't now.
    """
    requests = _requests(pod, node)
    others = [booking for booking in bookings if booking.uid != _uid(pod)]
    claim = _claim(pod, node)
    if claim is not None:
        runs = (pod.get("status") or {}).get("phase") == "Running"  # a record that was lost does not move it off a card that is sick
        ledgers = card_ledgers([replace(card, fault="") for card in node.cards] if runs else node.cards, others, node.terms)
        _check_claim(claim, requests, ledgers, _quota_numbers(pod, node.terms))
        excess = overbooked(claim, ledgers)
        if not excess:
            return _booking(pod, node, requests, claim, "annotation")
        staying = card_ledgers(node.cards, [booking for booking in others if booking.uid not in leaving_uids], node.terms)
        if patient and not overbooked(claim, staying):
            raise Refused("waiting", f"waits for a terminating pod: {excess}")
    segments = _placed(pod, node, [container.request for container in requests], others, leaving_uids, patient)
    return _booking(pod, node, requests, segments, "limits" if claim is None else "moved")


def decide_again(
    pod: JsonObject,
    booking: Booking,
    container_name: str,
    node: Node,
    bookings: Iterable[Booking],
    leaving_uids: Collection[str],
    patient: bool,
) -> Booking:
    """The booking with other cards for one container, which cannot start on those that it has; what its siblings have stays.

    Errors: as ``decide``.
    """
    request = next((each.request for each in _requests(pod, node) if each.name == container_name), None)
    if request is None:
        raise PermanentRefusal("no_share", f"container {container_name!r} requests no slice")
    had = booking.container(container_name)
    if booking.quota is not None and had is not None and had.shares:  # not what its object says: what it was given since
        request = replace(request, memory_mib=had.shares[0].memory_mib, cores_percent=had.shares[0].cores_percent)
    siblings = replace(booking, containers=tuple(each for each in booking.containers if each.name != container_name))
    others = [*(each for each in bookings if each.uid != booking.uid), siblings]
    segment = _placed(pod, node, [request], others, leaving_uids, patient)[0]
    label = str((pod["metadata"].get("labels") or {}).get(wire.TIER_LABEL, ""))
    moved = ContainerShare(container_name, tuple(_share(node.terms, label, assignment) for assignment in segment))
    containers = tuple(moved if each.name == container_name else each for each in booking.containers)
    return replace(booking, source="moved", containers=containers)


def _placed(
    pod: JsonObject,
    node: Node,
    requests: Sequence[SliceRequest],
    others: Iterable[Booking],
    leaving_uids: Collection[str],
    patient: bool,
) -> Sequence[Sequence[wire.Assignment]]:
    """Cards by the scheduler's own rule. Errors: Refused("waiting") with ``patient`` while pods are leaving, else Refused("no_room")."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    spread_group = group_of(pod) if annotations.get(SPREAD_ANNOTATION) == SPREAD else ""
    ledgers = card_ledgers(node.cards, others, node.terms, node.groups)
    placed = fit.fit_pod(requests, ledgers, MOVE_POLICY, annotations, spread_group or None)
    if isinstance(placed, fit.PodFit):
        return placed.segments
    if patient and leaving_uids:
        raise Refused("waiting", f"waits for terminating pods: {placed}")
    raise Refused("no_room", f"no card of this node has room: {placed}")


def desired_annotations(pod: JsonObject, booking: Booking, node_name: str) -> dict[str, str]:
    """What must be written so that the pod's annotations say what is booked; empty when they do.

    Only keys that differ. The scheduler rebuilds its ledger from ``vgpu-ids-new``, and spares pods with ``bind-phase`` success when it
    takes assignments back.
    """
    found: Mapping[str, str] = (pod.get("metadata") or {}).get("annotations") or {}
    patch: dict[str, str] = {}
    if not _says(found.get(wire.POD_IDS_ANNOTATION), booking):
        ids = wire.encode_segments(booking.segments())
        patch[wire.POD_IDS_ANNOTATION] = ids
        patch[wire.POD_DEVICES_TO_ALLOCATE_ANNOTATION] = ids
        patch[wire.POD_TIME_ANNOTATION] = PLACED_TIME
    if found.get(wire.POD_NODE_ANNOTATION) != node_name:
        patch[wire.POD_NODE_ANNOTATION] = node_name
    if found.get(wire.POD_BIND_PHASE_ANNOTATION) != wire.BIND_PHASE_SUCCESS:
        patch[wire.POD_BIND_PHASE_ANNOTATION] = wire.BIND_PHASE_SUCCESS
    if booking.quota is not None and found.get(wire.QUOTA_STATUS_ANNOTATION) != _quota_status(booking, booking.quota):
        patch[wire.QUOTA_STATUS_ANNOTATION] = _quota_status(booking, booking.quota)
    return patch


def _quota_status(booking: Booking, quota: Quota) -> str:
    """Which request, what became of it, and what is in force (while it changes: what was)."""
    containers = {container.name: [asdict(share) for share in container.shares] for container in quota.before or booking.containers}
    status = {"request": quota.request, "phase": quota.phase, "message": quota.message, "tier": booking.tier, "containers": containers}
    return json.dumps(status, sort_keys=True)


def granted(terms: Terms, request: wire.QuotaRequest, share: Share) -> Share:
    """The share as a request for another quota wants it. Errors: Refused when no catalogue is known or it does not allow these numbers."""
    if terms.catalogue is None:
        raise Refused("no_catalogue", "this node obeys no tier catalogue yet")
    try:
        tier: Tier = (
            terms.catalogue.tier(request.tier)
            if request.tier
            else terms.catalogue.tier_for(
                None,
                share.memory_mib if request.memory_mib is None else request.memory_mib,
                share.cores_percent if request.cores_percent is None else request.cores_percent,
            )
        )
    except TierError as error:
        raise Refused("tier", f"catalogue {terms.revision}: {error}") from error
    return Share(share.uuid, tier.memory_mib, tier.reserved_cores_percent, tier.limit_cores_percent, tier.mode, tier.priority)


def claimed_cards(pod: JsonObject) -> frozenset[str]:
    """The cards that the scheduler's annotation names; empty where it names none."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(wire.POD_IDS_ANNOTATION)
    try:
        return frozenset(assignment.uuid for segment in wire.decode_segments(text or "") for assignment in segment)
    except WireError:
        return frozenset()


def _quota_numbers(pod: JsonObject, terms: Terms) -> Callable[[str, wire.Assignment], tuple[int, int] | None]:
    """What the operator's request in the pod's annotation, if any, grants a container of a card, in place of its limits.

    For a ledger that was lost: it is carried out in any case.
    """
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(wire.QUOTA_ANNOTATION)

    def numbers(container: str, asked: wire.Assignment) -> tuple[int, int] | None:
        try:
            request = wire.decode_quota(text or "", _uid(pod))
            share = granted(terms, request, Share(asked.uuid, asked.memory_mib, asked.cores_percent, 0))
        except WireError:
            return None
        except Refused as refusal:
            if refusal.reason == "no_catalogue":
                raise
            return None
        return (share.memory_mib, share.cores_percent) if request.container in ("", container) else None

    return numbers


def _says(annotation: str | None, booking: Booking) -> bool:
    try:
        return annotation is not None and wire.decode_segments(annotation) == booking.segments()
    except WireError:
        return False


def _requests(pod: JsonObject, node: Node) -> list[wire.RequestingContainer]:
    """The requesting containers. Errors: PermanentRefusal for pods that Volcano did not place or never books."""
    spec: Mapping[str, Any] = pod.get("spec") or {}
    metadata: Mapping[str, Any] = pod.get("metadata") or {}
    if MIRROR_ANNOTATION in (metadata.get("annotations") or {}):
        raise PermanentRefusal("bypass", "static pods get no slice: the scheduler does not know of them")
    scheduler = spec.get("schedulerName")
    if scheduler not in node.schedulers:
        raise PermanentRefusal(
            "bypass", f"schedulerName is {scheduler!r}, expected {' or '.join(sorted(node.schedulers))}: no other scheduler books cards"
        )
    for container in spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always" and asks_for_slice({"spec": {"containers": [container]}}):
            raise PermanentRefusal(
                "sidecar", f"restartable init container {container.get('name')!r} requests a slice, which the scheduler does not book"
            )
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        _check_resources(container)
    try:
        requests = wire.requesting_containers(pod)
    except WireError as error:
        raise PermanentRefusal("bad_request", str(error)) from error
    if not requests:
        raise PermanentRefusal("init_only", "only init containers request a slice, which the scheduler does not book")
    return requests


def _check_resources(container: Mapping[str, Any]) -> None:
    """Errors: PermanentRefusal for a container that the kubelet would start without a slice, or that asks for what no node serves."""

    def asks(resource: str) -> bool:
        return effective_request({"spec": {"containers": [container]}}, resource) > 0

    if asks(RESOURCE_PERCENTAGE):
        raise PermanentRefusal(
            "percent_memory", f"container {container.get('name')!r} asks for {RESOURCE_PERCENTAGE}; write {wire.RESOURCE_MEMORY} in MiB"
        )
    if not asks(wire.RESOURCE_NUMBER) and (asks(wire.RESOURCE_MEMORY) or asks(wire.RESOURCE_CORES)):
        raise PermanentRefusal(
            "no_number",
            f"container {container.get('name')!r} asks for memory or cores of a card without {wire.RESOURCE_NUMBER}, so the kubelet starts "
            f"it without a slice; set {wire.RESOURCE_NUMBER}",
        )


def _claim(pod: JsonObject, node: Node) -> list[list[wire.Assignment]] | None:
    """The scheduler's assignment; None when a scheduler bound the pod but its annotations are lost or another node's.

    Errors: PermanentRefusal for a pod that no scheduler bound; Refused for an annotation that is not in the scheduler's format.
    """
    annotations: Mapping[str, str] = (pod.get("metadata") or {}).get("annotations") or {}
    ids = annotations.get(wire.POD_IDS_ANNOTATION)
    if not _was_bound(pod):
        raise PermanentRefusal("bypass", "spec.nodeName was set by hand: no scheduler booked a card for this pod")
    if not ids or annotations.get(wire.POD_NODE_ANNOTATION) != node.name:
        return None
    try:
        return wire.decode_segments(ids)
    except WireError as error:
        raise Refused("forged", f"{wire.POD_IDS_ANNOTATION}: {error}") from error


def _was_bound(pod: JsonObject) -> bool:
    """Whether a scheduler bound the pod: the API server sets this condition together with spec.nodeName when it takes a Binding.

    A pod created with spec.nodeName has no condition until the kubelet reports one. Source: Kubernetes v1.35.4,
    pkg/registry/core/pod/storage/storage.go, setPodNodeAndMetadata.
    """
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(condition.get("type") == "PodScheduled" and condition.get("status") == "True" for condition in conditions)


def _check_claim(
    claim: Sequence[Sequence[wire.Assignment]],
    requests: Sequence[wire.RequestingContainer],
    ledgers: Sequence[fit.CardLedger],
    quota_numbers: Callable[[str, wire.Assignment], tuple[int, int] | None],
) -> None:
    """Errors: Refused("forged") unless every segment is exactly what its container's limits, or an operator, ask for."""
    if len(claim) != len(requests):
        raise Refused(
            "forged", f"{wire.POD_IDS_ANNOTATION} has {len(claim)} segments, expected {len(requests)}, one a requesting container"
        )
    totals = {ledger.uuid: ledger.memory_mib for ledger in ledgers}
    for segment, container in zip(claim, requests):
        request = container.request
        if len(segment) != request.number:
            raise Refused("forged", f"container {container.name!r} has {len(segment)} cards by annotation, {request.number} by its limits")
        for assignment in segment:
            memory = request.memory_on(totals.get(assignment.uuid, assignment.memory_mib))
            claimed, asked = (assignment.memory_mib, assignment.cores_percent), (memory, request.cores_percent)
            given = quota_numbers(container.name, wire.Assignment(assignment.uuid, assignment.type, *asked))
            if claimed not in (asked, given):
                raise Refused(
                    "forged",
                    f"container {container.name!r} has {claimed[0]} MiB and {claimed[1]} percent of card {assignment.uuid!r} "
                    f"by annotation, {asked[0]} MiB and {asked[1]} percent by its limits",
                )


def overbooked(claim: Iterable[Iterable[wire.Assignment]], ledgers: Sequence[fit.CardLedger]) -> str:
    """Why the claim does not fit on top of what is booked; empty when it does.

    Looks at what a card physically has. The scheduler's rules of exclusive use are its own business: it has applied them.
    """
    cards = {ledger.uuid: ledger for ledger in ledgers}
    for segment in claim:
        for assignment in segment:
            card = cards.get(assignment.uuid)
            if card is None:
                return f"card {assignment.uuid!r} is not on this node"
            after = cards[assignment.uuid] = card.with_usage(assignment.memory_mib, assignment.cores_percent)
            if after.count == 0:
                return f"card {assignment.uuid!r} is out of service"
            if after.used_count > after.count:
                return f"card {assignment.uuid!r} has {card.used_count} of {card.count} slices taken"
            if after.used_memory_mib > after.memory_mib:
                return f"card {assignment.uuid!r} has {card.free_memory_mib} of {card.memory_mib} MiB free, {assignment.memory_mib} claimed"
            if after.used_cores_percent > fit.CORES_PER_CARD_PERCENT:
                return f"card {assignment.uuid!r} has {card.used_cores_percent} percent booked, {assignment.cores_percent} claimed"
    return ""


def _booking(
    pod: JsonObject,
    node: Node,
    requests: Sequence[wire.RequestingContainer],
    segments: Sequence[Sequence[wire.Assignment]],
    source: str,
) -> Booking:
    """Errors: Refused when no catalogue is known or it does not allow these numbers."""
    metadata: Mapping[str, Any] = pod["metadata"]
    label = str((metadata.get("labels") or {}).get(wire.TIER_LABEL, ""))
    containers = tuple(
        ContainerShare(
            container.name,
            tuple(_share(node.terms, label, assignment) for assignment in segment),
        )
        for container, segment in zip(requests, segments)
    )
    tier = tier_name(node.terms, label, containers)
    return Booking(_uid(pod), metadata["namespace"], metadata["name"], tier, node.terms.revision, source, containers)


def tier_name(terms: Terms, label: str, containers: Sequence[ContainerShare]) -> str:
    """The tier whose numbers and limit the pod's first share has, the labelled one if it is among them; empty for custom numbers.

    A label that does not agree with the numbers says nothing, here as in ``tier_for``.
    """
    shares = [share for container in containers for share in container.shares]
    if not shares or terms.catalogue is None:
        return ""
    names = [
        tier.name
        for tier in terms.catalogue.tiers
        if shares[0]
        == Share(shares[0].uuid, tier.memory_mib, tier.reserved_cores_percent, tier.limit_cores_percent, tier.mode, tier.priority)
    ]
    return label if label in names else next(iter(names), "")


def _share(terms: Terms, label: str, assignment: wire.Assignment) -> Share:
    """Errors: Refused when no catalogue is known or it does not allow these numbers."""
    if terms.catalogue is None:
        raise Refused(
            "no_catalogue", f"this node obeys no tier catalogue yet: annotation {wire.TIERS_REVISION_ANNOTATION} is missing or unread"
        )
    try:
        tier = terms.catalogue.tier_for(label or None, assignment.memory_mib, assignment.cores_percent)
    except TierError as error:
        raise Refused("tier", f"catalogue {terms.revision}: {error}") from error
    return Share(assignment.uuid, assignment.memory_mib, assignment.cores_percent, tier.limit_cores_percent, tier.mode, tier.priority)


def _uid(pod: JsonObject) -> str:
    uid: str = pod["metadata"]["uid"]
    return uid
