"""Driver versions, floors, and the judgement of one node."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import cards, drivers
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.drivers import DriverVersion
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import DriverError
from hypothesis import given
from hypothesis import strategies as st

A800 = cards.named("a800-80gb")
versions = st.lists(st.integers(0, 999), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


# What every node needs beside its driver and cards.
GROUND: dict[str, Any] = {"kubelet": {"version": "1.31.4"}, "glibc_version": "2.36", "rival_device_plugins": []}


def node(driver: str | None = "535.104.05", **card: Any) -> dict[str, Any]:
    entry = {
        "index": 0,
        "uuid": "GPU-a",
        "name": "NVIDIA A800-SXM4-80GB",
        "memory_mib": 81920,
        "mig_mode": "Disabled",
        "compute_mode": "Default",
    }
    return {**GROUND, "driver": driver, "cards": [{**entry, **card}]}


def rules(facts: dict[str, Any], **options: Any) -> list[str]:
    return [problem.rule for problem in drivers.check_node(facts, A800, **options)]


class TestVersions:
    @given(versions, versions)
    def test_exactly_one_of_older_equal_newer_holds(self, left: str, right: str) -> None:
        one, other = DriverVersion.parse(left), DriverVersion.parse(right)
        assert [one < other, one == other, one > other].count(True) == 1

    @given(versions)
    def test_trailing_zeros_mean_nothing(self, text: str) -> None:
        assert DriverVersion.parse(text) == DriverVersion.parse(f"{text}.0" if text.count(".") < 3 else text)

    def test_parts_are_numbers_not_text(self) -> None:
        assert DriverVersion.parse("450.80.02") < DriverVersion.parse("450.119.03") < DriverVersion.parse("1000")

    @pytest.mark.parametrize("text", ["", "latest", "535.", "535.1.2.3.4", "-1", "535,1", None])
    def test_anything_else_is_refused(self, text: Any) -> None:
        with pytest.raises(DriverError, match="driver version is"):
            DriverVersion.parse(text)


class TestCapabilities:
    @pytest.mark.parametrize(
        ("driver", "able"),
        [
            ("418.226.00", {"cdi"}),
            ("440.33.01", {"slices", "cdi"}),
            ("450.80.02", {"slices", "mig", "cdi", "minor_version_compatibility", "card"}),
            ("470.141.10", {"slices", "mig", "cdi", "minor_version_compatibility", "card", "get_proc_address"}),
        ],
    )
    def test_what_an_a800_can_do_follows_the_driver(self, driver: str, able: set[str]) -> None:
        found = drivers.capabilities(DriverVersion.parse(driver), A800)
        assert {name for name, is_able in found.items() if is_able} == able

    def test_everything_is_possible_from_615(self) -> None:
        assert all(drivers.capabilities(DriverVersion.parse("615.10"), A800).values())

    @given(versions, versions)
    def test_a_newer_driver_never_loses_a_capability(self, left: str, right: str) -> None:
        older, newer = sorted([DriverVersion.parse(left), DriverVersion.parse(right)])
        before, after = drivers.capabilities(older, A800), drivers.capabilities(newer, A800)
        assert all(after[name] for name, able in before.items() if able)

    def test_a_card_without_mig_has_none_whatever_the_driver(self) -> None:
        assert not drivers.capabilities(DriverVersion.parse("615"), cards.named("t4-16gb"))["mig"]

    def test_every_floor_says_its_source(self) -> None:
        assert all(floor.source and floor.without for floor in drivers.FLOORS)


class TestANode:
    def test_a_good_node_has_no_problem(self) -> None:
        assert rules(node()) == []

    def test_driver_418_is_refused_with_both_versions_and_what_to_do(self) -> None:
        (problem,) = drivers.check_node(node("418.226.00"), A800)
        assert problem.fatal
        assert str(problem) == "driver is 418.226.00, expected 440 or newer; upgrade the NVIDIA driver on this node"

    def test_driver_440_passes_the_gate_but_not_an_a800s_floor(self) -> None:
        (problem,) = drivers.check_node(node("440.33.01"), A800)
        assert problem.rule == "card_driver_too_old"
        assert "needs driver 450.80.02 or newer, found 440.33.01" in problem.message

    @pytest.mark.parametrize(("driver", "found"), [("440", []), ("440.33.01", []), ("439.999", ["driver_too_old"])])
    def test_driver_440_and_newer_serve_a_v100(self, driver: str, found: list[str]) -> None:
        problems = drivers.check_node(node(driver, name="Tesla V100-SXM2-32GB"), cards.named("v100-32gb"))
        assert [problem.rule for problem in problems] == found

    @pytest.mark.parametrize(
        ("facts", "rule"),
        [
            ({"driver": None, "cards": []}, "driver_missing"),
            ({}, "driver_missing"),
            ({"driver": "N/A", "cards": []}, "driver_unreadable"),
            ({"driver": "535.1", "cards": []}, "no_cards"),
        ],
    )
    def test_what_is_missing_is_named(self, facts: dict[str, Any], rule: str) -> None:
        assert rules({**GROUND, **facts}) == [rule]

    @pytest.mark.parametrize(
        ("facts", "message"),
        [
            ({"kubelet": None}, "there is no kubelet on this node; join it to the cluster first"),
            ({"glibc_version": "2.12"}, "glibc is 2.12, expected 2.17 or newer"),
            ({"glibc_version": None}, "there is no glibc on this node, expected 2.17 or newer"),
            ({"rival_device_plugins": ["nvidia-gpu.sock"]}, "another device plugin serves its NVIDIA cards (nvidia-gpu.sock)"),
        ],
    )
    def test_what_the_hook_and_the_device_plugin_stand_on_is_required(self, facts: dict[str, Any], message: str) -> None:
        (problem,) = drivers.check_node({**node(), **facts}, A800)
        assert problem.fatal
        assert message in str(problem)

    def test_all_that_is_wrong_is_said_at_once(self) -> None:
        assert rules({}) == ["kubelet_missing", "glibc_too_old", "driver_missing"]

    def test_the_reason_that_nvidia_smi_gave_is_passed_on(self) -> None:
        (problem,) = drivers.check_node(
            {**GROUND, "driver": "535.1", "cards": [], "nvidia_smi_error": "Driver/library version mismatch"}, A800
        )
        assert "Driver/library version mismatch" in problem.message

    def test_a_card_in_exclusive_process_mode_cannot_be_shared(self) -> None:
        (problem,) = drivers.check_node(node(compute_mode="Exclusive_Process"), A800)
        assert problem.fatal
        assert "nvidia-smi -i GPU-a -c DEFAULT" in problem.remedy

    def test_a_card_with_mig_serves_mig_only(self) -> None:
        assert rules(node(mig_mode="Enabled")) == ["mig_enabled"]
        assert rules(node(mig_mode="Enabled"), enforcement="mig") == []

    def test_unknown_and_other_models_are_warnings(self) -> None:
        assert [(each.rule, each.fatal) for each in drivers.check_node(node(name="NVIDIA Z9"), A800)] == [("card_unknown", False)]
        assert [(each.rule, each.fatal) for each in drivers.check_node(node(name="Tesla T4"), A800)] == [("card_other", False)]
