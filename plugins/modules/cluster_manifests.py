#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Writes objects as one YAML file, for people whose cluster is fed from a repository."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_manifests
short_description: Write a list of Kubernetes objects as a YAML file
version_added: 0.1.0
description:
  - The same list always gives the same text, in an order in which it can be applied. The folder is made where it is missing.
requirements: [PyYAML]
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes, tenfold.vgpu.cluster.documents]
options:
  path:
    description: The file.
    type: path
    required: true
  state:
    description: V(present) writes, V(absent) removes the file.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Write a manifest
  tenfold.vgpu.cluster_manifests:
    path: build/manifests/example.yaml
    documents:
      - {apiVersion: v1, kind: Namespace, metadata: {name: example}}
"""

RETURN = r"""
path:
  description: The file.
  returned: always
  type: str
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import files
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import objects

ARGUMENT_SPEC = {
    "path": {"type": "path", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "documents": {"type": "list", "elements": "dict", "default": []},
    "labels": {"type": "dict", "default": {}},
}


def text_of(documents: list[dict[str, Any]]) -> str:
    """The documents as one YAML stream; texts of several lines stay readable."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Block style for texts of several lines, and never an alias: few tools that read manifests expect one."""

        def ignore_aliases(self, _data: Any) -> bool:
            return True

    def block(dumper: Dumper, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, block)
    return "".join(f"---\n{yaml.dump(one, Dumper=Dumper, sort_keys=False, width=1 << 20)}" for one in objects.in_apply_order(documents))


def main() -> None:
    """Writes or removes the file."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    path = Path(module.params["path"])
    before = files.read(path)
    after = None
    if module.params["state"] == "present":
        try:
            after = text_of([objects.with_labels(one, module.params["labels"]) for one in module.params["documents"]])
        except ImportError:
            module.fail_json(msg=missing_required_lib("PyYAML"))
    if before != after and not module.check_mode:
        try:
            files.write(path, after)
        except OSError as error:
            module.fail_json(msg=f"cannot write '{path}': {error.strerror}; set cluster_render_path to a folder that can be written")
    # Definitions have ten thousand lines; git shows what changed in them.
    result: dict[str, Any] = {"changed": before != after, "path": str(path)}
    if module._diff and before != after:
        result["diff"] = {"before_header": str(path), "after_header": str(path), "before": before or "", "after": after or ""}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
