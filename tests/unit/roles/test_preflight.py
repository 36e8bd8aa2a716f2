"""preflight.yml as an operator meets it: two pretended nodes on this machine, real playbook, no cluster.

A node is a Python interpreter that finds its own `nvidia-smi` and `kubelet` first; everything else is real.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

SMI = "0, GPU-{uuid}, NVIDIA A800-SXM4-80GB, 81920, {mode}, 00000000:07:00.0, {driver}, Disabled"


class Fleet:
    """A folder with an inventory; ``node`` adds a pretended GPU node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: list[str] = []

    def node(self, name: str, driver: str = "535.104.05", mode: str = "Default") -> None:
        programs = self.folder / name
        programs.mkdir()
        answers = {
            "nvidia-smi": f"echo '{SMI.format(uuid=name, mode=mode, driver=driver)}'",
            "kubelet": "echo Kubernetes v1.31.4",
            "python": f'PATH={programs}:$PATH exec {sys.executable} "$@"',
        }
        for program, script in answers.items():
            (programs / program).write_text(f"#!/bin/sh\n{script}\n")
            (programs / program).chmod(0o755)
        self.hosts.append(f"        {name}: {{ansible_python_interpreter: {programs}/python}}\n")

    def play(self, *arguments: str, changes: str = "") -> subprocess.CompletedProcess[str]:
        for file in ("main.yml", "slice_tiers.yml"):
            target = self.folder / "group_vars" / "all" / file
            target.parent.mkdir(parents=True, exist_ok=True)
            text = (ROOT / "inventories/sim/group_vars/all" / file).read_text()
            target.write_text(re.sub(r"inventory_dir ~ '[^']*'", f"'{ROOT}/versions.yml'", text))
        (self.folder / "group_vars" / "all" / "zz.yml").write_text(f"---\nkube_control_kubeconfig: {self.folder}/admin.conf\n{changes}")
        (self.folder / "admin.conf").write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: x, cluster: {server: 'https://127.0.0.1:1'}}]\n"
            "contexts: [{name: x, context: {cluster: x, user: x}}]\nusers: [{name: x, user: {token: x}}]\n"
        )
        (self.folder / "hosts.yml").write_text(
            "all:\n  vars: {ansible_connection: local, ansible_become: false}\n  children:\n    gpu_nodes:\n      hosts:\n"
            + "".join(self.hosts)
            + f"    kube_control:\n      hosts:\n        localhost: {{ansible_python_interpreter: {sys.executable}}}\n"
        )
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        return subprocess.run(
            ["ansible-playbook", "-i", str(self.folder / "hosts.yml"), str(ROOT / "playbooks/preflight.yml"), *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
            check=False,
        )


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def words(result: subprocess.CompletedProcess[str]) -> str:
    """Output with its line breaks taken out: Ansible wraps messages."""
    return " ".join((result.stdout + result.stderr).split())


def recap(result: subprocess.CompletedProcess[str], host: str) -> dict[str, int]:
    line = re.search(rf"^{host}\s+: (.*)$", result.stdout, re.MULTILINE)
    assert line is not None, result.stdout
    return {key: int(value) for key, value in (pair.split("=") for pair in line.group(1).split())}


def test_node_with_an_old_driver_fails_alone_and_api_server_down_is_said(fleet: Fleet) -> None:
    fleet.node("old", driver="418.226.00")
    fleet.node("shared", mode="Exclusive_Process")
    fleet.node("good")
    result = fleet.play()
    assert result.returncode != 0
    assert "driver is 418.226.00, expected 440 or newer; upgrade the NVIDIA driver on this node" in words(result)
    assert "compute mode 'Exclusive_Process', which admits one process and cannot be shared" in words(result)
    assert [recap(result, host)["failed"] for host in ("old", "shared", "good")] == [1, 1, 0]
    assert recap(result, "good")["ok"] == 1
    assert recap(result, "localhost")["failed"] == 1
    assert "https://127.0.0.1:1" in words(result)
    assert "Traceback" not in result.stdout


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ("slice_tiers_required_mixes: [{xlarge: 1, medium: 1}]\n", "80 + 30 = 110"),
        ("slice_tiers_card: a900-99gb\n", "a900-99gb"),
        ("slice_tiers: {small: {memory_mib: 8192, reserved_cores: 10, limit_cores: 5}}\nslice_tiers_required_mixes: []\n", "limit_cores"),
    ],
)
def test_impossible_tiers_are_refused_before_any_host_is_asked(fleet: Fleet, changes: str, cause: str) -> None:
    fleet.node("good")
    result = fleet.play(changes=changes)
    assert result.returncode != 0
    assert cause in words(result)
    assert "good" not in result.stdout.partition("PLAY RECAP")[2]


def test_tiers_of_a_fleet_are_proved_with_no_host_reachable(fleet: Fleet) -> None:
    fleet.hosts = [f"        far-{number}: {{ansible_connection: ssh, ansible_host: 192.0.2.{number}}}\n" for number in range(1, 4)]
    result = fleet.play("--tags", "tiers", changes="gpu_node_cards: [{card: a800-80gb, count: 8}]\n")
    assert result.returncode == 0, result.stdout
    assert "on 24 cards of 3 nodes" in words(result)


def test_the_articles_keys_are_mapped_and_answered_with_the_arithmetic(fleet: Fleet) -> None:
    fleet.node("gpu-a")
    result = fleet.play("--tags", "tiers", changes="slice_tiers_article: {deviceMemoryScaling: 256, gpuMemoryFactor: 10}\n")
    assert result.returncode == 0, result.stdout
    assert "deviceMemoryScaling: 256 is taken as memory_granularity_mib: 256" in words(result)
    assert "65536 entries" in words(result)
