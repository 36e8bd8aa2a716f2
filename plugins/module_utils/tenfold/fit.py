"""Volcano's decision which cards of a node a pod gets, rule by rule in its order.

Owns the only implementation of that rule in Tenfold: the validator proves mixes with it, the device plugin checks and re-books with
it, the tests compare it with the real scheduler. It computes from values; reading annotations is ``wire``'s task, names of tiers are
``tiers``'.

Source: Volcano v1.15.1, pkg/scheduler/api/devices/nvidia/vgpu: utils.go (checkNodeGPUSharingPredicateAndScore,
sortedDeviceIndicesByPolicy, GPUScore, checkType), hamicore.go (TryAddPod, AddPod), device_info.go (addResource). Sharing mode
hami-core only; MIG geometries are not modelled here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterable, Mapping, Sequence

from .errors import CardError
from .slices import Assignment, SliceRequest

__all__ = [
    "CORES_PER_CARD_PERCENT",
    "DEVICE_TYPE",
    "CardLedger",
    "CardRefusal",
    "Fit",
    "FitRefusal",
    "PodFit",
    "SliceRequest",
    "book",
    "book_as_volcano",
    "card_order",
    "fit",
    "fit_pod",
]

CORES_PER_CARD_PERCENT = 100  # hard-coded in the scheduler; no scaling option changes it
DEVICE_TYPE = "NVIDIA"
USE_TYPE_ANNOTATION = "nvidia.com/use-gputype"
NOUSE_TYPE_ANNOTATION = "nvidia.com/nouse-gputype"
MODE_ANNOTATION = "volcano.sh/vgpu-mode"


@dataclass(frozen=True)
class CardLedger:
    """What the scheduler knows of one card: its published record and what is booked on it.

    Units: count and used_count in slices, memory in MiB, cores in percent of the card. A ``count`` of 0 takes the card out of service.
    ``pod_groups`` are the groups (``namespace/name``) of pods with booked usage on it; only a spreading pod looks at them.
    """

    uuid: str
    count: int
    memory_mib: int
    type: str
    used_count: int = 0
    used_memory_mib: int = 0
    used_cores_percent: int = 0
    pod_groups: frozenset[str] = frozenset()

    @property
    def free_memory_mib(self) -> int:
        return self.memory_mib - self.used_memory_mib

    def with_usage(self, memory_mib: int, cores_percent: int) -> CardLedger:
        return replace(
            self,
            used_count=self.used_count + 1,
            used_memory_mib=self.used_memory_mib + memory_mib,
            used_cores_percent=self.used_cores_percent + cores_percent,
        )


@dataclass(frozen=True)
class CardRefusal:
    """Why one card was passed over. ``rule`` is a word for programs: slices, group, memory, cores, exclusive, full, type, taken."""

    uuid: str
    rule: str
    message: str


@dataclass(frozen=True)
class Fit:
    """The cards of one container, in the order in which the scheduler takes them, and the score it gives the node for them."""

    assignments: tuple[Assignment, ...]
    score: float

    @property
    def cards(self) -> list[str]:
        return [assignment.uuid for assignment in self.assignments]


@dataclass(frozen=True)
class FitRefusal:
    """No set of cards serves the request. ``message`` is the scheduler's, ``reasons`` ours, one for each card in its order."""

    message: str
    reasons: tuple[CardRefusal, ...]
    container: int = 0

    def __str__(self) -> str:
        if not self.reasons:
            return self.message
        return f"{self.message}: " + "; ".join(f"card {reason.uuid!r}: {reason.message}" for reason in self.reasons)


@dataclass(frozen=True)
class PodFit:
    """Segment k is the k-th requesting container's; ``cards`` are the node's ledgers with this pod booked."""

    segments: tuple[tuple[Assignment, ...], ...]
    cards: tuple[CardLedger, ...]
    score: float


