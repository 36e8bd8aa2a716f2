"""What site.yml left on the nodes and in node status."""

from __future__ import annotations

import json

from testinfra.host import Host

from tests.demo.observe import Cluster


def test_hook_is_in_an_immutable_folder_and_current_points_at_it(node: Host) -> None:
    current = node.file("/usr/local/tenfold/hook/current")
    assert current.is_symlink
    folder = current.linked_to
    version, _, sha8 = folder.rsplit("/", 1)[-1].rpartition("-")
    assert version
    assert node.check_output(f"cd {folder} && export LC_ALL=C && sha256sum * | sha256sum").startswith(sha8)
    assert node.file(f"{folder}/libtenfold_page.so").mode == 0o755
    assert node.file(f"{folder}/ld.so.preload").content_string == "/usr/local/tenfold/libtenfold.so\n"


def test_run_folder_is_its_own_bounded_tmpfs(node: Host) -> None:
    mount = node.mount_point("/run/tenfold")
    assert mount.exists
    assert mount.filesystem == "tmpfs"
    options = " ".join(mount.options)
    assert "size=" in options
    assert "nr_inodes=" in options


def test_containerd_serves_the_nvidia_runtime_and_kept_the_users_settings(node: Host) -> None:
    dump = node.check_output("containerd config dump")
    assert "nvidia-container-runtime" in dump
    assert "#" in node.file("/etc/containerd/config.toml").content_string


def test_nodes_report_room_for_slices(cluster: Cluster) -> None:
    for item in cluster.core.list_node(label_selector="tenfold.dev/enforcement=hook").items:
        allocatable = item.status.allocatable
        assert int(allocatable["pods"]) > 110
        assert int(allocatable["volcano.sh/vgpu-number"]) >= 20
        assert int(allocatable["volcano.sh/vgpu-memory"]) >= 2 * 81920
        assert int(allocatable["volcano.sh/vgpu-cores"]) >= 200
        assert item.metadata.annotations["volcano.sh/node-vgpu-register"].count(":") == 2


def test_every_node_obeys_a_catalogue_that_exists(cluster: Cluster) -> None:
    nodes = cluster.core.list_node(label_selector="tenfold.dev/enforcement=hook").items
    assert len(nodes) == 2
    for item in nodes:
        revision = item.metadata.annotations["tenfold.dev/tiers-revision"]
        catalogue = cluster.core.read_namespaced_config_map(f"tenfold-tiers-{revision}", "tenfold-system")
        assert catalogue.immutable
        assert json.loads(catalogue.data["catalogue.json"])["tiers"]["small"]["memory_mib"] == 8192
