#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action node_config (plugins/action), which reads on the node, decides on the controller and writes on the node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_config
short_description: Merge Tenfold's settings into a user's configuration file, or take them out again
version_added: 0.1.0
description:
  - Reads the file on the node, decides on the controller with libraries that keep comments and order, validates the result on the
    node and replaces the file by rename. The node needs only Python.
  - Foreign keys survive. What the merge replaced is recorded beside the file, so that O(state=absent) gives back what was there,
    byte for byte if nobody edited the file in the meantime.
  - A file that does not parse is a failure that names file, line and cause; it stays as it is.
  - Check mode predicts a run exactly, the validation of the new text included; diff mode shows both texts.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes, tenfold.vgpu.attributes.action]
options:
  subject:
    description:
      - Whose file it is. It decides format, names of the keys, validation, and what in the file forbids a merge.
      - V(kubelet_flags) is a file that holds flags of the kubelet, such as C(/etc/default/kubelet); only flags that are there change.
    type: str
    choices: [containerd, docker, crio, nvidia_toolkit, kubelet, kubelet_flags]
    required: true
  path:
    description: The file on the node.
    type: path
    required: true
  record_path:
    description: Where to record what was replaced. Default is O(path) with C(.tenfold.json) added.
    type: path
  state:
    description: V(present) merges, V(absent) gives back what was there before the first merge.
    type: str
    choices: [present, absent]
    default: present
  runtime:
    description: For containerd, docker and CRI-O, how the NVIDIA runtime is offered.
    type: dict
    suboptions:
      name:
        description: Name of the runtime handler.
        type: str
        default: nvidia
      binary:
        description: Absolute path of the runtime's binary.
        type: path
        default: /usr/bin/nvidia-container-runtime
      is_default:
        description: Whether every container gets it.
        type: bool
        default: false
      takeover:
        description: Whether a foreign default runtime may be replaced; otherwise it is a failure.
        type: bool
        default: false
      cdi_enabled:
        description: Whether the engine injects CDI devices.
        type: bool
        default: true
  engine_version:
    description: Version of the engine on the node (for a file made from nothing, and for what docker knows).
    type: str
  settings:
    description: For nvidia_toolkit, the settings to merge, nested as in the file.
    type: dict
  max_pods:
    description: For kubelet and kubelet_flags, the least number of pods that the node takes. A larger number in the file stays.
    type: int
  validate:
    description:
      - Command that refuses a bad file, with C({file}) for its path. Default depends on O(subject); an empty list validates nothing.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Offer the NVIDIA runtime to containerd
  tenfold.vgpu.node_config:
    subject: containerd
    path: /etc/containerd/config.toml
    engine_version: 1.7.24
    runtime: {name: nvidia, binary: /usr/bin/nvidia-container-runtime}

- name: Give the kubelet's file back as it was
  tenfold.vgpu.node_config:
    subject: kubelet
    path: /var/lib/kubelet/config.yaml
    state: absent
"""

RETURN = r"""
path:
  description: The file.
  returned: always
  type: str
exists:
  description: Whether the file is there after the merge.
  returned: success
  type: bool
held:
  description: Our keys that the file holds after the merge.
  returned: success
  type: list
  elements: str
  sample: [--max-pods]
left:
  description: Keys that somebody changed since our merge and that were therefore left alone.
  returned: success
  type: list
  elements: str
error_details:
  description: File, line, column and cause of a failure, where known.
  returned: failure
  type: dict
"""
