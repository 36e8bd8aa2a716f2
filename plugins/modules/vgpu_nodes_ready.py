#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Waits until every GPU node offers slices, and says of each that does not what its device plugin is doing instead."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vgpu_nodes_ready
short_description: Wait until GPU nodes offer slices
version_added: 0.1.0
description:
  - A node offers slices when its device plugin's pod is up to date and ready, its allocatable of the three resources is above 0, and its
    register of cards is there.
  - Changes nothing. In check mode it does not wait, since nothing has been applied.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes.reads, tenfold.vgpu.cluster, tenfold.vgpu.cluster.nodes]
attributes:
  check_mode:
    description: Does not wait, since nothing has been applied.
options:
  namespace:
    description: Namespace of the device plugin.
    type: str
    required: true
  daemon_set:
    description: Name of its DaemonSet.
    type: str
    required: true
  timeout_s:
    default: 300
"""

EXAMPLES = r"""
- name: Wait until two nodes offer slices
  tenfold.vgpu.vgpu_nodes_ready:
    kubeconfig: "{{ kube_control_kubeconfig }}"
    nodes: [gpu-1, gpu-2]
    namespace: tenfold-system
    daemon_set: tenfold-device-plugin
"""

RETURN = r"""
nodes:
  description: Allocatable slices, MiB and percent of each node.
  returned: success, not in check mode
  type: dict
"""

import time
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import api, rollout, slices, waiting
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.arguments import CONNECTION
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.errors import ClusterError

ARGUMENT_SPEC = {
    **CONNECTION,
    "nodes": {"type": "list", "elements": "str", "required": True},
    "namespace": {"type": "str", "required": True},
    "daemon_set": {"type": "str", "required": True},
    "timeout_s": {"type": "int", "default": 300},
}

Document = Dict[str, Any]


def problems(cluster: api.Cluster, options: dict[str, Any]) -> dict[str, tuple[str, Document | None]]:
    """For each node that offers no slices yet: why, and the plugin's pod on it if there is one. '' as a node stands for the DaemonSet."""
    daemon_set = cluster.read("apps/v1", "DaemonSet", options["daemon_set"], options["namespace"])
    if daemon_set is None:
        raise ClusterError(f"DaemonSet '{options['namespace']}/{options['daemon_set']}' does not exist")
    selector = ",".join(f"{name}={value}" for name, value in daemon_set["spec"]["selector"]["matchLabels"].items())
    pods = {pod["spec"].get("nodeName"): pod for pod in cluster.select("v1", "Pod", options["namespace"], labelSelector=selector)}
    nodes = {node["metadata"]["name"]: node for node in cluster.select("v1", "Node")}
    found: dict[str, tuple[str, Document | None]] = {}
    for name in options["nodes"]:
        node, pod = nodes.get(name), pods.get(name)
        if node is None:
            found[name] = ("it does not exist", None)
        elif pod is None:
            found[name] = (_no_pod(node), None)
        else:
            reason = rollout.pod_problem(pod) or slices.not_offering(node)
            if reason:
                found[name] = (reason, pod)
    if not found:
        reason = rollout.waiting_for(daemon_set)
        if reason:
            found[""] = (f"DaemonSet '{options['daemon_set']}': {reason}", None)
    return found


def _no_pod(node: Document) -> str:
    taints = ", ".join(f"{one['key']}:{one['effect']}" for one in (node.get("spec") or {}).get("taints") or [])
    return "no pod of the device plugin is on it" + (f"; its taints are {taints}: see vgpu_device_plugin_tolerations" if taints else "")


def wait(cluster: api.Cluster, options: dict[str, Any]) -> dict[str, dict[str, str]]:
    """What each node offers, once all do. Errors: ClusterError with a paragraph for each node that does not in time."""
    deadline = waiting.Deadline(options["timeout_s"])
    while True:
        found = problems(cluster, options)
        if not found:
            break
        if deadline.has_passed:
            parts = [
                (f"node '{name}': " if name else "") + reason + (waiting.log_tail(cluster, pod) if pod else "")
                for name, (reason, pod) in found.items()
            ]
            raise ClusterError(
                f"waited {options['timeout_s']} s for {len(options['nodes'])} nodes to offer slices; not yet:\n" + "\n".join(parts),
                nodes=sorted(name for name in found if name),
            )
        # The whole fleet is read each time: 10 KiB a node.
        time.sleep(max(waiting.POLL_S, len(options["nodes"]) / 100))
    nodes = {node["metadata"]["name"]: node for node in cluster.select("v1", "Node")}
    return {name: {key: nodes[name]["status"]["allocatable"][key] for key in slices.RESOURCES} for name in options["nodes"]}


def main() -> None:
    """Waits and reports."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    if module.check_mode:
        module.exit_json(changed=False, msg="not waited for in check mode")
    try:
        offered = wait(api.connect(module.params["kubeconfig"], module.params["context"]), module.params)
    except ClusterError as error:
        module.fail_json(msg=str(error), error_details=error.details)
    module.exit_json(changed=False, nodes=offered)


if __name__ == "__main__":
    main()
