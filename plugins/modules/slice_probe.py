#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Proves slices from inside: one pod of the smallest tier on every node, whose view is compared with what was booked."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slice_probe
short_description: Start a slice on every node and compare what it sees with what was booked
version_added: 0.1.0
description:
  - Starts one pod of the node's smallest tier on every node at once, through the cluster's scheduler, and reads its report.
  - A slice is good when it sees the card that the scheduler booked, its quota as the total of CUDA and of NVML, its core limit, and is
    refused at exactly its quota.
  - A node without room for the slice is reported as full and not failed; it serves others at the moment.
  - The pods are removed afterwards, whatever came of them, also those that an interrupted run has left. That is no change.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes, tenfold.vgpu.cluster, tenfold.vgpu.cluster.nodes]
attributes:
  check_mode:
    description: Starts nothing in check mode.
  diff_mode:
    description: What it starts, it removes.
    support: none
options:
  namespace:
    description: Namespace of the pods and of the catalogues (ConfigMaps C(tenfold-tiers-*)) that the nodes obey.
    type: str
    required: true
  image:
    description: An image with the package C(tenfold_device_plugin).
    type: str
    required: true
  image_pull_policy:
    description: When the kubelet pulls it.
    type: str
    choices: [Always, IfNotPresent, Never]
    default: IfNotPresent
  image_pull_secrets:
    description: Secrets for the registry, each with a C(name).
    type: list
    elements: dict
    default: []
  scheduler_name:
    description: The scheduler that books cards.
    type: str
    default: volcano
  tolerations:
    description: Tolerations of the pods.
    type: list
    elements: dict
    default: []
  timeout_s:
    default: 180
"""

EXAMPLES = r"""
- name: Probe two nodes
  tenfold.vgpu.slice_probe:
    kubeconfig: "{{ kube_control_kubeconfig }}"
    nodes: [gpu-1, gpu-2]
    namespace: tenfold-system
    image: registry.example/tenfold/device-plugin:0.1.0
"""

RETURN = r"""
lines:
  description: One line for each node.
  returned: not in check mode
  type: list
  elements: str
probes:
  description: For each node its verdict (good, bad or full), tier, card and the promises that are broken.
  returned: not in check mode
  type: dict
"""

import time
from dataclasses import dataclass, field
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import wire
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TenfoldError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.tiers import Catalogue
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import api, rollout, slices, waiting
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.arguments import CONNECTION
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.errors import ClusterError

ARGUMENT_SPEC = {
    **CONNECTION,
    "nodes": {"type": "list", "elements": "str", "required": True},
    "namespace": {"type": "str", "required": True},
    "image": {"type": "str", "required": True},
    "image_pull_policy": {"type": "str", "choices": ["Always", "IfNotPresent", "Never"], "default": "IfNotPresent"},
    "image_pull_secrets": {"type": "list", "elements": "dict", "default": [], "no_log": False},  # names of secrets
    "scheduler_name": {"type": "str", "default": "volcano"},
    "tolerations": {"type": "list", "elements": "dict", "default": []},
    "timeout_s": {"type": "int", "default": 180},
}

# How long a probe may stay unscheduled on a node with other slices before the node counts as full (seconds). Volcano decides once a second.
SCHEDULING_PATIENCE_S = 20

Document = Dict[str, Any]


@dataclass
class Probe:
    """One node's probe as it proceeds. verdict is '' until it is known."""

    node: str
    request: Any
    verdict: str = ""
    card: str = ""
    broken: list[str] = field(default_factory=list)

    def line(self) -> str:
        """For a person."""
        asked = f"{self.request.tier} ({self.request.memory_mib} MiB, {self.request.limit_cores_percent} %)"
        if self.verdict == "good":
            return f"{self.node}: {asked} on {self.card}: sees its card, its quota and its core limit; refused at exactly its quota"
        if self.verdict == "full":
            return f"{self.node}: not probed, {'; '.join(self.broken)}"
        return f"{self.node}: {asked}{f' on {self.card}' if self.card else ''}: {'; '.join(self.broken)}"


