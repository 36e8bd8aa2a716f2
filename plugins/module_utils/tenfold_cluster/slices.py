"""What a node that offers slices looks like from outside, and what a probe in a slice must report. Pure.

A probe is a pod of one slice whose only container runs `python3 -m tenfold_device_plugin.probe --json --allocate-until-refused`; the form
of its report is in docs/architecture.md ("Device plugin").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Mapping

from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import wire
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.quantities import parse_integer

__all__ = ["PROBE_LABEL", "ProbeRequest", "broken_promises", "free_of", "is_slice_on", "not_offering", "probe_pod", "report_in"]

Document = Dict[str, Any]

MIB = 1 << 20
# The three that Volcano needs above 0 (v1.15.1, pkg/scheduler/api/devices/nvidia/vgpu/device_info.go, NewGPUDevices).
RESOURCES = (wire.RESOURCE_NUMBER, wire.RESOURCE_MEMORY, wire.RESOURCE_CORES)
REGISTER_ANNOTATION = wire.NODE_REGISTER_ANNOTATION
PROBE_LABEL = {"app.kubernetes.io/name": "tenfold-probe"}
# CUresult of cuMemAlloc beyond the quota (CUDA driver API, cuda.h).
CUDA_ERROR_OUT_OF_MEMORY = 2


def not_offering(node: Document) -> str | None:
    """Why *node* offers no slices yet, None when it does."""
    missing = [name for name in RESOURCES if _amount(node, name) == 0]
    if missing:
        return f"its allocatable has no {', '.join(missing)}"
    if not (node["metadata"].get("annotations") or {}).get(REGISTER_ANNOTATION):
        return f"it has no annotation {REGISTER_ANNOTATION}"
    return None


def _amount(node: Document, resource: str) -> int:
    # The server writes 76000 as '76k'.
    amount: int = parse_integer(((node.get("status") or {}).get("allocatable") or {}).get(resource) or 0)
    return amount


@dataclass(frozen=True)
class ProbeRequest:
    """The slice that a probe asks for. Units: memory_mib in MiB, cores in percent of a card."""

    tier: str
    memory_mib: int
    reserved_cores_percent: int
    limit_cores_percent: int

    def limits(self) -> dict[str, str]:
        """Resource limits of the container."""
        return dict(zip(RESOURCES, ("1", str(self.memory_mib), str(self.reserved_cores_percent))))


def probe_pod(node: str, request: ProbeRequest, options: Mapping[str, Any]) -> Document:
    """The pod that probes *node*; options: namespace, image, image_pull_policy, image_pull_secrets, scheduler_name, tolerations.

    Bound to the node by its name and not by a label, which need not carry it.
    """
    name = f"tenfold-probe-{node}"
    fields = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name[:63].rstrip("-."),
            "namespace": options["namespace"],
            "labels": {**PROBE_LABEL, "app.kubernetes.io/managed-by": "tenfold", wire.TIER_LABEL: request.tier},
        },
        "spec": {
            "schedulerName": options["scheduler_name"],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": fields}}},
            "tolerations": options["tolerations"],
            "imagePullSecrets": options["image_pull_secrets"],
            "containers": [
                {
                    "name": "probe",
                    "image": options["image"],
                    "imagePullPolicy": options["image_pull_policy"],
                    "command": ["python3", "-m", "tenfold_device_plugin.probe", "--json", "--allocate-until-refused"],
                    "resources": {"limits": request.limits()},
                }
            ],
        },
    }


def report_in(log: str) -> dict[str, Any] | None:
    """The probe's report in its log: the first line that is a JSON object; None while there is none."""
    for line in log.splitlines():
        if line.startswith("{"):
            try:
                report = json.loads(line)
            except ValueError:
                continue
            return report if isinstance(report, dict) else None
    return None


def broken_promises(report: Mapping[str, Any], request: ProbeRequest, booked_uuid: str, booked_mib: int) -> list[str]:
    """Every promise that the slice breaks, with both numbers; [] for a good one.

    booked_*: card and MiB in the scheduler's annotation of the pod.
    """
    broken = []
    if booked_mib != request.memory_mib:
        broken.append(f"booked {booked_mib} MiB, asked for {request.memory_mib} MiB")
    cards = report.get("cards") or []
    if len(cards) != 1:
        return [*broken, f"sees {len(cards)} cards, expected 1"]
    card, quota_bytes = cards[0], request.memory_mib * MIB
    if card.get("uuid") != booked_uuid:
        broken.append(f"sees card {card.get('uuid')}, the scheduler booked {booked_uuid}")
    for source in ("cuda", "nvml"):
        total_bytes = card.get(f"{source}_total_bytes")
        if total_bytes != quota_bytes:
            broken.append(f"{source} shows {total_bytes} bytes in all, expected {quota_bytes}")
    if card.get("core_limit_percent") != request.limit_cores_percent:
        broken.append(f"core limit is {card.get('core_limit_percent')} %, expected {request.limit_cores_percent} %")
    refusal = card.get("refusal")
    if not refusal:
        return [*broken, f"allocated without end, expected a refusal at {quota_bytes} bytes"]
    allocated_bytes, overhead_bytes = refusal.get("allocated_bytes"), refusal.get("overhead_bytes") or 0
    if not isinstance(allocated_bytes, int) or allocated_bytes + overhead_bytes != quota_bytes:
        beside = f" beside {overhead_bytes} of overhead" if overhead_bytes else ""
        broken.append(f"refused after {allocated_bytes} bytes{beside}, expected exactly {quota_bytes}")
    if refusal.get("result") != CUDA_ERROR_OUT_OF_MEMORY:
        broken.append(f"refused with CUresult {refusal.get('result')}, expected {CUDA_ERROR_OUT_OF_MEMORY}")
    return broken


def free_of(node: Document, pods: list[Document], resource: str) -> int:
    """How much of *resource* is left on *node* in the scheduler's arithmetic: allocatable less what its live pods request."""
    return _amount(node, resource) - sum(_requested(pod, resource) for pod in pods if _is_live_on(pod, node["metadata"]["name"]))


def is_slice_on(pod: Document, node: str) -> bool:
    """True when *pod* holds a slice of *node*."""
    return _is_live_on(pod, node) and _requested(pod, RESOURCES[0]) > 0


def _is_live_on(pod: Document, node: str) -> bool:
    return pod["spec"].get("nodeName") == node and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _requested(pod: Document, resource: str) -> int:
    containers = pod["spec"].get("containers") or []
    return sum(parse_integer(((one.get("resources") or {}).get("requests") or {}).get(resource) or 0) for one in containers)
