"""What a node answers, read from texts as the real programs print them."""

from __future__ import annotations

from typing import Any, Sequence

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import node_facts
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.node_facts import Host

SMI = """\
1, GPU-bbbb, NVIDIA A800-SXM4-80GB, 81251, Default, 00000000:0B:00.0, 535.104.05, Disabled
0, GPU-aaaa, NVIDIA A800-SXM4-80GB, 81920, Exclusive_Process, 00000000:07:00.0, 535.104.05, [N/A]
"""
UNITS = """\
Id=kubelet.service
MainPID=812
ActiveState=active

Id=containerd.service
MainPID=640
ActiveState=active

Id=docker.service
MainPID=0
ActiveState=inactive
"""
COMMANDS = {
    "nvidia-smi": (0, SMI, ""),
    "systemctl": (0, UNITS, ""),
    "/opt/k8s/kubelet": (0, "Kubernetes v1.35.4\n", ""),
    "containerd": (0, "containerd github.com/containerd/containerd/v2 v2.2.1 dea7da592f5d1d2b\n", ""),
    "dockerd": (0, "Docker version 27.5.1, build 4c9b3b0\n", ""),
    "nvidia-ctk": (0, "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80a\n", ""),
}
FILES = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n",
    "/proc/812/cmdline": "/opt/k8s/kubelet\0--config=/etc/kubelet.yaml\0--node-ip\x0010.0.0.1\0",
    "/proc/640/cmdline": "/usr/bin/containerd\0-c\0/etc/c.toml\0",
    "/etc/kubelet.yaml": "kind: KubeletConfiguration\nmaxPods: 250\n",
    "/etc/c.toml": "# ours\nversion = 3\nroot = '/var/lib/containerd'\n",
    "/etc/machine-id": "3d1219c7c4c5404aaa1f6d2a48adfda4\n",
    "/sys/class/dmi/id/product_uuid": "4C4C4544-0036\n",
    "/sys/fs/cgroup/unified/cgroup.controllers": "",
}


def host(
    commands: dict[str, tuple[int, str, str]] | None = None, files: dict[str, str] | None = None, names: dict[str, list[str]] | None = None
) -> Host:
    answers = {**COMMANDS, "/usr/bin/containerd": COMMANDS["containerd"]} if commands is None else commands
    texts = FILES if files is None else files

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        return answers.get(argv[0], (127, "", f"{argv[0]} not found"))

    return Host(run=run, read=texts.get, names=lambda path: (names or {}).get(path, []), glibc="glibc 2.36")


def facts(**changes: Any) -> dict[str, Any]:
    return node_facts.collect(host(**changes))


class TestCards:
    def test_cards_come_in_the_order_of_their_index_with_model_and_real_memory(self) -> None:
        found = facts()["cards"]
        assert [(card["index"], card["uuid"], card["memory_mib"], card["model"]) for card in found] == [
            (0, "GPU-aaaa", 81920, "a800-80gb"),
            (1, "GPU-bbbb", 81251, "a800-80gb"),
        ]

    def test_what_the_driver_does_not_know_is_null(self) -> None:
        assert [card["mig_mode"] for card in facts()["cards"]] == [None, "Disabled"]

    def test_a_cards_capabilities_follow_the_driver(self) -> None:
        assert facts()["cards"][0]["capabilities"]["get_proc_address"] is True

    def test_an_old_nvidia_smi_without_mig_is_asked_again_without_it(self) -> None:
        asked = []

        def run(argv: Sequence[str]) -> tuple[int, str, str]:
            if argv[0] != "nvidia-smi":
                return 127, "", ""
            asked.append(argv[1])
            if "mig.mode" in argv[1]:
                return 2, 'Field "mig.mode.current" is not a valid field to query.\n', ""
            return 0, "0, GPU-aaaa, Tesla V100-SXM2-32GB, 32510, Default, 00000000:07:00.0, 440.33.01\n", ""

        found = node_facts.collect(Host(run=run, read=lambda _path: None, names=lambda _path: []))
        assert len(asked) == 2
        assert (found["driver"], found["cards"][0]["model"], found["cards"][0]["mig_mode"]) == ("440.33.01", "v100-32gb", None)

    def test_a_broken_driver_gives_its_own_words_and_the_kernel_modules_version(self) -> None:
        broken = facts(commands={"nvidia-smi": (18, "Failed to initialize NVML: Driver/library version mismatch\n", "")})
        assert broken["nvidia_smi_error"] == "Failed to initialize NVML: Driver/library version mismatch"
        assert (broken["driver"], broken["cards"]) == ("535.104.05", [])

    def test_a_driver_without_cards_says_so(self) -> None:
        assert facts(commands={"nvidia-smi": (0, "No devices were found\n", "")})["nvidia_smi_error"] == "No devices were found"

    @pytest.mark.parametrize(
        ("text", "version"),
        [
            ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build\n", "575.57.08"),
            ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  418.226.00  Wed\n", "418.226.00"),
            ("something else", None),
            ("", None),
        ],
    )
    def test_the_kernel_modules_version_is_read_from_either_flavour(self, text: str, version: str | None) -> None:
        assert facts(files={"/proc/driver/nvidia/version": text})["driver_kernel_module"] == version


