#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""What the admission policies let through: the union of the catalogues that nodes of a cluster obey."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slice_admission
short_description: Compute the data of the ConfigMap that the admission policies read
version_added: 0.1.0
description:
  - Reads the catalogues of O(revisions) and adds O(catalogue). Writes nothing.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes.reads, tenfold.vgpu.cluster]
options:
  namespace:
    description: Namespace of the catalogues.
    type: str
    required: true
  catalogue:
    description: The catalogue that is being put in force, in the form of C(catalogue.json).
    type: dict
    required: true
  revisions:
    description: Revisions that other nodes obey. With none, the cluster is not asked.
    type: list
    elements: str
    default: []
  schedulers:
    description: Names of schedulers that book cards.
    type: list
    elements: str
    required: true
  writers:
    description: Users who may write the scheduler's annotations of pods.
    type: list
    elements: str
    required: true
  operators:
    description: Users who may ask for another quota of a running pod, by its annotation C(tenfold.dev/quota).
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Compute what is admitted
  tenfold.vgpu.slice_admission:
    kubeconfig: "{{ kube_control_kubeconfig }}"
    namespace: tenfold-system
    catalogue: "{{ validated.catalogue }}"
    schedulers: [volcano]
    writers: [system:serviceaccount:volcano-system:volcano-scheduler]
"""

RETURN = r"""
data:
  description: Data of the ConfigMap, a key for each tier.
  returned: always
  type: dict
"""

import json
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import api
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.admission import admission_data
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.arguments import CONNECTION
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.errors import ClusterError

ARGUMENT_SPEC = {
    **CONNECTION,
    "namespace": {"type": "str", "required": True},
    "catalogue": {"type": "dict", "required": True},
    "revisions": {"type": "list", "elements": "str", "default": []},
    "schedulers": {"type": "list", "elements": "str", "required": True},
    "writers": {"type": "list", "elements": "str", "required": True},
    "operators": {"type": "list", "elements": "str", "default": []},
}


def catalogues_of(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Our catalogue and those of other nodes; one that is gone admits nothing. Errors: ClusterError for one that is no catalogue."""
    found = [options["catalogue"]]
    if not options["revisions"]:
        return found
    cluster = api.connect(options["kubeconfig"], options["context"])
    for revision in options["revisions"]:
        name = f"tenfold-tiers-{revision.replace('tenfold-tiers-', '')}"
        config_map = cluster.read("v1", "ConfigMap", name, options["namespace"])
        if config_map is None:
            continue
        try:
            found.append(json.loads(config_map["data"]["catalogue.json"]))
        except (KeyError, ValueError) as error:
            raise ClusterError(f"ConfigMap '{options['namespace']}/{name}' holds no catalogue: {error}; remove it") from error
    return found


def main() -> None:
    """Computes and reports."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        options = module.params
        data = admission_data(catalogues_of(options), options["schedulers"], options["writers"], options["operators"])
    except ClusterError as error:
        module.fail_json(msg=str(error), error_details=error.details)
    module.exit_json(changed=False, data=data)


if __name__ == "__main__":
    main()
