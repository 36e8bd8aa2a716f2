"""The fleet as a value: one rule for fit, what each host holds, and which node it is."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import yaml
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import fleet, verdict
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TierError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.fleet import Fleet, refusal_of_groups
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.tiers import Catalogue

from tests.unit.domain.strategies import default_variables

# Two pools: one that offers everything on A800 cards, one that offers only small slices on T4 cards.
MIXED = yaml.safe_load("""
train-1: {gpu_node_cards: [{card: a800-80gb, count: 2, offers: [small, huge]}]}
edge-1: {gpu_node_cards: [{card: t4-16gb, count: 1, offers: [small]}], gpu_node_enforcement: driver, gpu_node_name: edge-1.example}
""")
MIXED_TIERS = Catalogue.from_vars(
    {
        "tiers": {"small": {"memory_mib": 8192, "reserved_cores": 20}, "huge": {"memory_mib": 40960, "reserved_cores": 50}},
        "required_mixes": [{"huge": 1, "small": 2}],
    }
)


def card(name: str = "NVIDIA A800-SXM4-80GB", model: str | None = "a800-80gb", memory_mib: int | None = 81920) -> dict[str, Any]:
    return {"name": name, "model": model, "memory_mib": memory_mib}


def looked(*cards: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What gpu_node_facts answers, as a task registers it."""
    return {"failed": False, "changed": False, "gpu_node": {"cards": list(cards), **more}}


def cards_of(**variables: Any) -> list[dict[str, Any]]:
    cards: list[dict[str, Any]] = Fleet.from_inventory({"gpu-1": variables}).as_dict()["cards"]
    return cards


class TestFit:
    @pytest.mark.parametrize(
        ("found", "why"),
        [
            ({"failed": True, "msg": "this node cannot carry slices: driver is 418", "gpu_node": {"cards": [card()]}}, "driver is 418"),
            ({"failed": True}, "looking at it failed"),
            ({"unreachable": True, "msg": "Connection timed out"}, "Connection timed out"),
            ({"unreachable": True}, "it cannot be reached"),
        ],
    )
    def test_a_host_whose_look_failed_or_that_cannot_be_reached_is_in_nothing(self, found: dict[str, Any], why: str) -> None:
        value = Fleet.from_inventory({"good": {}, "bad": {"gpu_node_found": found}}).as_dict()
        assert (value["nodes"], value["nodes_by_enforcement"]) == (["good"], {"hook": ["good"]})
        assert [entry["node"] for entry in value["cards"]] == ["good"]
        assert why in value["hosts"][1]["unfit"]

    def test_a_host_that_nobody_has_looked_at_is_taken_as_declared(self) -> None:
        value = Fleet.from_inventory(MIXED).as_dict()
        assert value["nodes"] == ["train-1", "edge-1.example"]
        assert value["nodes_by_enforcement"] == {"hook": ["train-1"], "driver": ["edge-1.example"]}
        assert value["cards"][1] == {"node": "edge-1", "card": "t4-16gb", "count": 1, "offers": ["small"]}

    @pytest.mark.parametrize("found", [{}, None, {"skipped": True, "changed": False}])
    def test_a_look_that_was_skipped_is_none(self, found: Any) -> None:
        assert cards_of(gpu_node_found=found, gpu_node_cards=[{"count": 8}]) == [{"node": "gpu-1", "count": 8}]