class TestTheRest:
    def test_an_empty_machine_is_all_nulls_and_no_error(self) -> None:
        found = facts(commands={}, files={})
        assert (found["driver"], found["cards"], found["engines"], found["kubelet"]) == (None, [], {}, None)
        assert found["nvidia_smi_error"] == "nvidia-smi is not installed"
        assert (found["selinux"], found["cgroup"], found["machine_id"], found["system_uuid"]) == ("disabled", "v1", None, None)

    def test_engines_are_found_with_the_configuration_that_they_run_with(self) -> None:
        assert facts()["engines"] == {
            "containerd": {"version": "2.2.1", "active": True, "config_path": "/etc/c.toml", "config_present": True, "config_version": 3},
            "docker": {
                "version": "27.5.1",
                "active": False,
                "config_path": "/etc/docker/daemon.json",
                "config_present": False,
                "config_version": None,
            },
        }

    def test_the_kubelet_is_asked_by_the_path_that_it_runs_from(self) -> None:
        kubelet = facts()["kubelet"]
        assert (kubelet["version"], kubelet["active"], kubelet["config_path"]) == ("1.35.4", True, "/etc/kubelet.yaml")
        assert (kubelet["max_pods"], kubelet["max_pods_source"]) == (250, "/etc/kubelet.yaml")

    @pytest.mark.parametrize(
        ("arguments", "files", "names", "expected"),
        [
            ("--max-pods=300\0--config\0/k.yaml", {"/k.yaml": "maxPods: 1\n"}, {}, (300, "flag --max-pods")),
            ("--config\0/k.yaml", {"/k.yaml": '{"maxPods": 120}'}, {}, (120, "/k.yaml")),
            ("--max-pods=50\0--max-pods\x00300", {}, {}, (300, "flag --max-pods")),
            ("--config=/k.yaml\0--config=/l.yaml", {"/k.yaml": "maxPods: 1\n", "/l.yaml": "maxPods: 2\n"}, {}, (2, "/l.yaml")),
            ("--config=/k.yaml", {"/k.yaml": "maxPods: 0\n"}, {}, (110, "default")),
            (
                "--config=/k.yaml\0--config-dir=/d",
                {"/k.yaml": "maxPods: 1\n", "/d/10/a.conf": "maxPods: 2\n", "/d/10-x.conf": "maxPods: 3\n", "/d/10/b.yaml": "maxPods: 4\n"},
                {"/d": ["10-x.conf", "10"], "/d/10": ["a.conf", "b.yaml"]},
                (3, "/d/10-x.conf"),
            ),
            (
                "--config=/k.yaml\0--config-dir=/d",
                {"/k.yaml": "maxPods: 1\n", "/d/20/z/a.conf": "maxPods: 2\n", "/d/10.conf": "maxPods: 3\n"},
                {"/d": ["20", "10.conf"], "/d/20": ["z"], "/d/20/z": ["a.conf"]},
                (2, "/d/20/z/a.conf"),
            ),
            (
                "--config=/k.yaml\0--config-dir=/d",
                {"/k.yaml": "maxPods: 120\n", "/d/10.conf": "maxPods: null\n"},
                {"/d": ["10.conf"]},
                (110, "default"),
            ),
            ("--config\0/k.yaml", {"/k.yaml": '{\n  "maxPods": 120\n}'}, {}, (120, "/k.yaml")),
            (
                "--config\0/k.yaml\0--config-dir=/d",
                {"/k.yaml": "maxPods: 1\n", "/d/10.conf": "maxPods: 2\n", "/d/20.conf": "maxPods: 3\n", "/d/30.txt": "maxPods: 4\n"},
                {"/d": ["20.conf", "10.conf", "30.txt"]},
                (3, "/d/20.conf"),
            ),
            ("--v=2", {}, {}, (110, "default")),
        ],
    )
    def test_max_pods_follow_the_kubelets_own_precedence(
        self, arguments: str, files: dict[str, str], names: dict[str, list[str]], expected: tuple[int, str]
    ) -> None:
        cmdline = {"/proc/812/cmdline": f"/opt/k8s/kubelet\0{arguments}\0"}
        kubelet = facts(files={**cmdline, **files}, names=names)["kubelet"]
        assert (kubelet["max_pods"], kubelet["max_pods_source"]) == expected

    @pytest.mark.parametrize(
        ("text", "arguments", "expected"),
        [
            ("podsPerCore: 10\nmaxPods: 250\n", "", (40, 40)),
            ("podsPerCore: 100\nmaxPods: 250\n", "", (250, 400)),
            ("podsPerCore: 100\nmaxPods: 250\n", "\0--pods-per-core=0", (250, None)),
            ("podsPerCore: 10\n", "", (40, 40)),
        ],
    )
    def test_pods_per_core_caps_them(self, text: str, arguments: str, expected: tuple[int, int | None]) -> None:
        files = {"/proc/812/cmdline": f"/opt/k8s/kubelet\0--config=/k{arguments}\0", "/k": text, "/proc/cpuinfo": "processor\t: 0\nx\n" * 4}
        kubelet = facts(files=files)["kubelet"]
        assert (kubelet["max_pods"], kubelet["max_pods_ceiling"]) == expected

    @pytest.mark.parametrize(
        ("arguments", "text", "engine"),
        [
            ("--container-runtime-endpoint=unix:///run/cri-dockerd.sock", "", "docker"),
            ("--container-runtime-endpoint=unix:///run/crio/crio.sock", "", "crio"),
            ("--container-runtime-endpoint=/run/containerd/containerd.sock", "", "containerd"),
            ("--config=/k", "containerRuntimeEndpoint: unix:///var/run/crio/crio.sock # ours\n", "crio"),
            ("--config=/k", '{"containerRuntimeEndpoint":"unix:///var/run/cri-dockerd.sock"}', "docker"),
            (
                "--config=/k\0--container-runtime-endpoint=unix:///run/crio/crio.sock",
                "containerRuntimeEndpoint: containerd.sock",
                "crio",
            ),
            ("--v=2", "", "containerd"),
            ("--container-runtime-endpoint=unix:///run/frakti.sock", "", None),
        ],
    )
    def test_the_kubelets_own_endpoint_decides_the_engine(self, arguments: str, text: str, engine: str | None) -> None:
        """Whatever runs beside it: here containerd and docker both do."""
        units = UNITS.replace("MainPID=0\nActiveState=inactive", "MainPID=9\nActiveState=active")
        files = {"/proc/812/cmdline": f"/opt/k8s/kubelet\0{arguments}\0", "/k": text}
        assert facts(commands={**COMMANDS, "systemctl": (0, units, "")}, files=files)["engine"] == engine

    def test_a_kubelet_from_before_1_24_uses_docker_unless_told(self) -> None:
        files = {"/proc/812/cmdline": "/opt/k8s/kubelet\0--v=2\0"}
        old = {**COMMANDS, "/opt/k8s/kubelet": (0, "Kubernetes v1.23.17\n", "")}
        assert facts(commands=old, files=files)["engine"] == "docker"

    def test_without_a_kubelet_the_engine_that_runs_is_taken(self) -> None:
        units = UNITS.replace("kubelet", "other").replace("MainPID=0\nActiveState=inactive", "MainPID=9\nActiveState=active")
        answers = {name: answer for name, answer in COMMANDS.items() if name not in ("/opt/k8s/kubelet", "containerd")}
        assert facts(commands={**answers, "systemctl": (0, units, "")}, files={})["engine"] == "docker"
        assert facts(commands={"containerd": COMMANDS["containerd"], "dockerd": COMMANDS["dockerd"]}, files={})["engine"] == "containerd"
        assert facts(commands={}, files={})["engine"] is None

    def test_toolkit_glibc_and_machine_are_read(self) -> None:
        found = facts()
        assert (found["toolkit_version"], found["glibc_version"], found["cgroup"]) == ("1.17.8", "2.36", "hybrid")
        assert (found["machine_id"], found["system_uuid"]) == ("3d1219c7c4c5404aaa1f6d2a48adfda4", "4c4c4544-0036")

    @pytest.mark.parametrize(("text", "mode"), [("1", "enforcing"), ("0\n", "permissive"), (None, "disabled")])
    def test_selinux_mode(self, text: str | None, mode: str) -> None:
        assert facts(files={} if text is None else {"/sys/fs/selinux/enforce": text})["selinux"] == mode

    def test_other_plugins_that_serve_nvidia_cards_are_rivals_and_ours_is_not(self) -> None:
        sockets = ["kubelet.sock", "kubelet_internal_checkpoint", "nvidia-gpu.sock", "tenfold-vgpu.sock", "rdma.sock"]
        found = facts(names={"/var/lib/kubelet/device-plugins": sockets})
        assert found["device_plugin_sockets"] == ["nvidia-gpu.sock", "rdma.sock", "tenfold-vgpu.sock"]
        assert found["rival_device_plugins"] == ["nvidia-gpu.sock"]
