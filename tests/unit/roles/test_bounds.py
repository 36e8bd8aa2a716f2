"""A run does what was asked for, on the hosts that were asked for, or says that it does not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.unit.roles.bench import Site, site, words

__all__ = ["site"]
DEEPOPS = """\
[all]
mgmt01 ansible_host=192.0.2.1
gpu01 ansible_host=192.0.2.11
[kube-master]
mgmt01
[kube-node]
gpu01
[k8s-cluster:children]
kube-master
kube-node
"""
FLEET = """\
[gpu_nodes]
n1 ansible_host=192.0.2.11
n2 ansible_host=192.0.2.12
[kube_control]
cp1 ansible_host=192.0.2.1
"""


def play(folder: Path, inventory: str, playbook: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One of our playbooks, with an inventory whose hosts nothing reaches."""
    (folder / "hosts.ini").write_text(inventory)
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(folder / "hosts.ini"), str(ROOT / "playbooks" / playbook)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    return subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, timeout=60, check=False)


@pytest.mark.parametrize("playbook", ["site", "preflight", "nodes", "cluster", "verify"])
def test_an_inventory_of_another_tool_is_refused_by_every_playbook(tmp_path: Path, playbook: str) -> None:
    result = play(tmp_path, DEEPOPS, f"{playbook}.yml")
    assert result.returncode != 0
    assert "the inventory has no host in gpu_nodes (the hosts with cards)" in words(result)
    assert ("and kube_control (" in words(result)) == (playbook != "nodes")
    assert "its groups are k8s-cluster, kube-master, kube-node" in words(result)


def test_so_is_an_empty_one(tmp_path: Path) -> None:
    assert "its groups are none" in words(play(tmp_path, "", "site.yml"))


def test_a_quota_needs_somebody_who_asks_for_it(tmp_path: Path) -> None:
    result = play(tmp_path, DEEPOPS, "quota.yml", "-e", "pod=default/one", "-e", "tier=medium")
    assert result.returncode != 0
    assert "no host in kube_control (" in words(result)


@pytest.mark.parametrize(("limit", "said"), [("n1", "kube_control (cp1)"), ("cp1", "gpu_nodes (n1)"), ("!cp1", "kube_control (cp1)")])
def test_a_limit_that_would_skip_a_part_silently_is_refused(tmp_path: Path, limit: str, said: str) -> None:
    result = play(tmp_path, FLEET, "site.yml", "--limit", limit)
    assert result.returncode != 0
    assert f"--limit leaves out {said}" in words(result)


def test_the_nodes_half_needs_no_cluster_within_the_limit(tmp_path: Path) -> None:
    """It goes on to the node, which nothing reaches here."""
    result = play(tmp_path, FLEET, "site.yml", "--limit", "n1", "--tags", "nodes", "--timeout", "1")
    assert "--limit leaves out" not in words(result)
    assert "unreachable=1" in result.stdout


@pytest.mark.parametrize("tag", ["slice_tiers", "verify"])
def test_a_tag_of_the_cluster_touches_no_node(tmp_path: Path, tag: str) -> None:
    """What Ansible adds to each role, the validation of its arguments, asks no host."""
    listed = play(tmp_path, FLEET, "site.yml", "--tags", tag, "--list-tasks").stdout
    plays = re.split(r"play #\d+ ", listed)
    tasks = [line.strip() for each in plays if each.startswith("(gpu_nodes)") for line in each.splitlines()[2:] if line.strip()]
    assert [task for task in tasks if "Validating arguments" not in task] == []
    assert tag in listed


@pytest.mark.parametrize(
    ("limit", "nodes"),
    [
        ("", ["n1", "n2", "n3"]),
        ("n1,localhost", ["n1"]),
        ("pool_a:localhost", ["n1", "n2"]),
        ("all:!n2", ["n1", "n3"]),
        ("@retry", ["n3"]),
    ],
)
def test_the_fleet_of_a_run_ends_where_its_limit_does(site: Site, limit: str, nodes: list[str]) -> None:
    (site.folder / "retry").write_text("n3\nlocalhost\n")
    groups: dict[str, Any] = {
        "gpu_nodes": {"children": {"pool_a": {"hosts": {"n1": {}, "n2": {}}}, "pool_b": {"hosts": {"n3": {}}}}},
        "kube_control": {"hosts": {"localhost": site.host}},
    }
    site.inventory(groups)
    show = {"content": "{{ groups | tenfold.vgpu.gpu_fleet(hostvars) }}", "dest": str(site.folder / "fleet.json"), "mode": "0600"}
    result = site.run([{"hosts": "localhost", "tasks": [{"ansible.builtin.copy": show}]}], *(["--limit", limit] if limit else []))
    assert result.returncode == 0, result.stdout
    assert json.loads((site.folder / "fleet.json").read_text())["nodes"] == nodes
