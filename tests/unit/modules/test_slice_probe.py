"""Slices seen from outside and from inside: when a node offers them, what a probe must report, and the probing of nodes at once."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import tiers
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import slices
from ansible_collections.tenfold.vgpu.plugins.modules import slice_probe, vgpu_nodes_ready

from tests.unit.domain.strategies import default_variables
from tests.unit.modules.fake_kube import FakeKube, serving

RunModule = Callable[..., "dict[str, Any]"]

MIB = 1 << 20
UUID = "GPU-00000000-0000-0000-0000-000000000001"
REQUEST = slices.ProbeRequest("small", 8192, 10, 10)
GOOD: dict[str, Any] = {
    "cards": [
        {
            "uuid": UUID,
            "cuda_total_bytes": 8192 * MIB,
            "nvml_total_bytes": 8192 * MIB,
            "core_limit_percent": 10,
            "refusal": {"allocated_bytes": 8192 * MIB, "result": 2},
        }
    ]
}
FULL_ALLOCATABLE = {"volcano.sh/vgpu-number": "40", "volcano.sh/vgpu-memory": "163840", "volcano.sh/vgpu-cores": "200"}


class TestANodeThatOffersSlices:
    def node(self, allocatable: dict[str, str], **annotations: str) -> dict[str, Any]:
        return {"metadata": {"name": "gpu-1", "annotations": annotations}, "status": {"allocatable": allocatable}}

    def test_has_all_three_resources_and_its_register(self) -> None:
        assert slices.not_offering(self.node(FULL_ALLOCATABLE, **{slices.REGISTER_ANNOTATION: "GPU-1,..:"})) is None

    @pytest.mark.parametrize("resource", sorted(FULL_ALLOCATABLE))
    def test_without_one_of_them_it_does_not(self, resource: str) -> None:
        for allocatable in ({**FULL_ALLOCATABLE, resource: "0"}, {k: v for k, v in FULL_ALLOCATABLE.items() if k != resource}):
            assert resource in (slices.not_offering(self.node(allocatable, **{slices.REGISTER_ANNOTATION: "x"})) or "")

    def test_without_its_register_it_does_not(self) -> None:
        assert slices.REGISTER_ANNOTATION in (slices.not_offering(self.node(FULL_ALLOCATABLE)) or "")


class TestJudgingAReport:
    def test_a_good_slice_breaks_nothing(self) -> None:
        assert slices.broken_promises(GOOD, REQUEST, UUID, 8192) == []

    @pytest.mark.parametrize(
        ("path", "value", "words"),
        [
            (("cards", 0, "uuid"), "GPU-other", "sees card GPU-other, the scheduler booked"),
            (("cards", 0, "cuda_total_bytes"), 81920 * MIB, "cuda shows 85899345920 bytes in all, expected 8589934592"),
            (("cards", 0, "nvml_total_bytes"), 81920 * MIB, "nvml shows"),
            (("cards", 0, "core_limit_percent"), 100, "core limit is 100 %, expected 10 %"),
            (("cards", 0, "refusal", "allocated_bytes"), 8192 * MIB + 1, "refused after 8589934593 bytes, expected exactly 8589934592"),
            (("cards", 0, "refusal", "allocated_bytes"), 8191 * MIB, "expected exactly"),
            (("cards", 0, "refusal", "overhead_bytes"), 420 * MIB, "refused after 8589934592 bytes beside 440401920 of overhead, expected"),
            (("cards", 0, "refusal", "result"), 999, "refused with CUresult 999, expected 2"),
            (("cards", 0, "refusal"), None, "allocated without end"),
            (("cards",), [], "sees 0 cards, expected 1"),
        ],
    )
    def test_each_broken_promise_is_named_with_both_numbers(self, path: tuple[Any, ...], value: Any, words: str) -> None:
        report: Any = copy.deepcopy(GOOD)
        part = report
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = value
        broken = slices.broken_promises(report, REQUEST, UUID, 8192)
        assert len(broken) == 1 and words in broken[0]

    def test_what_a_context_takes_counts_to_the_quota(self) -> None:
        report: Any = copy.deepcopy(GOOD)
        report["cards"][0]["refusal"].update(allocated_bytes=7772 * MIB, overhead_bytes=420 * MIB)
        assert slices.broken_promises(report, REQUEST, UUID, 8192) == []

    def test_a_scheduler_that_booked_something_else_is_named(self) -> None:
        assert slices.broken_promises(GOOD, REQUEST, UUID, 81920) == ["booked 81920 MiB, asked for 8192 MiB"]

    @pytest.mark.parametrize(
        ("log", "expected"), [("", None), ("no json\n", None), ("{broken\n", None), ('noise\n{"cards": []}\n', {"cards": []})]
    )
    def test_the_report_is_the_first_line_that_is_an_object(self, log: str, expected: Any) -> None:
        assert slices.report_in(log) == expected


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[tuple[FakeKube, str]]:
    with serving(tmp_path) as pair:
        yield pair


def add_node(state: FakeKube, name: str) -> None:
    catalogue = tiers.Catalogue.from_vars(default_variables())
    metadata = {"name": f"tenfold-tiers-{catalogue.hash8}", "namespace": "ours"}
    state.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"catalogue.json": catalogue.as_json()}})
    annotations = {"tenfold.dev/tiers-revision": catalogue.hash8, slices.REGISTER_ANNOTATION: "x"}
    state.put({"kind": "Node", "metadata": {"name": name, "annotations": annotations}, "status": {"allocatable": dict(FULL_ALLOCATABLE)}})


def run_pods(state: FakeKube, report: Any, phase: str = "Succeeded") -> list[dict[str, Any]]:
    """Makes every pod that is created end at once with *report* in its log; the pods as they were asked for."""
    asked: list[dict[str, Any]] = []
    put = state.put

    def ending(document: dict[str, Any]) -> dict[str, Any]:
        if document["kind"] == "Pod":
            asked.append(copy.deepcopy(document))
            document["metadata"].update(uid="u", annotations={"volcano.sh/vgpu-ids-new": f"{UUID},NVIDIA,8192,10:"})
            document.update(status={"phase": phase}, log=json.dumps(report) + "\n")
        return put(document)

    state.put = ending  # type: ignore[method-assign]
    return asked


OPTIONS = {"namespace": "ours", "image": "plugin:1", "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}


class TestProbing:
    def test_every_node_is_probed_and_nothing_is_left(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        for name in ("gpu-1", "gpu-2"):
            add_node(state, name)
        asked = run_pods(state, GOOD)
        result = run_module(slice_probe.main, kubeconfig=path, nodes=["gpu-1", "gpu-2"], **OPTIONS)
        assert not result["changed"] and [one["verdict"] for one in result["probes"].values()] == ["good", "good"]
        assert result["lines"][0].startswith("gpu-1: small (8192 MiB, 10 %) on GPU-")
        assert not [key for key in state.objects if key[0] == "Pod"]
        assert [pod["spec"]["schedulerName"] for pod in asked] == ["volcano", "volcano"]
        assert asked[0]["spec"]["containers"][0]["resources"]["limits"] == {
            "volcano.sh/vgpu-number": "1",
            "volcano.sh/vgpu-memory": "8192",
            "volcano.sh/vgpu-cores": "10",
        }

    def test_a_slice_without_its_limit_fails_the_run(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        add_node(state, "gpu-1")
        run_pods(state, {"cards": [{**GOOD["cards"][0], "refusal": None}]})
        result = run_module(slice_probe.main, kubeconfig=path, nodes=["gpu-1"], **OPTIONS)
        assert result["failed"] and "gpu-1" in result["msg"] and "allocated without end" in result["msg"]
        assert not [key for key in state.objects if key[0] == "Pod"]

    def test_a_pod_without_a_report_shows_its_log(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        add_node(state, "gpu-1")
        run_pods(state, "no CUDA here", phase="Failed")
        result = run_module(slice_probe.main, kubeconfig=path, nodes=["gpu-1"], **OPTIONS)
        assert "has failed without a report" in result["msg"] and "no CUDA here" in result["msg"]

    def test_a_full_node_is_reported_and_not_failed(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        add_node(state, "gpu-1")
        requests = {"requests": {"volcano.sh/vgpu-memory": "160k", "volcano.sh/vgpu-number": "1"}}
        spec = {"nodeName": "gpu-1", "containers": [{"name": "c", "resources": requests}]}
        state.put({"kind": "Pod", "metadata": {"name": "theirs", "namespace": "x"}, "spec": spec, "status": {"phase": "Running"}})
        result = run_module(slice_probe.main, kubeconfig=path, nodes=["gpu-1"], **OPTIONS)
        assert result["lines"] == ["gpu-1: not probed, volcano.sh/vgpu-memory: 3840 free, 8192 needed"]
        assert ("Pod", "x", "theirs") in state.objects

    def test_a_node_whose_cards_are_each_too_full_counts_as_full(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        add_node(state, "gpu-1")
        requests = {"requests": {"volcano.sh/vgpu-memory": "150000", "volcano.sh/vgpu-number": "2"}}
        spec = {"nodeName": "gpu-1", "containers": [{"name": "c", "resources": requests}]}
        state.put({"kind": "Pod", "metadata": {"name": "theirs", "namespace": "x"}, "spec": spec, "status": {"phase": "Running"}})
        result = run_module(slice_probe.main, kubeconfig=path, nodes=["gpu-1"], timeout_s=0, **OPTIONS)
        assert result["probes"]["gpu-1"]["verdict"] == "full"

    def test_time_that_is_up_is_a_failure_with_the_pods_reason(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        add_node(state, "gpu-1")
        result = run_module(slice_probe.main, kubeconfig=path, nodes=["gpu-1"], timeout_s=0, **OPTIONS)
        assert "no report after 0 s: pod 'tenfold-probe-gpu-1'" in result["msg"]
        assert not [key for key in state.objects if key[0] == "Pod"]

    def test_check_mode_starts_nothing(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        assert not run_module(slice_probe.main, kubeconfig=path, nodes=["gpu-1"], _ansible_check_mode=True, **OPTIONS)["changed"]
        assert state.writes == []

    def test_a_node_without_a_catalogue_is_refused(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        state.put({"kind": "Node", "metadata": {"name": "gpu-1"}, "status": {}})
        assert "--tags slice_tiers" in run_module(slice_probe.main, kubeconfig=path, nodes=["gpu-1"], **OPTIONS)["msg"]


WAIT_OPTIONS: dict[str, Any] = {"namespace": "ours", "daemon_set": "plugin", "timeout_s": 0}
READY: dict[str, Any] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


class TestWaitingForNodes:
    def add_plugin(self, state: FakeKube, node: str, pod_status: dict[str, Any], log: str = "") -> None:
        labels = {"app": "plugin"}
        spec = {"selector": {"matchLabels": labels}}
        status = {"desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "numberAvailable": 1}
        state.put({"kind": "DaemonSet", "metadata": {"name": "plugin", "namespace": "ours"}, "spec": spec, "status": status})
        metadata = {"name": f"plugin-{node}", "namespace": "ours", "labels": labels}
        pod_spec = {"nodeName": node, "containers": [{"name": "plugin"}]}
        state.put({"kind": "Pod", "metadata": metadata, "spec": pod_spec, "status": pod_status, "log": log})

    def test_a_fleet_that_offers_slices_is_told_with_numbers(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        add_node(state, "gpu-1")
        self.add_plugin(state, "gpu-1", READY)
        result = run_module(vgpu_nodes_ready.main, kubeconfig=path, nodes=["gpu-1"], **WAIT_OPTIONS)
        assert result["nodes"]["gpu-1"]["volcano.sh/vgpu-memory"] == "163840"

    def test_a_plugin_that_crashes_shows_its_log(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        add_node(state, "gpu-1")
        crashed = {"name": "plugin", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        self.add_plugin(state, "gpu-1", {"phase": "Running", "containerStatuses": [crashed]}, log="libnvidia-ml.so.1 is missing\n")
        result = run_module(vgpu_nodes_ready.main, kubeconfig=path, nodes=["gpu-1"], **WAIT_OPTIONS)
        for part in ("node 'gpu-1'", "CrashLoopBackOff", "libnvidia-ml.so.1 is missing"):
            assert part in result["msg"]

    def test_a_tainted_node_without_a_plugin_names_its_taints(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        add_node(state, "gpu-1")
        add_node(state, "gpu-2")
        self.add_plugin(state, "gpu-1", READY)
        state.get("Node", "gpu-2")["spec"] = {"taints": [{"key": "team", "effect": "NoSchedule"}]}
        result = run_module(vgpu_nodes_ready.main, kubeconfig=path, nodes=["gpu-1", "gpu-2"], **WAIT_OPTIONS)
        assert "node 'gpu-2': no pod of the device plugin" in result["msg"] and "team:NoSchedule" in result["msg"]
        assert result["error_details"]["nodes"] == ["gpu-2"]

    def test_a_ready_plugin_on_a_node_that_offers_nothing_is_not_enough(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        add_node(state, "gpu-1")
        self.add_plugin(state, "gpu-1", READY)
        state.get("Node", "gpu-1")["status"]["allocatable"]["volcano.sh/vgpu-cores"] = "0"
        result = run_module(vgpu_nodes_ready.main, kubeconfig=path, nodes=["gpu-1"], **WAIT_OPTIONS)
        assert "its allocatable has no volcano.sh/vgpu-cores" in result["msg"]
