#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The node's half of installing the hook: look, unpack, switch, clean up. The action cuda_hook_install brings the files."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_hook_install
short_description: Install versions of the CUDA hook side by side, and switch between them
version_added: 0.1.0
description:
  - A version lives in an immutable folder C(<root>/hook/<version>). A new version is a new folder; C(<root>/hook/current) is switched by
    an atomic rename and only matters to containers that start afterwards.
  - Versions that nothing uses are removed. A version is in use while a process maps its library, while a container has one of its
    files mounted, or while a CDI specification names it.
  - C(/run/tenfold) is a tmpfs of its own, bounded in bytes and inodes, set up by a systemd mount unit.
  - It is an action with a module of the same name. The action brings the files of O(source) to the node if they are missing there.
author: Tenfold contributors (@tenfold)
extends_documentation_fragment: [tenfold.vgpu.attributes, tenfold.vgpu.attributes.action]
options:
  state:
    description:
      - V(staged) puts the version's folder in place and switches nothing, so that it can be verified on the node first.
      - V(current) makes it the version for new containers, mounts O(run_folder) and removes versions that nothing uses.
      - V(absent) removes everything; it is a failure while a version is in use.
    type: str
    choices: [staged, current, absent]
    default: current
  source:
    description: Folder on the controller with the version's files. Needed for O(state=staged).
    type: path
  version:
    description: Name of the version's folder, C(<version>-<sha8>). Needed unless O(state=absent).
    type: str
  root:
    description: Where the hook lives.
    type: path
    default: /usr/local/tenfold
  run_folder:
    description: Where the device plugin keeps what it can rebuild (slots).
    type: path
    default: /run/tenfold
  run_size_mib:
    description: Size of the tmpfs in MiB. A slot takes 0.3 MiB.
    type: int
    default: 128
  run_inodes:
    description: Number of files and folders that the tmpfs holds. A slot takes three.
    type: int
    default: 8192
  state_folder:
    description: Where the device plugin keeps what must survive a reboot.
    type: path
    default: /var/lib/tenfold
  cdi_folder:
    description: Where the device plugin writes CDI specifications.
    type: path
    default: /var/run/cdi
  files:
    description: Set by the action. Names, hashes and modes of the version's files.
    type: dict
  archive:
    description: Set by the action. Tar archive of the version's files on the node.
    type: path
"""

EXAMPLES = r"""
- name: Put the new version beside the old one
  tenfold.vgpu.cuda_hook_install:
    state: staged
    source: build/hook/0.1.0-1a2b3c4d
    version: 0.1.0-1a2b3c4d

- name: Let new containers use it
  tenfold.vgpu.cuda_hook_install:
    state: current
    version: 0.1.0-1a2b3c4d
"""

RETURN = r"""
folder:
  description: The version's folder on the node.
  returned: unless state is absent
  type: str
missing:
  description: Whether the version's files are not on the node. The action then brings them.
  returned: with state staged
  type: bool
pending:
  description: What O(state=current) would change, one sentence each.
  returned: unless state is absent
  type: list
  elements: str
removed:
  description: Versions that were removed because nothing uses them.
  returned: success
  type: list
  elements: str
kept:
  description: Old versions that stay, with who uses them.
  returned: success
  type: dict
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import commands
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.files import read, write

ARGUMENT_SPEC = {
    "state": {"type": "str", "choices": ["staged", "current", "absent"], "default": "current"},
    "source": {"type": "path"},
    "version": {"type": "str"},
    "root": {"type": "path", "default": "/usr/local/tenfold"},
    "run_folder": {"type": "path", "default": "/run/tenfold"},
    "run_size_mib": {"type": "int", "default": 128},
    "run_inodes": {"type": "int", "default": 8192},
    "state_folder": {"type": "path", "default": "/var/lib/tenfold"},
    "cdi_folder": {"type": "path", "default": "/var/run/cdi"},
    "files": {"type": "dict"},
    "archive": {"type": "path"},
}
SYSTEMD_FOLDER = Path("/etc/systemd/system")
CURRENT = "current"


class HookError(Exception):
    """A node that is not as it must be; the message says what to do."""


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_complete(folder: Path, files: dict[str, Any]) -> bool:
    """Whether the version's folder holds exactly these files. Errors: HookError if it holds something else: it is never overwritten."""
    if not folder.is_dir():
        return False
    present = {path.name: sha256_of(path) for path in folder.iterdir() if path.is_file()}
    expected = {name: entry["sha256"] for name, entry in files.items()}
    if present != expected:
        differing = sorted(name for name in set(present) | set(expected) if present.get(name) != expected.get(name))
        raise HookError(
            f"{str(folder)!r} does not hold what was built under this name ({', '.join(differing)} differ): somebody changed it; "
            "move the folder away and run again"
        )
    return True


