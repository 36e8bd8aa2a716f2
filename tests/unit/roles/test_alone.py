"""Each role in somebody's own playbook: one host, none of our inventories' variables, no preflight before.

What needs a card, a cluster or a compiler of its own is left to molecule: `cuda_hook` runs alone in its scenario of that name.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.unit.roles.bench import Site, changes, site, words

__all__ = ["site"]
TIERS = {"small": {"memory_mib": 8192, "reserved_cores": 10}}


def test_nvidia_runtime_looks_at_the_node_itself(site: Site) -> None:
    file = site.folder / "config.toml"
    file.write_text("version = 2\n")
    variables = {
        "nvidia_runtime_config_path": str(file),
        "nvidia_runtime_toolkit_config_path": str(site.folder / "toolkit.toml"),
        "nvidia_runtime_cdi_specification_enabled": False,
        "nvidia_runtime_restart_enabled": False,
    }
    assert changes(site.play("nvidia_runtime", "node-1", "--check", **variables)) > 0
    assert file.read_text() == "version = 2\n"
    assert changes(site.play("nvidia_runtime", "node-1", **variables)) > 0
    assert "nvidia-container-runtime" in file.read_text()
    assert changes(site.play("nvidia_runtime", "node-1", **variables)) == 0


def test_kubelet_max_pods_looks_at_the_node_itself(site: Site) -> None:
    file = site.folder / "kubelet.yaml"
    file.write_text("kind: KubeletConfiguration\n")
    variables = {
        "kubelet_max_pods_config_path": str(file),
        "kubelet_max_pods_wait_enabled": False,
        "kubelet_max_pods_restart_enabled": False,
    }
    assert changes(site.play("kubelet_max_pods", "node-1", "--check", **variables)) > 0
    assert changes(site.play("kubelet_max_pods", "node-1", **variables)) > 0
    assert yaml.safe_load(file.read_text())["maxPods"] == 250


def test_slice_tiers_says_that_it_needs_tiers(site: Site) -> None:
    assert "missing required arguments: slice_tiers" in words(site.play("slice_tiers", "localhost"))


def test_slice_tiers_says_which_kubeconfig_it_tried_and_what_to_set(site: Site) -> None:
    said = words(site.play("slice_tiers", "localhost", slice_tiers=TIERS))
    assert "kubeconfig '(default)' cannot be used" in said
    assert "set kube_control_kubeconfig to the file of a cluster administrator" in said


@pytest.mark.parametrize(("role", "variables"), [("slice_tiers", {"slice_tiers": TIERS}), ("vgpu_device_plugin", {})])
def test_roles_of_the_cluster_know_the_nodes_of_the_inventory(site: Site, role: str, variables: dict[str, Any]) -> None:
    result = site.play(role, "localhost", **variables, cluster_apply="render", cluster_render_path=str(site.folder / "out"))
    assert changes(result) > 0
    nodes = list(yaml.safe_load_all((site.folder / "out" / f"{role}_nodes.yaml").read_text()))
    assert [node["metadata"]["name"] for node in nodes] == ["node-1"]


def test_volcano_says_that_it_needs_helm(site: Site) -> None:
    result = site.play("volcano", "localhost", cluster_apply="render", volcano_helm_binary="/nowhere/helm")
    assert "helm binary '/nowhere/helm' does not exist; install helm 3.8 or newer, or set volcano_helm_binary" in words(result)


def test_a_pools_offers_reach_the_second_proof(site: Site) -> None:
    """Through Ansible's own variables, with a pool's offer as a template and the looks as a task registers them."""
    small, a800 = {"memory_mib": 8192, "reserved_cores": 20}, {"model": "a800-80gb", "name": "NVIDIA A800 80GB PCIe", "memory_mib": 81920}
    hosts = {
        "train-1": {"gpu_node_cards": [{"card": "a800-80gb", "count": 2, "offers": ["small", "huge"]}], "looked": [a800, a800]},
        "edge-1": {
            "pool_offers": ["small"],
            "gpu_node_cards": [{"card": "t4-16gb", "count": 1, "offers": "{{ pool_offers }}"}],
            "looked": [{"model": "t4-16gb", "name": "Tesla T4", "memory_mib": 15360}],
        },
    }
    site.inventory({"gpu_nodes": {"hosts": hosts}})
    tasks = [
        {"ansible.builtin.set_fact": {"gpu_node_found": {"failed": False, "gpu_node": {"cards": "{{ looked }}"}}}},
        {
            "tenfold.vgpu.slice_tiers_validate": {
                "catalogue": {
                    "tiers": {"small": small, "huge": {"memory_mib": 40960, "reserved_cores": 50}},
                    "required_mixes": [{"huge": 1, "small": 2}],
                },
                "fleet": "{{ (groups | tenfold.vgpu.gpu_fleet(hostvars)).cards }}",
            },
            "delegate_to": "localhost",
            "run_once": True,
            "register": "proved",
        },
        {"ansible.builtin.debug": {"msg": "{{ proved.summary }}"}, "run_once": True},
    ]
    result = site.run([{"hosts": "gpu_nodes", "tasks": tasks}])
    assert result.returncode == 0, result.stdout
    assert "on 3 cards of 2 nodes" in words(result)
    assert "1 huge + 2 small: proved by a800-80gb of 81920 MiB" in words(result)


def test_hosts_that_failed_or_cannot_be_reached_are_unfit(site: Site) -> None:
    """As Ansible itself registers a look that failed and one that never came about."""
    here = site.host
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    hosts = {"bad": {**here, "needs_cards": True}, "away": away, "good": {**here, "needs_cards": False}}
    site.inventory({"gpu_nodes": {"hosts": hosts}})
    look = {"tenfold.vgpu.gpu_node_facts": {"required": "{{ needs_cards }}"}, "register": "gpu_node_found"}
    fleet = "{{ groups | tenfold.vgpu.gpu_fleet(hostvars) }}"
    show = {"ansible.builtin.copy": {"content": fleet, "dest": str(site.folder / "fleet.json"), "mode": "0600"}}
    site.run([{"hosts": "gpu_nodes", "tasks": [look]}, {"hosts": "localhost", "tasks": [show]}])
    value = json.loads((site.folder / "fleet.json").read_text())
    assert value["nodes"] == ["good"]
    unfit = {host["name"]: host["unfit"] for host in value["hosts"]}
    assert "this node cannot carry slices" in unfit["bad"]
    assert unfit["away"] and not unfit["good"]
