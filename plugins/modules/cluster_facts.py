#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""What a cluster role must know before it changes anything: the server answers, its version, its nodes, its Volcano."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_facts
short_description: Read what Tenfold's cluster roles decide on
version_added: 0.1.0
description:
  - Reads only. Fails with one clear sentence when the API server is not there, is too old, or does not know a node of the inventory.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes.reads, tenfold.vgpu.cluster]
options:
  kubernetes_minimum:
    description: Oldest server version that is accepted, for example V(1.29).
    type: str
  nodes:
    description: Names of Kubernetes nodes that must exist. All that do not are named in one failure.
    type: list
    elements: str
    default: []
  fleet:
    description: What P(tenfold.vgpu.gpu_fleet#filter) gave. The nodes of its fit hosts must exist, and be the machines that were looked at.
    type: dict
  volcano:
    description: Look for a Volcano scheduler, and return it as RV(volcano).
    type: bool
    default: false
  volcano_namespace:
    description: Which scheduler counts where a cluster runs several.
    type: str
    default: ''
  volcano_minimum:
    description: With O(volcano), oldest Volcano that is accepted where one is there.
    type: str
  volcano_version:
    description: Version of the Volcano that is there, for images whose tag does not state it.
    type: str
    default: ''
  objects:
    description: Objects to return as RV(objects), each by its O(objects[].kind) and O(objects[].name).
    type: list
    elements: dict
    default: []
    suboptions:
      api_version:
        description: API version of the kind.
        type: str
        default: v1
      kind:
        description: Kind of the object.
        type: str
        required: true
      name:
        description: Name of the object.
        type: str
        required: true
      namespace:
        description: Namespace of the object.
        type: str
        default: ''
  annotation:
    description: Annotation of nodes whose values are returned as RV(annotation_values).
    type: str
"""

EXAMPLES = r"""
- name: Require a usable cluster that knows every GPU node
  tenfold.vgpu.cluster_facts:
    kubeconfig: "{{ kube_control_kubeconfig }}"
    kubernetes_minimum: "1.29"
    nodes: [gpu-1, gpu-2]
    volcano: true
"""

RETURN = r"""
server:
  description: URL of the API server.
  returned: always
  type: str
version:
  description: Version of the API server, without a leading v.
  returned: always
  type: str
volcano:
  description: The Volcano scheduler (namespace, deployment, image, version, config_map, config_key, is_ours, restarted_for), or empty.
  returned: with O(volcano)
  type: dict
objects:
  description: One entry per entry of O(objects), an empty one for an object that does not exist.
  returned: with O(objects)
  type: list
  elements: dict
annotation_values:
  description: Distinct values of O(annotation) over all nodes of the cluster, those in O(nodes) left out.
  returned: with O(annotation)
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.fleet import Fleet
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.versions import Version
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import api, objects, volcano
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.arguments import CONNECTION
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.errors import ClusterError

ARGUMENT_SPEC = {
    **CONNECTION,
    "kubernetes_minimum": {"type": "str"},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "fleet": {"type": "dict"},
    "volcano": {"type": "bool", "default": False},
    "volcano_namespace": {"type": "str", "default": ""},
    "volcano_minimum": {"type": "str"},
    "volcano_version": {"type": "str", "default": ""},
    "objects": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "api_version": {"type": "str", "default": "v1"},
            "kind": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "namespace": {"type": "str", "default": ""},
        },
    },
    "annotation": {"type": "str"},
}


def find_volcano(cluster: api.Cluster, options: dict[str, Any]) -> dict[str, Any]:
    """The scheduler as a dictionary, {} where there is none. Errors: ClusterError for one that is too old or can't be told."""
    deployments = cluster.select("apps/v1", "Deployment")
    ours = [f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in deployments if objects.is_applied_by(one)]
    found = volcano.find_scheduler(deployments, ours, options["volcano_namespace"])
    if found is None:
        return {}
    answer: dict[str, Any] = found.as_dict()
    answer["version"] = found.version or options["volcano_version"]
    # Ours is upgraded by the role; only what others installed must be new enough already.
    if options["volcano_minimum"] and not found.is_ours:
        volcano.require_supported(answer["version"], options["volcano_minimum"], f"'{found.namespace}/{found.deployment}'")
    return answer


def read(options: dict[str, Any]) -> dict[str, Any]:
    """Everything that was asked for. Errors: ClusterError."""
    cluster = api.connect(options["kubeconfig"], options["context"])
    facts: dict[str, Any] = {"server": cluster.server, "version": cluster.version()}
    minimum = options["kubernetes_minimum"]
    if minimum and Version.parse(facts["version"]) < Version.parse(minimum):
        raise ClusterError(
            f"Kubernetes at '{cluster.server}' is {facts['version']}, expected {minimum} or newer: slices bind late, which needs "
            "CDI devices in the device plugin's answers"
        )
    fleet = Fleet.from_dict(options["fleet"]) if options["fleet"] else Fleet(())
    names = options["nodes"] + [host.node for host in fleet.fit]
    if names or options["annotation"]:
        nodes = {node["metadata"]["name"]: node for node in cluster.select("v1", "Node")}
        missing = [name for name in names if name not in nodes]
        if missing:
            listed = ", ".join(f"'{name}'" for name in missing)
            raise ClusterError(
                f"the cluster at '{cluster.server}' has no node {listed}; set gpu_node_name of these hosts to the "
                "names that kubectl get nodes shows, or join them first",
                missing_nodes=missing,
            )
        # A wrong gpu_node_name would label, restart or one day drain another machine.
        strangers = fleet.strangers(nodes.values())
        if strangers:
            raise ClusterError(f"{'; '.join(strangers)}; correct gpu_node_name in the inventory", strangers=strangers)
        if options["annotation"]:
            others = [node for name, node in nodes.items() if name not in names]
            values = {(node["metadata"].get("annotations") or {}).get(options["annotation"]) for node in others}
            facts["annotation_values"] = sorted(value for value in values if value)
    if options["objects"]:
        found = [cluster.read(one["api_version"], one["kind"], one["name"], one["namespace"]) or {} for one in options["objects"]]
        # A module's result ends up in logs: what a Secret holds stays out of it.
        facts["objects"] = [objects.presentable(one) if one.get("kind") == "Secret" else one for one in found]
    if options["volcano"]:
        facts["volcano"] = find_volcano(cluster, options)
    return facts


def main() -> None:
    """Reads and reports."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        facts = read(module.params)
    except ClusterError as error:
        module.fail_json(msg=str(error), error_details=error.details)
    module.exit_json(changed=False, **facts)


if __name__ == "__main__":
    main()
