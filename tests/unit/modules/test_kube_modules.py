"""The cluster modules against an API server on a real socket: each step in check mode first, then done, then repeated."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.modules import cluster_facts, cluster_objects, cluster_patch

from tests.unit.modules.fake_kube import FakeKube, kubeconfig, serving

RunModule = Callable[..., "dict[str, Any]"]

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ours"}}
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": "ours"}, "data": {"key": "value"}}


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[tuple[FakeKube, str]]:
    with serving(tmp_path) as pair:
        yield pair


def node(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **metadata}}


class TestTheFleet:
    """The nodes that an inventory names, by what was seen on its hosts."""

    def fleet(self, machine_id: str, unfit: str = "") -> dict[str, Any]:
        host: dict[str, Any] = {"name": "host-1", "node": "gpu-1", "enforcement": "hook", "unfit": unfit, "cards": [], "system_uuid": None}
        return {"hosts": [{**host, "machine_id": machine_id}]}

    def test_a_node_that_is_another_machine_or_absent_is_refused(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        result = run_module(cluster_facts.main, kubeconfig=path, fleet=self.fleet("aa"))
        assert "has no node 'gpu-1'; set gpu_node_name" in result["msg"]
        state.put({**node("gpu-1"), "status": {"nodeInfo": {"machineID": "bb", "systemUUID": "UU"}}})
        result = run_module(cluster_facts.main, kubeconfig=path, fleet=self.fleet("aa"))
        assert "has machine-id aa, but node 'gpu-1' reports bb; correct gpu_node_name in the inventory" in result["msg"]
        assert not run_module(cluster_facts.main, kubeconfig=path, fleet=self.fleet("bb")).get("failed")

    def test_an_unfit_host_needs_no_node(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        assert not run_module(cluster_facts.main, kubeconfig=kube[1], fleet=self.fleet("aa", "driver is 418")).get("failed")


class TestApplying:
    def test_check_mode_predicts_a_run_on_a_cluster_that_lacks_the_namespace(
        self, kube: tuple[FakeKube, str], run_module: RunModule
    ) -> None:
        state, path = kube
        options = {"kubeconfig": path, "documents": [CONFIG_MAP, NAMESPACE]}
        checked = run_module(cluster_objects.main, **options, _ansible_check_mode=True, _ansible_diff=True)
        assert state.writes == []
        done = run_module(cluster_objects.main, **options)
        assert checked["changed_objects"] == done["changed_objects"] == ["Namespace 'ours'", "ConfigMap 'ours/one'"]
        assert '"value"' in checked["diff"][1]["after"] and checked["diff"][1]["before"] == ""

    def test_a_repeated_apply_writes_nothing(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        run_module(cluster_objects.main, kubeconfig=path, documents=[NAMESPACE, CONFIG_MAP])
        state.get("ConfigMap", "one", "ours")["status"] = {"moved": "by a controller"}
        state.writes.clear()
        assert not run_module(cluster_objects.main, kubeconfig=path, documents=[NAMESPACE, CONFIG_MAP])["changed"]
        assert state.writes == []

    def test_drift_is_put_right(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        run_module(cluster_objects.main, kubeconfig=path, documents=[NAMESPACE, CONFIG_MAP])
        state.get("ConfigMap", "one", "ours")["data"]["key"] = "by hand"
        assert run_module(cluster_objects.main, kubeconfig=path, documents=[CONFIG_MAP])["changed"]
        assert state.get("ConfigMap", "one", "ours")["data"] == {"key": "value"}

    def test_an_object_of_others_is_kept_where_asked(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        state.put({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "theirs"})
        ours = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "ours"}
        result = run_module(cluster_objects.main, kubeconfig=path, documents=[ours], foreign_kept=["RuntimeClass"])
        assert not result["changed"] and result["foreign_objects"] == ["RuntimeClass 'nvidia'"]
        assert state.get("RuntimeClass", "nvidia")["handler"] == "theirs"

    def test_a_rollout_that_does_not_come_up_names_the_pod_and_its_log(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        state.put(NAMESPACE)
        labels = {"app": "x"}
        status: dict[str, Any] = {"phase": "Running", "conditions": []}
        status["containerStatuses"] = [{"name": "main", "ready": False, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
        pod_spec = {"nodeName": "gpu-1", "containers": [{"name": "main"}]}
        pod = {"kind": "Pod", "metadata": {"name": "x-1", "namespace": "ours", "labels": labels}, "spec": pod_spec, "status": status}
        state.put({"apiVersion": "v1", **pod, "log": "no driver\n"})
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "x", "namespace": "ours"},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}},
        }
        result = run_module(cluster_objects.main, kubeconfig=path, documents=[deployment], wait_timeout_s=0)
        assert result["failed"]
        for part in ("Deployment 'ours/x'", "1 pods wanted", "pod 'x-1' on node 'gpu-1'", "CrashLoopBackOff", "no driver", "run again"):
            assert part in result["msg"]


class TestRemoving:
    def test_only_what_we_applied_goes(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        state.put(dict(NAMESPACE))
        run_module(cluster_objects.main, kubeconfig=path, documents=[CONFIG_MAP])
        options = {"kubeconfig": path, "state": "absent", "documents": [NAMESPACE, CONFIG_MAP]}
        checked = run_module(cluster_objects.main, **options, _ansible_check_mode=True)
        assert ("ConfigMap", "ours", "one") in state.objects
        done = run_module(cluster_objects.main, **options)
        assert checked["changed_objects"] == done["changed_objects"] == ["ConfigMap 'ours/one'"]
        assert done["foreign_objects"] == ["Namespace 'ours'"] and ("Namespace", "", "ours") in state.objects
        assert not run_module(cluster_objects.main, **options)["changed"]

    def test_a_selection_spares_the_names_that_are_excepted(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        state.put(dict(NAMESPACE))
        for name in ("old", "new"):
            document = {**CONFIG_MAP, "metadata": {"name": name, "namespace": "ours", "labels": {"part": "tiers"}}}
            run_module(cluster_objects.main, kubeconfig=path, documents=[document])
        selector = {"api_version": "v1", "kind": "ConfigMap", "namespace": "ours", "label_selector": "part=tiers", "except_names": ["new"]}
        result = run_module(cluster_objects.main, kubeconfig=path, state="absent", selector=selector)
        assert result["changed_objects"] == ["ConfigMap 'ours/old'"]


PATCH: dict[str, Any] = {"metadata": {"labels": {"tenfold.dev/enforcement": "hook"}}}


class TestPatching:
    def test_check_then_patch_then_nothing(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        state.put(node("gpu-1", labels={"theirs": "stays"}))
        options = {"kubeconfig": path, "kind": "Node", "names": ["gpu-1"], "patch": PATCH}
        assert run_module(cluster_patch.main, **options, _ansible_check_mode=True)["patched"] == ["gpu-1"]
        assert state.writes == []
        assert run_module(cluster_patch.main, **options)["changed"]
        assert state.get("Node", "gpu-1")["metadata"]["labels"] == {"theirs": "stays", "tenfold.dev/enforcement": "hook"}
        assert not run_module(cluster_patch.main, **options)["changed"]

    def test_a_misspelled_node_is_refused_before_any_write(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        state.put(node("gpu-1"))
        result = run_module(cluster_patch.main, kubeconfig=path, kind="Node", names=["gpu-1", "gpu1"], patch=PATCH)
        assert result["failed"] and "no Node 'gpu1'" in result["msg"]
        assert state.writes == []

    def test_a_fleet_is_read_with_one_request(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        names = [f"gpu-{number}" for number in range(20)]
        for name in names:
            state.put(node(name, labels={"tenfold.dev/enforcement": "hook"} if name == "gpu-7" else {}))
        state.put(node("cpu-1"))
        result = run_module(cluster_patch.main, kubeconfig=path, kind="Node", names=names, patch=PATCH)
        assert result["patched"] == [name for name in names if name != "gpu-7"]
        result = run_module(cluster_patch.main, kubeconfig=path, kind="Node", names=[*names, "gpu-20"], patch=PATCH)
        assert "no Node 'gpu-20'" in result["msg"]

    def test_a_null_removes_and_then_is_satisfied(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        state.put(node("gpu-1", annotations={"a": "1", "b": "2"}))
        options = {"kubeconfig": path, "kind": "Node", "names": ["gpu-1"], "patch": {"metadata": {"annotations": {"a": None}}}}
        assert run_module(cluster_patch.main, **options)["changed"]
        assert state.get("Node", "gpu-1")["metadata"]["annotations"] == {"b": "2"}
        assert not run_module(cluster_patch.main, **options)["changed"]


class TestFacts:
    def test_every_unknown_node_is_named_at_once(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        state.put(node("gpu-1"))
        result = run_module(cluster_facts.main, kubeconfig=path, nodes=["gpu-1", "gpu-2", "gpu-3"])
        assert result["error_details"]["missing_nodes"] == ["gpu-2", "gpu-3"]
        assert "gpu_node_name" in result["msg"]

    def test_values_of_an_annotation_leave_out_the_named_nodes(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        for name, revision in (("gpu-1", "aa"), ("gpu-2", "bb"), ("gpu-3", "bb")):
            state.put(node(name, annotations={"rev": revision}))
        state.put(node("cpu-1"))
        result = run_module(cluster_facts.main, kubeconfig=path, nodes=["gpu-1"], annotation="rev")
        assert result["annotation_values"] == ["bb"]

    def test_an_old_server_is_refused_with_the_reason(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        state.git_version = "v1.28.9+k3s1"
        result = run_module(cluster_facts.main, kubeconfig=path, kubernetes_minimum="1.29")
        assert "is 1.28.9, expected 1.29 or newer" in result["msg"]

    def test_what_a_secret_holds_stays_out_of_the_result(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "ours"}, "data": {"key": "c2VjcmV0"}}
        state.put(secret)
        result = run_module(cluster_facts.main, kubeconfig=path, objects=[{"kind": "Secret", "name": "s", "namespace": "ours"}])
        assert result["objects"][0]["data"] == {"key": "(hidden)"}


class TestAServerThatIsNotThere:
    def test_nobody_listens(self, tmp_path: Path, run_module: RunModule) -> None:
        with socket.socket() as taken:  # a port that is bound and not listened on refuses connections
            taken.bind(("127.0.0.1", 0))
            path = kubeconfig(tmp_path, f"http://127.0.0.1:{taken.getsockname()[1]}")
            result = run_module(cluster_facts.main, kubeconfig=path)
        assert result["failed"]
        for part in ("cannot reach the Kubernetes API at 'http://127.0.0.1:", "Connection refused", "kube_control_kubeconfig", "again"):
            assert part in result["msg"]

    def test_a_kubeconfig_that_does_not_exist_is_named(self, tmp_path: Path, run_module: RunModule) -> None:
        result = run_module(cluster_facts.main, kubeconfig=str(tmp_path / "none"))
        assert f"kubeconfig '{tmp_path / 'none'}' does not exist" in result["msg"]

    def test_a_refused_identity_says_whose_it_was(self, kube: tuple[FakeKube, str], run_module: RunModule) -> None:
        state, path = kube
        state.failures = [(403, "nodes is forbidden")] * 9
        result = run_module(cluster_facts.main, kubeconfig=path, nodes=["gpu-1"])
        assert "not allowed with kubeconfig" in result["msg"] and "nodes is forbidden" in result["msg"]

    def test_a_temporary_answer_is_asked_again(
        self, kube: tuple[FakeKube, str], run_module: RunModule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state, path = kube
        state.put(node("gpu-1"))
        run_module(cluster_facts.main, kubeconfig=path, nodes=["gpu-1"])  # discovery is asked only once
        monkeypatch.setattr("ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.api.time.sleep", lambda _seconds: None)
        state.failures = [(503, "etcd is away"), (500, "failed calling webhook")]
        assert run_module(cluster_facts.main, kubeconfig=path, nodes=["gpu-1"])["changed"] is False
        assert state.failures == []
