#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Prove a tier file over a fleet of cards before any host is touched."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slice_tiers_validate
short_description: Validate slice tiers and prove the required mixes over a fleet of cards
version_added: 0.1.0
description:
  - Checks a catalogue of tiers and proves, with the scheduler's own rule, which mixes of slices share one card.
  - Works from values alone and touches no host. Run it once on the controller for the whole fleet, not once for each host.
  - Fails with every problem at once, each with the variable's path and the arithmetic.
  - A required mix must fit at least one kind of card in the fleet. Kinds on which it does not fit are warned about, with how many
    slices fit there and why.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes.reads]
options:
  catalogue:
    description:
      - The tier file, with the variables' names less their prefix C(slice_tiers_).
      - The keys C(deviceMemoryScaling), C(gpuMemoryFactor) and C(SchedulePolicy) are accepted, mapped, and answered in RV(notes).
    type: dict
    required: true
    suboptions:
      card:
        description: Card model that the tiers are written for.
        type: str
        default: a800-80gb
      tiers:
        description: Tier names, each with memory_mib, reserved_cores, limit_cores, mode and priority; or a list of such with a name.
        type: raw
        required: true
      slices_per_card:
        description: Most slices on one card.
        type: int
        default: 10
      memory_granularity_mib:
        description: Tiers and published cards are multiples of this. Unit MiB.
        type: int
        default: 256
      memory_overcommit_ratio:
        description: How many times a card's memory is promised. From 1.0 to 4.0.
        type: float
        default: 1.0
      custom_allowed:
        description: Whether numbers of no tier are served, in steps of 1 MiB.
        type: bool
        default: false
      required_mixes:
        description: Mixes that must share one card, each a mapping of tier to count.
        type: list
        elements: dict
  fleet:
    description: The cards of the fleet. Without any, the catalogue's own card is judged with its nominal memory.
    type: list
    elements: dict
    default: []
    suboptions:
      node:
        description: Name of the node.
        type: str
        required: true
      card:
        description: Card model, or what C(nvidia-smi) calls it. The catalogue's card if absent.
        type: str
      count:
        description: How many of these cards the node has.
        type: int
        default: 1
      memory_mib:
        description: Total that the driver reports for each. The model's nominal one if absent. Unit MiB.
        type: int
      offers:
        description: Tiers that this pool offers. All if absent. A required mix counts where all of its tiers are offered.
        type: list
        elements: str
  every_card:
    description: Whether a required mix must fit every kind of card whose pool offers its tiers, not only one.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Prove the tiers over the fleet
  tenfold.vgpu.slice_tiers_validate:
    catalogue:
      card: a800-80gb
      slices_per_card: 10
      memory_granularity_mib: 256
      tiers:
        small: {memory_mib: 8192, reserved_cores: 10, limit_cores: 10}
        xlarge: {memory_mib: 65536, reserved_cores: 80, limit_cores: 100}
      required_mixes:
        - {small: 10}
        - {xlarge: 1, small: 2}
    fleet:
      - {node: gpu-01, count: 8}
      - {node: gpu-02, count: 6, memory_mib: 81251}
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
catalogue:
  description: The catalogue in its canonical form, the content of C(catalogue.json).
  returned: success
  type: dict
hash8:
  description: First 8 hex digits of its sha256, which name its ConfigMap.
  returned: success
  type: str
  sample: 0a1b2c3d
fleet:
  description: Number of cards and nodes, and the verdict for each kind of card with its nodes.
  returned: success
  type: dict
  contains:
    cards: {description: Number of cards., type: int, sample: 158}
    nodes: {description: Number of nodes., type: int, sample: 20}
    kinds:
      description: >-
        For each kind of card its model, real and published memory, tiers (how many fit and what stops the next), required mixes with
        their arithmetic, maximal mixes, nodes and number of cards.
      type: list
      elements: dict
proofs:
  description: For each required mix, the kinds of cards that prove it and those that do not, with the arithmetic.
  returned: success
  type: list
  elements: dict
  sample:
    - mix: 10 small
      proved_by: [a800-80gb of 81920 MiB]
      not_by: [a800-80gb of 81251 MiB]
      arithmetic: ["a800-80gb of 81920 MiB: memory 10 x 8192 = 81920 <= 81920 MiB"]
summary:
  description: The same in a few lines for a person.
  returned: success
  type: list
  elements: str
shortfalls:
  description: Required mixes that some kind of card does not hold, with nodes and arithmetic. Also given as warnings.
  returned: success
  type: list
  elements: str
notes:
  description: Remarks, such as what became of the article's keys.
  returned: success
  type: list
  elements: str
error_details:
  description: RV(ignore:problems), a list of every problem with path and message.
  returned: failure
  type: dict
"""


from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import fleet, verdict
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TenfoldError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.tiers import Catalogue

ARGUMENT_SPEC = {
    # The domain checks what is inside, so that all problems are told at once and with the operator's own variable names.
    "catalogue": {"type": "dict", "required": True},
    "fleet": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "node": {"type": "str", "required": True},
            "card": {"type": "str"},
            "count": {"type": "int", "default": 1},
            "memory_mib": {"type": "int"},
            "offers": {"type": "list", "elements": "str"},
        },
    },
    "every_card": {"type": "bool", "default": False},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        catalogue = Catalogue.from_vars(module.params["catalogue"])
        cards = fleet.read_fleet(module.params["fleet"], catalogue)
        judged = verdict.judge_fleet(catalogue, cards, every_card=module.params["every_card"])
        judged.raise_problems()
    except TenfoldError as error:
        module.fail_json(msg=str(error), error_details=error.details)
    for warning in judged.warnings:
        module.warn(warning)
    module.exit_json(
        changed=False,
        catalogue=catalogue.as_dict(),
        hash8=catalogue.hash8,
        fleet=judged.as_dict(),
        proofs=judged.proofs(),
        summary=judged.summary(catalogue),
        shortfalls=list(judged.warnings),
        notes=[*catalogue.notes, *judged.notes()],
    )


if __name__ == "__main__":
    main()
