#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Asks for another quota of running pods, waits for the answer of their nodes' device plugins, and looks at it from inside."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slice_quota
short_description: Change the quota of running pods
version_added: 0.1.0
description:
  - Writes annotation C(tenfold.dev/quota) of each pod, waits until its node's device plugin has carried that out or refused it, and
    compares what the containers then see with what the plugin says.
  - A pod whose last change was to the same quota, or which has these numbers, is left alone. A refused request is made again.
  - Does not restart anything. What is in force lasts as long as the pod.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes, tenfold.vgpu.cluster]
options:
  pod:
    description: The pod as C(namespace/name).
    type: str
  label_selector:
    description: Labels of the pods, in place of O(pod).
    type: str
  namespace:
    description: Namespace of the pods of O(label_selector). Empty means all.
    type: str
    default: ''
  tier:
    description: The tier whose numbers they get.
    type: str
  memory_mib:
    description: Memory of each card in MiB. Without it, but with O(cores_percent), it stays.
    type: int
  cores_percent:
    description: Share of each card's compute in percent, reserved and limited. Without it, but with O(memory_mib), it stays.
    type: int
  container:
    description: The container. Default is all that have slices.
    type: str
  verify:
    description: Whether to compare what the containers see, with C(vgpuctl) inside them.
    type: bool
    default: true
  timeout_s:
    description: Deadline for the answers of all pods together, in seconds.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Give a notebook more
  tenfold.vgpu.slice_quota:
    kubeconfig: "{{ kube_control_kubeconfig }}"
    pod: research/notebook-0
    tier: medium

- name: Give all workers of a job less memory
  tenfold.vgpu.slice_quota:
    kubeconfig: "{{ kube_control_kubeconfig }}"
    namespace: research
    label_selector: app=worker
    memory_mib: 12288
"""

RETURN = r"""
pods:
  description: For each pod (C(namespace/name)) its tier and the shares of its containers now; in check mode, before.
  returned: success
  type: dict
lines:
  description: One line for each pod.
  returned: success
  type: list
  elements: str
"""

import json
import time
from dataclasses import dataclass
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import wire
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import WireError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import api, waiting
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.arguments import CONNECTION
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.errors import ClusterError

ARGUMENT_SPEC = {
    **CONNECTION,
    "pod": {"type": "str"},
    "label_selector": {"type": "str"},
    "namespace": {"type": "str", "default": ""},
    "tier": {"type": "str"},
    "memory_mib": {"type": "int"},
    "cores_percent": {"type": "int"},
    "container": {"type": "str"},
    "verify": {"type": "bool", "default": True},
    "timeout_s": {"type": "int", "default": 120},
}

VGPUCTL = "/usr/local/tenfold/vgpuctl"
MIB = 1 << 20

Document = Dict[str, Any]


@dataclass
class Subject:
    """One pod: as it was found, what is asked for ('' if nothing has to be), and the answer."""

    pod: Document
    text: str
    status: Document

    @property
    def name(self) -> str:
        return f"{self.pod['metadata']['namespace']}/{self.pod['metadata']['name']}"

    def line(self) -> str:
        """For a person."""
        tier = f"{self.status['tier']}: " if self.status.get("tier") else ""
        shares = [
            f"{container} has {share['memory_mib']} MiB, {share['cores_percent']} percent (limit {share['limit_cores_percent'] or 100}) "
            f"of {share['uuid']}"
            for container, found in self.status["containers"].items()
            for share in found
        ]
        return f"{self.name}: {tier}{'; '.join(shares)}"


def find_pods(cluster: api.Cluster, options: dict[str, Any]) -> list[Document]:
    """Running pods with slices. Errors: ClusterError when there is none, or the one that is named has none."""
    if options["pod"]:
        namespace, _, name = options["pod"].rpartition("/")
        found = cluster.read("v1", "Pod", name, namespace or "default")
        if found is None:
            raise ClusterError(f"pod '{namespace or 'default'}/{name}' does not exist")
        if not _has_slice(found):
            raise ClusterError(f"pod '{options['pod']}' is no running pod with a slice: it is {found['status'].get('phase')}")
        return [found]
    pods = [pod for pod in cluster.select("v1", "Pod", options["namespace"], labelSelector=options["label_selector"]) if _has_slice(pod)]
    if not pods:
        raise ClusterError(f"no running pod with a slice has the labels '{options['label_selector']}'")
    return pods


def _has_slice(pod: Document) -> bool:
    metadata = pod["metadata"]
    is_running = (pod.get("status") or {}).get("phase") == "Running" and not metadata.get("deletionTimestamp")
    return is_running and bool((metadata.get("annotations") or {}).get(wire.POD_IDS_ANNOTATION))


def status_of(pod: Document) -> Document:
    """The device plugin's answer in the pod's annotation, {} where there is none that can be read."""
    try:
        found = json.loads((pod["metadata"].get("annotations") or {}).get(wire.QUOTA_STATUS_ANNOTATION) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def subject_of(pod: Document, options: dict[str, Any]) -> Subject:
    """What has to be asked for."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    status, asked = status_of(pod), annotations.get(wire.QUOTA_ANNOTATION, "")
    values = {name: options[name] for name in ("tier", "memory_mib", "cores_percent", "container") if options[name] is not None}
    request = wire.QuotaRequest(uid=metadata["uid"], **values)
    text = wire.encode_quota(request)
    try:
        last = wire.decode_quota(asked, metadata["uid"])
        is_same = wire.encode_quota(wire.QuotaRequest(**{**vars(last), "revision": ""})) == text
    except WireError:
        is_same = False
    if is_same and status.get("request") == asked and status.get("phase") == "refused":
        text, is_same = wire.encode_quota(wire.QuotaRequest(**{**vars(request), "revision": str(int(time.time()))})), False
    if is_same:
        return Subject(pod, "" if status.get("request") == asked and status.get("phase") == "done" else asked, status)
    if not asked and _has_numbers(pod, request):
        text = ""
    return Subject(pod, text, status)


