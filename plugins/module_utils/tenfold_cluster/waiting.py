"""Waiting, with a deadline, until objects are in service or gone; what a person needs to know when they are not.

Asks through `api`, judges through `rollout`. Never waits for time alone.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterable

from . import rollout
from .api import Cluster
from .errors import ClusterError
from .objects import ObjectKey

__all__ = ["POLL_S", "Deadline", "log_tail", "until_gone", "until_in_service"]

Document = Dict[str, Any]

# How often a condition is asked for again (seconds): a rollout takes seconds, and one request costs milliseconds.
POLL_S = 0.5
_PODS_SHOWN = 3


class Deadline:
    """A time limit over several waits."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._end = time.monotonic() + limit_s

    @property
    def has_passed(self) -> bool:
        """True once the limit is over."""
        return time.monotonic() > self._end


def until_in_service(cluster: Cluster, keys: Iterable[ObjectKey], deadline: Deadline) -> None:
    """Until every object works. Errors: ClusterError with what is missing, and the pods that are at fault with the end of their logs."""
    _poll(cluster, keys, deadline, lambda live: rollout.waiting_for(live) if live else "it is gone", "to be in service")


def until_gone(cluster: Cluster, keys: Iterable[ObjectKey], deadline: Deadline) -> None:
    """Until none of the objects is there. Errors: ClusterError with the first that is."""

    def remains(live: Document | None) -> str | None:
        if live is None:
            return None
        finalizers = live["metadata"].get("finalizers")
        return f"still there, held by {', '.join(finalizers)}" if finalizers else "still there"

    _poll(cluster, keys, deadline, remains, "to go")


def _poll(
    cluster: Cluster, keys: Iterable[ObjectKey], deadline: Deadline, missing: Callable[[Document | None], str | None], what: str
) -> None:
    for key in keys:
        while True:
            live = cluster.read(key.api_version, key.kind, key.name, key.namespace)
            reason = missing(live)
            if reason is None:
                break
            if deadline.has_passed or (live is not None and rollout.is_final_failure(live)):
                raise ClusterError(
                    f"waited {deadline.limit_s:.0f} s for {key} {what}: {reason}{pods_at_fault(cluster, live)}\n"
                    "correct the cause and run again: what is applied already stays",
                    object=str(key),
                )
            time.sleep(POLL_S)


def pods_at_fault(cluster: Cluster, workload: Document | None) -> str:
    """The pods of a workload that are not ready, a line each, with the end of their logs; '' for anything else."""
    labels = (((workload or {}).get("spec") or {}).get("selector") or {}).get("matchLabels")
    if workload is None or not labels:
        return ""
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    found: list[str] = []
    for pod in cluster.select("v1", "Pod", workload["metadata"]["namespace"], labelSelector=selector):
        problem = rollout.pod_problem(pod)
        if problem and len(found) < _PODS_SHOWN:
            found.append(f"\n{problem}{log_tail(cluster, pod)}")
    return "".join(found)


def log_tail(cluster: Cluster, pod: Document) -> str:
    """The end of the log of a pod's first container, of its previous life if this one has said nothing yet; '' for none."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    container = pod["spec"]["containers"][0]["name"]
    text = cluster.log_tail(namespace, name, container) or cluster.log_tail(namespace, name, container, previous=True)
    return f"\n  its log ends with:\n  {text.strip()}" if text.strip() else ""
