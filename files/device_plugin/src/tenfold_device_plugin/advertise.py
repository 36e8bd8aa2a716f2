"""The node's way into the scheduler: its annotations and its two status resources, written in the order that is safe.

Owns the comparison of what the node says with what it should say, and the writes. What it should say is computed by ``state``; the
resource vgpu-number reaches the kubelet through ``serve``, once ``ready`` is true: at 0 in allocatable the scheduler would drop the node's
per-card ledger and bind blindly.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import log
from ._domain import wire
from ._domain.errors import QuantityError
from ._domain.quantities import parse_integer
from .clock import Clock
from .cluster import CARDS_CONDITION, Change, Cluster
from .state import Capacity, JsonObject

__all__ = ["Advertiser", "ResourcePatch", "resource_patch"]

NODE_LOCK_ANNOTATION = "hamivgpu"  # Volcano's optional node lock; only the node's plugin ever opens it (facts of v1.15.1: nodelock.go)
ALLOCATABLE_PATIENCE_SECONDS = 15.0  # the kubelet's status update comes every 10 s by default


@dataclass(frozen=True)
class ResourcePatch:
    capacity: dict[str, int]
    allocatable: dict[str, int]

    def __bool__(self) -> bool:
        return bool(self.capacity or self.allocatable)


def resource_patch(status: Mapping[str, Any], wanted: Mapping[str, int], kubelet_is_late: bool = False) -> ResourcePatch:
    """What to write into node status so that it shows ``wanted``.

    An increase is written to capacity alone: allocatable follows when the kubelet has seen it, so that nothing is placed here which the
    kubelet would refuse. A decrease is written to both. With ``kubelet_is_late`` allocatable is raised too.
    """
    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}
    for resource, amount in wanted.items():
        shown, allowed = _amount(status.get("capacity"), resource), _amount(status.get("allocatable"), resource)
        if shown != amount:
            capacity[resource] = amount
        if allowed > amount or (allowed < amount and kubelet_is_late):
            allocatable[resource] = amount
    return ResourcePatch(capacity, allocatable)


class Advertiser:
    """Used by the writer thread, except ``take``, which the node watch calls."""

    def __init__(self, cluster: Cluster, clock: Clock, node_name: str, heartbeat_seconds: float) -> None:
        self._cluster = cluster
        self._clock = clock
        self._node_name = node_name
        self._heartbeat_seconds = heartbeat_seconds
        self._last_heartbeat: float | None = None
        self._late_since: float | None = None
        self.node: JsonObject | None = None

    def take(self, change: Change) -> None:
        """One step of the node watch."""
        kind, found = change
        if kind == "SYNCED":
            self.node = found[0] if found else None
        elif kind == "DELETED":
            self.node = None
        else:
            self.node = found

    @property
    def revision(self) -> str:
        """The tiers revision that this node is told to obey; empty when none."""
        return str(self._annotations().get(wire.TIERS_REVISION_ANNOTATION, ""))

    @property
    def ready(self) -> bool:
        """Whether the scheduler would find a ledger here: annotation written, both resources above 0 in allocatable."""
        if self.node is None or not self._annotations().get(wire.NODE_REGISTER_ANNOTATION):
            return False
        allocatable = self.node["status"].get("allocatable")
        return all(_amount(allocatable, resource) > 0 for resource in (wire.RESOURCE_MEMORY, wire.RESOURCE_CORES))

    def write(self, records: Sequence[wire.RegisterRecord], capacity: Capacity, all_booked: bool) -> bool:
        """Bring the node object to what it should say: cards first, then the resources. Whether that took a request.

        Errors: Conflict, ClusterUnavailable, Rejected.
        """
        if self.node is None or not records:
            return False
        annotated = self._write_annotations(records, all_booked)
        return self._write_resources(capacity) or annotated

    def write_condition(self, problem: str) -> bool:
        """Say why no card answers in a condition of the node, and that one does again; whether that took a request.

        A node that never had such trouble has no such condition. Errors: as ``write``.
        """
        found: Mapping[str, Any] = next(iter((self.node or {"status": {}})["status"].get("conditions") or []), {})
        wanted = {"status": "False" if problem else "True", "reason": "NoCardAnswers" if problem else "CardsAnswer", "message": problem}
        if self.node is None or not (problem or found) or wanted.items() <= {"message": "", **found}.items():
            return False
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": CARDS_CONDITION, **wanted, "lastHeartbeatTime": now}
        if found.get("status") != wanted["status"]:
            condition["lastTransitionTime"] = now
        self.node = self._cluster.set_node_condition(self._node_name, condition)
        return True

    def shows_at_most(self, capacity: Capacity) -> bool:
        """Whether the node offers no more than this, as far as we have seen."""
        allocatable = (self.node or {"status": {}})["status"].get("allocatable")
        return (
            _amount(allocatable, wire.RESOURCE_MEMORY) <= capacity.memory_mib
            and _amount(allocatable, wire.RESOURCE_CORES) <= capacity.cores_percent
        )

    def look_again_seconds(self) -> float | None:
        """When there is something to write even if nothing changes: the next heartbeat, or an allocatable that has lagged too long."""
        if self._last_heartbeat is None:
            return None
        times = [self._last_heartbeat + self._heartbeat_seconds]
        if self._late_since is not None:
            times.append(self._late_since + ALLOCATABLE_PATIENCE_SECONDS)
        return max(0.0, min(times) - self._clock.monotonic())

    def _write_annotations(self, records: Sequence[wire.RegisterRecord], all_booked: bool) -> bool:
        now = self._clock.monotonic()
        found = self._annotations()
        patch: dict[str, str | None] = {}
        register = wire.encode_register(records)
        if found.get(wire.NODE_REGISTER_ANNOTATION) != register:
            patch[wire.NODE_REGISTER_ANNOTATION] = register
        if patch or self._last_heartbeat is None or now - self._last_heartbeat >= self._heartbeat_seconds:
            patch[wire.NODE_HANDSHAKE_ANNOTATION] = f"Reported {self._clock.now():%Y-%m-%d %H:%M:%S} +0000 UTC"
        if NODE_LOCK_ANNOTATION in found and all_booked:
            patch[NODE_LOCK_ANNOTATION] = None
        if not patch:
            return False
        self.node = self._cluster.annotate_node(self._node_name, patch)
        self._last_heartbeat = now
        if wire.NODE_REGISTER_ANNOTATION in patch:
            cards = ", ".join(f"{record.uuid} {record.count} slices {record.memory_mib} MiB" for record in records)
            log.say(logging.INFO, f"node {self._node_name} publishes {cards}", node=self._node_name)
        return True

    def _write_resources(self, capacity: Capacity) -> bool:
        assert self.node is not None
        wanted = {wire.RESOURCE_MEMORY: capacity.memory_mib, wire.RESOURCE_CORES: capacity.cores_percent}
        patch = resource_patch(self.node["status"], wanted, self._kubelet_is_late(wanted))
        if patch:
            self.node = self._cluster.set_node_resources(self._node_name, patch.capacity, patch.allocatable)
            log.say(
                logging.INFO,
                f"node {self._node_name} shows {capacity.memory_mib} MiB and {capacity.cores_percent} percent",
                node=self._node_name,
            )
        return bool(patch)

    def _kubelet_is_late(self, wanted: Mapping[str, int]) -> bool:
        """Whether allocatable has lagged behind a written capacity for longer than the kubelet takes."""
        status = self.node["status"] if self.node else {}
        lagging = any(
            _amount(status.get("allocatable"), resource) < amount == _amount(status.get("capacity"), resource)
            for resource, amount in wanted.items()
        )
        if not lagging:
            self._late_since = None
            return False
        now = self._clock.monotonic()
        self._late_since = now if self._late_since is None else self._late_since
        return now - self._late_since >= ALLOCATABLE_PATIENCE_SECONDS

    def _annotations(self) -> Mapping[str, Any]:
        return (self.node or {"metadata": {}})["metadata"].get("annotations") or {}


def _amount(amounts: Mapping[str, Any] | None, resource: str) -> int:
    """A missing or unreadable amount is 0: it will be written."""
    try:
        return parse_integer((amounts or {}).get(resource, 0))
    except QuantityError:
        return 0
