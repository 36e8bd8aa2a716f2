"""Reads what came of the demo's pods: where the scheduler put them (annotation) and what each sees from inside (its log).

Owns the only calls to the API server in this package. Judging is `promises`' task.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, config

__all__ = ["Cluster", "Inside", "PodView", "WaitError"]

IDS_ANNOTATION = "volcano.sh/vgpu-ids-new"


class WaitError(RuntimeError):
    """Something did not come true in time; the message says what was waited for and what was there instead."""


@dataclass(frozen=True)
class Inside:
    """What a container says of itself: the probe's JSON. cards is empty where no card is visible."""

    cards: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class PodView:
    """A pod from outside (annotation) and from inside. card_uuid is '' before the scheduler has placed it."""

    name: str
    node: str
    phase: str
    message: str
    card_uuid: str
    memory_mib: int
    reserved_cores_percent: int
    inside: Inside | None
    restarts: int = 0


def parse_assignment(annotation: str) -> tuple[str, int, int]:
    """Card, MiB and percent of the only device in the annotation of a one-slice pod.

    Read here by hand and not by the product's codec: the demo judges the product from outside.
    Source: Volcano v1.15.1, pkg/scheduler/api/devices/nvidia/vgpu/utils.go, encodeContainerDevices.
    """
    if not annotation:
        return "", 0, 0
    uuid, _, memory_mib, cores_percent = annotation.split(";")[0].split(":")[0].split(",")
    return uuid, int(memory_mib), int(cores_percent)


def parse_probe(log: str) -> Inside | None:
    """The probe's report in a pod's log: its first line that is a JSON object; None while there is none."""
    for line in log.splitlines():
        if line.startswith("{"):
            report = json.loads(line)
            return Inside(tuple(report["cards"]))
    return None


class Cluster:
    """The fleet's API server."""

    def __init__(self, kubeconfig: Path, kubectl: Path) -> None:
        self.core = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))
        self.kubectl_command = [str(kubectl), f"--kubeconfig={kubeconfig}"]

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """kubectl's output; CalledProcessError, with its stderr shown, when it fails."""
        return subprocess.run(
            [*self.kubectl_command, *arguments], input=stdin, stdout=subprocess.PIPE, text=True, check=True, timeout=60
        ).stdout

    def wait(self, what: str, timeout_s: float, ready: Callable[[], bool], instead: Callable[[], str]) -> None:
        """Polls *ready* until it is true; WaitError names *what* and, through *instead*, what was there."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > deadline:
                raise WaitError(f"waited {timeout_s:.0f} s for {what}; instead: {instead()}")
            time.sleep(0.2)

    def make_namespace(self, name: str) -> None:
        """Creates a namespace and waits for its default service account, which pods need."""
        if name not in {item.metadata.name for item in self.core.list_namespace().items}:
            self.core.create_namespace({"metadata": {"name": name}})

        def ready() -> bool:
            return any(item.metadata.name == "default" for item in self.core.list_namespaced_service_account(name).items)

        self.wait(f"the default service account of namespace '{name}'", 30, ready, lambda: "none")

    def submit(self, pods: Iterable[dict[str, Any]]) -> None:
        """Creates the pods in the order given, as a user does: with kubectl, numbers as they are written."""
        self.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(pods)}))

    def clear(self, namespace: str) -> None:
        """Deletes every pod of the namespace and waits until they are gone."""
        self.core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)
        self.wait(
            f"the pods of namespace '{namespace}' to go",
            60,
            lambda: not self.core.list_namespaced_pod(namespace).items,
            lambda: ", ".join(item.metadata.name for item in self.core.list_namespaced_pod(namespace).items),
        )

    def views(self, namespace: str) -> list[PodView]:
        """Every pod of the namespace, by name, with its view from inside where it has one already."""
        return [self._view(item) for item in self.core.list_namespaced_pod(namespace).items]

    def wait_reported(self, namespace: str, count: int, timeout_s: float = 90) -> list[PodView]:
        """The views once *count* pods run and have reported from inside; fails at once when a pod failed."""
        views: list[PodView] = []

        def ready() -> bool:
            views[:] = self.views(namespace)
            failed = [view for view in views if view.phase == "Failed"]
            if failed:
                raise WaitError(
                    f"pod '{failed[0].name}' failed on {failed[0].node}: {failed[0].message or self.log(namespace, failed[0].name)}"
                )
            return len(views) >= count and all(view.inside for view in views)

        def instead() -> str:
            return "; ".join(f"{view.name} is {view.phase} ({view.message or 'no message'})" for view in views if not view.inside)

        self.wait(f"{count} pods of namespace '{namespace}' to run and report", timeout_s, ready, instead)
        return views

    def log(self, namespace: str, name: str) -> str:
        """A pod's log so far, '' where it has none."""
        try:
            return str(self.core.read_namespaced_pod_log(name, namespace))
        except client.ApiException:
            return ""

    def _view(self, item: Any) -> PodView:
        uuid, memory_mib, cores_percent = parse_assignment((item.metadata.annotations or {}).get(IDS_ANNOTATION, ""))
        running = item.status.phase == "Running"
        return PodView(
            name=item.metadata.name,
            node=item.spec.node_name or "",
            phase=item.status.phase,
            message=_why(item.status),
            card_uuid=uuid,
            memory_mib=memory_mib,
            reserved_cores_percent=cores_percent,
            inside=parse_probe(self.log(item.metadata.namespace, item.metadata.name)) if running else None,
            restarts=sum(container.restart_count for container in item.status.container_statuses or []),
        )


def _why(status: Any) -> str:
    """The most telling message in a pod's status."""
    for container in status.container_statuses or []:
        if container.state.waiting and container.state.waiting.message:
            return str(container.state.waiting.message)
        ended = container.state.terminated
        if ended:
            return f"its container ended with {ended.exit_code} ({ended.reason}): {ended.message or 'no message'}"
    for condition in status.conditions or []:
        if condition.status == "False" and condition.message:
            return str(condition.message)
    return str(status.message or status.reason or "")
