"""Whether an applied object works yet, and if not, why: read from its status and from its pods. Pure.

Asking for status and logs is `api`'s task, waiting the module's.
"""

from __future__ import annotations

from typing import Any, Dict

__all__ = ["is_final_failure", "pod_problem", "waiting_for"]

Document = Dict[str, Any]


def _condition(live: Document, kind: str) -> Document:
    for condition in (live.get("status") or {}).get("conditions") or []:
        if condition.get("type") == kind:
            return dict(condition)
    return {}


def waiting_for(live: Document) -> str | None:
    """What *live* still lacks to be in service, in words; None when it is, or when its kind has nothing to wait for."""
    status = live.get("status") or {}
    kind = live.get("kind")
    if kind in ("Deployment", "DaemonSet"):
        if int(status.get("observedGeneration") or 0) < int((live.get("metadata") or {}).get("generation") or 0):
            return "its controller has not seen the change yet"
        if kind == "Deployment":
            wanted = int((live.get("spec") or {}).get("replicas", 1))
            updated, available = int(status.get("updatedReplicas") or 0), int(status.get("availableReplicas") or 0)
            surplus = int(status.get("replicas") or 0) - updated
        else:
            wanted = int(status.get("desiredNumberScheduled") or 0)
            updated, available = int(status.get("updatedNumberScheduled") or 0), int(status.get("numberAvailable") or 0)
            surplus = 0
        if updated < wanted or available < wanted or surplus > 0:
            return f"{wanted} pods wanted, {updated} up to date, {available} available"
        return None
    if kind == "CustomResourceDefinition":
        established = _condition(live, "Established").get("status") == "True"
        return None if established else _condition(live, "NamesAccepted").get("message") or "not established"
    if kind == "Job":
        complete = _condition(live, "Complete").get("status") == "True"
        return None if complete else _condition(live, "Failed").get("message") or "not complete"
    return None


def is_final_failure(live: Document) -> bool:
    """True when waiting longer can't help: a Job that has used up its attempts."""
    return live.get("kind") == "Job" and _condition(live, "Failed").get("status") == "True"


def pod_problem(pod: Document) -> str | None:
    """Why a pod is not ready, naming its node and the container at fault; None for a ready or finished one."""
    status = pod.get("status") or {}
    if status.get("phase") == "Succeeded" or _condition(pod, "Ready").get("status") == "True":
        return None
    node = (pod.get("spec") or {}).get("nodeName")
    name = f"pod '{pod['metadata']['name']}'" + (f" on node '{node}'" if node else "")
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"{name}: not scheduled: {scheduled.get('message') or scheduled.get('reason') or 'no reason given'}"
    for container in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        for state in ("waiting", "terminated"):
            detail = (container.get("state") or {}).get(state)
            if detail and detail.get("reason") not in ("Completed", "PodInitializing", "ContainerCreating"):
                code = f" with exit code {detail['exitCode']}" if detail.get("exitCode") is not None else ""
                message = f": {detail['message']}" if detail.get("message") else ""
                return f"{name}: container '{container['name']}' is {state}{code}: {detail.get('reason') or 'no reason given'}{message}"
        if "running" in (container.get("state") or {}) and not container.get("ready"):
            return f"{name}: container '{container['name']}' runs but its readiness probe does not pass"
    return f"{name}: {status.get('phase') or 'no status yet'}{': ' + status['message'] if status.get('message') else ''}"
