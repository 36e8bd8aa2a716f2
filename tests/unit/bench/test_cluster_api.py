"""When a node counts as ready for pods."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster import api


def node(name: str, ready: str | None = "True", taints: tuple[str, ...] = ()) -> dict[str, Any]:
    conditions = [] if ready is None else [{"type": "Ready", "status": ready, "message": "cni is not initialized"}]
    return {"metadata": {"name": name}, "spec": {"taints": [{"key": key} for key in taints]}, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("items", "answer"),
    [
        ([node("a")], None),
        ([node("a", taints=("nvidia.com/gpu",))], None),
        ([], "node 'a' has not registered"),
        ([node("a", ready=None)], "node 'a' is not ready: no status yet"),
        ([node("a", ready="False")], "node 'a' is not ready: cni is not initialized"),
        ([node("a", taints=("node.kubernetes.io/not-ready",))], "node 'a' still has the taint 'node.kubernetes.io/not-ready'"),
    ],
)
def test_ready_node_takes_pods(items: list[dict[str, Any]], answer: str | None) -> None:
    assert api.nodes_missing_from(items, ["a"]) == answer
