#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""A service that runs with the files that are on the disk: restarted if it is older than one of them, else left alone."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_service
short_description: Restart a service if it is older than what it reads
version_added: 0.1.0
description:
  - Compares the time at which a service of systemd started with its files, and restarts or reloads it if one of them is newer. What an
    interrupted run left behind is so made good by the next one.
  - Where systemd itself has not read the unit or a drop-in of it since they changed, it reads them first. Otherwise it does not, since a
    daemon-reload can take cards away from running containers.
  - A service that is down stays down, unless it failed.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes]
attributes:
  diff_mode:
    description: There is no text to compare; RV(reason) says why.
    support: none
options:
  name:
    description: The service, without its suffix.
    type: str
    required: true
  files:
    description:
      - What it reads. A folder counts as changed when a file in it came or went; of a file that is not there the folder counts.
    type: list
    elements: path
    default: []
  how:
    description: What makes the service read its files.
    type: str
    choices: [restart, reload]
    default: restart
  pending:
    description: Whether something that it reads has changed for sure, or would have without check mode.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Let containerd run with its file
  tenfold.vgpu.node_service:
    name: containerd
    files: [/etc/containerd/config.toml]
    pending: "{{ merged is changed }}"
"""

RETURN = r"""
reason:
  description: Why it had to read its files again. Empty if it need not.
  returned: always
  type: str
  sample: "'/etc/containerd/config.toml' is 12 s newer than the running service"
daemon_reloaded:
  description: Whether systemd read its units again first.
  returned: always
  type: bool
"""

import contextlib
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import commands, services

ARGUMENT_SPEC = {
    "name": {"type": "str", "required": True},
    "files": {"type": "list", "elements": "path", "default": []},
    "how": {"type": "str", "choices": ["restart", "reload"], "default": "restart"},
    "pending": {"type": "bool", "default": False},
}


class ServiceError(Exception):
    """systemd does not know the service, or it did not come up."""


def look(name: str) -> dict[str, str]:
    """The unit's properties as systemd has them now."""
    done = commands.run(["systemctl", "show", f"--property={','.join(services.PROPERTIES)}", f"{name}.service"])
    found = services.units(done.out)
    unit = found.get(name) or (next(iter(found.values())) if len(found) == 1 else None)
    if done.status != 0 or unit is None or unit.get("LoadState") == "not-found":
        raise ServiceError(
            f"systemd has no service {name!r} ({done.message[:200] or 'nothing found'}), so nothing tells whether it runs with its files; "
            "restart it by hand, and set the role's *_restart_enabled: false"
        )
    return unit


def ages(paths: list[str]) -> dict[str, float]:
    """How long ago each was written, by the clock of this moment."""
    now, found = time.time(), {}
    for path in paths:
        with contextlib.suppress(OSError):
            place = Path(path) if Path(path).exists() else Path(path).parent
            found[path] = now - place.stat().st_mtime
    return found


def act(name: str, how: str, unit: dict[str, str]) -> bool:
    """Restarts or reloads, and looks at what came of it. Whether systemd had to read its units first."""
    is_outdated = unit.get("NeedDaemonReload") != "no"
    if is_outdated:
        commands.must(["systemctl", "daemon-reload"], ServiceError)
    if unit.get("ActiveState") == "failed":
        commands.run(["systemctl", "reset-failed", f"{name}.service"])  # else systemd may refuse: started too often
        how = "restart"
    commands.must(["systemctl", how, f"{name}.service"], ServiceError)
    state = look(name).get("ActiveState", "")
    if state in ("failed", "inactive"):
        raise ServiceError(f"service {name!r} is {state} after its {how}; look at `journalctl -u {name}`, correct its files and run again")
    return is_outdated


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    name, how = module.params["name"], module.params["how"]
    try:
        unit = look(name)
        since = services.seconds_since_read(unit, how == "reload", time.clock_gettime(time.CLOCK_MONOTONIC))
        reason = services.why_stale(unit, since, ages(module.params["files"]), module.params["pending"])
        has_reloaded = act(name, how, unit) if reason and not module.check_mode else False
    except ServiceError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(reason), reason=reason, daemon_reloaded=has_reloaded)


if __name__ == "__main__":
    main()
