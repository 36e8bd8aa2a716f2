"""One host in somebody's own playbook, on which the programs are ours: real Ansible, a real local connection, real files, no machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest

from tests import ROOT

CONTAINERD = """case "$*" in
*dump) cat "$2" ;;
*--version) echo "containerd github.com/containerd/containerd v1.7.24 abc" ;;
*) sleep 600 ;;
esac"""
KUBELET = """case "$*" in
*--version) echo Kubernetes v1.31.4 ;;
*) sleep 600 ;;
esac"""


class Site:
    """A folder with an inventory of one host, on whose PATH are a containerd and a kubelet of ours, and a systemctl that knows no unit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.units = folder / "units"
        self.units.mkdir()
        self.program("containerd", CONTAINERD)
        self.program("kubelet", KUBELET)
        self.program("systemctl", f'TENFOLD_TEST_UNITS={self.units} exec {sys.executable} {Path(__file__).with_name("systemctl.py")} "$@"')
        self.program("python", f'PATH={folder}:$PATH exec {sys.executable} "$@"')
        self.host = {"ansible_connection": "local", "ansible_python_interpreter": str(folder / "python")}
        self.inventory({"gpu_nodes": {"hosts": {"node-1": self.host}}})

    def inventory(self, groups: dict[str, Any]) -> None:
        (self.folder / "hosts.yml").write_text(json.dumps({"all": {"children": groups}}))

    def program(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    def unit(self, name: str, **changes: Any) -> None:
        """Writes or changes a unit; tests/unit/roles/systemctl.py says what it is made of."""
        path = self.units / f"{name}.json"
        path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changes}))

    def systemctl(self, *arguments: str) -> str:
        return subprocess.run([str(self.folder / "systemctl"), *arguments], capture_output=True, text=True, check=True).stdout

    def asked(self) -> list[str]:
        """What systemd was told to do since this was asked last."""
        log = self.units / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.write_text("")
        return lines

    def running(self, name: str) -> list[str]:
        """The command line of the process that runs now."""
        pid = json.loads((self.units / f"{name}.running").read_text())["pid"]
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]

    def stop(self) -> None:
        for path in self.units.glob("*.running"):
            pid = json.loads(path.read_text()).get("pid")
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def play(self, role: str, hosts: str, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        return self.run([{"hosts": hosts, "vars": variables, "roles": [f"tenfold.vgpu.{role}"]}], *arguments)

    def run(self, plays: list[dict[str, Any]], *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs them, pipelined as our ansible.cfg says; TENFOLD_TEST_ANSIBLE_PLAYBOOK takes that of another ansible-core."""
        playbook = self.folder / "playbook.yml"
        playbook.write_text(json.dumps([{"gather_facts": False, **play} for play in plays]))
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "KUBECONFIG"))}
        environment = {**clean, "HOME": str(self.folder), "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_NOCOLOR": "1"}
        environment["ANSIBLE_PIPELINING"] = "1"
        program = os.environ.get("TENFOLD_TEST_ANSIBLE_PLAYBOOK", str(Path(sys.executable).with_name("ansible-playbook")))
        return subprocess.run(
            [program, "-i", str(self.folder / "hosts.yml"), str(playbook), *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    here = Site(tmp_path)
    yield here
    here.stop()


def words(result: subprocess.CompletedProcess[str]) -> str:
    return " ".join((result.stdout + result.stderr).split())


def changes(result: subprocess.CompletedProcess[str]) -> int:
    """How many tasks changed something in a run that must succeed."""
    assert result.returncode == 0, result.stdout + result.stderr
    return sum(int(count) for count in re.findall(r"changed=(\d+)", result.stdout))
