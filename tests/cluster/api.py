"""Asks the simulated cluster's API server as its administrator; enough HTTP for waiting and labelling, no client library.

A kubectl call costs 150 ms, a request here two.
"""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import layout
from .errors import FleetError
from .identities import Identities

REQUEST_TIMEOUT_SECONDS = 5
CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"


@dataclass(frozen=True)
class Api:
    """folder holds ca.crt, admin.crt and admin.key."""

    folder: Path

    @classmethod
    def with_identities(cls, folder: Path, identities: Identities) -> Api:
        folder.mkdir(parents=True, exist_ok=True)
        texts = {"ca.crt": identities.authority_certificate, "admin.crt": identities.admin.certificate, "admin.key": identities.admin.key}
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o600)
        return cls(folder)

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/merge-patch+json") -> bytes:
        """Errors: OSError when the server cannot be reached, FleetError when it refuses."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        context.load_cert_chain(self.folder / "admin.crt", self.folder / "admin.key")
        connection = http.client.HTTPSConnection(layout.CONTROL.address, layout.API_PORT, context=context, timeout=REQUEST_TIMEOUT_SECONDS)
        try:
            headers = {"Content-Type": content_type} if body is not None else {}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            data = response.read()
        except http.client.HTTPException as error:
            raise OSError(f"{type(error).__name__} from the API server") from error
        finally:
            connection.close()
        if response.status >= 400:
            raise FleetError(f"the API server answered {response.status} to {method} {path}: {data[:300].decode(errors='replace')}")
        return data

    def missing_readiness(self) -> str | None:
        """None when the API server serves, else why not."""
        try:
            self.request("GET", "/readyz")
        except (OSError, FleetError) as error:
            return str(error)
        return None

    def missing_nodes(self, names: list[str]) -> str | None:
        """None when every named node is Ready and open to pods, else which is not and why."""
        try:
            items = json.loads(self.request("GET", "/api/v1/nodes"))["items"]
        except (OSError, FleetError) as error:
            return str(error)
        return nodes_missing_from(items, names)

    def label_control_plane(self, name: str) -> None:
        # a kubelet may not give itself this label (NodeRestriction)
        self.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": {CONTROL_PLANE_LABEL: ""}}})


def nodes_missing_from(items: list[dict[str, Any]], names: list[str]) -> str | None:
    """Judge a list of Node objects: None, or the first named node that takes no pods yet."""
    nodes = {item["metadata"]["name"]: item for item in items}
    for name in names:
        if name not in nodes:
            return f"node {name!r} has not registered"
        ready = [condition for condition in nodes[name]["status"].get("conditions", []) if condition["type"] == "Ready"]
        if not ready or ready[0]["status"] != "True":
            return f"node {name!r} is not ready: {ready[0].get('message', '') if ready else 'no status yet'}"
        taints = [taint["key"] for taint in nodes[name].get("spec", {}).get("taints", []) if taint["key"].startswith("node.kubernetes.io/")]
        if taints:
            return f"node {name!r} still has the taint {taints[0]!r}"
    return None
