"""The merge of Volcano's scheduler configuration: what it adds, what it leaves alone, what it refuses, and how it is undone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import volcano_config
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.errors import ConfigMergeError
from hypothesis import given
from hypothesis import strategies as st

WISHES: dict[str, Any] = {
    "deviceshare.VGPUEnable": True,
    "deviceshare.SchedulePolicy": "binpack",
    "deviceshare.ScheduleWeight": 10,
}
CHART_DEFAULT = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
- plugins:
  - name: overcommit
  - name: predicates
  - name: nodeorder
  - name: binpack
"""


def config(text: str = CHART_DEFAULT) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def plugin(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [one for tier in document["tiers"] for one in tier["plugins"] if one["name"] == name]
    assert len(found) == 1, found
    return found[0]


def names(document: dict[str, Any]) -> list[list[str]]:
    return [[one["name"] for one in tier["plugins"]] for tier in document["tiers"]]


class TestMergingIntoTheChartsDefault:
    def test_deviceshare_goes_right_in_front_of_predicates(self) -> None:
        document = config()
        record = volcano_config.merge(document, WISHES)
        assert names(document)[1] == ["overcommit", "deviceshare", "predicates", "nodeorder", "binpack"]
        assert plugin(document, "deviceshare")["arguments"] == WISHES
        assert record == {"added": ["deviceshare"], "replaced": {}}

    def test_a_second_merge_changes_nothing(self) -> None:
        document = config()
        volcano_config.merge(document, WISHES)
        before = copy.deepcopy(document)
        assert volcano_config.merge(document, WISHES) == {"added": [], "replaced": {}}
        assert document == before

    def test_missing_predicates_and_binpack_are_added(self) -> None:
        document = config("actions: allocate\ntiers:\n- plugins:\n  - name: gang\n")
        record = volcano_config.merge(document, WISHES)
        assert names(document) == [["deviceshare", "predicates", "gang", "binpack"]]
        assert record["added"] == ["deviceshare", "predicates", "binpack"]

    def test_binpack_is_left_out_where_it_is_not_wanted(self) -> None:
        document = config("actions: allocate\ntiers:\n- plugins:\n  - name: predicates\n")
        volcano_config.merge(document, WISHES, binpack=False)
        assert names(document) == [["deviceshare", "predicates"]]


class TestMergingIntoAUsersDeviceshare:
    TEXT = """
actions: allocate
tiers:
- plugins:
  - name: deviceshare
    arguments:
      deviceshare.SchedulePolicy: spread
      deviceshare.ScheduleWeight: "10"
      deviceshare.KnownGeometriesCMName: mine
  - name: predicates
  - name: binpack
    arguments: {binpack.weight: 5}
"""

    def test_foreign_arguments_survive_and_ours_are_recorded(self) -> None:
        document = config(self.TEXT)
        record = volcano_config.merge(document, WISHES)
        assert plugin(document, "deviceshare")["arguments"] == {**WISHES, "deviceshare.KnownGeometriesCMName": "mine"}
        assert plugin(document, "binpack")["arguments"] == {"binpack.weight": 5}
        assert record["added"] == []
        assert record["replaced"] == {
            "deviceshare.VGPUEnable": None,
            "deviceshare.SchedulePolicy": "spread",
            "deviceshare.ScheduleWeight": "10",
        }

    def test_a_weight_of_the_wrong_yaml_type_is_replaced(self) -> None:
        """Volcano's GetInt ignores a text, so the weight would silently be 0."""
        document = config(self.TEXT)
        volcano_config.merge(document, WISHES)
        assert plugin(document, "deviceshare")["arguments"]["deviceshare.ScheduleWeight"] == 10

    def test_one_is_not_true(self) -> None:
        document = config(self.TEXT.replace("SchedulePolicy: spread", "VGPUEnable: 1"))
        record = volcano_config.merge(document, WISHES)
        assert record["replaced"]["deviceshare.VGPUEnable"] == 1
        assert plugin(document, "deviceshare")["arguments"]["deviceshare.VGPUEnable"] is True

    def test_unmerge_gives_back_the_users_values(self) -> None:
        document = config(self.TEXT)
        record = volcano_config.merge(document, WISHES)
        assert volcano_config.unmerge(document, record, WISHES)
        assert document == config(self.TEXT)

    def test_unmerge_keeps_what_the_user_changed_since(self) -> None:
        document = config(self.TEXT)
        record = volcano_config.merge(document, WISHES)
        plugin(document, "deviceshare")["arguments"]["deviceshare.ScheduleWeight"] = 3
        volcano_config.unmerge(document, record, WISHES)
        assert plugin(document, "deviceshare")["arguments"]["deviceshare.ScheduleWeight"] == 3
        assert plugin(document, "deviceshare")["arguments"]["deviceshare.SchedulePolicy"] == "spread"

    def test_unmerge_keeps_an_added_plugin_that_the_user_extended(self) -> None:
        document = config()
        record = volcano_config.merge(document, WISHES)
        plugin(document, "deviceshare")["arguments"]["deviceshare.KnownGeometriesCMName"] = "mine"
        volcano_config.unmerge(document, record, WISHES)
        assert plugin(document, "deviceshare")["arguments"] == {"deviceshare.KnownGeometriesCMName": "mine"}


class TestRefusals:
    @pytest.mark.parametrize("argument", ["GPUSharingEnable", "GPUNumberEnable", "NodeLockEnable"])
    @pytest.mark.parametrize("value", ["true", '"true"', '"1"'])
    def test_what_contradicts_slices_is_refused_with_the_remedy(self, argument: str, value: str) -> None:
        text = f"actions: allocate\ntiers:\n- plugins:\n  - name: deviceshare\n    arguments: {{deviceshare.{argument}: {value}}}\n"
        document = config(text)
        with pytest.raises(ConfigMergeError, match=rf"deviceshare\.{argument}: true.*set it to false"):
            volcano_config.merge(document, WISHES)
        assert document == config(text)

    def test_a_conflict_that_is_switched_off_is_none(self) -> None:
        document = config(
            "actions: allocate\ntiers:\n- plugins:\n  - name: deviceshare\n    arguments: {deviceshare.GPUSharingEnable: false}\n"
        )
        volcano_config.merge(document, WISHES)
        assert plugin(document, "deviceshare")["arguments"]["deviceshare.GPUSharingEnable"] is False

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("- a\n", "expected a mapping"),
            ("tiers: []\n", "lacks 'allocate'"),
            ("actions: enqueue\ntiers: []\n", "lacks 'allocate'"),
            ("actions: allocate\n", "'tiers' is not a list"),
            ("actions: allocate\ntiers: [{}]\n", "tier 1 has no list 'plugins'"),
            ("actions: allocate\ntiers: [{plugins: [x]}]\n", "tier 1 has no list 'plugins'"),
            (
                "actions: allocate\ntiers: [{plugins: [{name: deviceshare}]}, {plugins: [{name: deviceshare}]}]\n",
                "'deviceshare' is configured 2 times",
            ),
            (
                "actions: allocate\ntiers: [{plugins: [{name: predicates, enablePredicate: false}]}]\n",
                "'predicates' has 'enablePredicate: false'",
            ),
            ("actions: allocate\ntiers: [{plugins: [{name: deviceshare, enableNodeOrder: false}]}]\n", "'enableNodeOrder: false'"),
        ],
    )
    def test_what_volcano_could_not_use_is_refused(self, text: str, message: str) -> None:
        with pytest.raises(ConfigMergeError, match=message):
            volcano_config.merge(config(text), WISHES)


PLUGIN_NAMES = st.lists(
    st.sampled_from(["priority", "gang", "drf", "predicates", "binpack", "nodeorder", "proportion", "mine"]), unique=True, min_size=1
)


class TestLaws:
    @given(plugins=PLUGIN_NAMES, split=st.integers(0, 8))
    def test_merge_then_unmerge_is_the_identity(self, plugins: list[str], split: int) -> None:
        tiers = [part for part in (plugins[:split], plugins[split:]) if part]
        document = {"actions": "allocate", "tiers": [{"plugins": [{"name": name} for name in tier]} for tier in tiers]}
        before = copy.deepcopy(document)
        record = volcano_config.merge(document, WISHES)
        volcano_config.unmerge(document, record, WISHES)
        assert document == before

    @given(plugins=PLUGIN_NAMES)
    def test_merging_never_removes_or_reorders_what_was_there(self, plugins: list[str]) -> None:
        document = {"actions": "allocate", "tiers": [{"plugins": [{"name": name} for name in plugins]}]}
        volcano_config.merge(document, WISHES)
        assert [name for name in names(document)[0] if name in plugins] == plugins
