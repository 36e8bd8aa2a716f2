"""Versions of the hook side by side: complete or not at all, switched by rename, removed only when nothing uses them."""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path
from typing import Any, Callable

import pytest
from ansible_collections.tenfold.vgpu.plugins.action import cuda_hook_install as action
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import commands
from ansible_collections.tenfold.vgpu.plugins.modules import cuda_hook_install as subject

Run = Callable[..., "dict[str, Any]"]

OLD, NEW = "0.1.0-aaaaaaaa", "0.1.0-bbbbbbbb"


class Node:
    """A folder that stands for a node; systemctl and mount are recorded and not run."""

    def __init__(self, folder: Path, run_module: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.run_module = run_module
        self.hook = folder / "root" / "hook"
        self.cdi = folder / "cdi"
        self.units = folder / "systemd"
        self.commands: list[str] = []
        self.is_mounted = False
        for one in (self.cdi, self.units):
            one.mkdir()
        monkeypatch.setattr(subject, "SYSTEMD_FOLDER", self.units)
        monkeypatch.setattr(subject, "is_mounted", lambda _: self.is_mounted)
        monkeypatch.setattr(commands, "must", self._command)

    def _command(self, argv: list[str], _error: type[Exception]) -> None:
        self.commands.append(" ".join(argv[:3]))
        if argv[:2] == ["systemctl", "enable"]:
            self.is_mounted = True
            (self.folder / "run").mkdir(exist_ok=True)
        if argv[:2] == ["systemctl", "disable"]:
            self.is_mounted = False

    def __call__(self, check: bool = False, **options: Any) -> dict[str, Any]:
        folders = {
            "root": str(self.folder / "root"),
            "run_folder": str(self.folder / "run"),
            "state_folder": str(self.folder / "state"),
            "cdi_folder": str(self.cdi),
        }
        return self.run_module(subject.main, _ansible_check_mode=check, **folders, **options)

    def stage(self, version: str, check: bool = False) -> dict[str, Any]:
        source = self.folder / f"built-{version}"
        source.mkdir(exist_ok=True)
        for name in action.NEEDED:
            (source / name).write_text(f"{name} of {version}\n")
        archive, files = action.archive_of(source)
        (self.folder / "hook.tar").write_bytes(archive)
        return self(check=check, state="staged", version=version, files=files, archive=str(self.folder / "hook.tar"))

    def install(self, version: str) -> dict[str, Any]:
        self.stage(version)
        return self(state="current", version=version)

    def versions(self) -> list[str]:
        return sorted(one.name for one in self.hook.iterdir() if not one.is_symlink())


@pytest.fixture
def node(tmp_path: Path, run_module: Run, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, run_module, monkeypatch)


class TestStaging:
    def test_version_appears_complete_with_its_modes(self, node: Node) -> None:
        assert node.stage(NEW)["changed"] is True
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (node.hook / NEW).iterdir()}
        executables = {"libtenfold.so": "0o755", "libtenfold_page.so": "0o755", "vgpuctl": "0o755"}
        assert modes == {**executables, "ld.so.preload": "0o644"}
        assert not (node.hook / "current").exists()

    def test_staging_again_changes_nothing(self, node: Node) -> None:
        node.stage(NEW)
        again = node.stage(NEW)
        assert (again["changed"], again["missing"]) == (False, False)

    def test_check_mode_reports_the_missing_version_and_touches_nothing(self, node: Node) -> None:
        result = node.stage(NEW, check=True)
        assert result["missing"] is True
        assert f"switch {node.hook}/current from nothing to {NEW}" in result["pending"]
        assert not node.hook.exists()

    def test_version_that_somebody_changed_is_refused_and_never_overwritten(self, node: Node) -> None:
        node.stage(NEW)
        (node.hook / NEW / "libtenfold.so").write_text("other")
        result = node.stage(NEW)
        assert "(libtenfold.so differ)" in result["msg"]
        assert (node.hook / NEW / "libtenfold.so").read_text() == "other"

    def test_interrupted_unpacking_leaves_no_version(self, node: Node) -> None:
        files = {"libtenfold.so": {"sha256": "0" * 64, "mode": "0755"}}
        (node.folder / "hook.tar").write_bytes(b"")
        result = node(state="staged", version=NEW, files=files, archive=str(node.folder / "hook.tar"))
        assert result["failed"] is True
        assert node.versions() == []