class TestCards:
    def test_a_host_that_declares_none_has_one_of_the_catalogues_model(self) -> None:
        assert cards_of() == [{"node": "gpu-1", "count": 1}]

    def test_what_the_driver_reports_counts_and_not_what_was_declared(self) -> None:
        found = looked(card(), card(memory_mib=81251), card())
        assert cards_of(gpu_node_cards=[{"count": 8}], gpu_node_found=found) == [
            {"node": "gpu-1", "card": "a800-80gb", "count": 2, "memory_mib": 81920},
            {"node": "gpu-1", "card": "a800-80gb", "count": 1, "memory_mib": 81251},
        ]

    def test_a_pools_offers_stay_with_its_cards(self) -> None:
        declared = [{"card": "a800-80gb", "count": 1, "offers": ["large"]}, {"card": "NVIDIA A800-SXM4-80GB", "offers": ["small"]}]
        offers = [entry["offers"] for entry in cards_of(gpu_node_cards=declared, gpu_node_found=looked(card(), card(), card()))]
        assert offers == [["large"], ["small"]]
        assert cards_of(gpu_node_cards=declared, gpu_node_found=looked(card(), card(), card()))[1]["count"] == 2

    def test_an_entry_without_a_model_is_of_any(self) -> None:
        found = looked(card("NVIDIA Z9", None, 163840))
        (entry,) = cards_of(gpu_node_cards=[{"count": 1, "offers": ["small"]}], gpu_node_found=found)
        assert entry == {"node": "gpu-1", "card": "NVIDIA Z9", "count": 1, "memory_mib": 163840, "offers": ["small"]}

    def test_a_card_of_a_model_that_nobody_declared_offers_every_tier(self) -> None:
        found = looked(card("Tesla T4", "t4-16gb", 15360))
        (entry,) = cards_of(gpu_node_cards=[{"card": "a800-80gb", "offers": ["small"]}], gpu_node_found=found)
        assert "offers" not in entry

    def test_cards_that_are_no_list_are_refused_with_their_host(self) -> None:
        with pytest.raises(TierError, match=r"gpu_node_cards of host 'gpu-1' is .*, expected a list such as"):
            cards_of(gpu_node_cards={"card": "a800-80gb"})

    def test_both_proofs_of_mixed_pools_pass(self) -> None:
        """A pool that offers only small ones keeps that offer when its cards have been looked at."""
        found = {
            "train-1": looked(card("NVIDIA A800 80GB PCIe"), card("NVIDIA A800 80GB PCIe")),
            "edge-1": looked(card("Tesla T4", "t4-16gb", 15360)),
        }
        for looks in ({}, found):
            hosts = {name: {**variables, "gpu_node_found": looks.get(name)} for name, variables in MIXED.items()}
            entries = fleet.read_fleet(Fleet.from_inventory(hosts).as_dict()["cards"], MIXED_TIERS)
            judged = verdict.judge_fleet(MIXED_TIERS, entries)
            assert [str(problem) for problem in judged.problems] == []
            assert (judged.cards, judged.nodes) == (3, 2)

    def test_a_whole_fleet_of_an_inventory_is_proved(self) -> None:
        hosts = {f"gpu-{number}": {"gpu_node_cards": [{"card": "a800-80gb", "count": 8}]} for number in range(20)}
        catalogue = Catalogue.from_vars(default_variables())
        judged = verdict.judge_fleet(catalogue, fleet.read_fleet(Fleet.from_inventory(hosts).as_dict()["cards"], catalogue))
        assert (judged.cards, judged.problems) == (160, ())


class TestStrangers:
    def node(self, name: str, machine_id: str, system_uuid: str = "") -> dict[str, Any]:
        return {"metadata": {"name": name}, "status": {"nodeInfo": {"machineID": machine_id, "systemUUID": system_uuid}}}

    def strangers(self, node: dict[str, Any], **look: Any) -> list[str]:
        value = Fleet.from_inventory({"gpu-1": {"gpu_node_name": "worker-1", "gpu_node_found": looked(**look)}})
        return Fleet.from_dict(value.as_dict()).strangers([node])

    def test_the_machine_id_or_the_machines_uuid_proves_a_node(self) -> None:
        assert self.strangers(self.node("worker-1", "aa"), machine_id="aa") == []
        assert self.strangers(self.node("worker-1", "bb", "UU-1"), machine_id="aa", system_uuid="uu-1") == []

    def test_another_machine_is_named(self) -> None:
        assert self.strangers(self.node("worker-1", "bb", "UU-2"), machine_id="aa", system_uuid="uu-1") == [
            "host 'gpu-1' has machine-id aa, but node 'worker-1' reports bb"
        ]

    def test_a_host_without_a_machine_id_or_a_node_is_believed(self) -> None:
        assert self.strangers(self.node("worker-1", "bb")) == []
        assert self.strangers(self.node("worker-2", "bb"), machine_id="aa") == []


class TestRefusalOfGroups:
    """A play without hosts is green to Ansible, so it is refused by name."""

    GROUPS: ClassVar[dict[str, list[str]]] = {
        "all": ["m", "n1"],
        "ungrouped": [],
        "gpu_nodes": ["n1", "n2"],
        "kube_control": ["cp1", "cp2"],
    }
    BOTH = ("gpu_nodes", "kube_control")

    def test_an_inventory_of_another_tool_is_told_which_groups_it_lacks_and_has(self) -> None:
        said = refusal_of_groups({"all": ["a"], "ungrouped": [], "kube-node": ["a"], "etcd": ["a"]}, self.BOTH, ["a"])
        assert "no host in gpu_nodes (the hosts with cards) and kube_control (" in said
        assert "its groups are etcd, kube-node:" in said

    def test_an_empty_group_is_none_at_all(self) -> None:
        assert "no host in gpu_nodes (" in refusal_of_groups({**self.GROUPS, "gpu_nodes": []}, self.BOTH, ["cp1"])

    @pytest.mark.parametrize(
        ("selected", "words"),
        [
            (["n1"], "--limit leaves out kube_control (cp1)"),
            (["n1", "cp2"], "--limit leaves out kube_control (cp1)"),
            (["cp1"], "--limit leaves out gpu_nodes (n1)"),
            (["m"], "--limit leaves out gpu_nodes (n1) and kube_control (cp1)"),
        ],
    )
    def test_a_limit_that_would_skip_a_part_is_refused(self, selected: list[str], words: str) -> None:
        assert words in refusal_of_groups(self.GROUPS, self.BOTH, selected)

    def test_one_node_and_the_cluster_are_enough(self) -> None:
        assert refusal_of_groups(self.GROUPS, self.BOTH, ["n2", "cp1"]) == ""
        assert refusal_of_groups(self.GROUPS, ["gpu_nodes"], ["n2"]) == ""
