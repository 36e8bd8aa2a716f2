#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The node's CDI specification of its cards, as NVIDIA's toolkit generates it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_cdi_specification
short_description: Keep the CDI specification of a node's NVIDIA cards up to date
version_added: 0.1.0
description:
  - Runs C(nvidia-ctk cdi generate) and replaces the specification if its content changed. Tenfold's device plugin takes a card's
    device nodes, libraries and hooks from it.
  - A file that was there before is recorded, and O(state=absent) gives it back.
  - Device numbers can change with a reboot, so a unit C(tenfold-cdi-refresh.service) generates again at boot (O(refresh_at_boot)).
  - Check mode generates too, since that writes nothing, and so predicts a run exactly.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes]
options:
  path:
    description: The specification. Its folder must be one that the container engine reads.
    type: path
    default: /etc/cdi/nvidia.yaml
  state:
    description: V(present) generates, V(absent) gives back what was there before.
    type: str
    choices: [present, absent]
    default: present
  executable:
    description: The toolkit's command.
    type: str
    default: nvidia-ctk
  arguments:
    description: Further arguments of C(nvidia-ctk cdi generate), for example C(--driver-root=/run/nvidia/driver).
    type: list
    elements: str
    default: []
  refresh_at_boot:
    description: Whether a systemd unit generates the specification again at each boot.
    type: bool
    default: true
  minimum_version:
    description: Least version of the toolkit; an older one is a failure.
    type: str
"""

EXAMPLES = r"""
- name: Describe the cards to the container engine
  tenfold.vgpu.nvidia_cdi_specification:
    minimum_version: 1.17.8
"""

RETURN = r"""
path:
  description: The specification.
  returned: success
  type: str
toolkit_version:
  description: Version of the toolkit.
  returned: with state present
  type: str
"""

import json
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import commands, files
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import VersionError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.versions import Version

ARGUMENT_SPEC = {
    "path": {"type": "path", "default": "/etc/cdi/nvidia.yaml"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "executable": {"type": "str", "default": "nvidia-ctk"},
    "arguments": {"type": "list", "elements": "str", "default": []},
    "refresh_at_boot": {"type": "bool", "default": True},
    "minimum_version": {"type": "str"},
}
UNIT_NAME = "tenfold-cdi-refresh.service"
SYSTEMD_FOLDER = Path("/etc/systemd/system")


class SpecificationError(Exception):
    """The toolkit is missing, too old or failed; the message says what to do."""


def record_of(path: Path) -> Path:
    """Beside the specification, under a name that no CDI reader takes for one (they read *.json and *.yaml)."""
    return path.with_name(f".{path.name}.tenfold")


def toolkit_version(module: AnsibleModule, executable: str) -> str:
    done = commands.run([executable, "--version"])
    version = Version.find(done.out)
    if done.status != 0 or version is None:
        raise SpecificationError(f"`{executable} --version` failed with {done.status} and said {done.message!r}, expected a version")
    minimum = module.params["minimum_version"]
    if minimum and version < Version.parse(minimum):
        raise SpecificationError(
            f"the NVIDIA container toolkit is {version.release}, expected {minimum} or later: older ones let a container's image run code "
            "on the node as root (CVE-2025-23266); upgrade package nvidia-container-toolkit"
        )
    return version.release


def generate(module: AnsibleModule, executable: str) -> str:
    done = commands.run([executable, "cdi", "generate", *module.params["arguments"]])
    if done.status != 0:
        raise SpecificationError(f"`{executable} cdi generate` failed with {done.status}: {done.err.strip()}")
    if "cdiVersion" not in done.out or "devices" not in done.out:
        raise SpecificationError(f"`{executable} cdi generate` wrote no specification but {done.out[:200]!r}; is a card present?")
    return done.out


def unit_text(module: AnsibleModule, executable: str, path: Path) -> str:
    """The driver may be loaded later than we are started, so a failure is tried again, for five minutes."""
    command = " ".join([executable, "cdi", "generate", *module.params["arguments"], f"--output={path}"])
    return (
        "# Written by Tenfold (role nvidia_runtime).\n"
        "[Unit]\nDescription=CDI specification of the NVIDIA cards as this boot numbers them\n"
        "After=nvidia-persistenced.service\nStartLimitIntervalSec=600\nStartLimitBurst=30\n\n"
        f"[Service]\nType=oneshot\nExecStart={command}\nRestart=on-failure\nRestartSec=10s\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def keep_unit(module: AnsibleModule, text: str | None) -> bool:
    """The unit as it must be, enabled; None removes it. Whether that is a change."""
    unit = SYSTEMD_FOLDER / UNIT_NAME
    if files.read(unit) == text:
        return False
    if not module.check_mode:
        if text is None:
            commands.must(["systemctl", "disable", UNIT_NAME], SpecificationError)
        files.write(unit, text)
        if text is not None:
            commands.must(["systemctl", "enable", UNIT_NAME], SpecificationError)
    return True


def present(module: AnsibleModule, path: Path) -> dict[str, Any]:
    executable = module.get_bin_path(module.params["executable"], opt_dirs=["/usr/local/bin"])
    if executable is None:
        raise SpecificationError(f"{module.params['executable']!r} is not installed: install package nvidia-container-toolkit")
    version = toolkit_version(module, executable)
    before, after = files.read(path), generate(module, executable)
    record = files.read(record_of(path))
    if before != after and not module.check_mode:
        if record is None:
            files.write(record_of(path), json.dumps({"original": before}) + "\n")
        files.write(path, after)
    wanted = unit_text(module, executable, path) if module.params["refresh_at_boot"] else None
    unit_changed = keep_unit(module, wanted)
    diff = {"before": before or "", "after": after, "before_header": str(path), "after_header": str(path)}
    return {"changed": before != after or unit_changed, "path": str(path), "toolkit_version": version, "diff": diff}


def absent(module: AnsibleModule, path: Path) -> dict[str, Any]:
    before, record = files.read(path), files.read(record_of(path))
    unit_changed = keep_unit(module, None)
    if record is None:
        return {"changed": unit_changed, "path": str(path)}
    after = json.loads(record)["original"]
    if not module.check_mode:
        files.write(path, after)
        files.write(record_of(path), None)
    diff = {"before": before or "", "after": after or "", "before_header": str(path), "after_header": str(path)}
    return {"changed": True, "path": str(path), "diff": diff}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    path = Path(module.params["path"])
    try:
        result = present(module, path) if module.params["state"] == "present" else absent(module, path)
    except (SpecificationError, VersionError) as error:
        module.fail_json(msg=str(error))
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"cannot keep {str(path)!r}: {error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
