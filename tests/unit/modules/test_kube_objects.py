"""Rules about Kubernetes objects: order, ownership, what counts as a change, what a merge patch would do, when a rollout is done."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import objects, rollout
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.modules.fake_kube import merged


def live(**changes: Any) -> dict[str, Any]:
    metadata = {"name": "x", "resourceVersion": "7", "generation": 3, "managedFields": []}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}, **changes}


def owned(fields: Any, manager: str = "tenfold", operation: str = "Apply") -> dict[str, Any]:
    document = live()
    document["metadata"]["managedFields"] = [{"manager": manager, "operation": operation, "fieldsV1": fields}]
    return document


class TestOrder:
    def test_what_is_referred_to_comes_first_and_webhooks_come_last(self) -> None:
        kinds = ["MutatingWebhookConfiguration", "Deployment", "Queue", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace"]
        assert [one["kind"] for one in objects.in_apply_order({"kind": kind} for kind in kinds)] == [
            "Namespace",
            "CustomResourceDefinition",
            "ClusterRoleBinding",
            "Deployment",
            "Queue",
            "MutatingWebhookConfiguration",
        ]


class TestWhatCountsAsAChange:
    def test_status_and_the_servers_own_metadata_do_not(self) -> None:
        after = live(status={"replicas": 3})
        after["metadata"].update(resourceVersion="8", generation=4, uid="u", creationTimestamp="t")
        assert not objects.differs(live(status={"replicas": 1}), after)

    def test_content_does(self) -> None:
        assert objects.differs(live(), live(data={"a": "2"}))

    def test_a_new_object_does(self) -> None:
        assert objects.differs(None, live())

    def test_ownership_does(self) -> None:
        assert objects.differs(live(), owned({"f:data": {}}))
        assert objects.differs(owned({"f:data": {}}), owned({"f:data": {"f:a": {}}}))
        assert not objects.differs(owned({"f:data": {}}), owned({"f:data": {}}))

    def test_an_update_by_our_name_is_no_ownership(self) -> None:
        assert not objects.is_applied_by(owned({}, operation="Update"))
        assert not objects.is_applied_by(owned({}, manager="helm"))
        assert objects.is_applied_by(owned({}))


JSON = st.recursive(
    st.one_of(st.booleans(), st.integers(0, 3), st.sampled_from(["a", "b"])),
    lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)
PATCH = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 3)),
    lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)


def without_empty(value: Any) -> Any:
    """The API server does not keep empty mappings of metadata and status."""
    if not isinstance(value, dict):
        return value
    kept = {key: without_empty(inner) for key, inner in value.items()}
    return {key: inner for key, inner in kept.items() if inner != {}}


class TestMergePatches:
    """RFC 7386: null removes, mappings merge, anything else replaces."""

    @given(document=st.dictionaries(st.sampled_from("xyz"), JSON), patch=st.dictionaries(st.sampled_from("xyz"), PATCH))
    def test_a_patch_is_satisfied_once_it_was_applied(self, document: dict[str, Any], patch: dict[str, Any]) -> None:
        assert objects.satisfies(merged(document, patch, null_removes=True), patch)

    @given(document=st.dictionaries(st.sampled_from("xyz"), JSON), patch=st.dictionaries(st.sampled_from("xyz"), PATCH))
    def test_a_satisfied_patch_would_change_nothing(self, document: dict[str, Any], patch: dict[str, Any]) -> None:
        if objects.satisfies(document, patch):
            assert without_empty(merged(document, patch, null_removes=True)) == without_empty(document)

    def test_nothing_to_remove_is_satisfied(self) -> None:
        assert objects.satisfies({"status": {}}, {"status": {"capacity": {"vgpu": None}}})

    def test_a_diff_shows_only_what_the_patch_speaks_of(self) -> None:
        assert objects.touched({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}}) == {"a": {"b": 1}}


class TestRollouts:
    @pytest.mark.parametrize(
        ("kind", "spec", "status", "reason"),
        [
            ("Deployment", {"replicas": 2}, {"observedGeneration": 2}, "has not seen the change"),
            ("Deployment", {"replicas": 2}, {"updatedReplicas": 1, "availableReplicas": 2, "replicas": 2}, "2 pods wanted, 1 up to date"),
            ("Deployment", {"replicas": 1}, {"updatedReplicas": 1, "availableReplicas": 1, "replicas": 2}, "1 pods wanted"),
            ("Deployment", {"replicas": 1}, {"updatedReplicas": 1, "availableReplicas": 1, "replicas": 1}, None),
            ("DaemonSet", {}, {"desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 1}, "1 available"),
            ("DaemonSet", {}, {"desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2}, None),
            ("CustomResourceDefinition", {}, {"conditions": [{"type": "Established", "status": "False"}]}, "not established"),
            ("CustomResourceDefinition", {}, {"conditions": [{"type": "Established", "status": "True"}]}, None),
            ("Job", {}, {"conditions": [{"type": "Failed", "status": "True", "message": "backoff limit"}]}, "backoff limit"),
            ("Job", {}, {"conditions": [{"type": "Complete", "status": "True"}]}, None),
            ("ConfigMap", {}, {}, None),
        ],
    )
    def test_what_is_still_missing(self, kind: str, spec: Any, status: Any, reason: str | None) -> None:
        status.setdefault("observedGeneration", 3)
        found = rollout.waiting_for({"kind": kind, "metadata": {"generation": 3}, "spec": spec, "status": status})
        assert (found is None) if reason is None else (reason in (found or ""))

    def test_only_a_failed_job_is_beyond_waiting(self) -> None:
        failed = {"conditions": [{"type": "Failed", "status": "True"}]}
        assert rollout.is_final_failure({"kind": "Job", "status": failed})
        assert not rollout.is_final_failure({"kind": "Deployment", "status": failed})


class TestWhyAPodIsNotReady:
    @pytest.mark.parametrize(
        ("status", "words"),
        [
            ({"phase": "Succeeded"}, None),
            ({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}, None),
            (
                {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "no card has room"}]},
                "not scheduled: no card has room",
            ),
            (
                {"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}}]},
                "container 'c' is waiting: ErrImagePull: no such host",
            ),
            (
                {"containerStatuses": [{"name": "c", "state": {"terminated": {"reason": "Error", "exitCode": 3}}}]},
                "container 'c' is terminated with exit code 3: Error",
            ),
            ({"containerStatuses": [{"name": "c", "ready": False, "state": {"running": {}}}]}, "readiness probe does not pass"),
            ({"phase": "Failed", "message": "Allocate failed"}, "Failed: Allocate failed"),
        ],
    )
    def test_the_reason_names_node_and_container(self, status: Any, words: str | None) -> None:
        reason = rollout.pod_problem({"metadata": {"name": "p"}, "spec": {"nodeName": "gpu-1"}, "status": status})
        assert (reason is None) if words is None else (words in (reason or "") and "'p' on node 'gpu-1'" in (reason or ""))
