"""A machine's disk: where its paths lie on the host, and which mounts belong to a folder."""

from __future__ import annotations

from pathlib import Path

from tests.cluster import disk
from tests.cluster.disk import Disk
from tests.cluster.layout import GPU_NODES
from tests.cluster.machine import MachineFile

MOUNTINFO = """\
36 35 98:0 / /sim/a/root rw,noatime - overlay overlay rw
37 35 98:0 / /sim/a/root/deep\\040er rw - tmpfs tmpfs rw
38 35 98:0 / /simulator rw - ext4 /dev/sda rw
39 35 98:0 / / rw - ext4 /dev/sda rw
"""


class TestPaths:
    def test_folders_outside_the_overlay_are_found_on_the_host(self, tmp_path: Path) -> None:
        one = Disk(GPU_NODES[0], tmp_path)
        assert one.path("/var/lib/kubelet/config.yaml") == tmp_path / "var-lib-kubelet/config.yaml"
        assert one.path("/var/lib/kubelet-other") == tmp_path / "root/var/lib/kubelet-other"
        assert one.path("/etc/containerd/config.toml") == tmp_path / "root/etc/containerd/config.toml"

    def test_files_are_written_with_their_mode(self, tmp_path: Path) -> None:
        one = Disk(GPU_NODES[0], tmp_path)
        one.write([MachineFile("/etc/a/secret", "x", 0o600)])
        assert (tmp_path / "root/etc/a/secret").stat().st_mode & 0o777 == 0o600

    def test_enabled_unit_is_wanted_by_its_target(self, tmp_path: Path) -> None:
        Disk(GPU_NODES[0], tmp_path).enable({"kubelet.service": "multi-user.target"})
        link = tmp_path / "root/etc/systemd/system/multi-user.target.wants/kubelet.service"
        assert link.readlink() == Path("/etc/systemd/system/kubelet.service")


class TestMounts:
    def test_deepest_mount_comes_first_and_names_are_unescaped(self) -> None:
        assert disk.mounts_under(Path("/sim"), MOUNTINFO) == ["/sim/a/root/deep er", "/sim/a/root"]

    def test_folder_that_only_begins_alike_is_not_ours(self) -> None:
        assert disk.mounts_under(Path("/si"), MOUNTINFO) == []

    def test_removal_of_an_absent_folder_is_no_error(self, tmp_path: Path) -> None:
        disk.remove(tmp_path / "absent")
