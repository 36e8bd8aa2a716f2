"""The module that proves a tier file before any host is touched."""

from __future__ import annotations

from typing import Any, Callable

import pytest
from ansible_collections.tenfold.vgpu.plugins.modules import slice_tiers_validate

from tests.unit.domain.strategies import TIERS, default_variables

RunModule = Callable[..., "dict[str, Any]"]


class TestTheModule:
    def test_the_example_fleet_of_158_cards_is_proved(self, run_module: RunModule) -> None:
        fleet = [{"node": f"gpu-{index:02}", "count": 8} for index in range(19)] + [{"node": "gpu-19", "count": "6"}]
        result = run_module(slice_tiers_validate.main, catalogue=default_variables(), fleet=fleet)
        assert (result["changed"], result["fleet"]["cards"], result["fleet"]["nodes"]) == (False, 158, 20)
        assert all(proof["proved_by"] and not proof["not_by"] for proof in result["proofs"])
        assert result["hash8"] == "e2c2d3fc"

    @pytest.mark.parametrize("check_mode", [False, True])
    def test_impossible_mix_unknown_card_and_limit_below_reserve_are_refused_with_the_arithmetic(
        self, run_module: RunModule, check_mode: bool
    ) -> None:
        xlarge = {"memory_mib": 65536, "reserved_cores": 100, "limit_cores": 100}
        impossible = default_variables(tiers={**TIERS, "xlarge": xlarge})
        result = run_module(slice_tiers_validate.main, catalogue=impossible, _ansible_check_mode=check_mode)
        assert "reserved cores 100 + 2 x 10 = 120 > 100 percent" in result["msg"]
        wrong = default_variables(card="b200", tiers={**TIERS, "large": {"memory_mib": 32768, "reserved_cores": 60, "limit_cores": 50}})
        result = run_module(slice_tiers_validate.main, catalogue=wrong, _ansible_check_mode=check_mode)
        assert [problem["path"] for problem in result["error_details"]["problems"]] == ["slice_tiers_card", "slice_tiers.large.limit_cores"]

    def test_the_articles_keys_are_answered_in_notes(self, run_module: RunModule) -> None:
        variables = default_variables(deviceMemoryScaling=256, gpuMemoryFactor=10, SchedulePolicy="binpack")
        result = run_module(slice_tiers_validate.main, catalogue=variables)
        assert [note.split(":")[0] for note in result["notes"]] == ["deviceMemoryScaling", "gpuMemoryFactor", "SchedulePolicy"]
        assert "deviceMemoryScaling" not in result["catalogue"]

    def test_older_drivers_cards_are_warned_about(self, run_module: RunModule) -> None:
        fleet = [{"node": "new", "count": 8}, {"node": "old", "count": 8, "memory_mib": 81251}]
        result = run_module(slice_tiers_validate.main, catalogue=default_variables(), fleet=fleet)
        assert result["shortfalls"][0].endswith("9 small fit")
        result = run_module(slice_tiers_validate.main, catalogue=default_variables(), fleet=fleet, every_card=True)
        assert result["failed"]

    def test_a_pool_may_offer_some_tiers_only(self, run_module: RunModule) -> None:
        fleet = [{"node": "gpu", "count": 8}, {"node": "t4", "card": "t4-16gb", "offers": ["small"]}]
        result = run_module(slice_tiers_validate.main, catalogue=default_variables(), fleet=fleet)
        assert list(result["fleet"]["kinds"][1]["tiers"]) == ["small"]
