"""How this machine runs containers: podman's settings on the test bench, and the argv of a machine's container.

Pure. Starting and stopping is ``fleet``'s task.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .layout import CGROUP_PARENT, Machine

CONTAINERS_CONF = Path(__file__).parent / "containers.conf"

# Fresh after each boot of a machine, as on a real one.
TEMPORARY_FOLDERS = {"/run": "mode=755", "/run/lock": "mode=1777", "/tmp": "mode=1777"}


def environment() -> dict[str, str]:
    """What every podman call of the test bench needs, Ansible's connection and molecule included."""
    return {"CONTAINERS_CONF": str(CONTAINERS_CONF)}


def run_argv(machine: Machine, root: Path, volumes: Sequence[tuple[Path, str]], hosts: Sequence[Machine]) -> list[str]:
    """A systemd container over the prepared ``root``, in the network namespace of its name.

    Not ``--systemd=always``: on cgroup v1 podman then binds the host's whole name=systemd tree into every node, and one node's boot
    breaks exec into its siblings. Never bind /sys/fs/cgroup: the node's systemd would remount the host's read-only.
    ``--restart=always`` makes a reboot from inside come back.
    """
    argv = ["podman", "run", "--detach", "--name", machine.name, "--hostname", machine.name, "--runtime", "runc", "--privileged"]
    argv += ["--systemd=false", "--env", "container=podman", "--stop-signal", "SIGRTMIN+3", "--stop-timeout", "10", "--cgroupns=private"]
    argv += ["--cgroup-parent", f"/{CGROUP_PARENT}", "--restart=always"]
    for folder, options in TEMPORARY_FOLDERS.items():
        argv += ["--tmpfs", f"{folder}:rw,nosuid,nodev,{options}"]
    argv += ["--network", f"ns:/run/netns/{machine.name}"]
    for host in hosts:
        argv += ["--add-host", f"{host.name}:{host.address}"]
    for source, target in volumes:
        argv += ["--volume", f"{source}:{target}"]
    return [*argv, "--rootfs", str(root), "/sbin/init"]
