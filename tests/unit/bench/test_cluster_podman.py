"""How a machine's container is started: the traps of cgroup v1 are avoided by what the command line does not say."""

from __future__ import annotations

from pathlib import Path

from tests.cluster import layout, podman
from tests.cluster.layout import GPU_NODES, MACHINES

ARGV = podman.run_argv(GPU_NODES[0], Path("/root-of-node"), [(Path("/host/kubelet"), "/var/lib/kubelet")], MACHINES)


def test_podman_does_not_set_up_systemd_itself() -> None:
    assert "--systemd=false" in ARGV
    assert "--systemd=always" not in ARGV


def test_cgroup_file_system_of_the_host_is_not_bound() -> None:
    assert not [word for word in ARGV if "/sys/fs/cgroup" in word]


def test_container_joins_the_namespace_of_its_name() -> None:
    assert ARGV[ARGV.index("--network") + 1] == "ns:/run/netns/tenfold-gpu-1"


def test_machines_know_each_other_by_name_without_dns() -> None:
    hosts = [ARGV[i + 1] for i, word in enumerate(ARGV) if word == "--add-host"]
    assert hosts == [f"{one.name}:{one.address}" for one in MACHINES]


def test_cgroups_lie_under_one_name_that_down_can_remove() -> None:
    assert ARGV[ARGV.index("--cgroup-parent") + 1] == f"/{layout.CGROUP_PARENT}"


def test_settings_file_is_there() -> None:
    assert Path(podman.environment()["CONTAINERS_CONF"]).is_file()
