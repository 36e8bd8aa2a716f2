"""Who owns a set of ids by the kubelet's word: the exact holder, else the one pod that it can be, else nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenfold_device_plugin._domain import wire
from tenfold_device_plugin.errors import Refused
from tenfold_device_plugin.podresources import Holder, KubeletPodResources, owner_of
from tests.unit.device_plugin.bench import Bench, pod

IDS = [f"GPU-a::{number}" for number in range(8)]


def holder(name: str, *ids: str, container: str = "c") -> Holder:
    return Holder("default", name, container, frozenset(ids))


class TestOwnerOf:
    @given(st.permutations(IDS), st.integers(1, 7))
    def test_each_of_several_holders_is_found_by_its_own_ids_in_any_order(self, ids: list[str], cut: int) -> None:
        first, second = holder("first", *ids[:cut]), holder("second", *ids[cut:])
        assert owner_of(reversed(ids[:cut]), [second, first]) == first
        assert owner_of(ids[cut:], [first, second]) == second

    def test_the_exact_holder_wins_over_one_that_shares_an_id(self) -> None:
        wide, exact = holder("p", "a", "b", container="wide"), holder("p", "a", container="exact")
        assert owner_of(["a"], [wide, exact]) == exact

    def test_an_init_container_with_more_ids_belongs_to_the_pod_that_inherits_some(self) -> None:
        app = holder("p", "a")
        assert owner_of(["a", "b"], [app, holder("other", "c")]) == app

    def test_two_pods_that_share_the_ids_are_not_guessed_between(self) -> None:
        with pytest.raises(Refused, match="names several pods for the ids a, b: default/p, default/q"):
            owner_of(["a", "b"], [holder("p", "a"), holder("q", "b")])

    def test_nobody_is_said_with_the_ids(self) -> None:
        with pytest.raises(Refused, match="names no container that holds the ids x"):
            owner_of(["x"], [holder("p", "a")])


class TestTheKubelet:
    def test_names_containers_of_our_resource_only(self) -> None:
        bench = Bench()
        try:
            bench.start()
            found = pod("one")
            bench.bind(found)
            bench.kubelet.admit(found)
            (only,) = bench.plugin.binder.parts.pod_resources.holders()
            assert (only.namespace, only.pod, only.container) == ("default", "one", "c0")
        finally:
            bench.close()

    def test_that_does_not_answer_is_a_refusal_that_names_its_socket(self, tmp_path: Path) -> None:
        with pytest.raises(Refused, match=r"pod-resources at '.*none\.sock' does not answer"):
            KubeletPodResources(tmp_path / "none.sock", wire.RESOURCE_NUMBER, timeout_seconds=0.2).holders()
