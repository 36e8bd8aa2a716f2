"""Manifests of the demo's pods. Pure: requests in, dictionaries out."""

from __future__ import annotations

from typing import Any

from .scenes import PodRequest

__all__ = ["bare_pod", "slice_pod"]

TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
PROBE = "python3 -m tenfold_device_plugin.probe --json --allocate-until-refused"
# One view from inside, then idle: `kubectl logs` shows the view, `kubectl exec` finds a live slice.
SCRIPT = f"{PROBE}; exec sleep infinity"


def _pod(name: str, namespace: str, image: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "tenfold-demo"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "tolerations": [TOLERATION],
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", SCRIPT]}],
            **spec,
        },
    }


def slice_pod(request: PodRequest, namespace: str, image: str, script: str = SCRIPT) -> dict[str, Any]:
    """A pod that asks for one slice the way docs/tiers.md tells a user to."""
    pod = _pod(request.name, namespace, image, schedulerName="volcano")
    if request.tier is not None:
        pod["metadata"]["labels"]["tenfold.dev/tier"] = request.tier
    container = pod["spec"]["containers"][0]
    container["command"] = ["sh", "-c", script]
    container["resources"] = {
        "limits": {
            "volcano.sh/vgpu-number": 1,
            "volcano.sh/vgpu-memory": request.memory_mib,
            "volcano.sh/vgpu-cores": request.reserved_cores_percent,
        }
    }
    return pod


def bare_pod(name: str, namespace: str, image: str, node: str, runtime_class: str | None) -> dict[str, Any]:
    """A CUDA pod without a slice, placed on a GPU node, that asks the NVIDIA runtime for every card as CUDA images do."""
    pod = _pod(name, namespace, image, nodeSelector={"kubernetes.io/hostname": node})
    if runtime_class:
        pod["spec"]["runtimeClassName"] = runtime_class
    pod["spec"]["containers"][0]["env"] = [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"},
    ]
    return pod
