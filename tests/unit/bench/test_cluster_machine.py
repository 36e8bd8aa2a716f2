"""What a node has before Tenfold: a plain engine, a plain kubelet, a hardened and unconfigured toolkit, a taint."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import tomllib
import yaml

from tests.cluster import layout, machine
from tests.cluster.components import containerd, kubelet
from tests.cluster.identities import Identities
from tests.cluster.layout import CONTROL, GPU_NODES, MACHINES, Machine
from tests.cluster.machine import MachineFile


def files(one: Machine) -> dict[str, MachineFile]:
    return {file.path: file for file in machine.files(one, Identities.blank())}


def kubelet_config(one: Machine) -> Any:
    return yaml.safe_load(files(one)[kubelet.CONFIG_FILE].text)


class TestGpuNode:
    @pytest.fixture()
    def node(self) -> Machine:
        return GPU_NODES[0]

    def test_containerd_knows_nothing_of_nvidia_or_cdi(self, node: Machine) -> None:
        text = files(node)[containerd.CONFIG_FILE].text
        tomllib.loads(text)
        assert not re.search(r"nvidia|cdi", text, re.IGNORECASE)

    def test_containerd_file_carries_what_a_merge_must_keep(self, node: Machine) -> None:
        text = files(node)[containerd.CONFIG_FILE].text
        assert text.count("#") >= 3
        assert tomllib.loads(text)["timeouts"] == {"io.containerd.timeout.shim.cleanup": "8s"}

    def test_kubelet_is_tainted_and_at_kubernetes_own_limit_of_pods(self, node: Machine) -> None:
        assert kubelet_config(node)["registerWithTaints"] == [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
        assert kubelet_config(node)["maxPods"] == 110
        assert "#" in files(node)[kubelet.CONFIG_FILE].text

    def test_toolkit_is_installed_hardened_and_not_configured(self, node: Machine) -> None:
        assert ("nvidia-container-toolkit", "nvidia-container-runtime") in machine.programs(node)
        settings = tomllib.loads(files(node)["/etc/nvidia-container-runtime/config.toml"].text)
        assert settings["accept-nvidia-visible-devices-envvar-when-unprivileged"] is False
        assert settings["accept-nvidia-visible-devices-as-volume-mounts"] is False

    def test_node_runs_no_part_of_the_control_plane(self, node: Machine) -> None:
        assert not {unit.name for unit in machine.units(node)} & {"etcd.service", "kube-apiserver.service", "kube-scheduler.service"}
        assert not [path for path in files(node) if "sa.key" in path or "admin" in path]


class TestControlPlane:
    def test_it_takes_pods_that_tolerate_nothing(self) -> None:
        assert "registerWithTaints" not in kubelet_config(CONTROL)

    def test_api_server_authorizes_as_production_does(self) -> None:
        start = files(CONTROL)["/etc/systemd/system/kube-apiserver.service"].text
        assert "--authorization-mode=Node,RBAC" in start
        assert "NodeRestriction" in start
        assert "MutatingAdmissionPolicy=true" in start

    def test_it_has_no_gpu_software(self) -> None:
        assert not [program for _, program in machine.programs(CONTROL) if "nvidia" in program]


class TestEveryMachine:
    @pytest.mark.parametrize("one", MACHINES, ids=lambda one: one.name)
    def test_private_files_are_closed_to_others(self, one: Machine) -> None:
        for path, file in files(one).items():
            if path.endswith((".key", ".conf")) and path.startswith(("/etc/kubernetes", "/var/lib/kubelet")):
                assert file.mode == 0o600, path

    @pytest.mark.parametrize("one", MACHINES, ids=lambda one: one.name)
    def test_every_program_that_a_unit_starts_is_installed(self, one: Machine) -> None:
        installed = {program for _, program in machine.programs(one)} | {"mount"}
        assert {unit.start[0].rpartition("/")[2] for unit in machine.units(one)} <= installed

    @pytest.mark.parametrize("one", MACHINES, ids=lambda one: one.name)
    def test_pod_network_is_its_own(self, one: Machine) -> None:
        plugins = json.loads(files(one)["/etc/cni/net.d/10-fleet.conflist"].text)["plugins"]
        assert plugins[0]["ipam"]["ranges"] == [[{"subnet": one.pod_range}]]

    def test_machine_ids_differ_and_stay(self) -> None:
        ids = [machine.machine_id(one) for one in MACHINES]
        assert len(set(ids)) == len(MACHINES)
        assert ids == [machine.machine_id(one) for one in MACHINES]
        assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)

    def test_kubeconfigs_are_complete_without_other_files(self) -> None:
        identities = Identities.issue()
        for file in machine.files(CONTROL, identities):
            if file.path == "/etc/kubernetes/admin.conf":
                document = json.loads(file.text)
                assert document["clusters"][0]["cluster"]["server"] == layout.API_URL
                assert "certificate-authority-data" in document["clusters"][0]["cluster"]
