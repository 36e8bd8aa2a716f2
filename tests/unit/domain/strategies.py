"""Hypothesis strategies for the domain's values: one place, so that every law speaks of the same cards and slices."""

from __future__ import annotations

from typing import Any

from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.fit import CardLedger
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.slices import Assignment, SliceRequest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.tiers import Catalogue
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.wire import RegisterRecord
from hypothesis import strategies as st

# What an annotation's field may hold: anything without a separator.
field_text = st.text(st.characters(codec="ascii", exclude_characters=",:;", exclude_categories=["Cc"]), min_size=1, max_size=40)
uuids = st.uuids().map(lambda value: f"GPU-{value}")
card_memories_mib = st.sampled_from([15360, 40960, 80994, 81251, 81920])
amounts_int32 = st.integers(0, 2**31 - 1)

TIERS: dict[str, Any] = {
    "small": {"memory_mib": 8192, "reserved_cores": 10, "limit_cores": 10},
    "medium": {"memory_mib": 16384, "reserved_cores": 30, "limit_cores": 30},
    "large": {"memory_mib": 32768, "reserved_cores": 60, "limit_cores": 60},
    "xlarge": {"memory_mib": 65536, "reserved_cores": 80, "limit_cores": 100},
}


def default_variables(**changes: Any) -> dict[str, Any]:
    """The tier file of the design, with some keys replaced."""
    variables: dict[str, Any] = {
        "card": "a800-80gb",
        "memory_granularity_mib": 256,
        "slices_per_card": 10,
        "tiers": {name: dict(body) for name, body in TIERS.items()},
        "required_mixes": [{"small": 10}, {"small": 8}, {"medium": 2, "small": 3}, {"xlarge": 1, "small": 2}],
    }
    variables.update(changes)
    return variables


@st.composite
def ledgers(draw: st.DrawFn, uuid: str = "GPU-a") -> CardLedger:
    memory = draw(card_memories_mib)
    count = draw(st.integers(0, 10))
    return CardLedger(
        uuid=uuid,
        count=count,
        memory_mib=memory,
        type=draw(st.sampled_from(["NVIDIA-NVIDIA A800-SXM4-80GB", "NVIDIA", "NVIDIA-Tesla T4"])),
        used_count=draw(st.integers(0, count)),
        used_memory_mib=draw(st.integers(0, memory // 256)) * 256,
        used_cores_percent=draw(st.sampled_from([0, 10, 30, 60, 80, 100])),
    )


@st.composite
def nodes(draw: st.DrawFn, max_cards: int = 4) -> list[CardLedger]:
    return [draw(ledgers(f"GPU-{index}")) for index in range(draw(st.integers(1, max_cards)))]


@st.composite
def empty_nodes(draw: st.DrawFn, max_cards: int = 3) -> list[CardLedger]:
    memory = draw(card_memories_mib)
    return [CardLedger(f"GPU-{index}", 10, memory, "NVIDIA") for index in range(draw(st.integers(1, max_cards)))]


requests = st.builds(
    SliceRequest,
    number=st.integers(0, 3),
    memory_mib=st.one_of(st.none(), st.integers(1, 400).map(lambda units: units * 256)),
    cores_percent=st.sampled_from([0, 1, 10, 30, 60, 80, 100]),
)
assignments = st.builds(Assignment, uuid=field_text, type=field_text, memory_mib=amounts_int32, cores_percent=amounts_int32)
segments = st.lists(st.lists(assignments, max_size=3, unique_by=lambda each: each.uuid), max_size=4)
records = st.builds(
    RegisterRecord,
    uuid=field_text,
    count=st.integers(0, 20),
    memory_mib=amounts_int32,
    type=field_text.map(lambda text: f"NVIDIA-{text}"),
    healthy=st.booleans(),
    mode=st.sampled_from(["hami-core", "mig"]),
)
tier_names = st.from_regex(r"[a-z0-9]([-a-z0-9_.]{0,8}[a-z0-9])?", fullmatch=True)


@st.composite
def tier_bodies(draw: st.DrawFn) -> dict[str, Any]:
    reserved = draw(st.sampled_from([0, 5, 10, 20, 25, 30, 50, 60, 80, 100]))
    limit = draw(st.integers(max(reserved, 1), 100))
    body: dict[str, Any] = {"memory_mib": draw(st.integers(8, 320)) * 256, "reserved_cores": reserved, "limit_cores": limit}
    modes = st.sampled_from(["hard", "off"] if limit == 100 else ["hard", "elastic", "off", "priority"])
    more = draw(st.fixed_dictionaries({}, optional={"mode": modes, "priority": st.integers(0, 99)}))
    return {**body, **more}


@st.composite
def catalogues(draw: st.DrawFn, max_tiers: int = 4) -> Catalogue:
    tiers = draw(st.dictionaries(tier_names, tier_bodies(), min_size=1, max_size=max_tiers))
    names = sorted(tiers)
    mix = st.dictionaries(st.sampled_from(names), st.integers(1, 5), min_size=1, max_size=3)
    return Catalogue.from_vars(
        {
            "card": draw(st.sampled_from(["a800-80gb", "t4-16gb"])),
            "tiers": tiers,
            "slices_per_card": draw(st.integers(1, 10)),
            "memory_overcommit_ratio": draw(st.sampled_from([1.0, 1.25, 2.0])),
            "custom_allowed": draw(st.booleans()),
            "required_mixes": draw(st.lists(mix, max_size=3)),
        }
    )