class TestSwitching:
    def test_switch_is_a_link_to_the_version_and_happens_once(self, node: Node) -> None:
        assert node.install(NEW)["changed"] is True
        assert os.readlink(node.hook / "current") == NEW
        assert (node.folder / "state").stat().st_mode & 0o777 == 0o700
        again = node(state="current", version=NEW)
        assert (again["changed"], again["pending"]) == (False, [])

    def test_check_mode_predicts_the_same_changes(self, node: Node) -> None:
        node.install(OLD)
        node.stage(NEW)
        predicted = node(check=True, state="current", version=NEW)
        assert os.readlink(node.hook / "current") == OLD
        done = node(state="current", version=NEW)
        assert predicted["pending"] == done["pending"] != []

    def test_version_that_is_not_staged_is_refused(self, node: Node) -> None:
        assert "stage it first" in node(state="current", version=NEW)["msg"]

    def test_old_version_goes_when_nothing_uses_it(self, node: Node) -> None:
        node.install(OLD)
        assert node.install(NEW)["removed"] == [OLD]
        assert node.versions() == [NEW]

    def test_old_version_stays_while_a_process_maps_it(self, node: Node) -> None:
        """Mapped under another path, as in a container: told by device and inode."""
        node.install(OLD)
        os.link(node.hook / OLD / "libtenfold.so", node.folder / "elsewhere.so")
        with (node.folder / "elsewhere.so").open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ):
            result = node.install(NEW)
            assert result["removed"] == []
            assert result["kept"] == {OLD: [f"process {os.getpid()}"]}
        assert node(state="current", version=NEW)["removed"] == [OLD]

    def test_old_version_stays_while_a_slot_names_it(self, node: Node) -> None:
        """A container that restarts is made from the same CDI file: a missing source would keep it from starting."""
        node.install(OLD)
        slot = node.cdi / "tenfold-0.json"
        slot.write_text(f'{{"hostPath": "/usr/local/tenfold/hook/{OLD}/libtenfold.so"}}')
        assert node.install(NEW)["removed"] == []
        slot.unlink()
        assert node(state="current", version=NEW)["removed"] == [OLD]


class TestRunFolder:
    def test_it_is_a_tmpfs_of_its_own_bounded_in_bytes_and_files(self, node: Node) -> None:
        node.stage(NEW)
        node(state="current", version=NEW, run_size_mib=64, run_inodes=999)
        (unit,) = node.units.iterdir()
        text = unit.read_text()
        assert f"Where={node.folder}/run\nType=tmpfs\n" in text
        assert "nosuid,nodev,noexec,size=64m,nr_inodes=999" in text
        assert node.commands == ["systemctl daemon-reload", "systemctl enable --now"]

    def test_daemon_is_reloaded_only_when_the_unit_changed(self, node: Node) -> None:
        node.install(OLD)
        node.commands.clear()
        node.install(NEW)
        assert node.commands == []
        node(state="current", version=NEW, run_size_mib=32)
        assert node.commands[-1].startswith("mount -o remount")

    def test_slots_that_lie_in_a_plain_folder_are_not_hidden_by_a_mount(self, node: Node) -> None:
        node.stage(NEW)
        (node.folder / "run" / "slots").mkdir(parents=True)
        assert "stop the device plugin, empty the folder" in node(state="current", version=NEW)["msg"]
        assert not (node.hook / "current").exists()


class TestRemoving:
    def test_absent_leaves_nothing_and_happens_once(self, node: Node) -> None:
        node.install(NEW)
        assert node(check=True, state="absent")["changed"] is True
        assert node.versions() == [NEW]
        assert node(state="absent")["changed"] is True
        assert not (node.folder / "root").exists()
        assert not (node.folder / "state").exists()
        assert list(node.units.iterdir()) == []
        assert node(state="absent")["changed"] is False

    def test_absent_is_refused_while_a_version_is_in_use(self, node: Node) -> None:
        node.install(NEW)
        (node.cdi / "tenfold-0.json").write_text(f"/usr/local/tenfold/hook/{NEW}/vgpuctl")
        assert "drain this node first" in node(state="absent")["msg"]
        assert node.versions() == [NEW]


def test_archive_carries_every_file_and_its_hash(tmp_path: Path) -> None:
    for name in (*action.NEEDED, "symbols.txt"):
        (tmp_path / name).write_text(name)
    _, files = action.archive_of(tmp_path)
    assert files["vgpuctl"] == {"sha256": hashlib.sha256(b"vgpuctl").hexdigest(), "mode": "0755"}
    assert files["symbols.txt"]["mode"] == "0644"


def test_build_without_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        action.archive_of(tmp_path)
    assert Path(missing.value.filename).name == "libtenfold.so"
