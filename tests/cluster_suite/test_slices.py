"""Slices on the real scheduler: packing, quotas seen from inside, refusals at exactly the quota, no card without a slice."""

from __future__ import annotations

import pytest

from tests import ROOT
from tests.demo import compute, pods, promises, scenes
from tests.demo.observe import Cluster


@pytest.mark.parametrize("scene", scenes.SCENES, ids=lambda scene: scene.title.replace(" ", "-"))
def test_scene_keeps_every_promise(cluster: Cluster, namespace: str, image: str, scene: scenes.Scene) -> None:
    views = []
    count = 0
    for wave in scene.waves:
        cluster.submit(pods.slice_pod(request, namespace, image) for request in wave)
        count += len(wave)
        views = cluster.wait_reported(namespace, count)
    assert promises.broken_by_scene(scene, views) == []


@pytest.mark.parametrize("runtime_class", [None, "nvidia"])
def test_cuda_pod_without_a_slice_sees_no_card(cluster: Cluster, namespace: str, image: str, runtime_class: str | None) -> None:
    cluster.submit([pods.bare_pod("bare", namespace, image, "tenfold-gpu-1", runtime_class)])
    (view,) = cluster.wait_reported(namespace, 1)
    assert promises.broken_by_bare_pod(view) == []


def test_pods_of_all_sizes_created_at_once_each_get_their_own_quota(cluster: Cluster, namespace: str, image: str) -> None:
    """Creation order is not Allocate order: a plugin that guesses the pod mixes these up (docs/architecture.md, late binding)."""
    requests = [scenes.PodRequest(f"mixed-{number}", None, 1024 * number, 5 + number, 5 + number) for number in range(1, 13)]
    cluster.submit(pods.slice_pod(request, namespace, image) for request in requests)
    views = cluster.wait_reported(namespace, len(requests))
    by_name = {request.name: request for request in requests}
    assert [line for view in views for line in promises.broken_by_pod(by_name[view.name], view)] == []


def test_pod_that_fits_no_card_waits_instead_of_overbooking(cluster: Cluster, namespace: str, image: str) -> None:
    fillers = [scenes.PodRequest(f"fill-{number}", None, 65536, 80, 80) for number in range(1, 5)]
    cluster.submit(pods.slice_pod(request, namespace, image) for request in fillers)
    views = cluster.wait_reported(namespace, len(fillers))
    assert len({view.card_uuid for view in views}) == len(fillers)

    cluster.submit([pods.slice_pod(scenes.PodRequest("late", None, 32768, 10, 10), namespace, image)])
    cluster.core.delete_namespaced_pod("fill-1", namespace, grace_period_seconds=0)
    cluster.wait(
        "pod 'late' to take the freed card",
        60,
        lambda: any(view.name == "late" and view.inside for view in cluster.views(namespace)),
        lambda: str(cluster.views(namespace)),
    )
    (late,) = (view for view in cluster.views(namespace) if view.name == "late")
    (freed,) = {view.card_uuid for view in views if view.name == "fill-1"}
    assert late.card_uuid == freed


def test_neighbours_run_at_their_share_are_told_it_and_follow_a_live_change(cluster: Cluster, namespace: str, image: str) -> None:
    """What the node tells comes by NVML's pids and the mounts of the containers' processes: nothing of it depends on container or image."""
    node = compute.start(cluster, namespace, image)
    limits = {request.name: request.limit_cores_percent for request in compute.REQUESTS}
    assert compute.broken_by_shares(compute.watch(cluster, namespace, node, limits)) == []
    broken = ["not looked yet"]

    def is_told() -> bool:
        broken[:] = compute.broken_by_told(compute.slots_at_work(node), limits)
        return not broken

    cluster.wait("both slices to be told their shares", 60, is_told, lambda: "; ".join(broken))
    compute.change_limits(node)
    assert compute.broken_by_shares(compute.watch(cluster, namespace, node, compute.NEW_LIMITS_PERCENT)) == []
    assert [view.restarts for view in cluster.views(namespace)] == [0, 0]


def test_tier_of_lower_priority_uses_an_idle_card_and_yields_to_work(cluster: Cluster, namespace: str, image: str) -> None:
    batch, large = scenes.tier_pod("batch", 1), scenes.tier_pod("large", 1)

    def broken_alone(shares: list[compute.Share]) -> list[str]:
        return [str(share) for share in shares if share.seen_percent < batch.limit_cores_percent + 20]

    def alone() -> list[compute.Share]:
        return compute.watch(cluster, namespace, node, {"batch-1": 100}, broken=broken_alone)

    node = compute.start(cluster, namespace, image, [batch])
    assert broken_alone(alone()) == []
    compute.start(cluster, namespace, image, [large])
    beside = {"batch-1": batch.limit_cores_percent // 4, "large-1": large.limit_cores_percent}
    assert compute.broken_by_shares(compute.watch(cluster, namespace, node, beside)) == []
    cluster.core.delete_namespaced_pod("large-1", namespace, grace_period_seconds=0)
    assert broken_alone(alone()) == []


def test_example_runs_as_it_is_written(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("apply", "-n", namespace, "-f", str(ROOT / "examples/small-pod.yaml"))
    (view,) = cluster.wait_reported(namespace, 1)
    assert view.inside is not None
    assert [card["cuda_total_bytes"] for card in view.inside.cards] == [8192 << 20]
