#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Applies and removes lists of Kubernetes objects by server-side apply, in an order that works, and waits until they do."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_objects
short_description: Apply or remove a list of Kubernetes objects
version_added: 0.1.0
description:
  - Applies documents by server-side apply, so that fields of other managers survive. Each is compared by a dry run on the server, and
    written only if content or field ownership would change; status does not count.
  - Check mode works on a cluster in which namespaces or kinds of the list do not exist yet.
  - Removal takes only objects that the same field manager has applied.
  - Used in place of M(kubernetes.core.k8s), whose check mode fails where the namespace is not there yet, and whose comparison counts
    status, so that a repeated run reports changes that others made in between.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes, tenfold.vgpu.cluster, tenfold.vgpu.cluster.documents, tenfold.vgpu.cluster.wait]
options:
  state:
    description: V(present) applies, V(absent) removes.
    type: str
    choices: [present, absent]
    default: present
  field_manager:
    description: Name under which the server records which fields are ours.
    type: str
    default: tenfold
  foreign_kept:
    description: Kinds whose existing objects are left alone if another manager made them, for example a RuntimeClass of the GPU operator.
    type: list
    elements: str
    default: []
  selector:
    description: With O(state=absent), removes by selection instead of by document.
    type: dict
    suboptions:
      api_version:
        description: API version of the kind.
        type: str
        required: true
      kind:
        description: Kind to look for.
        type: str
        required: true
      namespace:
        description: Namespace to look in.
        type: str
        default: ''
      label_selector:
        description: Selector of labels.
        type: str
        required: true
      except_names:
        description: Names that stay.
        type: list
        elements: str
        default: []
  wait:
    default: true
"""

EXAMPLES = r"""
- name: Apply a configuration
  tenfold.vgpu.cluster_objects:
    kubeconfig: "{{ kube_control_kubeconfig }}"
    documents:
      - apiVersion: v1
        kind: ConfigMap
        metadata: {name: example, namespace: default}
        data: {key: value}
"""

RETURN = r"""
changed_objects:
  description: The objects that were (or would be) written or removed, as text.
  returned: always
  type: list
  elements: str
foreign_objects:
  description: The objects that were left alone because another manager made them.
  returned: always
  type: list
  elements: str
"""

import json
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import api, objects, waiting
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.arguments import CONNECTION
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.errors import ClusterError

ARGUMENT_SPEC = {
    **CONNECTION,
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "documents": {"type": "list", "elements": "dict", "default": []},
    "labels": {"type": "dict", "default": {}},
    "field_manager": {"type": "str", "default": "tenfold"},
    "foreign_kept": {"type": "list", "elements": "str", "default": []},
    "selector": {
        "type": "dict",
        "options": {
            "api_version": {"type": "str", "required": True},
            "kind": {"type": "str", "required": True},
            "namespace": {"type": "str", "default": ""},
            "label_selector": {"type": "str", "required": True},
            "except_names": {"type": "list", "elements": "str", "default": []},
        },
    },
    "wait": {"type": "bool", "default": True},
    "wait_timeout_s": {"type": "int", "default": 180},
}
# A diff of a definition has tens of thousands of lines that nobody reads.
_DIFF_LIMIT_LINES = 400

Document = Dict[str, Any]


class Run:
    """One run of the module: what it did, and how long it may still wait."""

    def __init__(self, cluster: api.Cluster, options: dict[str, Any], check_mode: bool) -> None:
        self.cluster = cluster
        self.options = options
        self.check_mode = check_mode
        self.deadline = waiting.Deadline(options["wait_timeout_s"])
        self.changed: list[str] = []
        self.foreign: list[str] = []
        self.diff: list[dict[str, str]] = []

    def present(self) -> None:
        """Applies the documents; definitions are waited for before anything that may need them."""
        manager = self.options["field_manager"]
        documents = objects.in_apply_order(objects.with_labels(one, self.options["labels"]) for one in self.options["documents"])
        established: list[objects.ObjectKey] = []
        applied: list[objects.ObjectKey] = []
        for document in documents:
            key = objects.key_of(document)
            if document["kind"] != "CustomResourceDefinition" and established and not self.check_mode:
                waiting.until_in_service(self.cluster, established, self.deadline)
                established = []
            live = self.cluster.read(*_place(key))
            if live and document["kind"] in self.options["foreign_kept"] and not objects.is_applied_by(live, manager):
                self.foreign.append(str(key))
                continue
            planned = self.cluster.apply(document, manager, dry_run=True) if live or self.check_mode else None
            if live is None or planned is None or objects.differs(live, planned, manager):
                if not self.check_mode:
                    planned = self.cluster.apply(document, manager)
                self.note(key, live, planned or document)
            applied.append(key)
            if document["kind"] == "CustomResourceDefinition":
                established.append(key)
        if self.options["wait"] and not self.check_mode:
            waiting.until_in_service(self.cluster, applied, self.deadline)

    def absent(self) -> None:
        """Removes what we applied, in the opposite order, and waits until it is gone."""
        gone: list[objects.ObjectKey] = []
        for live in self._to_remove():
            key = objects.key_of(live)
            if not objects.is_applied_by(live, self.options["field_manager"]):
                self.foreign.append(str(key))
                continue
            self.note(key, live, None)
            if not self.check_mode and not live["metadata"].get("deletionTimestamp"):
                self.cluster.delete(*_place(key))
            gone.append(key)
        if self.options["wait"] and not self.check_mode:
            waiting.until_gone(self.cluster, gone, self.deadline)

    def _to_remove(self) -> list[Document]:
        chosen = self.options["selector"]
        if chosen:
            found = self.cluster.select(chosen["api_version"], chosen["kind"], chosen["namespace"], labelSelector=chosen["label_selector"])
            return [one for one in found if one["metadata"]["name"] not in chosen["except_names"]]
        keys = [objects.key_of(one) for one in reversed(objects.in_apply_order(self.options["documents"]))]
        return [live for live in (self.cluster.read(*_place(key)) for key in keys) if live is not None]

    def note(self, key: objects.ObjectKey, before: Document | None, after: Document | None) -> None:
        """Records a change and its diff."""
        self.changed.append(str(key))
        texts = [_shown(document) for document in (before, after)]
        if any(text.count("\n") > _DIFF_LIMIT_LINES for text in texts):
            texts = [f"{key}: {text.count(chr(10))} lines, not shown\n" if text else "" for text in texts]
        self.diff.append({"before_header": str(key), "after_header": str(key), "before": texts[0], "after": texts[1]})


def _place(key: objects.ObjectKey) -> tuple[str, str, str, str]:
    return key.api_version, key.kind, key.name, key.namespace


def _shown(document: Document | None) -> str:
    """JSON with sorted keys: the same object always gives the same text. '' for None."""
    return "" if document is None else json.dumps(objects.presentable(document), indent=2, sort_keys=True) + "\n"


def main() -> None:
    """Applies or removes, and reports."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        run = Run(api.connect(module.params["kubeconfig"], module.params["context"]), module.params, module.check_mode)
        if module.params["state"] == "present":
            run.present()
        else:
            run.absent()
    except ClusterError as error:
        module.fail_json(msg=str(error), error_details=error.details)
    result: dict[str, Any] = {"changed": bool(run.changed), "changed_objects": run.changed, "foreign_objects": run.foreign}
    if module._diff:
        result["diff"] = run.diff
    module.exit_json(**result)


if __name__ == "__main__":
    main()
