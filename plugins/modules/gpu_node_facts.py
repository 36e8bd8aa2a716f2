#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ask a GPU node, once and read-only, everything that roles decide by; let it fail alone where it cannot carry slices."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_node_facts
short_description: Read driver, cards, container engines and kubelet of a GPU node
version_added: 0.1.0
description:
  - Asks a node in one task what the roles decide by, and changes nothing. What is absent is reported as null, not as a failure.
  - Judges the node by what the product stands on (kubelet, glibc, no other device plugin, driver gate, floor of each card model, compute
    mode, MIG mode).
  - With O(required=true) a node that cannot carry slices fails, with every reason and what to do; other nodes go on.
  - Runs on the node's Python, 3.8 or newer, without any package.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes.reads]
options:
  card:
    description:
      - Card model that the tiers are written for, such as V(a800-80gb). Cards of other models are then warned about.
    type: str
  enforcement:
    description: How this node limits its slices. A card with MIG on can only serve V(mig).
    type: str
    choices: [hook, driver, mig, timeslice]
    default: hook
  required:
    description: Whether a node that cannot carry slices fails. Else its problems are only returned.
    type: bool
    default: false
  command_timeout_seconds:
    description: How long one command, such as C(nvidia-smi), may take before it counts as unanswered. A sick card can hang it.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Check that this node can carry slices
  tenfold.vgpu.gpu_node_facts:
    card: "{{ slice_tiers_card }}"
    enforcement: hook
    required: true
  register: __preflight_node

- name: Show its cards
  ansible.builtin.debug:
    msg: "{{ __preflight_node.gpu_node.cards | map(attribute='name') | list }}"
"""

RETURN = r"""
gpu_node:
  description: What the node is. A value that could not be found is null.
  returned: always
  type: dict
  contains:
    driver:
      description: Driver version, from C(nvidia-smi) or else from the kernel module. Null without a driver.
      type: str
      sample: 535.104.05
    driver_kernel_module:
      description: Version of the loaded kernel module, from C(/proc/driver/nvidia/version).
      type: str
      sample: 535.104.05
    nvidia_smi_error:
      description: Why C(nvidia-smi) gave no cards. Null if it did.
      type: str
      sample: nvidia-smi is not installed
    cards:
      description: The cards in the order of their index.
      type: list
      elements: dict
      contains:
        index: {description: Number of the card., type: int, sample: 0}
        uuid: {description: UUID of the card., type: str, sample: GPU-6f1d0a7e-9f0e-4c53-8a1b-0d3a5b0c1e01}
        name: {description: What the driver calls it., type: str, sample: NVIDIA A800-SXM4-80GB}
        model: {description: Name in the table of known models., type: str, sample: a800-80gb}
        memory_mib: {description: Total memory that the driver reports. Unit MiB., type: int, sample: 81920}
        mig_mode: {description: MIG mode. Null where the driver or card has none., type: str, sample: Disabled}
        compute_mode: {description: Compute mode., type: str, sample: Default}
        pci_bus_id: {description: PCI address., type: str, sample: "00000000:07:00.0"}
        capabilities: {description: What this driver can do with this card., type: dict, sample: {slices: true, mig: true, card: true}}
    engines:
      description:
        - Container engines found (containerd, docker, crio), each with version, active, config_path, config_present, config_version.
      type: dict
    engine:
      description:
        - Name of the container engine that the kubelet uses (C(--container-runtime-endpoint)), whatever else runs. Where no kubelet tells,
          the one that runs. Null for a socket of another engine.
      type: str
      sample: containerd
    kubelet:
      description:
        - Kubelet with version, active, config_path, config_dir, max_pods, max_pods_source, max_pods_ceiling (podsPerCore times cores),
          runtime_endpoint, root_dir and flags, by its own order of flags, drop-ins and file. Null if not installed.
      type: dict
    toolkit_version:
      description: Version of the NVIDIA container toolkit.
      type: str
      sample: 1.17.8
    device_plugin_sockets:
      description: Sockets of device plugins that the kubelet knows.
      type: list
      elements: str
    rival_device_plugins:
      description: Those of them that serve NVIDIA cards and are not ours.
      type: list
      elements: str
    glibc_version: {description: Version of glibc., type: str, sample: "2.36"}
    kernel: {description: Kernel release., type: str, sample: 6.1.0-18-amd64}
    machine: {description: Machine type., type: str, sample: x86_64}
    python: {description: Python that ran this module., type: str, sample: 3.11.2}
    cgroup: {description: v1 or hybrid or v2., type: str, sample: v2}
    selinux: {description: enforcing or permissive or disabled., type: str, sample: disabled}
    machine_id: {description: Content of C(/etc/machine-id)., type: str}
    system_uuid: {description: The machine's own UUID in lower case., type: str}
problems:
  description: What keeps this node from carrying slices (fatal), or deserves a look. Each has rule, message, remedy and fatal.
  returned: always
  type: list
  elements: dict
  sample:
    - rule: driver_too_old
      message: driver is 418.226.00, expected 440 or newer
      remedy: upgrade the NVIDIA driver on this node
      fatal: true
"""

import os
import platform
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import cards, commands, drivers, node_facts
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TenfoldError

ARGUMENT_SPEC = {
    "card": {"type": "str"},
    "enforcement": {"type": "str", "choices": ["hook", "driver", "mig", "timeslice"], "default": "hook"},
    "required": {"type": "bool", "default": False},
    "command_timeout_seconds": {"type": "int", "default": 60},
}
_FILE_MAXIMUM_BYTES = 1024 * 1024


def read(path: str) -> str | None:
    try:
        with open(path, "rb") as stream:
            return stream.read(_FILE_MAXIMUM_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def names(path: str) -> list[str]:
    try:
        return [entry.name for entry in Path(path).iterdir()]
    except OSError:
        return []


def this_host(timeout_seconds: int) -> node_facts.Host:
    return node_facts.Host(
        run=lambda argv: commands.run(argv, timeout_seconds),
        read=read,
        names=names,
        glibc=os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None,
        kernel=platform.release(),
        machine=platform.machine(),
        python=platform.python_version(),
    )


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        card = cards.named(module.params["card"]) if module.params["card"] else None
        facts = node_facts.collect(this_host(module.params["command_timeout_seconds"]))
        problems = drivers.check_node(facts, card, module.params["enforcement"])
    except TenfoldError as error:
        module.fail_json(msg=str(error), error_details=error.details)
    result = {"gpu_node": facts, "problems": [problem.as_dict() for problem in problems]}
    fatal = [problem for problem in problems if problem.fatal]
    if fatal and module.params["required"]:
        module.fail_json(msg="this node cannot carry slices: " + "; ".join(str(problem) for problem in fatal), **result)
    for problem in problems:
        if not problem.fatal:
            module.warn(str(problem))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
