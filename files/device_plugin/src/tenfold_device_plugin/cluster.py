"""The Kubernetes API as far as the plugin needs it, on plain JSON objects.

Owns requests, time limits, the translation of answers into outcomes (object, Conflict, ClusterUnavailable, Rejected), and list and watch
by the rules of client-go (v0.35, tools/cache/reflector.go): from a known place on, with bookmarks; a watch that ends at once, an error
event and a server that is away pause, twice as long each time, with jitter; a place that the server has forgotten (410) is listed anew.
Objects are dicts as the API sends them, cut down to the fields that we read, because a node holds hundreds of pods.

Rights that the plugin's service account needs (all on its own node's objects; the admission policies narrow them further):

    nodes                get list watch patch      one node, by metadata.name: annotations, what Volcano reads
    nodes/status         patch                     capacity and allocatable of vgpu-memory and vgpu-cores, our condition
    pods                 get list watch patch      pods with spec.nodeName of this node: assignment annotations
    events               create                    core/v1, in the pods' namespaces
    configmaps           get                       tenfold-tiers-<hash8>, in the plugin's own namespace (a Role)
    pods/eviction        create                    only with evict_after_refusals > 0
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

from .clock import Clock, SystemClock
from .errors import ClusterUnavailable, Conflict, Rejected
from .workqueue import Pauses

__all__ = ["Change", "Cluster", "KubernetesCluster"]

JsonObject = dict[str, Any]
Change = tuple[str, Any]
"""("SYNCED", [object...]) once first and after every gap, then ("ADDED" | "MODIFIED" | "DELETED", object); ("LOST", why) while it fails."""

CARDS_CONDITION = "TenfoldCards"  # of the node; False while no card answers

WATCH_SECONDS = 60  # the server ends a watch after one to two of these; a connection that died without a word is noticed 15 s later
WATCH_PAUSES = Pauses(0.8, 30.0)
SHORT_WATCH_SECONDS = 1.0
STEADY_WATCH_SECONDS = 10.0  # a watch that lasted so long ends the memory of failures
_NOT_FOUND, _CONFLICT, _GONE, _UNPROCESSABLE = 404, 409, 410, 422
_UNAUTHORISED, _TIMEOUT, _TOO_MANY = 401, 408, 429  # of the 4xx these pass by themselves
_WEBHOOK = "failed calling webhook"  # its server is away, ours is not: a 500 that concerns this object alone


class Cluster(Protocol):
    """Every method may raise ClusterUnavailable; those that change an object also Conflict (it is gone or another one) and Rejected.

    Those that follow raise nothing and end with ``stop``.
    """

    def follow_pods(self, node_name: str, stop: threading.Event) -> Iterator[Change]: ...

    def follow_node(self, node_name: str, stop: threading.Event) -> Iterator[Change]: ...

    def pod(self, namespace: str, name: str) -> JsonObject | None: ...

    def node(self, name: str) -> JsonObject | None: ...

    def config_map(self, namespace: str, name: str) -> Mapping[str, str] | None: ...

    def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str | None]) -> JsonObject: ...

    def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> JsonObject: ...

    def set_node_resources(self, name: str, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> JsonObject: ...

    def set_node_condition(self, name: str, condition: JsonObject) -> JsonObject: ...

    def create_event(self, event: JsonObject) -> None: ...

    def evict(self, namespace: str, name: str, uid: str) -> None: ...


class KubernetesCluster:
    """Requests over the connection pool of the official client, which knows kubeconfigs, certificates, tokens and proxies.

    Its typed calls are left aside: they cost 25 MiB of models, and a patch is clearer as the JSON that it is.
    """

    def __init__(self, kubeconfig: str, timeout_seconds: float, clock: Clock | None = None) -> None:
        """Errors: ClusterUnavailable when neither the kubeconfig nor a service account can be loaded."""
        # Imported here: a second and 20 MiB, which neither the probe nor most tests should pay.
        from kubernetes import client, config
        from kubernetes.client import rest

        configuration: Any = client.Configuration()
        try:
            if kubeconfig:
                config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
            else:
                config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException as error:
            raise ClusterUnavailable(f"cannot load {kubeconfig or 'the service account'!r}: {error}") from error
        self._configuration = configuration
        self._pool: Any = rest.RESTClientObject(configuration).pool_manager
        self._timeout_seconds = timeout_seconds
        self._clock = clock or SystemClock()

    def follow_pods(self, node_name: str, stop: threading.Event) -> Iterator[Change]:
        return self._follow("/api/v1/pods", f"spec.nodeName={node_name}", slim_pod, stop)

    def follow_node(self, node_name: str, stop: threading.Event) -> Iterator[Change]:
        return self._follow("/api/v1/nodes", f"metadata.name={node_name}", slim_node, stop)

    def pod(self, namespace: str, name: str) -> JsonObject | None:
        found = self._read(f"/api/v1/namespaces/{namespace}/pods/{name}")
        return slim_pod(found) if found is not None else None

    def node(self, name: str) -> JsonObject | None:
        found = self._read(f"/api/v1/nodes/{name}")
        return slim_node(found) if found is not None else None

    def config_map(self, namespace: str, name: str) -> Mapping[str, str] | None:
        found = self._read(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        return (found.get("data") or {}) if found is not None else None

    def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str | None]) -> JsonObject:
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}  # the UID makes a patch of a namesake fail
        return slim_pod(self._call("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}", body))

    def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> JsonObject:
        return slim_node(self._call("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": dict(annotations)}}))

    def set_node_resources(self, name: str, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> JsonObject:
        status = {
            "capacity": {resource: str(amount) for resource, amount in capacity.items()},
            "allocatable": {resource: str(amount) for resource, amount in allocatable.items()},
        }
        body = {"status": {key: value for key, value in status.items() if value}}
        return slim_node(self._call("PATCH", f"/api/v1/nodes/{name}/status", body))

    def set_node_condition(self, name: str, condition: JsonObject) -> JsonObject:
        body = {"status": {"conditions": [condition]}}
        return slim_node(self._call("PATCH", f"/api/v1/nodes/{name}/status", body, patch="strategic-merge-patch"))  # one of a list, by type

    def create_event(self, event: JsonObject) -> None:
        body = {"apiVersion": "v1", "kind": "Event", **event}
        self._call("POST", f"/api/v1/namespaces/{event['metadata']['namespace']}/events", body)

    def evict(self, namespace: str, name: str, uid: str) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        self._call("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)

    def _read(self, path: str) -> JsonObject | None:
        try:
            return self._call("GET", path)
        except Conflict:
            return None

    def _call(
        self,
        method: str,
        path: str,
        body: JsonObject | None = None,
        query: Mapping[str, str] | None = None,
        patch: str = "merge-patch",
    ) -> JsonObject:
        response = self._open(method, path, body, query, self._timeout_seconds, patch=patch)
        try:
            answer = json.loads(response.data)
        except ValueError as error:
            raise ClusterUnavailable(f"the API server's answer to {method} {path} is no JSON: {error}") from error
        if not isinstance(answer, dict):
            raise ClusterUnavailable(f"the API server's answer to {method} {path} is no object")
        return answer

    def _open(
        self,
        method: str,
        path: str,
        body: JsonObject | None,
        query: Mapping[str, str] | None,
        read_seconds: float,
        preload: bool = True,
        patch: str = "merge-patch",
    ) -> Any:
        """The response, of status below 300. Errors: Conflict, ClusterUnavailable, and of writes Rejected."""
        import urllib3

        headers = {"Accept": "application/json", "User-Agent": "tenfold-device-plugin"}
        if body is not None:
            headers["Content-Type"] = f"application/{patch}+json" if method == "PATCH" else "application/json"
        try:
            headers.update({auth["key"]: auth["value"] for auth in self._configuration.auth_settings().values() if auth["in"] == "header"})
            response = self._pool.request(
                method,
                self._configuration.host + path + (f"?{urlencode(query)}" if query else ""),
                headers=headers,
                body=None if body is None else json.dumps(body).encode(),
                timeout=urllib3.Timeout(connect=self._timeout_seconds, read=read_seconds),
                retries=False,
                preload_content=preload,
            )
        except Exception as error:  # urllib3, ssl and the client's credential plugins each have their own
            raise ClusterUnavailable(f"the API server does not answer {method} {path}: {error}") from error
        if response.status < 300:
            return response
        words = f"{method} {path}: {response.status} {_words(response)}"
        if response.status in (_NOT_FOUND, _CONFLICT, _GONE, _UNPROCESSABLE):
            raise Conflict(words)
        passes = response.status in (_UNAUTHORISED, _TIMEOUT, _TOO_MANY) or (response.status >= 500 and _WEBHOOK not in words)
        if method == "GET" or passes:
            raise ClusterUnavailable(f"the API server refuses {words}")
        raise Rejected(f"the API server refuses {words}")

    def _follow(self, path: str, selector: str, slim: Callable[[JsonObject], JsonObject], stop: threading.Event) -> Iterator[Change]:
        version, failures = "", 0
        while not stop.is_set():
            began = self._clock.monotonic()
            try:
                if not version:
                    listed = self._call("GET", path, query={"fieldSelector": selector})
                    version = listed["metadata"]["resourceVersion"]
                    yield "SYNCED", [slim(found) for found in listed["items"]]
                is_silent = True
                for kind, found in self._watch(path, selector, version):
                    if kind == "ERROR":
                        raise Conflict(f"{found.get('code')} {found.get('message')}")
                    is_silent, version = False, found["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        yield kind, slim(found)
                    if stop.is_set():
                        return
                if is_silent and self._clock.monotonic() - began < SHORT_WATCH_SECONDS:
                    raise ClusterUnavailable(f"the watch of {selector} ended within a second without an item")
                failures = 0
                continue
            except Conflict:  # an error event, or 410: our place is older than the server's history
                version = ""
            except ClusterUnavailable as error:
                yield "LOST", str(error)
            failures = 1 if self._clock.monotonic() - began >= STEADY_WATCH_SECONDS else failures + 1
            stop.wait(WATCH_PAUSES.after(failures))

    def _watch(self, path: str, selector: str, version: str) -> Iterator[Change]:
        seconds = int(WATCH_SECONDS * (1 + random.random()))  # not every node of a fleet at the same moment
        query = {
            "fieldSelector": selector,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        response = self._open("GET", path, None, query, seconds + 15, preload=False)
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


_POD_METADATA = (
    *("name", "namespace", "uid", "annotations", "labels", "ownerReferences"),
    *("creationTimestamp", "deletionTimestamp", "resourceVersion"),
)


def slim_pod(pod: JsonObject) -> JsonObject:
    """The fields of a pod that the plugin reads."""
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    return {
        "metadata": _only(metadata, _POD_METADATA),
        "spec": {
            **_only(spec, ("nodeName", "schedulerName")),
            **{
                kind: [_only(container, ("name", "resources", "restartPolicy")) for container in spec[kind]]
                for kind in ("containers", "initContainers")
                if spec.get(kind)
            },
        },
        "status": {
            **_only(status, ("phase", "reason")),
            "conditions": [
                _only(condition, ("type", "status"))
                for condition in status.get("conditions") or []
                if condition.get("type") == "PodScheduled"
            ],
        },
    }


def slim_node(node: JsonObject) -> JsonObject:
    """The fields of a node that the plugin reads."""
    status = node.get("status") or {}
    return {
        "metadata": _only(node.get("metadata") or {}, ("name", "uid", "annotations", "resourceVersion")),
        "status": {
            **_only(status, ("capacity", "allocatable")),
            "conditions": [
                _only(condition, ("type", "status", "reason", "message"))
                for condition in status.get("conditions") or []
                if condition.get("type") == CARDS_CONDITION
            ],
        },
    }


def _only(source: Mapping[str, Any], names: tuple[str, ...]) -> JsonObject:
    return {name: source[name] for name in names if source.get(name) is not None}


def _words(response: Any) -> str:
    """The server's own message where it sends one."""
    try:
        return str(json.loads(response.data)["message"])
    except (TypeError, ValueError, KeyError):
        return str(response.reason)
