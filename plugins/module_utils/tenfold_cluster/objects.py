"""Rules about Kubernetes objects as plain dictionaries: order, identity, ownership, and what counts as a change. Pure.

`api` talks to the server, `rollout` judges whether an applied object works.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Iterable, NamedTuple

__all__ = [
    "FIELD_MANAGER",
    "ObjectKey",
    "differs",
    "in_apply_order",
    "is_applied_by",
    "key_of",
    "presentable",
    "satisfies",
    "touched",
    "with_labels",
]

Document = Dict[str, Any]

FIELD_MANAGER = "tenfold"

# What others refer to comes first. Webhook configurations come last: with failurePolicy Fail they refuse objects until their server runs.
# Kinds that are not listed (workloads, custom resources) stand between the two.
_FIRST = (
    "Namespace",
    "CustomResourceDefinition",
    "PriorityClass",
    "RuntimeClass",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "ClusterRole",
    "Role",
    "ClusterRoleBinding",
    "RoleBinding",
    "Service",
)
_LAST = (
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
)

# Written by the server on every request; none of them is what a user asked for.
_SERVER_METADATA = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")


class ObjectKey(NamedTuple):
    """Which object a document means. namespace is '' for cluster-wide objects."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} '{self.namespace + '/' if self.namespace else ''}{self.name}'"


def key_of(document: Document) -> ObjectKey:
    """The identity of *document*. Errors: KeyError when apiVersion, kind or metadata.name is missing."""
    metadata = document["metadata"]
    return ObjectKey(document["apiVersion"], document["kind"], metadata.get("namespace") or "", metadata["name"])


def in_apply_order(documents: Iterable[Document]) -> list[Document]:
    """*documents* so that what is referred to comes before what refers to it; the order within a kind is kept."""

    def rank(document: Document) -> int:
        kind = document["kind"]
        if kind in _FIRST:
            return _FIRST.index(kind)
        if kind in _LAST:
            return len(_FIRST) + 1 + _LAST.index(kind)
        return len(_FIRST)

    return sorted(documents, key=rank)


def with_labels(document: Document, labels: dict[str, str]) -> Document:
    """*document* with *labels* besides its own; pod templates are left alone, since a new label restarts pods."""
    if not labels:
        return document
    labelled = copy.deepcopy(document)
    metadata = labelled.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    return labelled


def _applied_fields(live: Document, manager: str) -> Any | None:
    """What server-side apply recorded as owned by *manager*, None when it owns nothing."""
    for entry in (live.get("metadata") or {}).get("managedFields") or []:
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            return entry.get("fieldsV1") or {}
    return None


def is_applied_by(live: Document, manager: str = FIELD_MANAGER) -> bool:
    """True when *manager* has server-side applied this object: only then may we remove it."""
    return _applied_fields(live, manager) is not None


def presentable(document: Document | None) -> Document:
    """*document* without what the server writes into it: what a person would compare. {} for None; values of Secrets are hidden."""
    if document is None:
        return {}
    shown = copy.deepcopy(document)
    shown.pop("status", None)
    metadata = shown.get("metadata") or {}
    for name in _SERVER_METADATA:
        metadata.pop(name, None)
    if shown.get("kind") == "Secret":
        for part in ("data", "stringData"):
            shown[part] = dict.fromkeys(shown.get(part) or {}, "(hidden)")
    return shown


def differs(live: Document | None, applied: Document, manager: str = FIELD_MANAGER) -> bool:
    """Whether an apply whose (dry-run) answer is *applied* changes the object: its content, or which fields *manager* owns.

    Status does not count: controllers move it at any time, also between our two requests. Ownership counts, since it decides what a
    later apply or a removal takes away.
    """
    if live is None:
        return True
    if _strip(live) != _strip(applied):
        return True
    return _applied_fields(live, manager) != _applied_fields(applied, manager)


def _strip(document: Document) -> Document:
    stripped = {name: value for name, value in document.items() if name != "status"}
    stripped["metadata"] = {name: value for name, value in (document.get("metadata") or {}).items() if name not in _SERVER_METADATA}
    return stripped


def satisfies(live: Any, patch: Any) -> bool:
    """True when the JSON merge patch *patch* would leave *live* as it is (RFC 7386: null removes, mappings merge, the rest replaces)."""
    if not isinstance(patch, dict):
        return bool(live == patch)
    there = live if isinstance(live, dict) else {}
    if live is not None and not isinstance(live, dict):
        return False
    return all(name not in there if value is None else satisfies(there.get(name), value) for name, value in patch.items())


def touched(live: Any, patch: Any) -> Any:
    """The part of *live* that *patch* speaks of: what a diff should show."""
    if not isinstance(patch, dict) or not isinstance(live, dict):
        return live
    return {name: touched(live[name], value) for name, value in patch.items() if name in live}
