"""The judgement over a fleet: one verdict for each kind of card, refusals and warnings with their arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import cards, fleet, verdict
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TierError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.tiers import Catalogue

from tests.unit.domain.strategies import TIERS, default_variables

DEFAULT = Catalogue.from_vars(default_variables())
A800 = cards.named("a800-80gb")


def judged(*entries: dict[str, Any], catalogue: Catalogue = DEFAULT, every_card: bool = False) -> verdict.FleetVerdict:
    return verdict.judge_fleet(catalogue, fleet.read_fleet(list(entries), catalogue), every_card)


class TestOneCard:
    def test_the_default_tiers_are_valid_on_an_a800(self) -> None:
        answer = verdict.judge(DEFAULT, A800)
        assert answer.valid
        assert {tier.name: tier.slices for tier in answer.tiers} == {"small": 10, "medium": 3, "large": 1, "xlarge": 1}
        assert {"xlarge": 1, "small": 2} in answer.maximal_mixes

    def test_an_older_drivers_card_is_judged_by_what_it_reports(self) -> None:
        answer = verdict.judge(DEFAULT, A800, memory_mib=81251)
        assert [str(problem) for problem in answer.problems] == [
            "slice_tiers_required_mixes[0] (10 small) does not fit one a800-80gb of 81251 MiB: memory 10 x 8192 = 81920 > 81152 MiB",
            "slice_tiers_required_mixes[3] (1 xlarge + 2 small) does not fit one a800-80gb of 81251 MiB: "
            "memory 65536 + 2 x 8192 = 81920 > 81152 MiB",
        ]

    def test_a_tier_larger_than_the_card_is_a_problem(self) -> None:
        answer = verdict.judge(DEFAULT, cards.named("a800-40gb"))
        assert "slice_tiers.xlarge does not fit an empty a800-40gb of 40960 MiB: memory 65536 > 40960 MiB" in map(str, answer.problems)

    def test_only_offered_tiers_and_their_mixes_are_judged(self) -> None:
        answer = verdict.judge(DEFAULT, cards.named("a800-40gb"), offers=["small", "medium"])
        assert [tier.name for tier in answer.tiers] == ["small", "medium"]
        assert [proof.mix for proof in answer.required_mixes] == [{"small": 10}, {"small": 8}, {"medium": 2, "small": 3}]
        assert all(set(mix) <= {"small", "medium"} for mix in answer.maximal_mixes)

    def test_overcommitted_memory_makes_room_and_cores_stay(self) -> None:
        catalogue = Catalogue.from_vars(default_variables(memory_overcommit_ratio=1.5))
        assert verdict.judge(catalogue, A800).published_memory_mib == 122880
        assert {tier.name: tier.slices for tier in verdict.judge(catalogue, A800).tiers}["small"] == 10

    def test_a_verdict_is_plain_data(self) -> None:
        import json

        assert json.loads(json.dumps(verdict.judge(DEFAULT, A800).as_dict()))["valid"] is True


class TestAFleet:
    def test_cards_of_a_kind_are_judged_once_however_many_nodes_have_them(self) -> None:
        answer = judged(*({"node": f"gpu-{index:02}", "count": 8} for index in range(19)), {"node": "gpu-19", "count": 6})
        assert (answer.cards, answer.nodes, len(answer.kinds)) == (158, 20, 1)
        assert not answer.problems
        assert not answer.warnings

    def test_a_kind_that_falls_short_of_a_mix_is_warned_about_with_its_nodes_and_how_many_fit(self) -> None:
        answer = judged({"node": "new", "count": 8}, {"node": "old", "count": 8, "memory_mib": 81251})
        assert not answer.problems
        assert answer.warnings[0] == (
            "slice_tiers_required_mixes[0] (10 small) does not fit the a800-80gb of 81251 MiB on old: "
            "memory 10 x 8192 = 81920 > 81152 MiB; 9 small fit"
        )
        assert answer.proofs()[0]["proved_by"] == ["a800-80gb of 81920 MiB"]

    def test_the_same_is_refused_where_every_card_must_prove_it(self) -> None:
        answer = judged({"node": "new"}, {"node": "old", "memory_mib": 81251}, every_card=True)
        assert [problem.path for problem in answer.problems] == ["slice_tiers_required_mixes[0]", "slice_tiers_required_mixes[3]"]

    def test_a_mix_that_fits_no_card_is_refused_with_the_arithmetic(self) -> None:
        catalogue = Catalogue.from_vars(default_variables(tiers={**TIERS, "xlarge": {"memory_mib": 65536, "reserved_cores": 100}}))
        with pytest.raises(TierError) as raised:
            judged({"node": "gpu-01", "count": 8}, catalogue=catalogue).raise_problems()
        assert "(1 xlarge + 2 small) fits no card of the fleet" in str(raised.value)
        assert "reserved cores 100 + 2 x 10 = 120 > 100 percent" in str(raised.value)
        assert raised.value.details["problems"][0]["path"] == "slice_tiers_required_mixes[3]"

    def test_a_tier_that_a_pool_cannot_hold_is_refused_unless_the_pool_does_not_offer_it(self) -> None:
        small_cards = {"node": "t4-01", "card": "Tesla T4", "count": 4}
        assert "slice_tiers.xlarge" in [problem.path for problem in judged({"node": "gpu-01"}, small_cards).problems]
        offering = judged({"node": "gpu-01"}, {**small_cards, "offers": ["small"]})
        assert not offering.problems
        assert "(10 small) does not fit the t4-16gb of 15360 MiB on t4-01" in offering.warnings[0]

    def test_a_card_that_the_table_lacks_is_judged_by_the_memory_that_its_driver_tells(self) -> None:
        answer = judged({"node": "gpu-01"}, {"node": "z-01", "card": "NVIDIA Z9", "memory_mib": 163840})
        assert not answer.problems
        assert "NVIDIA Z9 of 163840 MiB is in no table of cards and judged by its memory alone" in answer.notes()

    def test_a_mix_that_no_pool_offers_is_refused(self) -> None:
        answer = judged({"node": "gpu-01", "offers": ["small"]})
        assert "is offered by no node" in str(answer.problems[0])

    def test_without_a_fleet_the_catalogues_own_card_is_judged(self) -> None:
        answer = judged()
        assert (answer.cards, answer.nodes) == (0, 0)
        assert answer.kinds[0].place == "a800-80gb of 81920 MiB"

    def test_many_nodes_are_counted_not_listed(self) -> None:
        old = [{"node": f"old-{index}", "memory_mib": 81251} for index in range(8)]
        assert "old-4 and 3 more: memory" in judged({"node": "new"}, *old).warnings[0]

    def test_the_summary_names_cards_mixes_and_proofs(self) -> None:
        summary = judged({"node": "gpu-01", "count": 8}).summary(DEFAULT)
        assert summary[0] == "tiers e2c2d3fc on 8 cards of 1 nodes"
        assert summary[1] == "a800-80gb of 81920 MiB, 8 cards: one holds 10 small, 3 medium, 1 large, 1 xlarge"
        assert "1 xlarge + 2 small: proved by a800-80gb of 81920 MiB" in summary

    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            ({"count": 8}, "fleet[0] is {'count': 8}, expected at least a node's name"),
            ({"node": "a", "card": "rtx"}, "fleet[0] (a).card is unknown: card model is 'rtx', expected one of"),
            ({"node": "a", "count": 0}, "fleet[0] (a).count is 0, expected how many cards"),
            ({"node": "a", "memory_mib": "80Gi"}, "fleet[0] (a).memory_mib is '80Gi'"),
            ({"node": "a", "offers": ["tiny"]}, "fleet[0] (a).offers is ['tiny'], expected some of: large"),
            ("gpu-01", "fleet[0] is 'gpu-01'"),
        ],
    )
    def test_a_mistake_in_the_fleet_is_told_with_its_node(self, entry: Any, message: str) -> None:
        with pytest.raises(TierError) as raised:
            fleet.read_fleet([entry], DEFAULT)
        assert message in str(raised.value)
