#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Merge-patches objects that others own: labels and annotations of nodes, the pod template of a foreign deployment."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_patch
short_description: Patch Kubernetes objects that exist, and never create one
version_added: 0.1.0
description:
  - Applies one JSON merge patch to several objects of a kind. A null in the patch removes a key. An object whose content has everything
    that the patch wants is not written.
  - A name that does not exist is a failure before anything is written. Server-side apply would create it, and a misspelled node would
    become a node.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes, tenfold.vgpu.cluster, tenfold.vgpu.cluster.wait]
options:
  api_version:
    description: API version of the kind.
    type: str
    default: v1
  kind:
    description: Kind of the objects.
    type: str
    required: true
  namespace:
    description: Their namespace.
    type: str
    default: ''
  subresource:
    description: The part of the objects that is patched through an address of its own.
    type: str
    choices: ['', status]
    default: ''
  names:
    description: Their names.
    type: list
    elements: str
    required: true
  patch:
    description: The JSON merge patch.
    type: dict
    required: true
  absent_ok:
    description: Skip names that do not exist, for removal.
    type: bool
    default: false
  wait:
    default: false
"""

EXAMPLES = r"""
- name: Label two nodes
  tenfold.vgpu.cluster_patch:
    kubeconfig: "{{ kube_control_kubeconfig }}"
    kind: Node
    names: [gpu-1, gpu-2]
    patch: {metadata: {labels: {tenfold.dev/enforcement: hook}}}
"""

RETURN = r"""
patched:
  description: Names of the objects that were (or would be) patched.
  returned: always
  type: list
  elements: str
"""

import json
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import api, objects, waiting
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.arguments import CONNECTION
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.errors import ClusterError

ARGUMENT_SPEC = {
    **CONNECTION,
    "api_version": {"type": "str", "default": "v1"},
    "kind": {"type": "str", "required": True},
    "namespace": {"type": "str", "default": ""},
    "subresource": {"type": "str", "choices": ["", "status"], "default": ""},
    "names": {"type": "list", "elements": "str", "required": True},
    "patch": {"type": "dict", "required": True},
    "absent_ok": {"type": "bool", "default": False},
    "wait": {"type": "bool", "default": False},
    "wait_timeout_s": {"type": "int", "default": 180},
}


# A list of a thousand nodes is ten megabytes; below this many names, single requests cost less.
_FEW = 8


def read_all(cluster: api.Cluster, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The objects that exist, by name and in the order asked for; one request for a fleet, one each for a few."""
    api_version, kind, namespace, names = options["api_version"], options["kind"], options["namespace"], options["names"]
    if len(names) > _FEW:
        found = {one["metadata"]["name"]: one for one in cluster.select(api_version, kind, namespace)}
    else:
        one_by_one = ((name, cluster.read(api_version, kind, name, namespace)) for name in names)
        found = {name: document for name, document in one_by_one if document is not None}
    return {name: found[name] for name in names if name in found}


def patch_objects(options: dict[str, Any], check_mode: bool) -> tuple[list[str], list[dict[str, str]]]:
    """Names patched and their diffs. Errors: ClusterError; names that do not exist are refused before the first write."""
    cluster = api.connect(options["kubeconfig"], options["context"])
    api_version, kind, namespace = options["api_version"], options["kind"], options["namespace"]
    live = read_all(cluster, options)
    missing = [name for name in options["names"] if name not in live]
    if missing and not options["absent_ok"]:
        names = ", ".join(f"'{name}'" for name in missing)
        raise ClusterError(f"the cluster at '{cluster.server}' has no {kind} {names}; nothing was patched", missing=missing)
    patched, diff = [], []
    for name, before in live.items():
        if objects.satisfies(before, options["patch"]):
            continue
        after = cluster.merge_patch(api_version, kind, name, options["patch"], namespace, options["subresource"], dry_run=check_mode)
        patched.append(name)
        texts = [json.dumps(objects.touched(document, options["patch"]), indent=2, sort_keys=True) + "\n" for document in (before, after)]
        diff.append({"before_header": f"{kind} '{name}'", "after_header": f"{kind} '{name}'", "before": texts[0], "after": texts[1]})
    if options["wait"] and not check_mode:
        keys = [objects.ObjectKey(api_version, kind, namespace, name) for name in patched]
        waiting.until_in_service(cluster, keys, waiting.Deadline(options["wait_timeout_s"]))
    return patched, diff


def main() -> None:
    """Patches and reports."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        patched, diff = patch_objects(module.params, module.check_mode)
    except ClusterError as error:
        module.fail_json(msg=str(error), error_details=error.details)
    result: dict[str, Any] = {"changed": bool(patched), "patched": patched}
    if module._diff:
        result["diff"] = diff
    module.exit_json(**result)


if __name__ == "__main__":
    main()
