#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The node's half of a merge: read a file, try a text on it, replace it. What the text is was decided by the action node_config."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_config_file
short_description: Read a configuration file, try a new text for it, or replace it
version_added: 0.1.0
description:
  - The node's half of M(tenfold.vgpu.node_config), which calls it; a role does not.
  - A text replaces a file only if the file is still the one that was read, and only after the probe accepted the text.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes]
attributes:
  check_mode:
    description: With O(step=write), changes nothing.
  diff_mode:
    description: The action shows the diff.
    support: none
options:
  path:
    description: The file. A symbolic link is followed, the link itself stays.
    type: path
    required: true
  record_path:
    description: Where the record of what was replaced lies.
    type: path
    required: true
  step:
    description:
      - V(read) returns file, record, and what the probe says about the file as it is.
      - V(try) runs the probe on O(content) in a temporary folder and changes nothing; it is what check mode does.
      - V(write) replaces the file and the record.
    type: str
    choices: [read, try, write]
    required: true
  content:
    description: The text to try or to write. Null removes the file.
    type: str
  record:
    description: The record to write. Null removes it.
    type: str
  expected_sha256:
    description: Hash of the file that was read, empty if there was none. Anything else on the node now is a failure.
    type: str
    default: ""
  probe:
    description: Command and arguments that fail on a text that the file's owner would refuse; C({file}) stands for the file's path.
    type: list
    elements: str
    default: []
  mode:
    description: Mode of a file that did not exist before.
    type: str
    default: "0644"
"""

EXAMPLES = r"""
- name: Read containerd's configuration
  tenfold.vgpu.node_config_file:
    path: /etc/containerd/config.toml
    record_path: /etc/containerd/config.toml.tenfold.json
    step: read
    probe: [containerd, --config, "{file}", config, dump]
"""

RETURN = r"""
exists:
  description: Whether the file is there.
  returned: with step read
  type: bool
content:
  description: Text of the file.
  returned: with step read, if the file is there
  type: str
sha256:
  description: Hash of the text, empty if there is no file.
  returned: with step read
  type: str
record:
  description: Text of the record.
  returned: with step read, if there is one
  type: str
probe:
  description: What the probe said. Null where its command is not installed.
  returned: with a probe
  type: dict
  contains:
    rc: {description: exit code, type: int}
    stdout: {description: standard output, type: str}
    stderr: {description: standard error, type: str}
"""

import functools
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import commands, files

ARGUMENT_SPEC = {
    "path": {"type": "path", "required": True},
    "record_path": {"type": "path", "required": True},
    "step": {"type": "str", "choices": ["read", "try", "write"], "required": True},
    "content": {"type": "str"},
    "record": {"type": "str"},
    "expected_sha256": {"type": "str", "default": ""},
    "probe": {"type": "list", "elements": "str", "default": []},
    "mode": {"type": "str", "default": "0644"},
}
UNTOUCHED = "nothing was changed"


def text_of(module: AnsibleModule, path: Path) -> str | None:
    """The file's text, None if there is no file. A file that is not UTF-8 fails the module: no merge could give it back."""
    try:
        return files.read(path)
    except UnicodeDecodeError as error:
        cause = f"byte {error.start} is not UTF-8; correct the file and run again"
    except OSError as error:
        cause = str(error.strerror)
    module.fail_json(msg=f"cannot read {str(path)!r}: {cause}, {UNTOUCHED}")
    return None


def hash_of(text: str | None) -> str:
    return "" if text is None else hashlib.sha256(text.encode("utf-8")).hexdigest()


def probe(module: AnsibleModule, path: Path) -> dict[str, Any] | None:
    """Runs the probe on a file. None: there is no probe, or its command is not installed."""
    argv = [argument.replace("{file}", str(path)) for argument in module.params["probe"]]
    program = module.get_bin_path(argv[0], opt_dirs=["/usr/local/sbin", "/usr/local/bin"]) if argv else None
    if program is None:
        return None
    done = commands.run([program, *argv[1:]])
    return {"rc": done.status, "stdout": done.out, "stderr": done.err}


def try_text(module: AnsibleModule, path: Path, text: str) -> dict[str, Any] | None:
    """Probes a text in a temporary folder: imports with relative paths are not seen there, the write's own probe sees them."""
    folder = Path(tempfile.mkdtemp(prefix="tenfold-", dir=module.tmpdir))
    try:
        (folder / path.name).write_bytes(text.encode("utf-8"))
        return probe(module, folder / path.name)
    finally:
        shutil.rmtree(str(folder), ignore_errors=True)


def place(module: AnsibleModule, is_probed: bool, temporary: Path, path: Path) -> None:
    """Moves a complete new file into place, if the probe agrees with it."""
    verdict = probe(module, temporary) if is_probed else None
    if verdict is not None and verdict["rc"] != 0:
        cause = verdict["stderr"].strip() or verdict["stdout"].strip()
        module.fail_json(msg=f"{module.params['probe'][0]!r} refuses the new text of {str(path)!r}: {cause}; {UNTOUCHED}", probe=verdict)
    if path.exists():
        module.atomic_move(str(temporary), str(path))  # keeps owner, mode and label of the file
    else:
        temporary.rename(path)
        module.set_default_selinux_context(str(path), False)


def write(module: AnsibleModule, path: Path) -> bool:
    """The record first: if we die in between, it describes a merge that never came, and giving back finds nothing of ours."""
    record_path, record, content = Path(module.params["record_path"]), module.params["record"], module.params["content"]
    present = text_of(module, path)
    if hash_of(present) != module.params["expected_sha256"]:
        module.fail_json(msg=f"{str(path)!r} was changed by somebody else while it was being merged; run again, {UNTOUCHED}")
    old_record = text_of(module, record_path)
    if present == content and old_record == record:
        return False
    if not module.check_mode:
        if record is not None and record != old_record:
            files.write(record_path, record, 0o600, durable=True, move=functools.partial(place, module, False))
        if content != present:
            files.write(path, content, int(module.params["mode"], 8), durable=True, move=functools.partial(place, module, True))
        if record is None:
            files.write(record_path, None)
    return True


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    path = Path(module.params["path"]).resolve()
    if module.params["step"] == "read":
        text = text_of(module, path)
        module.exit_json(
            changed=False,
            exists=text is not None,
            content=text,
            sha256=hash_of(text),
            record=text_of(module, Path(module.params["record_path"])),
            # No file means defaults, as an empty one does; but some programs fail when they are told to read a file that is not there.
            probe=try_text(module, path, "") if text is None else probe(module, path),
        )
    if module.params["step"] == "try":
        module.exit_json(changed=False, probe=try_text(module, path, module.params["content"] or ""))
    try:
        changed = write(module, path)
    except OSError as error:
        module.fail_json(msg=f"cannot write {error.filename or str(path)!r}: {error.strerror}; {UNTOUCHED}")
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
