"""The collection as its users install it: built, installed into an empty folder, run from there without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests import ROOT

BIN = Path(sys.executable).parent


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Standard output of an Ansible command that must succeed; it sees neither this checkout's settings nor its collections."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=folder,
        env={**clean, "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files that a commit would hold."""
    folder = tmp_path_factory.mktemp("built")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listing.stdout.split("\0")):
        if os.path.lexists(ROOT / name) and not name.startswith("tests/"):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / "source" / name, follow_symlinks=False)
    run(["ansible-galaxy", "collection", "build", "source", "--output-path", str(folder)], folder)
    (built,) = folder.glob("tenfold-vgpu-*.tar.gz")
    return built


@pytest.fixture(scope="module")
def installed(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    run(["ansible-galaxy", "collection", "install", "--no-deps", "-p", str(folder / "collections"), str(archive)], folder)
    return folder


class TestCollection:
    def test_holds_the_product_and_nothing_of_the_bench(self, archive: Path) -> None:
        with tarfile.open(archive) as packed:
            names = {name for name in packed.getnames() if not name.startswith(".")}
        folders = {name.split("/")[0] for name in names if "/" in name}
        assert folders == {"docs", "examples", "files", "inventories", "meta", "playbooks", "plugins", "roles"}
        assert {"files/hook/Makefile", "files/device_plugin/Containerfile", "versions.yml", "playbooks/site.yml"} <= names
        assert not [name for name in names if name.startswith("inventories/sim") or "__pycache__" in name]

    def test_proves_an_inventory_that_lies_elsewhere(self, installed: Path, tmp_path: Path) -> None:
        inventory = shutil.copytree(ROOT / "inventories" / "a800", tmp_path / "fleet")
        command = ["ansible-playbook", "-i", str(inventory), "tenfold.vgpu.preflight", "--tags", "tiers"]
        output = run(command, installed, ANSIBLE_COLLECTIONS_PATH=str(installed / "collections"))
        assert "80 cards: one holds 10 small" in output
        assert "10 small: proved by" in output

    def test_the_whole_run_is_found_by_its_name(self, installed: Path, tmp_path: Path) -> None:
        inventory = shutil.copytree(ROOT / "inventories" / "a800", tmp_path / "fleet")
        command = ["ansible-playbook", "-i", str(inventory), "tenfold.vgpu.site", "--list-tasks"]
        output = run(command, installed, ANSIBLE_COLLECTIONS_PATH=str(installed / "collections"))
        roles = ("nvidia_runtime", "kubelet_max_pods", "cuda_hook", "volcano", "slice_tiers", "vgpu_device_plugin")
        assert [role for role in roles if f"tenfold.vgpu.{role} : " not in output] == []
