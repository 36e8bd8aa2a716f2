"""Which sets of slices share one card: the proof behind a required mix, and the list of the fullest ones.

Owns counting and wording. Every answer comes from ``fit``, by placing the slices one after the other on an empty card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from . import fit
from .errors import TierError
from .slices import SliceRequest
from .tiers import Catalogue, Tier

__all__ = ["MixProof", "capacity", "fits_one_card", "maximal_mixes", "prove", "spelled"]

MIX_LIMIT = 10_000  # our choice: sets looked at before a catalogue counts as too fine to list; takes three seconds at worst


@dataclass(frozen=True)
class MixProof:
    """Whether a mix shares a card of that memory in *every* order of arrival, with the sums. Units: MiB, percent, slices."""

    mix: dict[str, int]
    fits: bool
    memory_mib: int
    card_memory_mib: int
    cores_percent: int
    slices: int
    slices_per_card: int
    reason: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "mix": dict(self.mix),
            "fits": self.fits,
            "memory_mib": self.memory_mib,
            "card_memory_mib": self.card_memory_mib,
            "reserved_cores": self.cores_percent,
            "slices": self.slices,
            "slices_per_card": self.slices_per_card,
            "reason": self.reason,
        }


def spelled(mix: Mapping[str, int]) -> str:
    """``1 xlarge + 2 small``."""
    return " + ".join(f"{count} {name}" for name, count in mix.items()) or "nothing"


def fits_one_card(mix: Mapping[str, int], catalogue: Catalogue, card_memory_mib: int) -> bool:
    """Whether the slices of a mix share one card with that real total, in every order of arrival."""
    return prove(mix, catalogue, card_memory_mib).fits


def prove(mix: Mapping[str, int], catalogue: Catalogue, card_memory_mib: int) -> MixProof:
    """The same with the arithmetic. Errors: TierError for a tier that the catalogue does not have."""
    members = [(catalogue.tier(name), count) for name, count in mix.items()]
    published = catalogue.published_memory_mib(card_memory_mib)
    fits = _placed(members, catalogue.slices_per_card, published)
    return MixProof(
        mix=dict(mix),
        fits=fits,
        memory_mib=sum(tier.memory_mib * count for tier, count in members),
        card_memory_mib=published,
        cores_percent=sum(tier.reserved_cores_percent * count for tier, count in members),
        slices=sum(mix.values()),
        slices_per_card=catalogue.slices_per_card,
        reason=_reason(members, catalogue.slices_per_card, published),
    )


def _placed(members: list[tuple[Tier, int]], slices_per_card: int, published_mib: int) -> bool:
    """Place all slices on one empty card, the ones that book most cores first.

    Order matters to the scheduler in one case only: a request without cores joins a card that is not full, but not one whose cores
    are all booked. So the worst order has those last, and what fits then fits in every order.
    """
    if sum(count for _tier, count in members) > slices_per_card:
        return False
    card = fit.CardLedger(uuid="card", count=slices_per_card, memory_mib=published_mib, type="NVIDIA")
    for tier, count in sorted(members, key=lambda member: -member[0].reserved_cores_percent):
        request = SliceRequest(number=1, memory_mib=tier.memory_mib, cores_percent=tier.reserved_cores_percent)
        for _ in range(count):
            if isinstance(fit.fit(request, [card]), fit.FitRefusal):
                return False
            card = card.with_usage(tier.memory_mib, tier.reserved_cores_percent)
    return True


def _reason(members: list[tuple[Tier, int]], slices_per_card: int, published_mib: int) -> str:
    """Every bound that a mix breaks, or the sums by which it fits."""
    slices = sum(count for _tier, count in members)
    memory = sum(tier.memory_mib * count for tier, count in members)
    cores = sum(tier.reserved_cores_percent * count for tier, count in members)
    memory_sum = _sum([(tier.memory_mib, count) for tier, count in members], memory)
    cores_sum = _sum([(tier.reserved_cores_percent, count) for tier, count in members], cores)
    broken = []
    if slices > slices_per_card:
        broken.append(f"slices {slices} > {slices_per_card} on a card")
    if memory > published_mib:
        broken.append(f"memory {memory_sum} > {published_mib} MiB")
    if cores > fit.CORES_PER_CARD_PERCENT:
        broken.append(f"reserved cores {cores_sum} > {fit.CORES_PER_CARD_PERCENT} percent")
    alone = [tier.name for tier, _count in members if tier.reserved_cores_percent == fit.CORES_PER_CARD_PERCENT]
    if alone and slices > 1:
        broken.append(f"{alone[0]} reserves 100 percent, which the scheduler gives only an empty card; reserve less (80) and limit at 100")
    elif cores == fit.CORES_PER_CARD_PERCENT and slices > 1 and any(tier.reserved_cores_percent == 0 for tier, _count in members):
        broken.append("a slice without reserved cores is refused once all cores are booked")
    if broken:
        return "; ".join(broken)
    return f"memory {memory_sum} <= {published_mib} MiB; reserved cores {cores_sum} <= 100 percent; slices {slices} <= {slices_per_card}"


def _sum(terms: list[tuple[int, int]], total: int) -> str:
    text = " + ".join(f"{count} x {amount}" if count != 1 else f"{amount}" for amount, count in terms)
    return text if text == str(total) else f"{text} = {total}"


def capacity(tier: Tier, catalogue: Catalogue, card_memory_mib: int) -> tuple[int, str]:
    """How many slices of one tier a card with that real total holds, and what stops the next one."""
    published = catalogue.published_memory_mib(card_memory_mib)
    count = 0
    while _placed([(tier, count + 1)], catalogue.slices_per_card, published):
        count += 1
    return count, _reason([(tier, count + 1)], catalogue.slices_per_card, published)


def maximal_mixes(catalogue: Catalogue, card_memory_mib: int) -> list[dict[str, int]]:
    """All mixes that fit one card and to which no slice of any tier can be added; largest tiers first.

    Errors: TierError when more than MIX_LIMIT sets would have to be looked at (very small slices of many tiers).
    """
    published = catalogue.published_memory_mib(card_memory_mib)
    tiers = sorted(catalogue.tiers, key=lambda tier: (-tier.memory_mib, -tier.reserved_cores_percent, tier.name))
    search = _MixSearch(tiers, catalogue.slices_per_card, published)
    found = []
    for counts in search.feasible():
        grown = ((*counts[:at], count + 1, *counts[at + 1 :]) for at, count in enumerate(counts))
        if any(counts) and not any(search.fits(more) for more in grown):
            found.append({tier.name: count for tier, count in zip(tiers, counts) if count})
    return found


class _MixSearch:
    """Walks all feasible counts; a set that fits has only fitting subsets, so a branch ends at its first misfit."""

    def __init__(self, tiers: list[Tier], slices_per_card: int, published_mib: int) -> None:
        self.tiers = tiers
        self.slices_per_card = slices_per_card
        self.published_mib = published_mib
        self.known: dict[tuple[int, ...], bool] = {}

    def fits(self, counts: tuple[int, ...]) -> bool:
        if counts not in self.known:
            if len(self.known) >= MIX_LIMIT:
                raise TierError(f"more than {MIX_LIMIT} mixes fit a card, too many to list", limit=MIX_LIMIT)
            members = [(tier, count) for tier, count in zip(self.tiers, counts) if count]
            self.known[counts] = _placed(members, self.slices_per_card, self.published_mib)
        return self.known[counts]

    def feasible(self) -> list[tuple[int, ...]]:
        """All feasible counts, the empty one included, those with more of the larger tiers first."""
        found: list[tuple[int, ...]] = []
        self._extend((), found)
        return sorted(found, reverse=True)

    def _extend(self, chosen: tuple[int, ...], found: list[tuple[int, ...]]) -> None:
        if len(chosen) == len(self.tiers):
            found.append(chosen)
            return
        missing = len(self.tiers) - len(chosen) - 1
        count = 0
        while self.fits((*chosen, count) + (0,) * missing):
            self._extend((*chosen, count), found)
            count += 1