def unpack(archive: Path, folder: Path, files: dict[str, Any]) -> None:
    """The folder appears complete or not at all."""
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=str(folder.parent)))
    try:
        with tarfile.open(str(archive)) as bundle:
            for name, entry in files.items():
                source = bundle.extractfile(name)
                if source is None:
                    raise HookError(f"the archive brought to the node lacks {name!r}; run again")
                target = staging / name
                target.write_bytes(source.read())
                target.chmod(int(entry["mode"], 8))
        staging.chmod(0o755)
        is_complete(staging, files)
        staging.rename(folder)
    except (tarfile.TarError, KeyError) as error:
        raise HookError(f"the archive brought to the node is damaged ({error}); run again") from error
    finally:
        shutil.rmtree(str(staging), ignore_errors=True)


def users_of_versions(hook_folder: Path, cdi_folder: Path, versions: list[str]) -> dict[str, list[str]]:
    """For each version who uses it: CDI specifications that name it, containers with one of its files mounted, processes that map it.

    A path inside a container says nothing about the version, so mapped files are told by device and inode, mounts by the root of the
    bind mount (proc(5), mountinfo field 4).
    """
    users: dict[str, list[str]] = {version: [] for version in versions}
    inodes = {}
    for version in versions:
        for path in (hook_folder / version).glob("*"):
            status = path.stat()
            inodes[f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x} {status.st_ino}"] = version
    for path in sorted(cdi_folder.glob("*.json")):
        text = path.read_text(encoding="utf-8", errors="replace")
        for version in versions:
            if f"/hook/{version}/" in text:
                users[version].append(f"CDI specification {path}")
    seen_namespaces: set[str] = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            namespace = os.readlink(str(process / "ns" / "mnt"))
            mounts = "" if namespace in seen_namespaces else (process / "mountinfo").read_text(errors="replace")
            seen_namespaces.add(namespace)
            maps = (process / "maps").read_text(errors="replace")
        except OSError:
            continue  # the process ended, or it is the kernel's
        for version in versions:
            if f"/hook/{version}/" in mounts or f"/hook/{version}/" in maps:
                users[version].append(f"process {process.name}")
        for line in maps.splitlines():
            fields = line.split(None, 5)
            used = inodes.get(f"{fields[3]} {fields[4]}") if len(fields) > 4 else None
            if used and f"process {process.name}" not in users[used]:
                users[used].append(f"process {process.name}")
    return users


def mount_unit(module: AnsibleModule) -> tuple[Path, str]:
    """The systemd unit of the run folder. SELinux: what lies there is mounted into containers, so it carries their label."""
    folder = module.params["run_folder"]
    options = f"mode=0755,nosuid,nodev,noexec,size={module.params['run_size_mib']}m,nr_inodes={module.params['run_inodes']}"
    if module.selinux_enabled():
        options += ',context="system_u:object_r:container_file_t:s0"'
    name = folder.strip("/").replace("-", "\\x2d").replace("/", "-") + ".mount"
    text = (
        "# Written by Tenfold (role cuda_hook).\n"
        "[Unit]\nDescription=Slots of Tenfold's device plugin\nBefore=containerd.service docker.service crio.service kubelet.service\n\n"
        f"[Mount]\nWhat=tenfold\nWhere={folder}\nType=tmpfs\nOptions={options}\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
    return SYSTEMD_FOLDER / name, text


def is_mounted(folder: str) -> bool:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == folder for line in lines)