def fit(
    request: SliceRequest, cards: Sequence[CardLedger], policy: str = "binpack", annotations: Mapping[str, str] | None = None
) -> Fit | FitRefusal:
    """Where the scheduler puts a container with this request on a node with these cards (in register order), or why nowhere.

    ``policy`` is ``binpack``, ``spread`` or anything else for the scheduler's default order (last card first).
    """
    result = fit_pod([request], cards, policy, annotations)
    if isinstance(result, FitRefusal):
        return result
    return Fit(assignments=result.segments[0], score=result.score)


def fit_pod(
    requests: Sequence[SliceRequest],
    cards: Sequence[CardLedger],
    policy: str = "binpack",
    annotations: Mapping[str, str] | None = None,
    spread_group: str | None = None,
    node_mode: str = "hami-core",
) -> PodFit | FitRefusal:
    """The same for all requesting containers of a pod, each on top of the ones before; one refusal refuses the pod.

    ``spread_group`` is the pod's PodGroup (``namespace/name``) when it carries ``volcano.sh/vgpu-podgroup-policy: spread``.
    """
    annotations = annotations or {}
    wanted_mode = annotations.get(MODE_ANNOTATION)
    if requests and wanted_mode is not None and wanted_mode != node_mode:
        return FitRefusal(f"pod required sharing mode {wanted_mode} is not the same as the node mode {node_mode}", ())
    ledgers = list(cards)
    segments: list[tuple[Assignment, ...]] = []
    score = 0.0
    for container, request in enumerate(requests):
        if request.number > len(ledgers):
            return FitRefusal(f"no enough gpu cards on node: {request.number} wanted, {len(ledgers)} present", (), container)
        taken, refusals, gained = _walk(request, ledgers, policy, annotations, spread_group)
        if len(taken) < request.number:
            return FitRefusal("not enough gpu fitted on this node", tuple(refusals), container)
        segments.append(tuple(taken))
        score += gained
    return PodFit(segments=tuple(segments), cards=tuple(ledgers), score=score)


def _walk(
    request: SliceRequest, ledgers: list[CardLedger], policy: str, annotations: Mapping[str, str], spread_group: str | None
) -> tuple[list[Assignment], list[CardRefusal], float]:
    """One container's walk over the cards; books in ``ledgers`` (a list of this call's own) what it takes."""
    taken: list[Assignment] = []
    refusals: list[CardRefusal] = []
    score = 0.0
    for index in card_order(ledgers, policy):
        card = ledgers[index]
        refusal = _refusal(request, card, annotations, spread_group)
        if refusal is not None:
            refusals.append(refusal)
            continue
        memory_mib = request.memory_on(card.memory_mib)
        # Booked before the scheduler looks at the number: a request for 0 cards books one all the same, and is given none.
        ledgers[index] = card.with_usage(memory_mib, request.cores_percent)
        if len(taken) < request.number:
            taken.append(Assignment(card.uuid, DEVICE_TYPE, memory_mib, request.cores_percent))
            score += _score(ledgers[index], policy)
            refusals.append(CardRefusal(card.uuid, "taken", "fits, but is not enough alone"))
        if len(taken) >= request.number:
            break
    return taken, refusals, score


def card_order(cards: Sequence[CardLedger], policy: str) -> list[int]:
    """Indices in the order in which the scheduler tries them; computed once for each container, not after every card."""
    indices = range(len(cards))
    if policy == "binpack":
        return sorted(indices, key=lambda index: (-cards[index].used_memory_mib, index))
    if policy == "spread":
        return sorted(indices, key=lambda index: (cards[index].used_count, index))
    return list(reversed(indices))