def smallest_tier(cluster: api.Cluster, node: Document, namespace: str) -> Any:
    """The smallest tier of the catalogue that *node* obeys, as a request. Errors: ClusterError when there is no usable catalogue."""
    name = node["metadata"]["name"]
    revision = (node["metadata"].get("annotations") or {}).get(wire.TIERS_REVISION_ANNOTATION)
    if not revision:
        raise ClusterError(f"node '{name}' has no annotation '{wire.TIERS_REVISION_ANNOTATION}'; run site.yml --tags slice_tiers")
    config_map_name = "tenfold-tiers-" + revision.replace("tenfold-tiers-", "")
    place = f"ConfigMap '{namespace}/{config_map_name}', which node '{name}' obeys,"
    config_map = cluster.read("v1", "ConfigMap", config_map_name, namespace)
    if config_map is None:
        raise ClusterError(f"{place} does not exist; run site.yml --tags slice_tiers")
    try:
        tiers = Catalogue.from_json(config_map["data"]["catalogue.json"]).tiers
    except (KeyError, TenfoldError) as error:
        raise ClusterError(f"{place} holds no catalogue: {error}") from error
    tier = min(tiers, key=lambda one: (one.memory_mib, one.reserved_cores_percent))
    return slices.ProbeRequest(tier.name, tier.memory_mib, tier.reserved_cores_percent, tier.limit_cores_percent)


