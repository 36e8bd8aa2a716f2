"""What people hear of: Kubernetes events at the pod, counters, one log line a change.

Owns wording of nothing, and three rules: the same news of the same pod is told once, counting never blocks a start (events are queued and
sent by the writer thread), and both memories are bounded.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict, deque
from typing import Any

from . import log
from .clock import Clock
from .cluster import Cluster
from .errors import ClusterUnavailable, Conflict, PermanentRefusal, Refused
from .state import JsonObject

__all__ = ["Reporter"]

COMPONENT = "tenfold-device-plugin"
QUEUED_MAXIMUM = 256
REMEMBERED_MAXIMUM = 1024


class Reporter:
    """Thread-safe. ``refusals`` counts refused starts and bookings by reason since the process began."""

    def __init__(self, cluster: Cluster, clock: Clock, node_name: str, evict_after_refusals: int = 0) -> None:
        self._cluster = cluster
        self._clock = clock
        self._node_name = node_name
        self._evict_after = evict_after_refusals
        self._lock = threading.Lock()
        self._queue: deque[dict[str, Any]] = deque(maxlen=QUEUED_MAXIMUM)
        self._evictions: deque[tuple[str, str, str]] = deque(maxlen=QUEUED_MAXIMUM)
        self._told: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._refused_starts: OrderedDict[str, int] = OrderedDict()
        self.refusals: Counter[str] = Counter()
        self.moves = 0
        self.repairs = 0

    def refused(self, pod: JsonObject | None, refusal: Refused, *, start: bool, container: str | None = None) -> None:
        """A pod was not booked or (``start``) a container not started."""
        with self._lock:
            self.refusals[refusal.reason] += 1
        if pod is None:
            log.say(logging.WARNING, f"a container was not started: {refusal}", reason=refusal.reason)
            return
        kind = "VgpuStartRefused" if start else "VgpuNotBooked"
        words = f"container {container!r} was not started: {refusal}" if start and container else str(refusal)
        self.tell(pod, kind, words, warning=True, reason_word=refusal.reason, container=container)
        if start:
            self._consider_eviction(pod, permanent=isinstance(refusal, PermanentRefusal))

    def tell(
        self, pod: JsonObject, kind: str, words: str, *, warning: bool = False, reason_word: str = "", container: str | None = None
    ) -> None:
        """An event at the pod and a log line, unless the last news of this kind had the same reason (or, without one, the same words)."""
        metadata = pod["metadata"]
        with self._lock:
            if self._told.get((metadata["uid"], kind)) == (reason_word or words):
                return
            self._told[(metadata["uid"], kind)] = reason_word or words
            self._told.move_to_end((metadata["uid"], kind))
            while len(self._told) > REMEMBERED_MAXIMUM:
                self._told.popitem(last=False)
            self._queue.append(self._event(metadata, kind, words, warning))
        log.say(
            logging.WARNING if warning else logging.INFO,
            f"pod {metadata['namespace']}/{metadata['name']}: {words}",
            namespace=metadata["namespace"],
            pod=metadata["name"],
            uid=metadata["uid"],
            container=container,
            reason=reason_word or None,
        )

    def flush(self) -> None:
        """Send what is queued; what can't be sent now waits, the oldest falls out first."""
        while True:
            with self._lock:
                if not self._queue:
                    break
                event = self._queue.popleft()
            try:
                self._cluster.create_event(event)
            except Conflict:
                continue  # its namespace is going away: nobody will read it
            except ClusterUnavailable:
                with self._lock:
                    self._queue.appendleft(event)
                return
        while self._evictions:
            namespace, name, uid = self._evictions.popleft()
            try:
                self._cluster.evict(namespace, name, uid)
                log.say(logging.WARNING, f"evicted pod {namespace}/{name}: its start was refused too often", namespace=namespace, pod=name)
            except (Conflict, ClusterUnavailable) as error:
                log.say(logging.WARNING, f"could not evict pod {namespace}/{name}, ignoring: {error}", namespace=namespace, pod=name)

    def forget(self, uid: str) -> None:
        with self._lock:
            self._refused_starts.pop(uid, None)
            for key in [key for key in self._told if key[0] == uid]:
                del self._told[key]

    def _consider_eviction(self, pod: JsonObject, permanent: bool) -> None:
        """After so many refusals a controller's pod is better replaced; never one that would only be refused again."""
        metadata = pod["metadata"]
        controlled = any(owner.get("controller") for owner in metadata.get("ownerReferences") or [])
        if not self._evict_after or permanent or not controlled:
            return
        with self._lock:
            count = self._refused_starts[metadata["uid"]] = self._refused_starts.get(metadata["uid"], 0) + 1
            while len(self._refused_starts) > REMEMBERED_MAXIMUM:
                self._refused_starts.popitem(last=False)
            if count == self._evict_after:
                self._evictions.append((metadata["namespace"], metadata["name"], metadata["uid"]))

    def _event(self, metadata: JsonObject, kind: str, words: str, warning: bool) -> dict[str, Any]:
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "metadata": {"generateName": f"{metadata['name'][:200]}.", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": "Warning" if warning else "Normal",
            "reason": kind,
            "message": words[:1024],
            "source": {"component": COMPONENT, "host": self._node_name},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node_name,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
