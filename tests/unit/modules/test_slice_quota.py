"""Another quota for running pods: what is asked for, what is left alone, and what is said of answers that are none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import wire
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import api, waiting
from ansible_collections.tenfold.vgpu.plugins.modules import slice_quota

from tests.unit.modules.fake_kube import FakeKube, serving

RunModule = Callable[..., "dict[str, Any]"]
UUID = "GPU-00000000-0000-0000-0000-000000000001"
MIB = 1 << 20
SHARES = {"small": (8192, 10), "medium": (16384, 30)}


def pod(name: str, **annotations: str) -> dict[str, Any]:
    ids = f"{UUID},NVIDIA,8192,10:"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ours",
            "uid": f"uid-{name}",
            "labels": {"app": "worker", wire.TIER_LABEL: "small"},
            "annotations": {wire.POD_IDS_ANNOTATION: ids, **annotations},
        },
        "spec": {"nodeName": "gpu-1"},
        "status": {"phase": "Running"},
    }


class Node:
    """A device plugin that answers each request as it is told, and what the containers see."""

    def __init__(self, state: FakeKube) -> None:
        self.state = state
        self.phase = "done"
        self.message = ""
        self.sees_mib: int | None = None

    def answer(self) -> None:
        for document in self.state.objects.values():
            annotations = document["metadata"].get("annotations") or {}
            text = annotations.get(wire.QUOTA_ANNOTATION)
            if document["kind"] != "Pod" or not text or self.phase == "silent":
                continue
            if json.loads(annotations.get(wire.QUOTA_STATUS_ANNOTATION, "{}")).get("request") == text:
                continue  # once
            request = json.loads(text)
            memory, cores = SHARES.get(request.get("tier"), (request.get("memory_mib", 8192), 10))
            share = {"uuid": UUID, "memory_mib": memory, "cores_percent": cores, "limit_cores_percent": cores}
            status = {"request": text, "phase": self.phase, "message": self.message, "tier": "", "containers": {"c0": [share]}}
            annotations[wire.QUOTA_STATUS_ANNOTATION] = json.dumps(status)

    def inside(self, namespace: str, name: str, container: str, command: list[str]) -> str:
        assert (container, command) == ("c0", ["/usr/local/tenfold/vgpuctl", "show", "--json"])
        (share,) = json.loads(self.state.get("Pod", name, namespace)["metadata"]["annotations"][wire.QUOTA_STATUS_ANNOTATION])[
            "containers"
        ]["c0"]
        memory = (self.sees_mib or share["memory_mib"]) * MIB
        return json.dumps({"gpus": [{"uuid": UUID, "memory_limit_bytes": memory, "core_limit_percent": share["limit_cores_percent"]}]})


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: RunModule) -> Iterator[Node]:
    with serving(tmp_path) as (state, path):
        made = Node(state)
        monkeypatch.setattr(waiting, "POLL_S", 0.01)
        read = api.Cluster.read

        def answered(cluster: api.Cluster, *arguments: Any) -> Any:
            made.answer()
            return read(cluster, *arguments)

        monkeypatch.setattr(api.Cluster, "read", answered)
        monkeypatch.setattr(api.Cluster, "run_inside", lambda _cluster, *arguments: made.inside(*arguments))
        made.run = lambda **options: run_module(slice_quota.main, kubeconfig=path, timeout_s=1, **options)  # type: ignore[attr-defined]
        state.put(pod("one"))
        yield made


def request_of(node: Node, name: str = "one") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.state.get("Pod", name, "ours")["metadata"]["annotations"].get(wire.QUOTA_ANNOTATION, "{}"))
    return found


def test_asks_waits_and_says_what_is_in_force(node: Any) -> None:
    result = node.run(pod="ours/one", tier="medium")
    assert result["changed"] and request_of(node) == {"uid": "uid-one", "tier": "medium"}
    assert result["pods"]["ours/one"]["containers"]["c0"][0]["memory_mib"] == 16384
    assert result["lines"] == [f"ours/one: c0 has 16384 MiB, 30 percent (limit 30) of {UUID}"]
    assert not node.run(pod="ours/one", tier="medium")["changed"]
    assert node.run(pod="ours/one", tier="small")["changed"]


@pytest.mark.parametrize("wanted", [{"tier": "small"}, {"memory_mib": 8192}, {"cores_percent": 10}])
def test_what_a_pod_has_from_the_start_is_not_asked_for(node: Any, wanted: dict[str, Any]) -> None:
    assert not node.run(pod="ours/one", **wanted)["changed"] and request_of(node) == {}


def test_check_mode_shows_the_request_and_writes_nothing(node: Any) -> None:
    result = node.run(pod="ours/one", tier="medium", _ansible_check_mode=True, _ansible_diff=True)
    assert result["changed"] and '"tier": "medium"' in result["diff"][0]["after"]
    assert request_of(node) == {}


def test_pods_are_found_by_their_labels_and_those_without_a_slice_are_left_out(node: Any) -> None:
    node.state.put(pod("two"))
    ended = pod("three")
    ended["status"]["phase"] = "Succeeded"
    node.state.put(ended)
    assert set(node.run(label_selector="app=worker", namespace="ours", memory_mib=12288)["pods"]) == {"ours/one", "ours/two"}
    assert "no running pod" in node.run(label_selector="app=other", tier="medium")["msg"]
    assert "it is Succeeded" in node.run(pod="ours/three", tier="medium")["msg"]
    assert "does not exist" in node.run(pod="ours/four", tier="medium")["msg"]


def test_a_refusal_is_told_with_its_words_and_made_again_the_next_time(node: Any) -> None:
    node.phase, node.message = "refused", "32768 of 81920 MiB free, 65536 claimed"
    assert "pod 'ours/one': refused: 32768 of 81920 MiB free, 65536 claimed" in node.run(pod="ours/one", memory_mib=65536)["msg"]
    node.phase = "done"
    assert node.run(pod="ours/one", memory_mib=65536)["changed"] and request_of(node)["revision"]
    assert not node.run(pod="ours/one", memory_mib=65536)["changed"]


@pytest.mark.parametrize(("phase", "words"), [("silent", "not looked at"), ("changing", "is changing")])
def test_an_answer_that_does_not_come_names_the_node(node: Any, phase: str, words: str) -> None:
    node.phase = phase
    message = node.run(pod="ours/one", tier="medium")["msg"]
    assert words in message and "log on node gpu-1" in message


def test_what_the_container_sees_is_compared(node: Any) -> None:
    node.sees_mib = 8192
    assert "do not see their quota" in node.run(pod="ours/one", tier="medium")["msg"]
    assert not node.run(pod="ours/one", tier="medium", verify=False).get("failed")
