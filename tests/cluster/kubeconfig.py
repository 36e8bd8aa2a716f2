"""The text of a kubeconfig for one client certificate. Pure; certificates come from ``pki``."""

from __future__ import annotations

import base64
import json

from .pki import Pair


def text(server_url: str, authority_certificate: str, client: Pair, user: str) -> str:
    """A self-contained file (no paths in it), so that it works in a container and on the host alike. JSON is YAML."""
    cluster = {"server": server_url, "certificate-authority-data": _base64(authority_certificate)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tenfold-sim", "cluster": cluster}],
        "users": [{"name": user, "user": {"client-certificate-data": _base64(client.certificate), "client-key-data": _base64(client.key)}}],
        "contexts": [{"name": "tenfold-sim", "context": {"cluster": "tenfold-sim", "user": user}}],
        "current-context": "tenfold-sim",
    }
    return json.dumps(document, indent=2) + "\n"


def _base64(pem: str) -> str:
    return base64.b64encode(pem.encode()).decode()