class Node:
    """What is on the node now, and what has to change. Reading is done at once, so that check mode and a run see the same."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.hook_folder = Path(module.params["root"]) / "hook"
        self.link = self.hook_folder / CURRENT
        self.run_folder = Path(module.params["run_folder"])
        self.state_folder = Path(module.params["state_folder"])
        self.current = os.readlink(str(self.link)) if self.link.is_symlink() else None
        folders = self.hook_folder.iterdir() if self.hook_folder.is_dir() else []
        self.versions = sorted(path.name for path in folders if path.is_dir() and not path.is_symlink() and path.name[0] != ".")
        self.users = users_of_versions(self.hook_folder, Path(module.params["cdi_folder"]), self.versions)
        self.unit_path, self.unit_text = mount_unit(module)
        self.is_unit_right = read(self.unit_path) == self.unit_text
        self.is_mounted = is_mounted(str(self.run_folder))

    def unused(self, version: str) -> list[str]:
        """Versions that go when ``version`` is current."""
        return [one for one in self.versions if one != version and not self.users[one]]

    def kept(self, version: str | None) -> dict[str, list[str]]:
        return {one: users[:8] for one, users in self.users.items() if one != version and users}

    def pending(self, version: str) -> list[str]:
        """What state 'current' would change."""
        changes = []
        if self.current != version:
            changes.append(f"switch {self.link} from {self.current or 'nothing'} to {version}")
        if not self.is_unit_right:
            changes.append(f"write {self.unit_path}")
        if not self.is_mounted:
            changes.append(f"mount {self.run_folder}")
        if not self.state_folder.is_dir():
            changes.append(f"make {self.state_folder}")
        return changes + [f"remove version {one}" for one in self.unused(version)]

    def switch(self, version: str) -> list[str]:
        """Carries out ``pending``; returns the versions that were removed."""
        if not (self.hook_folder / version).is_dir():
            raise HookError(f"version {version!r} is not in {str(self.hook_folder)!r}; stage it first (state: staged)")
        self._mount()
        self.state_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.current != version:
            temporary = self.hook_folder / f".{CURRENT}.new"
            if temporary.is_symlink():
                temporary.unlink()
            temporary.symlink_to(version)
            temporary.replace(self.link)
        removed = self.unused(version)
        for one in removed:
            shutil.rmtree(str(self.hook_folder / one))
        return removed

    def _mount(self) -> None:
        if not self.is_mounted and self.run_folder.is_dir() and any(self.run_folder.iterdir()):
            raise HookError(
                f"{str(self.run_folder)!r} holds files but is not a mount of its own: stop the device plugin, empty the folder, run again"
            )
        if not self.is_unit_right:
            write(self.unit_path, self.unit_text)
            # Only here, and only because a unit changed: a reload takes the cards from containers of some setups
            # (NVIDIA/nvidia-container-toolkit#48).
            commands.must(["systemctl", "daemon-reload"], HookError)
        if not self.is_mounted:
            commands.must(["systemctl", "enable", "--now", self.unit_path.name], HookError)
        elif not self.is_unit_right:
            commands.must(["systemctl", "enable", self.unit_path.name], HookError)
            size = f"size={self.module.params['run_size_mib']}m,nr_inodes={self.module.params['run_inodes']}"
            commands.must(["mount", "-o", f"remount,{size}", str(self.run_folder)], HookError)

    def is_anything_there(self) -> bool:
        return bool(self.versions or self.current or self.unit_path.exists() or self.is_mounted or self.state_folder.exists())

    def remove(self) -> None:
        """Everything that switch and stage made. Errors: HookError while a version is in use."""
        used = self.kept(None)
        if used:
            listing = "; ".join(f"{version} by {', '.join(users[:3])}" for version, users in used.items())
            raise HookError(f"the hook is in use ({listing}): remove the device plugin and drain this node first")
        if self.unit_path.exists():
            commands.must(["systemctl", "disable", "--now", self.unit_path.name], HookError)
            self.unit_path.unlink()
            commands.must(["systemctl", "daemon-reload"], HookError)
        if self.run_folder.is_dir() and not any(self.run_folder.iterdir()):
            self.run_folder.rmdir()
        shutil.rmtree(str(self.state_folder), ignore_errors=True)
        shutil.rmtree(str(self.hook_folder), ignore_errors=True)
        root = self.hook_folder.parent
        if root.is_dir() and not any(root.iterdir()):
            root.rmdir()


def act(module: AnsibleModule) -> dict[str, Any]:
    """One state; what it returns is in RETURN."""
    node, version, state = Node(module), module.params["version"], module.params["state"]
    if state == "absent":
        changed = node.is_anything_there()
        removed = list(node.versions)
        if changed and not module.check_mode:
            node.remove()
        return {"changed": changed, "removed": removed, "kept": {}}
    result: dict[str, Any] = {"folder": str(node.hook_folder / version), "removed": [], "kept": node.kept(version)}
    if state == "staged":
        files = module.params["files"] or {}
        missing = not is_complete(node.hook_folder / version, files)
        unpacks = missing and module.params["archive"] is not None and not module.check_mode
        if unpacks:
            unpack(Path(module.params["archive"]), node.hook_folder / version, files)
        return {**result, "changed": unpacks, "missing": missing and not unpacks, "pending": node.pending(version)}
    pending = node.pending(version)
    if pending and not module.check_mode:
        result["removed"] = node.switch(version)
    diff = {"before": "", "after": "".join(f"{change}\n" for change in pending)}
    return {**result, "changed": bool(pending), "pending": pending, "diff": diff}


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        supports_check_mode=True,
        required_if=[("state", "staged", ["version"]), ("state", "current", ["version"])],
    )
    try:
        result = act(module)
    except HookError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"cannot install the hook: {error.filename or error}: {error.strerror}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
