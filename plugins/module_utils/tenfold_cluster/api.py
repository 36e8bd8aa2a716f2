"""The edge to the Kubernetes API: connecting, reading, server-side apply with dry run, removal, logs.

Owns every request that our cluster modules make and the words for the ways in which a request fails. Decides nothing: what to apply
and whether it is a change is `objects`' task. Needs the Python package `kubernetes`, on kube_control only; imported on use.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any, Dict
from urllib.parse import quote, urlencode

from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.versions import Version

from .errors import ClusterError, UnreachableError

__all__ = ["Cluster", "connect"]

Document = Dict[str, Any]

# One request may wait this long (seconds); a webhook's own limit is 30 at most.
REQUEST_TIMEOUT_S = 40.0
# Answers that the server itself calls temporary: 429 asks to come back, 503 and 504 say that etcd or a webhook is not up yet.
_RETRIED_STATUS = (429, 502, 503, 504)
_RETRIES = 4


class Cluster:
    """One API server. Methods raise UnreachableError when it is not there, ClusterError when it refuses."""

    def __init__(self, client: Any, server: str, kubeconfig: str) -> None:
        self._client = client
        self.server = server
        self.kubeconfig = kubeconfig

    def version(self) -> str:
        """The server's version, e.g. '1.35.4'."""
        return Version.parse(str(self._request("GET", "/version")["gitVersion"])).release

    def read(self, api_version: str, kind: str, name: str, namespace: str = "") -> Document | None:
        """One object, None when it (or its kind) does not exist."""
        path = self._path(api_version, kind, namespace, name)
        return None if path is None else self._request("GET", path, absent_is_none=True)

    def select(self, api_version: str, kind: str, namespace: str = "", **selectors: str) -> list[Document]:
        """Every object of a kind (all namespaces without *namespace*); selectors: labelSelector, fieldSelector. [] for an unknown kind."""
        path = self._path(api_version, kind, namespace, "")
        if path is None:
            return []
        query = f"?{urlencode(selectors)}" if selectors else ""
        answer = self._request("GET", path + query, absent_is_none=True) or {}
        return [{"apiVersion": api_version, "kind": kind, **item} for item in answer.get("items") or []]

    def apply(self, document: Document, manager: str, dry_run: bool = False) -> Document | None:
        """Server-side apply, fields taken over from other managers. The object as it is (or would be) then.

        None in a dry run whose namespace or kind does not exist yet: it would be created.
        """
        metadata = document["metadata"]
        path = self._path(document["apiVersion"], document["kind"], metadata.get("namespace") or "", metadata["name"])
        if path is None:
            if dry_run:
                return None
            raise ClusterError(f"the cluster at '{self.server}' knows no kind '{document['kind']}' of '{document['apiVersion']}'")
        query = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        # As text: the client would encode a dictionary only for content types that it takes for JSON.
        text = json.dumps(document)
        answer: Document | None = self._request(
            "PATCH", f"{path}?{urlencode(query)}", text, "application/apply-patch+yaml", absent_is_none=dry_run
        )
        return answer

    def merge_patch(
        self, api_version: str, kind: str, name: str, patch: Document, namespace: str = "", subresource: str = "", dry_run: bool = False
    ) -> Document:
        """JSON merge patch of an object that exists (null removes a key); never creates one."""
        path = self._path(api_version, kind, namespace, name)
        if path is None:
            raise ClusterError(f"the cluster at '{self.server}' knows no kind '{kind}' of '{api_version}'")
        path += f"/{subresource}" if subresource else ""
        query = {"fieldManager": "tenfold", **({"dryRun": "All"} if dry_run else {})}
        answer: Document = self._request("PATCH", f"{path}?{urlencode(query)}", patch, "application/merge-patch+json")
        return answer

    def create(self, document: Document) -> Document:
        """Creates an object, e.g. a pod. ClusterError when it exists or is refused."""
        metadata = document["metadata"]
        path = self._path(document["apiVersion"], document["kind"], metadata.get("namespace") or "", "")
        if path is None:
            raise ClusterError(f"the cluster at '{self.server}' knows no kind '{document['kind']}' of '{document['apiVersion']}'")
        answer: Document = self._request("POST", path, document, "application/json")
        return answer

    def delete(self, api_version: str, kind: str, name: str, namespace: str = "", grace_period_s: int | None = None) -> None:
        """Asks for removal; the object stays until its dependants (a DaemonSet's pods) are gone. One that is gone already is no error."""
        path = self._path(api_version, kind, namespace, name)
        if path is None:
            return
        options: Document = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        self._request("DELETE", path, options, "application/json", absent_is_none=True)

    def log_tail(self, namespace: str, pod: str, container: str, lines: int = 20, previous: bool = False) -> str:
        """The end of a container's log; '' when there is none to read (that is never worth failing over)."""
        query = {"container": container, "tailLines": str(lines), **({"previous": "true"} if previous else {})}
        try:
            return str(self._send("GET", f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/log?{urlencode(query)}", None, "*/*"))
        except (ClusterError, _StatusError):
            return ""

    def run_inside(self, namespace: str, pod: str, container: str, command: list[str]) -> str:
        """What a command prints in a container, both streams. Errors: ClusterError when it cannot be run."""
        import kubernetes.client
        import kubernetes.stream

        core = kubernetes.client.CoreV1Api(self._client.client)
        try:
            stream = kubernetes.stream.stream(
                core.connect_get_namespaced_pod_exec,
                pod,
                namespace,
                container=container,
                command=command,
                stdout=True,
                stderr=True,
                stdin=False,
                tty=False,
                _preload_content=False,  # else what looks like JSON comes back as Python's words for it
                _request_timeout=REQUEST_TIMEOUT_S,
            )
            stream.run_forever(timeout=REQUEST_TIMEOUT_S)
            return str(stream.read_all())
        except Exception as error:  # the websocket's own, and the client's
            words = f"cannot run '{' '.join(command)}' in container '{container}' of pod '{namespace}/{pod}': {_innermost(error)}"
            raise ClusterError(words) from error

    def _path(self, api_version: str, kind: str, namespace: str, name: str) -> str | None:
        """The URL path of an object or (without *name*) of its collection; None for a kind that the server does not serve."""
        from kubernetes.dynamic import exceptions

        try:
            resource = self._client.resources.get(api_version=api_version, kind=kind)
        except exceptions.ResourceNotFoundError:
            return None
        except Exception as error:
            raise self._explained(error) from error
        path = resource.path(name=quote(name) if name else None, namespace=namespace if resource.namespaced and namespace else None)
        return str(path)

    def _request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", absent_is_none: bool = False
    ) -> Any:
        """One request with retries of temporary answers; its JSON. 404 gives None where *absent_is_none*."""
        for attempt in range(_RETRIES + 1):
            try:
                return json.loads(self._send(method, path, body, content_type))
            except _StatusError as error:
                if error.status == 404 and absent_is_none:
                    return None
                if error.is_temporary and attempt < _RETRIES:
                    time.sleep(0.5 * 2**attempt)
                    continue
                raise self._refusal(method, path, error) from error
        raise AssertionError("unreachable")

    def _send(self, method: str, path: str, body: Any, content_type: str) -> str:
        from kubernetes.dynamic import exceptions

        try:
            response = self._client.request(
                method,
                path,
                body=body,
                content_type=content_type,
                serialize=False,
                _request_timeout=REQUEST_TIMEOUT_S,
            )
        except exceptions.DynamicApiError as error:
            raise _StatusError(int(error.status or 0), _text(error.body)) from error
        except Exception as error:
            raise self._explained(error) from error
        return _text(response.data)

    def _refusal(self, method: str, path: str, error: _StatusError) -> ClusterError:
        message = error.body
        with contextlib.suppress(ValueError, KeyError, TypeError):
            message = json.loads(error.body)["message"]
        where = f"{method} {path.split('?')[0]} at '{self.server}'"
        if error.status in (401, 403):
            return UnreachableError(f"{where}: not allowed with kubeconfig '{self.kubeconfig}': {message}", status=error.status)
        return ClusterError(f"{where}: answered {error.status}: {message}", status=error.status)

    def _explained(self, error: Exception) -> UnreachableError:
        if getattr(error, "status", None) in (401, 403):
            return UnreachableError(
                f"the Kubernetes API at '{self.server}' does not let in whom kubeconfig '{self.kubeconfig}' names: {_innermost(error)}; "
                "set kube_control_kubeconfig to the file of a cluster administrator"
            )
        return UnreachableError(
            f"cannot reach the Kubernetes API at '{self.server}' (kubeconfig '{self.kubeconfig}'): {_innermost(error)}; "
            "start the API server or set kube_control_kubeconfig, then run the same command again: it continues where this run stopped"
        )


class _StatusError(Exception):
    """The server answered with an error status."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body

    @property
    def is_temporary(self) -> bool:
        """A webhook that does not answer is reported as 500, like real faults of the request (kube-apiserver 1.35)."""
        return self.status in _RETRIED_STATUS or (self.status == 500 and "failed calling webhook" in self.body)


def _text(data: Any) -> str:
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)


def _innermost(error: BaseException) -> str:
    """The reason at the bottom of urllib3's nested errors, e.g. '[Errno 111] Connection refused'."""
    reason: Any = error
    while isinstance(getattr(reason, "reason", None), BaseException):
        reason = reason.reason
    return re.sub(r"^(<.*?>|\w+\(.*?\)): ", "", str(reason))


def connect(kubeconfig: str, context: str | None = None) -> Cluster:
    """Opens the API server that *kubeconfig* (path; '' = in-cluster or the client's default) names.

    Errors: ClusterError for a missing package or an unusable kubeconfig, UnreachableError when nobody answers.
    """
    try:
        import kubernetes.client
        import kubernetes.config
        import kubernetes.dynamic
    except ImportError as error:
        raise ClusterError(
            f"the Python that runs API tasks lacks the package 'kubernetes' ({error}); install it there, or set ansible_python_interpreter "
            "of kube_control to a Python that has it"
        ) from error
    path = str(Path(kubeconfig).expanduser()) if kubeconfig else ""
    if path and not Path(path).is_file():
        raise ClusterError(f"kubeconfig '{path}' does not exist; set kube_control_kubeconfig to the file of a cluster administrator")
    try:
        configuration = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(path or None, context=context, client_configuration=configuration)
    except Exception as error:
        where = f"kubeconfig '{path or '(default)'}'"
        raise ClusterError(
            f"{where} cannot be used: {error}; set kube_control_kubeconfig to the file of a cluster administrator"
        ) from error
    # One reconnect is enough to bridge a dropped keep-alive; three (urllib3's default) only delay the clear answer.
    configuration.retries = 1
    cluster = Cluster(None, configuration.host, path or "(default)")
    try:
        cluster._client = kubernetes.dynamic.DynamicClient(kubernetes.client.ApiClient(configuration))
    except Exception as error:
        raise cluster._explained(error) from error
    return cluster
