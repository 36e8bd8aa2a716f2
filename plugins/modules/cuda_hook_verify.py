#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
# Copyright: Tenfold maintainers
# Apache License 2.0 (see LICENSE)
"""Prove a built CUDA hook on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_hook_verify
short_description: Prove a built CUDA hook on a node without disturbing it
version_added: 0.1.0
description:
  - "Checks the file: ELF class and machine, needed libraries, glibc floor, exported symbols, no constructors."
  - Checks the library that writes configuration pages in the same way, and has it make and change a page.
  - Checks that the hook's ABI is that of the slots on the node.
  - "Runs it with the node's driver on an idle card, in a slot of its own: the memory limit is reached exactly, total and free memory are
    the slice's, throttling holds the core limit, a quota changed from outside takes effect. At most 256 MiB and two seconds of one card
    are used; where no card is idle this part is reported as not run."
  - Fails naming what was expected and what was seen.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes.reads]
attributes:
  check_mode:
    description: Nothing is changed in any mode. A folder that a check run has not copied yet is reported as not there.
options:
  path:
    description: >-
      Folder with C(libtenfold.so), C(libtenfold_page.so), C(tenfold-selftest) and C(symbols.txt), as M(tenfold.vgpu.cuda_hook_build)
      made it.
    type: path
    required: true
  symbols:
    description: Symbols that must be exported, no more and no fewer. The list in C(symbols.txt) beside the library when empty.
    type: list
    elements: str
    default: []
  image_glibcs:
    description: glibc versions of images that will load the hook.
    type: list
    elements: str
    default: []
  functional:
    description: V(auto) runs it where a card is idle, V(required) fails where none is, V(never) checks the file alone.
    type: str
    choices: [auto, required, never]
    default: auto
  memory_mib:
    description: Size of the test slice.
    type: int
    default: 64
  card:
    description: UUID of the card to use; any idle one when empty.
    type: str
    default: ""
  slots:
    description: Folder of the node's slots.
    type: path
    default: /run/tenfold/slots
"""

EXAMPLES = r"""
- name: Prove the hook before containers get it
  tenfold.vgpu.cuda_hook_verify:
    path: /usr/local/tenfold/hook/0.1.0-8fba24ea
    image_glibcs: ["2.17", "2.31"]
"""

RETURN = r"""
checks:
  description: Every check with what was expected and seen.
  returned: always
  type: list
  elements: dict
  sample: [{"name": "glibc floor", "ok": true, "expected": "nothing newer than 2.17", "seen": "2.17"}]
functional:
  description: V(passed), V(failed), or V(not run) and why.
  returned: always
  type: str
card:
  description: UUID of the card that was used.
  returned: always
  type: str
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import hook_verify
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TenfoldError

ARGUMENT_SPEC = {
    "path": {"type": "path", "required": True},
    "symbols": {"type": "list", "elements": "str", "default": []},
    "image_glibcs": {"type": "list", "elements": "str", "default": []},
    "functional": {"type": "str", "choices": ["auto", "required", "never"], "default": "auto"},
    "memory_mib": {"type": "int", "default": 64},
    "card": {"type": "str", "default": ""},
    "slots": {"type": "path", "default": "/run/tenfold/slots"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    folder = Path(module.params["path"])
    if module.check_mode and not folder.is_dir():
        module.exit_json(changed=False, checks=[], functional="not run: the folder is not there yet", card="")
    try:
        request = hook_verify.VerifyRequest(
            folder=folder,
            machine=os.uname().machine,
            symbols=tuple(sorted(module.params["symbols"])),
            image_glibcs=hook_verify.images_glibc(module.params["image_glibcs"]),
            functional=module.params["functional"],
            memory_mib=module.params["memory_mib"],
            card=module.params["card"],
            slots=Path(module.params["slots"]),
        )
        report = hook_verify.verify(request)
    except TenfoldError as error:
        module.fail_json(msg=str(error), error_details=error.details)
    if report.failures:
        module.fail_json(msg=hook_verify.failure_message(folder, report.failures), changed=False, **report.as_dict())
    module.exit_json(changed=False, **report.as_dict())


if __name__ == "__main__":
    main()
