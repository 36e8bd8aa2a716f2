"""The options that every cluster module has: how to reach the API server."""

from __future__ import annotations

from typing import Any

__all__ = ["CONNECTION"]

CONNECTION: dict[str, dict[str, Any]] = {
    "kubeconfig": {"type": "str", "default": ""},
    "context": {"type": "str"},
}
