#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action volcano_scheduler_config (plugins/action), which works through the API and decides on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: volcano_scheduler_config
short_description: Merge what slices need into the configuration of Volcano's scheduler, or take it out again
version_added: 0.1.0
description:
  - Reads the scheduler's ConfigMap, merges the plugins C(deviceshare), C(predicates) and C(binpack) on the controller with a library that
    keeps comments and order, and writes the one key by server-side apply. Other plugins, arguments, tiers, actions and keys survive.
  - What the merge replaced is recorded in an annotation of the ConfigMap, so that O(state=absent) gives back what was there, byte for byte
    if nobody edited the configuration in the meantime.
  - A configuration that does not parse, or that contradicts slices (gpushare, node lock), is a failure that says where and what to do; it
    stays as it is.
  - The write is refused if somebody else wrote the ConfigMap since it was read; a rerun merges again.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes, tenfold.vgpu.attributes.action, tenfold.vgpu.cluster]
options:
  namespace:
    description: Namespace of the ConfigMap.
    type: str
    required: true
  config_map:
    description: Name of the ConfigMap.
    type: str
    required: true
  key:
    description: Its key that holds the configuration.
    type: str
    default: volcano-scheduler.conf
  base:
    description:
      - What the chart brings. The merge starts from it where the ConfigMap or its key does not exist (without it that is a failure), and
        where the chart's text has changed since the last merge and nobody has edited the ConfigMap.
    type: str
  state:
    description:
      - V(present) merges, V(absent) gives back what was there before the first merge.
      - V(rendered) merges into O(base) and only returns the text; the cluster is not asked.
    type: str
    choices: [present, absent, rendered]
    default: present
  schedule_policy:
    description: Which card of a node is filled first.
    type: str
    choices: [binpack, spread]
    default: binpack
  schedule_weight:
    description: Weight of the card's fill in the choice of a node. 0 leaves that choice to other plugins.
    type: int
    default: 10
  binpack_enabled:
    description: Whether the plugin C(binpack), which packs nodes by their other resources, is made sure of too.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Merge deviceshare into the scheduler's configuration
  tenfold.vgpu.volcano_scheduler_config:
    kubeconfig: "{{ kube_control_kubeconfig }}"
    namespace: volcano-system
    config_map: volcano-scheduler-configmap
"""

RETURN = r"""
text:
  description: The configuration as it is (or would be) now.
  returned: always
  type: str
restart_needed:
  description: Whether a running scheduler must be restarted for this change; whether it counts cards, it decides once in its life.
  returned: always
  type: bool
merged_by_us:
  description: Whether something in it was put there by Tenfold.
  returned: always
  type: bool
"""
