"""Removes everything of a fleet, whole or half made, by its exact names: containers, cgroups, mounts, namespaces, links, folders.

Owns the order: processes first, what they hold afterwards. Each step copes with the thing being absent, stale (a host that rebooted
lost /run) or half made; nothing with another name is touched.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from . import command, disk, layout, podman, wait
from .errors import FleetError

CGROUPS = Path("/sys/fs/cgroup")
NAMESPACES = Path("/run/netns")
REMOVE_DEADLINE_SECONDS = 60
DEATH_DEADLINE_SECONDS = 20


def remove(sim: Path) -> None:
    """Leave nothing of the fleet whose folder is ``sim``."""
    _remove_containers()
    _remove_cgroups()
    disk.remove(sim)
    for machine in layout.MACHINES:
        _remove_namespace(machine.name)
        _remove_link(machine.veth)
    _remove_link(layout.BRIDGE)


def _remove_containers() -> None:
    names = [machine.name for machine in layout.MACHINES]
    # no time to stop in order: nothing of them will be read again
    argv = ["podman", "rm", "--force", "--ignore", "--time", "0", "--volumes", *names]
    done = command.run(argv, env=podman.environment(), deadline_seconds=REMOVE_DEADLINE_SECONDS, allowed=(0, 1, 2, 125, 126, 127))
    for name in names:
        if _container_exists(name):
            raise FleetError(f"cannot remove the container {name!r}:\n{command.last_lines(done.stderr)}")


def _container_exists(name: str) -> bool:
    return command.run(["podman", "container", "exists", name], env=podman.environment(), allowed=(0, 1)).returncode == 0


def _fleet_cgroups() -> list[Path]:
    """The fleet's cgroup in every hierarchy (one on cgroup v2, one a controller on v1); a controller may be a link to another."""
    parents = [CGROUPS, *(path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink())] if CGROUPS.is_dir() else []
    return [parent / layout.CGROUP_PARENT for parent in parents if (parent / layout.CGROUP_PARENT).is_dir()]


def _folders_below(cgroup: Path) -> list[Path]:
    """``cgroup`` and all below, leaves first."""
    return [Path(folder) for folder, _, _ in os.walk(cgroup, topdown=False)]


def _processes(cgroup: Path) -> set[int]:
    found: set[int] = set()
    for folder in _folders_below(cgroup):
        try:
            found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
        except OSError:
            continue  # the folder went away while we looked
    return found


def _remove_cgroups() -> None:
    """End what outlived its container (a killed podman leaves that), then remove the empty groups."""

    def missing() -> str | None:
        alive: set[int] = set()
        for cgroup in _fleet_cgroups():
            alive |= _processes(cgroup)
        for process in alive:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if alive:
            return f"processes {sorted(alive)[:5]} are still alive"
        for cgroup in _fleet_cgroups():
            for folder in _folders_below(cgroup):
                try:
                    folder.rmdir()
                except OSError as error:
                    return f"{str(folder)!r} cannot be removed: {error.strerror}"
        return None

    wait.until(f"the cgroup {layout.CGROUP_PARENT!r} to go", missing, deadline_seconds=DEATH_DEADLINE_SECONDS)


def _remove_namespace(name: str) -> None:
    path = NAMESPACES / name
    if not path.exists():
        return
    command.run(["ip", "netns", "delete", name], allowed=(0, 1))
    # the file of a namespace whose mount is gone: "ip netns delete" refuses it
    path.unlink(missing_ok=True)


def _remove_link(name: str) -> None:
    if (Path("/sys/class/net") / name).exists():
        # 1: it went away together with its namespace just now
        command.run(["ip", "link", "delete", name], allowed=(0, 1))


def found(sim: Path) -> list[str]:
    """Names of everything of a fleet on this machine; empty when there is nothing to remove."""
    names = []
    for machine in layout.MACHINES:
        if _container_exists(machine.name):
            names.append(f"container {machine.name}")
        if (NAMESPACES / machine.name).exists():
            names.append(f"network namespace {machine.name}")
        if (Path("/sys/class/net") / machine.veth).exists():
            names.append(f"link {machine.veth}")
    if (Path("/sys/class/net") / layout.BRIDGE).exists():
        names.append(f"bridge {layout.BRIDGE}")
    names += [f"cgroup {path}" for path in _fleet_cgroups()]
    if sim.exists():
        names.append(f"folder {sim}")
    return names
