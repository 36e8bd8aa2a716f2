"""How this machine runs containers: the containers.conf of the test bench, and the argv of a node's container.

Pure but for ``write_containers_conf``. Starting and stopping is ``fleet``'s task.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path

from .layout import CGROUP_PARENT, Machine

# podman's own default for open files; a machine without CAP_SYS_RESOURCE cannot raise a limit, and podman fails when asked to
OPEN_FILES_WISH = 1048576

# Fresh after each boot of a machine, as on a real one.
TEMPORARY_FOLDERS = {"/run": "mode=755", "/run/lock": "mode=1777", "/tmp": "mode=1777"}


def containers_conf(open_files_limit: int, processes_limit: int) -> str:
    """Text of containers.conf(5): runc (crun has no cgroup v1 systemd containers), cgroupfs, limits that this machine can give."""
    files = min(OPEN_FILES_WISH, open_files_limit)
    return "\n".join(
        (
            "# Written by tests/cluster; used through the environment variable CONTAINERS_CONF.",
            "[containers]",
            f'default_ulimits = ["nofile={files}:{files}", "nproc={processes_limit}:{processes_limit}"]',
            'apparmor_profile = ""',
            "[engine]",
            'cgroup_manager = "cgroupfs"',
            'events_logger = "file"',
            'runtime = "runc"',
            "",
        )
    )


def write_containers_conf(path: Path) -> None:
    def limit(kind: int) -> int:
        hard = resource.getrlimit(kind)[1]
        return OPEN_FILES_WISH if hard == resource.RLIM_INFINITY else hard

    # podman lowers its own limit of processes to this (seen with 4.3.1), and a container cannot have more than podman has
    most_processes = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))
    text = containers_conf(limit(resource.RLIMIT_NOFILE), min(limit(resource.RLIMIT_NPROC), most_processes))
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


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
