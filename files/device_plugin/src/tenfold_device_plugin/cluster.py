"""The Kubernetes API as far as the plugin needs it, on plain JSON objects.

Owns requests, time limits and the translation of answers into our three outcomes (object, Conflict, ClusterUnavailable); never decides.
Objects are dicts as the API sends them, cut down to the fields that we read, because a node holds hundreds of pods.

Rights that the plugin's service account needs (all on its own node's objects; the admission policies narrow them further):

    nodes                get list watch patch      one node, by metadata.name: annotations, what Volcano reads
    nodes/status         patch                     capacity and allocatable of vgpu-memory and vgpu-cores
    pods                 get list watch patch      pods with spec.nodeName of this node: assignment annotations
    events               create                    core/v1, in the pods' namespaces
    configmaps           get                       tenfold-tiers-<hash8>, in the plugin's own namespace (a Role)
    pods/eviction        create                    only with evict_after_refusals > 0
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from .errors import ClusterUnavailable, Conflict

__all__ = ["Change", "Cluster", "KubernetesCluster"]

JsonObject = dict[str, Any]
Change = tuple[str, Any]
"""("SYNCED", [object...]) once first and after every gap, then ("ADDED" | "MODIFIED" | "DELETED", object)."""

WATCH_SECONDS = 60  # the server ends a watch after this; a connection that died without a word is noticed 15 s later
_NOT_FOUND, _CONFLICT, _GONE, _UNPROCESSABLE = 404, 409, 410, 422


class Cluster(Protocol):
    """Every method may raise ClusterUnavailable; those that change an object also Conflict (it is gone or another one)."""

    def follow_pods(self, node_name: str, stop: threading.Event) -> Iterator[Change]: ...

    def follow_node(self, node_name: str, stop: threading.Event) -> Iterator[Change]: ...

    def pod(self, namespace: str, name: str) -> JsonObject | None: ...

    def node(self, name: str) -> JsonObject | None: ...

    def config_map(self, namespace: str, name: str) -> Mapping[str, str] | None: ...

    def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str | None]) -> JsonObject: ...

    def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> JsonObject: ...

    def set_node_resources(self, name: str, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> JsonObject: ...

    def create_event(self, event: JsonObject) -> None: ...

    def evict(self, namespace: str, name: str, uid: str) -> None: ...


class KubernetesCluster:
    def __init__(self, kubeconfig: str, timeout_seconds: float) -> None:
        """Errors: ClusterUnavailable when neither the kubeconfig nor a service account can be loaded."""
        # Imported here: it takes a second and 40 MiB, which neither the probe nor the tests should pay.
        from kubernetes import client, config

        try:
            if kubeconfig:
                config.load_kube_config(config_file=kubeconfig)
            else:
                config.load_incluster_config()
        except config.ConfigException as error:
            raise ClusterUnavailable(f"cannot load {kubeconfig or 'the service account'!r}: {error}") from error
        self._api: Any = client.CoreV1Api()
        self._failure: Any = client.ApiException
        self._timeout = (timeout_seconds, timeout_seconds)

    def follow_pods(self, node_name: str, stop: threading.Event) -> Iterator[Change]:
        return self._follow(self._api.list_pod_for_all_namespaces, f"spec.nodeName={node_name}", slim_pod, stop)

    def follow_node(self, node_name: str, stop: threading.Event) -> Iterator[Change]:
        return self._follow(self._api.list_node, f"metadata.name={node_name}", slim_node, stop)

    def pod(self, namespace: str, name: str) -> JsonObject | None:
        found = self._read(self._api.read_namespaced_pod, name, namespace)
        return slim_pod(found) if found is not None else None

    def node(self, name: str) -> JsonObject | None:
        found = self._read(self._api.read_node, name)
        return slim_node(found) if found is not None else None

    def config_map(self, namespace: str, name: str) -> Mapping[str, str] | None:
        found = self._read(self._api.read_namespaced_config_map, name, namespace)
        return (found.get("data") or {}) if found is not None else None

    def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str | None]) -> JsonObject:
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}  # the UID makes a patch of a namesake fail
        return slim_pod(self._call(self._api.patch_namespaced_pod, name, namespace, body))

    def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> JsonObject:
        return slim_node(self._call(self._api.patch_node, name, {"metadata": {"annotations": dict(annotations)}}))

    def set_node_resources(self, name: str, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> JsonObject:
        status = {
            "capacity": {resource: str(amount) for resource, amount in capacity.items()},
            "allocatable": {resource: str(amount) for resource, amount in allocatable.items()},
        }
        return slim_node(self._call(self._api.patch_node_status, name, {"status": {key: value for key, value in status.items() if value}}))

    def create_event(self, event: JsonObject) -> None:
        self._call(self._api.create_namespaced_event, event["metadata"]["namespace"], event)

    def evict(self, namespace: str, name: str, uid: str) -> None:
        body = {"metadata": {"name": name, "namespace": namespace}, "deleteOptions": {"preconditions": {"uid": uid}}}
        self._call(self._api.create_namespaced_pod_eviction, name, namespace, body)

    def _read(self, call: Callable[..., Any], *arguments: Any) -> JsonObject | None:
        try:
            found: JsonObject = self._call(call, *arguments)
        except Conflict:
            return None
        return found

    def _call(self, call: Callable[..., Any], *arguments: Any, timeout: tuple[float, float] | None = None, **options: Any) -> Any:
        response = self._open(call, *arguments, timeout=timeout, **options)
        try:
            return json.loads(response.data)
        except ValueError as error:
            raise ClusterUnavailable(f"the API server's answer is no JSON: {error}") from error

    def _open(self, call: Callable[..., Any], *arguments: Any, timeout: tuple[float, float] | None = None, **options: Any) -> Any:
        try:
            return call(*arguments, _preload_content=False, _request_timeout=timeout or self._timeout, **options)
        except self._failure as error:
            if error.status in (_NOT_FOUND, _CONFLICT, _GONE, _UNPROCESSABLE):
                raise Conflict(_words(error)) from error
            raise ClusterUnavailable(f"the API server refuses {call.__name__}: {_words(error)}") from error
        except Exception as error:  # urllib3's and ssl's own, which the client library passes through
            raise ClusterUnavailable(f"the API server does not answer {call.__name__}: {error}") from error

    def _follow(
        self, list_objects: Callable[..., Any], selector: str, slim: Callable[[JsonObject], JsonObject], stop: threading.Event
    ) -> Iterator[Change]:
        """List, then watch from there; a watch that ends is continued, one that the server has forgotten starts over."""
        version = ""
        while not stop.is_set():
            if not version:
                listed = self._call(list_objects, field_selector=selector)
                version = listed["metadata"]["resourceVersion"]
                yield "SYNCED", [slim(found) for found in listed["items"]]
            try:
                for kind, found in self._watch(list_objects, selector, version):
                    if kind == "ERROR":
                        version = ""
                        break
                    version = found["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        yield kind, slim(found)
                    if stop.is_set():
                        return
            except Conflict:  # 410: our version is older than the server's history
                version = ""

    def _watch(self, list_objects: Callable[..., Any], selector: str, version: str) -> Iterator[Change]:
        response = self._open(
            list_objects,
            field_selector=selector,
            watch=True,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=WATCH_SECONDS,
            timeout=(self._timeout[0], WATCH_SECONDS + 15),
        )
        try:
            rest = b""
            for chunk in response.stream(65536, decode_content=False):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        event = json.loads(line)
                        yield event["type"], event["object"]
        except Exception as error:  # a broken or silent connection; urllib3 has a dozen types for it
            raise ClusterUnavailable(f"the watch of {selector} broke off: {error}") from error
        finally:
            response.close()
            response.release_conn()


def slim_pod(pod: JsonObject) -> JsonObject:
    """The fields of a pod that the plugin reads."""
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    return {
        "metadata": _only(
            metadata,
            (
                "name",
                "namespace",
                "uid",
                "annotations",
                "labels",
                "creationTimestamp",
                "deletionTimestamp",
                "resourceVersion",
                "ownerReferences",
            ),
        ),
        "spec": {
            **_only(spec, ("nodeName", "schedulerName")),
            **{
                kind: [_only(container, ("name", "resources", "restartPolicy")) for container in spec[kind]]
                for kind in ("containers", "initContainers")
                if spec.get(kind)
            },
        },
        "status": {
            **_only(status, ("phase", "startTime")),
            "conditions": [
                _only(condition, ("type", "status"))
                for condition in status.get("conditions") or []
                if condition.get("type") == "PodScheduled"
            ],
        },
    }


def slim_node(node: JsonObject) -> JsonObject:
    """The fields of a node that the plugin reads."""
    return {
        "metadata": _only(node.get("metadata") or {}, ("name", "uid", "annotations", "resourceVersion")),
        "status": _only(node.get("status") or {}, ("capacity", "allocatable")),
    }


def _only(source: Mapping[str, Any], names: tuple[str, ...]) -> JsonObject:
    return {name: source[name] for name in names if source.get(name) is not None}


def _words(error: Any) -> str:
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        message = error.reason
    return f"{error.status} {message}"