def _refusal(request: SliceRequest, card: CardLedger, annotations: Mapping[str, str], spread_group: str | None) -> CardRefusal | None:
    """The first rule that refuses this card, in the scheduler's order; None if it fits."""
    cores = request.cores_percent
    memory_mib = request.memory_on(card.memory_mib)
    if card.count <= card.used_count:
        return CardRefusal(card.uuid, "slices", f"{card.used_count} of {card.count} slices are taken")
    if spread_group and spread_group in card.pod_groups:
        return CardRefusal(card.uuid, "group", f"a pod of group {spread_group!r} is on it and the group spreads")
    if card.free_memory_mib < memory_mib:
        return CardRefusal(
            card.uuid, "memory", f"{card.used_memory_mib} + {memory_mib} = {card.used_memory_mib + memory_mib} > {card.memory_mib} MiB"
        )
    if card.used_cores_percent + cores > CORES_PER_CARD_PERCENT:
        total = card.used_cores_percent + cores
        return CardRefusal(
            card.uuid, "cores", f"{card.used_cores_percent} + {cores} = {total} > {CORES_PER_CARD_PERCENT} percent of the cores"
        )
    if cores == CORES_PER_CARD_PERCENT and card.used_count > 0:
        return CardRefusal(card.uuid, "exclusive", f"100 percent of the cores wants the card alone, {card.used_count} slices are on it")
    if card.used_cores_percent == CORES_PER_CARD_PERCENT and cores == 0:
        return CardRefusal(card.uuid, "full", "all cores are booked, and a request without cores is refused on a full card")
    if not _type_allowed(card.type, annotations):
        return CardRefusal(card.uuid, "type", f"type {card.type!r} is not what the pod accepts")
    return None


def _type_allowed(card_type: str, annotations: Mapping[str, str]) -> bool:
    """``use-gputype`` decides alone where present; both are lists of case-insensitive substrings."""
    if DEVICE_TYPE not in card_type:
        return False
    wanted = annotations.get(USE_TYPE_ANNOTATION)
    if wanted is not None:
        return any(part.upper() in card_type.upper() for part in wanted.split(","))
    refused = annotations.get(NOUSE_TYPE_ANNOTATION)
    return refused is None or not any(part.upper() in card_type.upper() for part in refused.split(","))


def _score(card: CardLedger, policy: str) -> float:
    """The node's score for one taken card, computed after booking (so that spread, which asks for an empty card, never scores)."""
    if policy == "binpack":
        return 100.0 * (card.used_memory_mib / card.memory_mib) if card.memory_mib else 0.0
    if policy == "spread" and card.used_count == 0:
        return 100.0
    return 0.0


def book(cards: Sequence[CardLedger], segments: Iterable[Iterable[Assignment]]) -> list[CardLedger]:
    """The ledgers with every assignment of a pod added: what is really promised on each card.

    Errors: CardError for a card that the node does not have.
    """
    ledgers = list(cards)
    positions = {card.uuid: index for index, card in enumerate(ledgers)}
    for segment in segments:
        for assignment in segment:
            if assignment.uuid not in positions:
                raise CardError(f"card {assignment.uuid!r} is not on this node, expected one of {sorted(positions)}", uuid=assignment.uuid)
            index = positions[assignment.uuid]
            ledgers[index] = ledgers[index].with_usage(assignment.memory_mib, assignment.cores_percent)
    return ledgers


def book_as_volcano(
    cards: Sequence[CardLedger],
    pods: Iterable[tuple[str, Iterable[Iterable[Assignment]]]],
    groups: Mapping[str, str] | None = None,
) -> list[CardLedger]:
    """The ledgers as the scheduler rebuilds them from ``(pod UID, segments)``: a pod counts once on a card, whatever it has there.

    It matches a card by its UUID being *contained* in the annotation's (MIG names carry a suffix) and skips unknown ones, so this
    is what the scheduler believes, not what is true; see ``book``. ``groups`` maps a pod UID to its PodGroup.
    """
    ledgers = list(cards)
    counted: dict[int, set[str]] = {}
    for pod_uid, segments in pods:
        for segment in segments:
            for assignment in segment:
                index = next((at for at, card in enumerate(ledgers) if card.uuid in assignment.uuid), None)
                if index is None or pod_uid in counted.setdefault(index, set()):
                    continue
                counted[index].add(pod_uid)
                card = ledgers[index].with_usage(assignment.memory_mib, assignment.cores_percent)
                group = (groups or {}).get(pod_uid)
                if group and (assignment.memory_mib or assignment.cores_percent):
                    card = replace(card, pod_groups=card.pod_groups | {group})
                ledgers[index] = card
    return ledgers
