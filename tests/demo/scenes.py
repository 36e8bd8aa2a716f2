"""What the demo submits and what Tenfold promises of it: values only.

A scene is a few waves of pods (a wave is submitted when the one before runs) and the promise of how the pods spread over cards.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ARTICLE_LIMITS", "SCENES", "PodRequest", "Scene", "tier_pod"]

# tier -> memory_mib, reserved cores percent, limit cores percent; the numbers of inventories/sim, repeated here on purpose: the demo
# judges the product from outside, so it must not ask the product what to expect.
TIERS = {
    "small": (8192, 10, 10),
    "medium": (16384, 30, 30),
    "large": (32768, 60, 60),
    "xlarge": (65536, 80, 100),
    "batch": (16384, 20, 40),
}

# The three lines of the article's example pod, verbatim: numbers that fit no tier.
ARTICLE_LIMITS = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 512, "volcano.sh/vgpu-cores": 20}


@dataclass(frozen=True)
class PodRequest:
    """One pod: name, tier label (None: custom numbers), what it asks for and what the hook should let it use."""

    name: str
    tier: str | None
    memory_mib: int
    reserved_cores_percent: int
    limit_cores_percent: int


@dataclass(frozen=True)
class Scene:
    """cards_used: pods per card, most loaded first; the promise about packing."""

    title: str
    waves: tuple[tuple[PodRequest, ...], ...]
    pods_per_card: tuple[int, ...]


def tier_pod(tier: str, number: int) -> PodRequest:
    """The *number*-th pod of a tier."""
    memory_mib, reserved, limit = TIERS[tier]
    return PodRequest(f"{tier}-{number}", tier, memory_mib, reserved, limit)


def _pods(**count: int) -> tuple[PodRequest, ...]:
    return tuple(tier_pod(tier, number) for tier, amount in count.items() for number in range(1, amount + 1))


SCENES = (
    Scene("ten small pods share one card, the eleventh goes to the next", (_pods(small=10), (tier_pod("small", 11),)), (10, 1)),
    Scene("eight small pods share one card", (_pods(small=8),), (8,)),
    Scene("two medium and three small pods share one card", (_pods(medium=2, small=3),), (5,)),
    Scene("one xlarge and two small pods share one card", (_pods(xlarge=1, small=2),), (3,)),
    Scene(
        "the article's own example pod gets exactly its numbers",
        ((PodRequest("article", None, ARTICLE_LIMITS["volcano.sh/vgpu-memory"], ARTICLE_LIMITS["volcano.sh/vgpu-cores"], 20),),),
        (1,),
    ),
)