class Run:
    """All probes of one run."""

    def __init__(self, cluster: api.Cluster, options: dict[str, Any]) -> None:
        self.cluster = cluster
        self.options = options
        self.deadline = waiting.Deadline(options["timeout_s"])
        self.probes: dict[str, Probe] = {}
        self.shared: dict[str, bool] = {}
        self.patience = waiting.Deadline(min(SCHEDULING_PATIENCE_S, options["timeout_s"]))

    def run(self) -> None:
        """Starts, judges, removes."""
        self.remove()
        try:
            self.start()
            self.judge()
        finally:
            self.remove()

    def remove(self) -> None:
        """Removes every probe of this namespace and waits until it is gone: its name is used again."""
        keys = []
        for pod in self._pods():
            keys.append(("v1", "Pod", pod["metadata"]["name"], self.options["namespace"]))
            self.cluster.delete(*keys[-1])
        limit = waiting.Deadline(60)
        while any(self.cluster.read(*key) for key in keys):
            if limit.has_passed:
                raise ClusterError("waited 60 s for the probes of this or an earlier run to go: " + ", ".join(key[2] for key in keys))
            time.sleep(waiting.POLL_S)

    def _pods(self) -> list[Document]:
        selector = ",".join(f"{name}={value}" for name, value in slices.PROBE_LABEL.items())
        found: list[Document] = self.cluster.select("v1", "Pod", self.options["namespace"], labelSelector=selector)
        return found

    def start(self) -> None:
        """One pod for each node that has room for it."""
        nodes = {node["metadata"]["name"]: node for node in self.cluster.select("v1", "Node")}
        running = self.cluster.select("v1", "Pod")
        for name in self.options["nodes"]:
            if name not in nodes:
                raise ClusterError(f"node '{name}' does not exist; set gpu_node_name of that host to the name that kubectl get nodes shows")
            request = smallest_tier(self.cluster, nodes[name], self.options["namespace"])
            probe = self.probes[name] = Probe(name, request)
            self.shared[name] = any(slices.is_slice_on(pod, name) for pod in running)
            for resource, wanted in request.limits().items():
                free = slices.free_of(nodes[name], running, resource)
                if free < int(wanted):
                    probe.verdict = "full"
                    probe.broken.append(f"{resource}: {max(0, free)} free, {wanted} needed")
            if not probe.verdict:
                self.cluster.create(slices.probe_pod(name, request, self.options))

    def judge(self) -> None:
        """Until every probe has a verdict; what has none when time is up is bad, with the reason that its pod shows."""
        while True:
            pods = {self._node_of(pod): pod for pod in self._pods()}
            for probe in self.probes.values():
                if not probe.verdict and probe.node in pods:
                    self._look_at(probe, pods[probe.node])
            waiting_for = [probe for probe in self.probes.values() if not probe.verdict]
            if not waiting_for:
                return
            if self.deadline.has_passed:
                for probe in waiting_for:
                    pod = pods.get(probe.node)
                    reason = (rollout.pod_problem(pod) or "it has not ended") if pod else "its pod is gone"
                    self._fail(probe, f"no report after {self.options['timeout_s']} s: {reason}{self._events(pod)}")
                return
            time.sleep(waiting.POLL_S)

    def _look_at(self, probe: Probe, pod: Document) -> None:
        phase = (pod.get("status") or {}).get("phase")
        if not pod["spec"].get("nodeName") and self.shared[probe.node] and self.patience.has_passed:
            # The sum of what is free is enough, but no single card has room.
            probe.verdict = "full"
            probe.broken.append(rollout.pod_problem(pod) or "not scheduled")
            return
        if phase not in ("Succeeded", "Failed"):
            return
        metadata = pod["metadata"]
        report = slices.report_in(self.cluster.log_tail(metadata["namespace"], metadata["name"], "probe", lines=50))
        if report is None:
            self._fail(
                probe,
                f"its pod has {phase.lower()} without a report: {rollout.pod_problem(pod) or ''}{waiting.log_tail(self.cluster, pod)}",
            )
            return
        try:
            segments = wire.decode_segments((metadata.get("annotations") or {}).get(wire.POD_IDS_ANNOTATION, ""))
            booked = segments[0][0]
        except (TenfoldError, IndexError) as error:
            self._fail(probe, f"the scheduler's annotation '{wire.POD_IDS_ANNOTATION}' names no card: {error}")
            return
        probe.card = booked.uuid
        probe.broken = slices.broken_promises(report, probe.request, booked.uuid, booked.memory_mib)
        probe.verdict = "bad" if probe.broken else "good"

    def _events(self, pod: Document | None) -> str:
        """The last warning about a pod, which is where the kubelet and the device plugin say why a start fails; '' for none."""
        if pod is None:
            return ""
        chosen = f"involvedObject.uid={pod['metadata']['uid']},type=Warning"
        events = self.cluster.select("v1", "Event", pod["metadata"]["namespace"], fieldSelector=chosen)
        return f"; last warning: {events[-1].get('message')}" if events else ""

    @staticmethod
    def _fail(probe: Probe, reason: str) -> None:
        probe.verdict = "bad"
        probe.broken.append(reason)

    @staticmethod
    def _node_of(pod: Document) -> str:
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        return str(terms[0]["matchFields"][0]["values"][0])


def main() -> None:
    """Probes and reports."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    if module.check_mode:
        module.exit_json(changed=False, msg="not probed in check mode")
    run: Any = None
    try:
        run = Run(api.connect(module.params["kubeconfig"], module.params["context"]), module.params)
        run.run()
    except ClusterError as error:
        module.fail_json(msg=str(error), error_details=error.details)
    lines = [probe.line() for probe in run.probes.values()]
    probes = {
        probe.node: {"verdict": probe.verdict, "tier": probe.request.tier, "card": probe.card, "broken": probe.broken}
        for probe in run.probes.values()
    }
    bad = [probe.line() for probe in run.probes.values() if probe.verdict == "bad"]
    if bad:
        head = f"{len(bad)} of {len(lines)} slices do not keep what was booked:"
        module.fail_json(msg="\n".join([head, *bad]), lines=lines, probes=probes)
    module.exit_json(changed=False, lines=lines, probes=probes)


if __name__ == "__main__":
    main()
