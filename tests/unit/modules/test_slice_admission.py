"""What admission lets through while nodes obey one catalogue, and while they obey two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import tiers
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.admission import admission_data
from ansible_collections.tenfold.vgpu.plugins.modules import slice_admission

from tests.unit.domain.strategies import TIERS, default_variables
from tests.unit.modules.fake_kube import serving

RunModule = Callable[..., "dict[str, Any]"]
WHO = {"schedulers": ["volcano"], "writers": ["b", "a"]}


def catalogue(**changes: Any) -> dict[str, Any]:
    return tiers.Catalogue.from_vars(default_variables(**changes)).as_dict()


def larger_small() -> dict[str, Any]:
    return catalogue(tiers={**TIERS, "small": {"memory_mib": 9216, "reserved_cores": 10, "limit_cores": 10}}, required_mixes=[])


def test_a_tier_is_admitted_with_what_the_scheduler_books() -> None:
    data = admission_data([catalogue()], **WHO)
    assert data["xlarge"] == "65536,80" and data["_schedulers"] == "volcano" and data["_writers"] == "a b" and data["_operators"] == ""
    assert admission_data([catalogue()], **WHO, operators=["d", "c"])["_operators"] == "c d"


def test_both_numbers_of_a_tier_are_admitted_while_catalogues_differ() -> None:
    assert admission_data([catalogue(), larger_small()], **WHO)["small"] == "8192,10 9216,10"


@pytest.mark.parametrize(("first", "second", "expected"), [(True, True, "allowed"), (True, False, "refused"), (False, False, "refused")])
def test_custom_numbers_need_every_catalogues_consent(first: bool, second: bool, expected: str) -> None:
    pair = [catalogue(custom_allowed=first), catalogue(custom_allowed=second)]
    assert admission_data(pair, **WHO)["_custom"] == expected


def test_the_order_of_catalogues_does_not_matter() -> None:
    assert admission_data([catalogue(), larger_small()], **WHO) == admission_data([larger_small(), catalogue()], **WHO)


def test_catalogues_of_other_nodes_are_read_and_missing_ones_admit_nothing(tmp_path: Path, run_module: RunModule) -> None:
    with serving(tmp_path) as (state, path):
        other = tiers.Catalogue.from_dict(larger_small())
        metadata = {"name": f"tenfold-tiers-{other.hash8}", "namespace": "ours"}
        state.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"catalogue.json": other.as_json()}})
        options = {"kubeconfig": path, "namespace": "ours", "catalogue": catalogue(), **WHO}
        result = run_module(slice_admission.main, **options, revisions=[other.hash8, "deadbeef"])
        assert not result["changed"] and result["data"]["small"] == "8192,10 9216,10"
        state.get("ConfigMap", metadata["name"], "ours")["data"] = {}
        assert "holds no catalogue" in run_module(slice_admission.main, **options, revisions=[other.hash8])["msg"]