def _has_numbers(pod: Document, request: wire.QuotaRequest) -> bool:
    """Whether a pod whose quota was never changed has what is asked for."""
    if request.tier:
        return bool((pod["metadata"].get("labels") or {}).get(wire.TIER_LABEL) == request.tier)
    segments = wire.decode_segments(pod["metadata"]["annotations"][wire.POD_IDS_ANNOTATION])
    return all(
        request.memory_mib in (None, share.memory_mib) and request.cores_percent in (None, share.cores_percent)
        for segment in segments
        for share in segment
    )


def wait(cluster: api.Cluster, subjects: list[Subject], timeout_s: int) -> None:
    """Until each request has an answer. Errors: ClusterError with a line for each pod that was refused or has none in time."""
    deadline = waiting.Deadline(timeout_s)
    problems: dict[str, str] = {}
    open_ = [subject for subject in subjects if subject.text]
    while open_:
        for subject in list(open_):
            metadata = subject.pod["metadata"]
            found = cluster.read("v1", "Pod", metadata["name"], metadata["namespace"])
            if found is None or found["metadata"]["uid"] != metadata["uid"]:
                problems[subject.name] = "it is gone"
            else:
                subject.status = status_of(found)
                if subject.status.get("request") != subject.text or subject.status.get("phase") == "changing":
                    if not deadline.has_passed:
                        continue
                    state = subject.status.get("phase") if subject.status.get("request") == subject.text else "not looked at"
                    node = found["spec"].get("nodeName")
                    problems[subject.name] = f"waited {timeout_s} s, its request is {state}; look at the device plugin's log on node {node}"
                elif subject.status["phase"] == "refused":
                    problems[subject.name] = f"refused: {subject.status.get('message')}"
            open_.remove(subject)
        if open_:
            time.sleep(waiting.POLL_S)
    if problems:
        lines = [f"pod '{name}': {words}" for name, words in problems.items()]
        raise ClusterError("quotas that were not changed:\n" + "\n".join(lines), pods=sorted(problems))


def broken_inside(cluster: api.Cluster, subject: Subject) -> list[str]:
    """What the containers see that is not what the device plugin says, in words."""
    broken = []
    metadata = subject.pod["metadata"]
    for container, shares in subject.status["containers"].items():
        report = cluster.run_inside(metadata["namespace"], metadata["name"], container, [VGPUCTL, "show", "--json"])
        try:
            seen = {gpu["uuid"]: (gpu["memory_limit_bytes"], gpu["core_limit_percent"] or 100) for gpu in json.loads(report)["gpus"]}
        except (ValueError, KeyError, TypeError):
            broken.append(f"container '{container}': vgpuctl says {report[-200:]!r}")
            continue
        for share in shares:
            wanted = (share["memory_mib"] * MIB, share["limit_cores_percent"] or 100)
            if seen.get(share["uuid"]) != wanted:
                broken.append(
                    f"container '{container}' sees {seen.get(share['uuid'])} (bytes, percent) of {share['uuid']}, expected {wanted}"
                )
    return broken


def change(options: dict[str, Any], check_mode: bool) -> tuple[list[Subject], list[dict[str, str]]]:
    """Asks, waits, looks; the pods and the diffs. Errors: ClusterError."""
    cluster = api.connect(options["kubeconfig"], options["context"])
    subjects = [subject_of(pod, options) for pod in find_pods(cluster, options)]
    diff = []
    for subject in subjects:
        metadata = subject.pod["metadata"]
        asked = (metadata.get("annotations") or {}).get(wire.QUOTA_ANNOTATION, "")
        if not subject.text or subject.text == asked:
            continue
        patch = {"metadata": {"uid": metadata["uid"], "annotations": {wire.QUOTA_ANNOTATION: subject.text}}}
        cluster.merge_patch("v1", "Pod", metadata["name"], patch, metadata["namespace"], dry_run=check_mode)
        header = f"Pod '{subject.name}' {wire.QUOTA_ANNOTATION}"
        diff.append({"before_header": header, "after_header": header, "before": f"{asked}\n", "after": f"{subject.text}\n"})
    if not check_mode:
        wait(cluster, subjects, options["timeout_s"])
        looked_at = [subject for subject in subjects if options["verify"] and subject.status.get("containers")]
        broken = [f"pod '{subject.name}': {words}" for subject in looked_at for words in broken_inside(cluster, subject)]
        if broken:
            raise ClusterError("containers do not see their quota:\n" + "\n".join(broken))
    return subjects, diff


def main() -> None:
    """Changes and reports."""
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        supports_check_mode=True,
        mutually_exclusive=[("pod", "label_selector"), ("tier", "memory_mib"), ("tier", "cores_percent")],
        required_one_of=[("pod", "label_selector"), ("tier", "memory_mib", "cores_percent")],
    )
    try:
        subjects, diff = change(module.params, module.check_mode)
    except (ClusterError, WireError) as error:
        module.fail_json(msg=str(error), error_details=error.details)
    result: dict[str, Any] = {
        "changed": bool(diff),
        "pods": {subject.name: {key: subject.status.get(key) for key in ("tier", "containers")} for subject in subjects},
        "lines": [
            subject.line() if subject.status.get("containers") else f"{subject.name}: its quota was never changed" for subject in subjects
        ],
    }
    if module._diff:
        result["diff"] = diff
    module.exit_json(**result)


if __name__ == "__main__":
    main()
