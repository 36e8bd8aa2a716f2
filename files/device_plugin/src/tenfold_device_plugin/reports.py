"""What people hear of: Kubernetes events at the pod, counters, one log line a change.

Owns wording of nothing, and three rules: the same news of the same pod is told once, counting never blocks a start (events are queued by
pod and sent by the writer, so that a namespace that takes none holds up no other), and every memory is bounded.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from . import log
from .clock import Clock
from .cluster import Cluster
from .errors import ClusterUnavailable, Conflict, PermanentRefusal, Refused, Rejected
from .state import JsonObject
from .workqueue import EVENT, event_key

__all__ = ["Reporter"]

COMPONENT = "tenfold-device-plugin"
QUEUED_MAXIMUM = 256
REMEMBERED_MAXIMUM = 1024


class Reporter:
    """Thread-safe. Counted since the process began: ``refusals`` of starts and news of pods that were not booked, by reason;
    ``rejections`` of writes by the API server, by kind of object.
    """

    def __init__(self, cluster: Cluster, clock: Clock, node_name: str, evict_after_refusals: int, touch: Callable[[str], None]) -> None:
        """``touch`` asks the writer to look at a key."""
        self._cluster = cluster
        self._clock = clock
        self._node_name = node_name
        self._evict_after = evict_after_refusals
        self._lock = threading.Lock()
        self._touch = touch
        self._events: list[dict[str, Any]] = []
        self._evictions: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._told: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._refused_starts: OrderedDict[str, int] = OrderedDict()
        self.refusals: Counter[str] = Counter()
        self.rejections: Counter[str] = Counter()
        self.moves = 0
        self.repairs = 0

    @property
    def node(self) -> JsonObject:
        """What ``tell`` takes for news of the node itself. The kubelet's events name a node by its name in place of a UID, too."""
        return {"kind": "Node", "metadata": {"name": self._node_name, "namespace": "default", "uid": self._node_name}}

    def refused(self, pod: JsonObject | None, refusal: Refused, *, start: bool, container: str | None = None) -> None:
        """A pod was not booked or (``start``) a container not started."""
        kind = "VgpuStartRefused" if start else "VgpuNotBooked"
        words = f"container {container!r} was not started: {refusal}" if start and container else str(refusal)
        is_news = pod is not None and self.tell(pod, kind, words, warning=True, reason_word=refusal.reason, container=container)
        if start or is_news:  # a pod that waits for its booking is judged anew with every change of another
            with self._lock:
                self.refusals[refusal.reason] += 1
        if pod is None:
            log.say(logging.WARNING, f"a container was not started: {refusal}", reason=refusal.reason)
        elif start:
            self._consider_eviction(pod, permanent=isinstance(refusal, PermanentRefusal))

    def rejected(self, kind: str, words: str, about: JsonObject | None) -> None:
        """The API server has refused a write for good. Without ``about`` (a pod, or the node) it is counted alone."""
        with self._lock:
            self.rejections[kind] += 1
        if about is not None:
            self.tell(about, "VgpuWriteRejected", words, warning=True)

    def tell(
        self, pod: JsonObject, kind: str, words: str, *, warning: bool = False, reason_word: str = "", container: str | None = None
    ) -> bool:
        """An event at the pod (or ``node``) and a log line. Whether it is news; else nothing happens.

        It is not when the last one of this kind had the same reason (or, without one, the same words).
        """
        metadata = pod["metadata"]
        with self._lock:
            if self._told.get((metadata["uid"], kind)) == (reason_word or words):
                return False
            self._told[(metadata["uid"], kind)] = reason_word or words
            self._told.move_to_end((metadata["uid"], kind))
            while len(self._told) > REMEMBERED_MAXIMUM:
                self._told.popitem(last=False)
            self._events = [*self._events, self._event(pod, kind, words, warning)][-QUEUED_MAXIMUM:]
        self._touch(event_key(metadata["uid"]))
        level = logging.WARNING if warning else logging.INFO
        if pod.get("kind") == "Node":
            log.say(level, f"node {self._node_name}: {words}", node=self._node_name)
            return True
        identity = {"container": container, "reason": reason_word or None}
        log.of_pod(level, words, metadata["namespace"], metadata["name"], metadata["uid"], **identity)
        return True

    def send(self, uid: str) -> bool:
        """Send what is queued for a pod; whether anything was. Errors: ClusterUnavailable, and what was not sent stays queued."""
        with self._lock:
            events = [event for event in self._events if event["involvedObject"]["uid"] == uid]
        for event in events:
            try:
                self._cluster.create_event(event)
            except Conflict:
                pass  # its namespace is gone: nobody will read it
            except Rejected as error:
                self.rejected(EVENT, str(error), None)
                log.say(logging.WARNING, f"an event was rejected, leaving it out: {error}", uid=uid)
            with self._lock:
                self._events = [each for each in self._events if each is not event]
        with self._lock:
            eviction = self._evictions.pop(uid, None)
        if eviction is not None:
            self._evict(*eviction, uid)
        return bool(events or eviction)

    def _evict(self, namespace: str, name: str, uid: str) -> None:
        try:
            self._cluster.evict(namespace, name, uid)
            words = "evicted: its start was refused too often"
        except (Conflict, ClusterUnavailable, Rejected) as error:
            words = f"could not evict it, ignoring: {error}"
        log.of_pod(logging.WARNING, words, namespace, name, uid)

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
            if count != self._evict_after:
                return
            self._evictions[metadata["uid"]] = (metadata["namespace"], metadata["name"])
        self._touch(event_key(metadata["uid"]))

    def _event(self, pod: JsonObject, kind: str, words: str, warning: bool) -> dict[str, Any]:
        metadata = pod["metadata"]
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "metadata": {"generateName": f"{metadata['name'][:200]}.", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": pod.get("kind", "Pod"),
                "name": metadata["name"],
                "uid": metadata["uid"],
                **({} if pod.get("kind") == "Node" else {"namespace": metadata["namespace"]}),
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
