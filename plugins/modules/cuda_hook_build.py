#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
# Copyright: Tenfold maintainers
# Apache License 2.0 (see LICENSE)
"""Compile the CUDA hook, once per content."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_hook_build
short_description: Compile the CUDA hook on one builder
version_added: 0.1.0
description:
  - Compiles C(libtenfold.so), C(libtenfold_page.so), C(vgpuctl) and the self-test from their sources into C(<dest>/<version>-<sha8>),
    where C(sha8) are the first digits of a sha256 over all files.
  - Compiles nothing when the same sources, compiler, version and flags have been compiled there before.
  - A build that fails leaves nothing behind; the message is the compiler's own.
requirements:
  - gcc or clang, make, C library headers and the static C library on the builder
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes]
attributes:
  check_mode:
    description: Says whether it would build.
  diff_mode:
    description: The result is a binary.
    support: none
options:
  source:
    description: Folder with the hook's sources (C(files/hook) of the project), on the builder.
    type: path
    required: true
  dest:
    description: Folder that receives C(<version>-<sha8>).
    type: path
    required: true
  version:
    description: Version of the product, the first part of the folder's name.
    type: str
    required: true
  compiler:
    description: C compiler, gcc 8 or later or clang; a cross compiler builds for its own target.
    type: str
    default: gcc
  cflags:
    description: Flags added to the compiler's command line.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Compile the hook on the controller
  tenfold.vgpu.cuda_hook_build:
    source: "{{ playbook_dir }}/../files/hook"
    dest: /var/cache/tenfold/hook
    version: 0.1.0
  delegate_to: localhost
  run_once: true
  register: cuda_hook_built
"""

RETURN = r"""
path:
  description: Folder of the built hook. Empty in check mode when it would be built.
  returned: always
  type: str
  sample: /var/cache/tenfold/hook/0.1.0-8fba24ea
name:
  description: Name of that folder, C(<version>-<sha8>).
  returned: when built
  type: str
library:
  description: Path of C(libtenfold.so).
  returned: when built
  type: str
version:
  description: Version that was asked for.
  returned: always
  type: str
sha256:
  description: Digest of the library.
  returned: when built
  type: str
machine:
  description: Machine that it runs on, C(x86_64) or C(aarch64).
  returned: when built
  type: str
needed_glibc:
  description: Oldest glibc that can load it.
  returned: when built
  type: str
symbols:
  description: Exported symbols.
  returned: when built
  type: list
  elements: str
abi:
  description: ABI version of the slots that it reads.
  returned: when built
  type: int
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import hook_build
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TenfoldError

ARGUMENT_SPEC = {
    "source": {"type": "path", "required": True},
    "dest": {"type": "path", "required": True},
    "version": {"type": "str", "required": True},
    "compiler": {"type": "str", "default": "gcc"},
    "cflags": {"type": "list", "elements": "str", "default": []},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    request = hook_build.BuildRequest(
        source=Path(module.params["source"]),
        dest=Path(module.params["dest"]),
        version=module.params["version"],
        compiler=module.params["compiler"],
        cflags=tuple(module.params["cflags"]),
    )
    try:
        hook = hook_build.find_built(request)
        changed = hook is None
        if hook is None and not module.check_mode:
            hook = hook_build.build(request)
    except TenfoldError as error:
        module.fail_json(msg=str(error), error_details=error.details)
    result = hook.as_dict() if hook else {"path": "", "version": request.version}
    module.exit_json(changed=changed, **result)


if __name__ == "__main__":
    main()
