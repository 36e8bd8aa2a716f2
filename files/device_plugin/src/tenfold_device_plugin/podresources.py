"""Who owns a set of device ids, by the kubelet's word.

Owns the interpretation of pod-resources; the call is ``kubelet``'s. The answer names a pod, not its UID: that is asked of the API server.
The kubelet lists a container as soon as its Allocate has returned, and init containers that are not restartable never: ids that an init
container uses are listed under the app container that gets them afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc

from . import kubelet
from .errors import Refused

__all__ = ["Holder", "KubeletPodResources", "PodResources", "owner_of"]


@dataclass(frozen=True)
class Holder:
    """A container that holds device ids of our resource."""

    namespace: str
    pod: str
    container: str
    ids: frozenset[str]


class PodResources(Protocol):
    def holders(self) -> list[Holder]:
        """All containers of this node that hold ids of our resource. Errors: Refused("pod_resources", ...)."""


@dataclass(frozen=True)
class KubeletPodResources:
    socket: Path
    resource_name: str
    timeout_seconds: float = 5.0

    def holders(self) -> list[Holder]:
        try:
            response = kubelet.list_pod_resources(self.socket, self.timeout_seconds)
        except grpc.RpcError as error:
            raise Refused("pod_resources", f"the kubelet's pod-resources at '{self.socket}' does not answer: {_words(error)}") from error
        found = []
        for pod in response.pod_resources:
            for container in pod.containers:
                ids = frozenset(i for device in container.devices if device.resource_name == self.resource_name for i in device.device_ids)
                if ids:
                    found.append(Holder(pod.namespace, pod.name, container.name, ids))
        return found


def owner_of(ids: Iterable[str], holders: Iterable[Holder]) -> Holder:
    """The container that holds exactly these ids; failing that, the one container set of a single pod that holds some of them.

    The second case is an init container with more cards than the app container that inherits some of its ids.
    Errors: Refused when nobody holds them or several pods do (then any answer would be a guess).
    """
    wanted = frozenset(ids)
    touching = [holder for holder in holders if holder.ids & wanted]
    exact = [holder for holder in touching if holder.ids == wanted]
    candidates = exact or touching
    pods = {(holder.namespace, holder.pod) for holder in candidates}
    shown = ", ".join(sorted(wanted))
    if not candidates:
        raise Refused("unknown_owner", f"the kubelet names no container that holds the ids {shown}")
    if len(pods) > 1:
        names = ", ".join(f"{namespace}/{pod}" for namespace, pod in sorted(pods))
        raise Refused("unknown_owner", f"the kubelet names several pods for the ids {shown}: {names}")
    return candidates[0]


def _words(error: grpc.RpcError) -> str:
    return str(error.details()) if isinstance(error, grpc.Call) else str(error)
