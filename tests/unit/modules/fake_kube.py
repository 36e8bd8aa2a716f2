"""A small API server on a real socket, for the cluster modules: discovery, objects in memory, server-side apply with dry run.

It knows the kinds that the tests need, merges mappings as server-side apply does, keeps one record of ownership per manager, and refuses
objects of a namespace that is not there. Everything else of Kubernetes is missing.
"""

from __future__ import annotations

import contextlib
import copy
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Document = dict[str, Any]

KINDS = {
    "v1": {"Namespace": False, "Node": False, "ConfigMap": True, "Secret": True, "Pod": True, "Event": True},
    "apps/v1": {"Deployment": True, "DaemonSet": True},
    "node.k8s.io/v1": {"RuntimeClass": False},
}


def plural(kind: str) -> str:
    """The name of a kind in a path."""
    return kind.lower() + ("es" if kind.endswith("s") else "s")


def merged(left: Any, right: Any, null_removes: bool) -> Any:
    """*right* merged into *left*: mappings key by key, the rest replaces."""
    if not isinstance(right, dict):
        return copy.deepcopy(right)
    result = dict(left) if isinstance(left, dict) else {}
    for key, value in right.items():
        if value is None and null_removes:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key, {}), value, null_removes)
    return result


@dataclass
class FakeKube:
    """The server's state; tests read and change it directly."""

    objects: dict[tuple[str, str, str], Document] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    failures: list[tuple[int, str]] = field(default_factory=list)
    git_version: str = "v1.35.4"
    url: str = ""

    def put(self, document: Document) -> Document:
        """Places an object as somebody else would."""
        metadata = document.setdefault("metadata", {})
        metadata.setdefault("resourceVersion", "1")
        metadata.setdefault("uid", f"uid-of-{metadata['name']}")
        self.objects[(document["kind"], metadata.get("namespace", ""), metadata["name"])] = document
        return document

    def get(self, kind: str, name: str, namespace: str = "") -> Document:
        """An object that must be there."""
        return self.objects[(kind, namespace, name)]

    def answer(self, method: str, url: str, body: Any, content_type: str) -> tuple[int, Document | str]:
        """Status and body of one request."""
        parts = urlsplit(url)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        found = self._discovery(parts.path)
        if found is not None:
            return 200, found
        if self.failures:
            status, message = self.failures.pop(0)
            return status, {"kind": "Status", "message": message}
        return self._object(method, parts.path, query, body, content_type)

    def _discovery(self, path: str) -> Document | None:
        if path == "/version":
            return {"gitVersion": self.git_version, "major": "1", "minor": "35"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            versions = [one for one in KINDS if "/" in one]
            groups = [{"groupVersion": one, "version": one.split("/")[1]} for one in versions]
            return {
                "kind": "APIGroupList",
                "groups": [{"name": one["groupVersion"].split("/")[0], "versions": [one], "preferredVersion": one} for one in groups],
            }
        for version, kinds in KINDS.items():
            if path == ("/api/v1" if version == "v1" else f"/apis/{version}"):
                resources = [
                    {
                        "name": plural(kind),
                        "singularName": "",
                        "namespaced": spaced,
                        "kind": kind,
                        "verbs": ["get", "list", "patch", "delete"],
                    }
                    for kind, spaced in kinds.items()
                ]
                return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        return None

    def _object(self, method: str, path: str, query: dict[str, str], body: Any, content_type: str) -> tuple[int, Document | str]:
        words = path.strip("/").split("/")
        words = words[2:] if words[0] == "api" else words[3:]
        namespace = ""
        if words[0] == "namespaces" and len(words) > 2:
            namespace, words = words[1], words[2:]
        kind = next(one for kinds in KINDS.values() for one in kinds if plural(one) == words[0])
        if len(words) == 1:
            return self._collection(method, kind, namespace, query, body)
        if words[-1] == "log":
            return 200, self.get(kind, words[1], namespace).get("log", "")
        return self._single(method, (kind, namespace, words[1]), query, body, content_type)

    def _collection(self, method: str, kind: str, namespace: str, query: dict[str, str], body: Any) -> tuple[int, Document | str]:
        if method == "POST":
            self.writes.append(f"POST {kind} {body['metadata']['name']}")
            return 201, self.put(body)
        wanted = dict(pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair)
        items = [
            one
            for (one_kind, one_space, _), one in self.objects.items()
            if one_kind == kind
            and (not namespace or one_space == namespace)
            and wanted.items() <= (one["metadata"].get("labels") or {}).items()
        ]
        return 200, {"kind": f"{kind}List", "items": items}

    def _single(
        self, method: str, key: tuple[str, str, str], query: dict[str, str], body: Any, content_type: str
    ) -> tuple[int, Document | str]:
        live = self.objects.get(key)
        is_apply = content_type.startswith("application/apply-patch")
        if live is None and not is_apply:
            return 404, {"kind": "Status", "message": f"{key[2]} not found"}
        if is_apply and key[1] and ("Namespace", "", key[1]) not in self.objects:
            return 404, {"kind": "Status", "message": f'namespaces "{key[1]}" not found'}
        if method == "GET":
            assert live is not None
            return 200, live
        if method == "DELETE":
            self.writes.append(f"DELETE {key[0]} {key[2]}")
            del self.objects[key]
            return 200, {"kind": "Status"}
        wanted = (body.get("metadata") or {}).get("resourceVersion")
        if live and wanted and wanted != live["metadata"]["resourceVersion"]:
            return 409, {"kind": "Status", "message": "the object has been modified"}
        after = merged(live or {}, body, null_removes=not is_apply)
        if is_apply:
            self._own(after, live, query["fieldManager"], body)
        if "dryRun" not in query:
            self.writes.append(f"PATCH {key[0]} {key[2]}")
            after["metadata"]["resourceVersion"] = str(int((live or {"metadata": {}})["metadata"].get("resourceVersion", 0)) + 1)
            self.put(after)
        return 200, after

    @staticmethod
    def _own(after: Document, live: Document | None, manager: str, body: Document) -> None:
        others = [one for one in ((live or {}).get("metadata") or {}).get("managedFields") or [] if one["manager"] != manager]
        mine = {"manager": manager, "operation": "Apply", "fieldsV1": {"applied": json.dumps(body, sort_keys=True)}}
        after["metadata"]["managedFields"] = [*others, mine]


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[FakeKube, str]]:
    """Runs a server while the block lasts; gives its state and the path of a kubeconfig for it."""
    state = FakeKube()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer = state.answer(self.command, self.path, body, self.headers.get("Content-Type") or "")
            data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815  (http.server calls them so)

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state, kubeconfig(folder, state.url)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def kubeconfig(folder: Path, url: str) -> str:
    """A kubeconfig without credentials."""
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "fake", "cluster": {"server": url}}],
                "users": [{"name": "fake", "user": {}}],
                "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
                "current-context": "fake",
            }
        ),
        encoding="utf-8",
    )
    return str(path)
