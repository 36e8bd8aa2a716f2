"""An annotation is a claim: what is booked, what waits, what moves, what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenfold_device_plugin import claim
from tenfold_device_plugin._domain import wire
from tenfold_device_plugin.errors import PermanentRefusal, Refused
from tenfold_device_plugin.state import Booking, Card, Terms, card_ledgers
from tests.unit.device_plugin.bench import CARD_A, CARD_B, CATALOGUE, NODE, assign, pod

CARDS = (Card(0, CARD_A, "NVIDIA A800-SXM4-80GB", 81920), Card(1, CARD_B, "NVIDIA A800-SXM4-80GB", 81920))
tiers = st.sampled_from([tier.name for tier in CATALOGUE.tiers])
NODE_FACTS = claim.Node(NODE, CARDS, Terms(CATALOGUE), frozenset({"volcano"}))


def decide(
    found: dict[str, Any], *others: Booking, leaving: tuple[str, ...] = (), patient: bool = True, node: claim.Node = NODE_FACTS
) -> Booking:
    return claim.decide(found, node, others, leaving, patient)


def booked(name: str, tier: str, card: str) -> Booking:
    return decide(pod(name, tier, card=card, uid=f"uid-{name}"))


class TestNothingIsOverbooked:
    """Whatever pods claim, in whatever order: no card ever holds more than it has."""

    @given(
        st.lists(
            st.tuples(
                st.sampled_from([tier.name for tier in CATALOGUE.tiers]),
                st.sampled_from([CARD_A, CARD_B, None]),
                st.booleans(),
                st.booleans(),
            ),
            max_size=30,
        )
    )
    def test_by_any_sequence_of_claims(self, claims: list[tuple[str, str | None, bool, bool]]) -> None:
        bookings: list[Booking] = []
        for number, (tier, card, patient, leaves) in enumerate(claims):
            found = pod(f"p{number}", tier, card=card, uid=f"uid-{number}")
            leaving = tuple(each.uid for each in bookings[:1]) if leaves else ()
            try:
                bookings.append(decide(found, *bookings, leaving=leaving, patient=patient))
            except Refused:
                continue
        for ledger in card_ledgers(CARDS, bookings, NODE_FACTS.terms):
            assert ledger.used_memory_mib <= ledger.memory_mib
            assert ledger.used_cores_percent <= 100
            assert ledger.used_count <= ledger.count


class TestAClaim:
    def test_that_equals_the_limits_is_booked_as_it_is(self) -> None:
        made = booked("p", "medium", CARD_B)
        assert (made.source, made.tier, made.revision) == ("annotation", "medium", CATALOGUE.hash8)
        assert made.cards == {CARD_B}

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (f"{CARD_A},NVIDIA,8192,10", "expected cards that end in ':'"),
            (f"{CARD_A},NVIDIA,8192,10:;{CARD_A},NVIDIA,8192,10:", "has 2 segments, expected 1"),
            (f"{CARD_A},NVIDIA,8192,10:{CARD_B},NVIDIA,8192,10:", "has 2 cards by annotation, 1 by its limits"),
            (f"{CARD_A},NVIDIA,8193,10:", "8193 MiB and 10 percent .* 8192 MiB"),
            (f"{CARD_A},NVIDIA,8192,11:", "8192 MiB and 11 percent .* by annotation"),
            (";", "has 2 segments"),
            ("x" * 300, "expected cards that end in ':'"),
        ],
    )
    def test_that_differs_from_the_limits_is_refused(self, text: str, words: str) -> None:
        found = pod("p")
        found["metadata"]["annotations"][wire.POD_IDS_ANNOTATION] = text
        with pytest.raises(Refused, match=words) as refusal:
            decide(found)
        assert refusal.value.reason == "forged"

    def test_on_an_unknown_card_moves(self) -> None:
        found = pod("p", card="GPU-dddddddd-0000-4000-8000-000000000009")
        assert decide(found).source == "moved"

    def test_on_a_sick_card_moves_unless_it_runs_there(self) -> None:
        node = dataclasses.replace(NODE_FACTS, cards=(dataclasses.replace(CARDS[0], fault="XID 79"), CARDS[1]))
        found = pod("p", card=CARD_A)
        assert decide(found, node=node).cards == {CARD_B}
        found["status"]["phase"] = "Running"
        assert decide(found, node=node).cards == {CARD_A}

    def test_is_judged_against_the_published_total_when_the_whole_card_is_asked_for(self) -> None:
        found = pod("p", None, limits=[{wire.RESOURCE_NUMBER: "1"}], card=None)
        assign(found, CARD_A)
        assert decide(found).containers[0].shares[0].memory_mib == 81920

    def test_of_a_pod_that_holds_the_card_itself_is_not_counted_twice(self) -> None:
        found = pod("p", "xlarge", uid="uid-p")
        first = decide(found)
        assert decide(found, first) == first


class TestWaiting:
    def test_only_for_pods_whose_leaving_makes_room(self) -> None:
        small, big = booked("small", "small", CARD_A), booked("big", "large", CARD_A)
        found = pod("next", "large", card=CARD_A)
        with pytest.raises(Refused, match=r"waits for a terminating pod: card .* has 40960 of 81920 MiB free") as refusal:
            decide(pod("next", "xlarge", card=CARD_A), small, big, leaving=("uid-big",))
        assert refusal.value.reason == "waiting"
        assert decide(found, small, big, leaving=("uid-small",)).cards == {CARD_B}

    def test_ends_with_a_move(self) -> None:
        assert decide(pod("next", "xlarge", card=CARD_A), booked("big", "large", CARD_A), leaving=("uid-big",), patient=False).cards == {
            CARD_B
        }

    def test_is_for_any_card_when_the_annotation_is_lost(self) -> None:
        full = [booked("a", "xlarge", CARD_A), booked("b", "xlarge", CARD_B)]
        found = pod("next", "xlarge", card=None)
        with pytest.raises(Refused, match="waits for terminating pods"):
            decide(found, *full, leaving=("uid-b",))
        with pytest.raises(Refused, match="no card of this node has room"):
            decide(found, *full, leaving=("uid-b",), patient=False)


class TestAMove:
    def test_places_each_container_by_the_schedulers_rule(self) -> None:
        limit = {wire.RESOURCE_NUMBER: "1", wire.RESOURCE_MEMORY: "16384", wire.RESOURCE_CORES: "10"}
        found = pod("p", None, limits=[limit, limit], card=CARD_A)
        moved = decide(found, booked("big", "xlarge", CARD_A))
        assert [share.uuid for container in moved.containers for share in container.shares] == [CARD_A, CARD_B]

    def test_obeys_the_pods_wish_for_a_card_type(self) -> None:
        found = pod("p", card=CARD_A)
        found["metadata"]["annotations"]["nvidia.com/use-gputype"] = "H100"
        with pytest.raises(Refused, match="is not what the pod accepts"):
            decide(found, booked("big", "xlarge", CARD_A), booked("more", "medium", CARD_A))


class TestAGroupThatSpreads:
    def rank(self, name: str, card: str | None = None, policy: str = "spread") -> dict[str, Any]:
        found = pod(name, card=card, uid=f"uid-{name}")
        found["metadata"]["annotations"].update({"volcano.sh/vgpu-podgroup-policy": policy, "scheduling.k8s.io/group-name": "ring"})
        return found

    def cards_of(self, *ranks: dict[str, Any]) -> list[str]:
        made: list[Booking] = []
        groups = {rank["metadata"]["uid"]: claim.group_of(rank) for rank in ranks}
        node = dataclasses.replace(NODE_FACTS, groups=groups)
        for rank in ranks:
            made.append(decide(rank, *made, node=node))
        return [next(iter(each.cards)) for each in made]

    def test_gets_a_card_for_each_rank_also_when_we_book(self) -> None:
        assert self.cards_of(self.rank("r0"), self.rank("r1")) == [CARD_A, CARD_B]
        assert self.cards_of(self.rank("r0", policy=""), self.rank("r1", policy="")) == [CARD_A, CARD_A]

    def test_waits_where_every_card_has_one_of_it(self) -> None:
        with pytest.raises(Refused, match="a pod of group 'default/ring' is on it and the group spreads"):
            self.cards_of(self.rank("r0"), self.rank("r1"), self.rank("r2"))


class TestTiers:
    def test_without_a_catalogue_nothing_is_booked(self) -> None:
        with pytest.raises(Refused, match="obeys no tier catalogue yet") as refusal:
            decide(pod("p"), node=dataclasses.replace(NODE_FACTS, terms=Terms()))
        assert refusal.value.reason == "no_catalogue"

    def test_a_lying_label_does_not_raise_the_limit(self) -> None:
        found = pod("p", "small")
        found["metadata"]["labels"][wire.TIER_LABEL] = "xlarge"
        made = decide(found)
        assert (made.containers[0].shares[0].limit_cores_percent, made.tier) == (10, "small")

    def test_the_numbers_name_the_tier_where_no_label_does(self) -> None:
        found = pod("p", "medium")
        del found["metadata"]["labels"][wire.TIER_LABEL]
        assert decide(found).tier == "medium"

    def test_custom_numbers_have_none_whatever_the_label_says(self) -> None:
        limit = {wire.RESOURCE_NUMBER: "1", wire.RESOURCE_MEMORY: "512", wire.RESOURCE_CORES: "20"}
        found = pod("p", "whatever a user writes", limits=[limit])
        assert decide(found).tier == ""


class TestWhoIsRefused:
    def test_an_init_only_request(self) -> None:
        found = pod("p", None, limits=[None], card=None)
        found["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {wire.RESOURCE_NUMBER: "1"}}}]
        with pytest.raises(PermanentRefusal, match="only init containers request a slice"):
            decide(found)

    @pytest.mark.parametrize("resource", [wire.RESOURCE_MEMORY, wire.RESOURCE_CORES])
    @pytest.mark.parametrize("where", ["containers", "initContainers"])
    def test_memory_or_cores_without_a_number(self, resource: str, where: str) -> None:
        found = pod("p", card=None)
        found["spec"].setdefault(where, []).append({"name": "bare", "resources": {"limits": {resource: "10"}}})
        assert claim.asks_for_slice(found)
        with pytest.raises(PermanentRefusal, match=r"container 'bare' asks for memory or cores of a card without volcano\.sh/vgpu-number"):
            decide(found)

    def test_memory_in_percent(self) -> None:
        found = pod("p", None, limits=[{wire.RESOURCE_NUMBER: "1", "volcano.sh/vgpu-memory-percentage": "50"}], card=None)
        with pytest.raises(PermanentRefusal, match=r"asks for volcano\.sh/vgpu-memory-percentage; write volcano\.sh/vgpu-memory in MiB"):
            decide(found)

    def test_a_number_that_the_scheduler_would_cut(self) -> None:
        found = pod("p", None, limits=[{wire.RESOURCE_NUMBER: "1", wire.RESOURCE_MEMORY: "8Gi"}], card=None)
        with pytest.raises(PermanentRefusal, match="the unit is MiB, write 8192 for 8 GiB"):
            decide(found)


class TestDesiredAnnotations:
    def test_nothing_is_written_twice(self) -> None:
        found = pod("p", uid="uid-p")
        made = decide(found)
        found["metadata"]["annotations"].update(claim.desired_annotations(found, made, NODE))
        assert claim.desired_annotations(found, made, NODE) == {}

    def test_after_booking_only_the_phase_is_written(self) -> None:
        found = pod("p")
        assert claim.desired_annotations(found, decide(found), NODE) == {wire.POD_BIND_PHASE_ANNOTATION: wire.BIND_PHASE_SUCCESS}

    def test_a_move_writes_a_consistent_whole(self) -> None:
        found = pod("p", "medium", card=CARD_A)
        moved = decide(found, booked("big", "xlarge", CARD_A))
        patch = claim.desired_annotations(found, moved, NODE)
        assert patch[wire.POD_IDS_ANNOTATION] == patch[wire.POD_DEVICES_TO_ALLOCATE_ANNOTATION] == f"{CARD_B},NVIDIA,16384,30:"
        assert patch[wire.POD_BIND_PHASE_ANNOTATION] == wire.BIND_PHASE_SUCCESS
