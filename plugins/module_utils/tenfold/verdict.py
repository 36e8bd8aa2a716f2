"""What a catalogue gives on a card, and over a fleet of cards: proved mixes, counts for each tier, what falls short and why.

Owns the judgement that preflight shows before any host is touched. Sums and proofs come from ``mixes``; the schema was checked by
``tiers``, the cards are ``fleet``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Mapping

from . import cards as card_models
from . import mixes
from .cards import CardModel
from .errors import TierError
from .fleet import FleetEntry
from .tiers import Catalogue, Problem, raise_problems

__all__ = ["FleetVerdict", "Kind", "TierCapacity", "Verdict", "judge", "judge_fleet"]

_MIXES_PATH = "slice_tiers_required_mixes"


@dataclass(frozen=True)
class TierCapacity:
    """How many slices of a tier one card holds, and what stops the next."""

    name: str
    slices: int
    stops: str

    def as_dict(self) -> dict[str, Any]:
        return {"slices": self.slices, "stops": self.stops}


@dataclass(frozen=True)
class Verdict:
    """One kind of card. Units: memory_mib is the real total, published_memory_mib what slices share.

    ``problems`` are reasons to refuse the catalogue for this card: a tier that it cannot hold, a required mix that does not fit.
    """

    card: str
    memory_mib: int
    published_memory_mib: int
    tiers: tuple[TierCapacity, ...]
    required_mixes: tuple[mixes.MixProof, ...]
    maximal_mixes: tuple[dict[str, int], ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        return {
            "card": self.card,
            "memory_mib": self.memory_mib,
            "published_memory_mib": self.published_memory_mib,
            "valid": self.valid,
            "tiers": {tier.name: tier.as_dict() for tier in self.tiers},
            "required_mixes": [proof.as_dict() for proof in self.required_mixes],
            "maximal_mixes": [dict(mix) for mix in self.maximal_mixes],
            "problems": [problem.as_dict() for problem in self.problems],
            "notes": list(self.notes),
        }


def judge(catalogue: Catalogue, card: CardModel, memory_mib: int | None = None, offers: Iterable[str] | None = None) -> Verdict:
    """One kind of card against the catalogue, or against the subset of tiers that its pool offers.

    ``memory_mib`` is the card's real NVML total; None takes the model's nominal one. A required mix counts only where all of its
    tiers are offered. Errors: TierError for an offered tier that does not exist.
    """
    total = card.memory_mib if memory_mib is None else memory_mib
    offered = catalogue.tiers if offers is None else tuple(catalogue.tier(name) for name in dict.fromkeys(offers))
    names = {tier.name for tier in offered}
    published = catalogue.published_memory_mib(total)
    place = f"{card.name} of {total} MiB"
    problems: list[Problem] = []
    notes: list[str] = []
    capacities = []
    for tier in offered:
        slices, stops = mixes.capacity(tier, catalogue, total)
        capacities.append(TierCapacity(tier.name, slices, stops))
        if slices == 0:
            problems.append(Problem(f"slice_tiers.{tier.name}", f"does not fit an empty {place}: {stops}"))
    proofs = []
    for position, mix in enumerate(catalogue.required_mixes):
        if not set(mix) <= names:
            continue
        proof = mixes.prove(mix, catalogue, total)
        proofs.append(proof)
        if not proof.fits:
            problems.append(Problem(f"{_MIXES_PATH}[{position}]", f"({mixes.spelled(mix)}) does not fit one {place}: {proof.reason}"))
    if published != int(total * catalogue.memory_overcommit_ratio):
        notes.append(f"{place} publishes {published} MiB, the multiple of {catalogue.memory_granularity_mib} below it")
    if card not in card_models.MODELS:
        notes.append(f"{place} is in no table of cards and judged by its memory alone")
    return Verdict(
        card=card.name,
        memory_mib=total,
        published_memory_mib=published,
        tiers=tuple(capacities),
        required_mixes=tuple(proofs),
        maximal_mixes=_maximal(catalogue, total, notes, names),
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _maximal(catalogue: Catalogue, total: int, notes: list[str], names: set[str]) -> tuple[dict[str, int], ...]:
    subset = Catalogue(
        tiers=tuple(tier for tier in catalogue.tiers if tier.name in names),
        slices_per_card=catalogue.slices_per_card,
        memory_granularity_mib=catalogue.memory_granularity_mib,
        memory_overcommit_ratio=catalogue.memory_overcommit_ratio,
    )
    try:
        return tuple(mixes.maximal_mixes(subset, total))
    except TierError as error:
        notes.append(str(error))
        return ()


@dataclass(frozen=True)
class Kind:
    """All cards of one model, real total and offer, judged once. ``cards`` counts them, ``nodes`` have them."""

    verdict: Verdict
    nodes: tuple[str, ...]
    cards: int

    @property
    def place(self) -> str:
        return f"{self.verdict.card} of {self.verdict.memory_mib} MiB"


@dataclass(frozen=True)
class FleetVerdict:
    """The whole fleet. ``problems`` refuse it, ``warnings`` name kinds of cards that fall short of a mix which others prove."""

    kinds: tuple[Kind, ...]
    cards: int
    nodes: int
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...] = ()

    def raise_problems(self) -> None:
        """Errors: TierError with every problem."""
        raise_problems(list(self.problems))

    def notes(self) -> list[str]:
        return list(dict.fromkeys(note for kind in self.kinds for note in kind.verdict.notes))

    def proofs(self) -> list[dict[str, Any]]:
        """For each required mix the kinds of cards that prove it, those that do not, and the arithmetic of each."""
        answers: dict[str, dict[str, Any]] = {}
        for kind in self.kinds:
            for proof in kind.verdict.required_mixes:
                name = mixes.spelled(proof.mix)
                answer = answers.setdefault(name, {"mix": name, "proved_by": [], "not_by": [], "arithmetic": []})
                answer["proved_by" if proof.fits else "not_by"].append(kind.place)
                answer["arithmetic"].append(f"{kind.place}: {proof.reason}")
        return list(answers.values())

    def summary(self, catalogue: Catalogue) -> list[str]:
        """A few lines for a person."""
        lines = [f"tiers {catalogue.hash8} on {self.cards} cards of {self.nodes} nodes"]
        for kind in self.kinds:
            held = ", ".join(f"{tier.slices} {tier.name}" for tier in kind.verdict.tiers)
            lines.append(f"{kind.place}, {kind.cards} cards: one holds {held}")
            maximal = "; ".join(mixes.spelled(mix) for mix in kind.verdict.maximal_mixes)
            lines.append(f"  fullest mixes: {maximal or 'too many to list'}")
        lines.extend(f"{answer['mix']}: proved by {', '.join(answer['proved_by'])}" for answer in self.proofs())
        return lines

    def as_dict(self) -> dict[str, Any]:
        kinds = [{**kind.verdict.as_dict(), "nodes": list(kind.nodes), "cards": kind.cards} for kind in self.kinds]
        return {"cards": self.cards, "nodes": self.nodes, "kinds": kinds}


def judge_fleet(catalogue: Catalogue, fleet: Iterable[FleetEntry], every_card: bool = False) -> FleetVerdict:
    """Judge every kind of card once, however many there are of it.

    A tier must fit every card that offers it. A required mix must fit some kind of card, or with ``every_card`` all kinds that offer
    its tiers; else the kinds on which it does not fit are warned about with their nodes and the arithmetic (an older driver reports
    81,251 MiB, where nine small slices fit and not ten). An empty fleet is judged by the catalogue's own card.
    """
    entries = list(fleet) or [FleetEntry("any node", card_models.named(catalogue.card), 0)]
    groups: dict[tuple[str, int, tuple[str, ...] | None], list[FleetEntry]] = {}
    for entry in entries:
        total = entry.card.memory_mib if entry.memory_mib is None else entry.memory_mib
        groups.setdefault((entry.card.name, total, entry.offers), []).append(entry)
    kinds = [
        Kind(
            verdict=judge(catalogue, members[0].card, total, offers),
            nodes=tuple(dict.fromkeys(member.node for member in members)),
            cards=sum(member.count for member in members),
        )
        for (_name, total, offers), members in groups.items()
    ]
    problems = [problem for kind in kinds for problem in _tier_problems(kind)]
    warnings: list[str] = []
    for position, mix in enumerate(catalogue.required_mixes):
        _judge_mix(position, mix, kinds, every_card, problems, warnings)
    return FleetVerdict(
        kinds=tuple(kinds),
        cards=sum(entry.count for entry in entries),
        nodes=len({entry.node for entry in entries if entry.count}),
        problems=tuple(problems),
        warnings=tuple(warnings),
    )


def _tier_problems(kind: Kind) -> list[Problem]:
    return [
        Problem(problem.path, f"{problem.message} (on {_listed(kind.nodes)})")
        for problem in kind.verdict.problems
        if not problem.path.startswith(_MIXES_PATH)
    ]


def _judge_mix(
    position: int, mix: Mapping[str, int], kinds: list[Kind], every_card: bool, problems: list[Problem], warnings: list[str]
) -> None:
    tried = [(proof, kind) for kind in kinds for proof in kind.verdict.required_mixes if proof.mix == mix]
    failed = [(proof, kind) for proof, kind in tried if not proof.fits]
    path = f"{_MIXES_PATH}[{position}]"
    if not tried:
        problems.append(Problem(path, f"({mixes.spelled(mix)}) is offered by no node: no pool offers all of its tiers"))
    elif len(failed) == len(tried):
        shown = "; ".join(f"on one {kind.place}: {proof.reason}" for proof, kind in failed)
        problems.append(Problem(path, f"({mixes.spelled(mix)}) fits no card of the fleet; {shown}"))
    else:
        for proof, kind in failed:
            why = f"{proof.reason}{_instead(mix, kind.verdict)}"
            message = f"({mixes.spelled(mix)}) does not fit the {kind.place} on {_listed(kind.nodes)}: {why}"
            if every_card:
                problems.append(Problem(path, message))
            else:
                warnings.append(f"{path} {message}")


def _instead(mix: Mapping[str, int], verdict: Verdict) -> str:
    """For a mix of one tier, how many do fit."""
    return "".join(f"; {tier.slices} {tier.name} fit" for tier in verdict.tiers if [tier.name] == list(mix))


def _listed(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")
