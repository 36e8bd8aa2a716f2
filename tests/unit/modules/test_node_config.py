"""The steps of a merge on one node: what is read, tried and written, and that a refusal leaves the file as it was.

The node's half runs for real, in this process; only the connection is left out.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.action import node_config as action
from ansible_collections.tenfold.vgpu.plugins.modules import node_config_file

from tests.unit.modules.conftest import RunModule

# A containerd that knows only this: it prints its file, and refuses one with the word "refused".
CONTAINERD = """#!/bin/sh
[ "$1" = --config ] && [ "$3 $4" = "config dump" ] || exit 9
grep -q refused "$2" 2>/dev/null && { echo "containerd: bad key in $2" >&2; exit 1; }
cat "$2" 2>/dev/null || echo 'version = 3'
"""
TEXT = "version = 3 # of this site\n"


class Node:
    """A folder that stands for a node, and the options of one task."""

    def __init__(self, folder: Path, run_module: RunModule) -> None:
        self.folder = folder
        self.run_module = run_module
        self.steps: list[str] = []
        self.path = folder / "config"
        self.record = folder / "config.tenfold.json"
        (folder / "containerd").write_text(CONTAINERD)
        (folder / "containerd").chmod(0o755)

    def merge(self, check: bool = False, **options: Any) -> dict[str, Any]:
        plugin = action.ActionModule.__new__(action.ActionModule)
        arguments = {"subject": "containerd", "path": str(self.path), "engine_version": "2.2.1", **options}
        arguments.setdefault("validate", [str(self.folder / "containerd"), "--config", "{file}", "config", "dump"])
        plugin._task = SimpleNamespace(args=arguments, check_mode=check, async_val=0, diff=True, action="node_config")
        plugin._execute_module = lambda module_name, module_args, **_: self._execute(module_name, module_args, check)
        plugin._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=str(self.folder)), always_pipeline_modules=False)
        plugin._templar = None
        plugin._cleanup_remote_tmp = False
        plugin._early_needs_tmp_path = lambda: False
        result: dict[str, Any] = plugin.run(None, {})
        return result

    def _execute(self, module_name: str, module_args: dict[str, Any], check: bool) -> dict[str, Any]:
        assert module_name == "tenfold.vgpu.node_config_file"
        self.steps.append(module_args["step"])
        return self.run_module(node_config_file.main, **module_args, _ansible_check_mode=check)


@pytest.fixture
def node(tmp_path: Path, run_module: RunModule) -> Node:
    return Node(tmp_path, run_module)


def test_change_reads_tries_writes_and_second_run_only_reads(node: Node) -> None:
    node.path.write_text(TEXT)
    first = node.merge()
    assert first["changed"] is True
    assert node.steps == ["read", "try", "write"]
    assert node.path.read_text().startswith(TEXT)
    assert "nvidia-container-runtime" in node.path.read_text()
    assert stat.S_IMODE(node.record.stat().st_mode) == 0o600

    node.steps.clear()
    assert node.merge()["changed"] is False
    assert node.steps == ["read"]


def test_check_mode_predicts_the_run_and_touches_nothing(node: Node) -> None:
    node.path.write_text(TEXT)
    predicted = node.merge(check=True)
    assert node.path.read_text() == TEXT
    assert sorted(path.name for path in node.folder.iterdir()) == ["config", "containerd"]
    done = node.merge()
    assert (predicted["changed"], predicted["diff"]) == (done["changed"], done["diff"])
    assert done["diff"]["before"] == TEXT
    assert done["diff"]["after"] == node.path.read_text()


def test_absent_gives_back_every_byte_and_the_mode(node: Node) -> None:
    node.path.write_text(TEXT)
    node.path.chmod(0o640)
    node.merge()
    back = node.merge(state="absent")
    assert back["changed"] is True
    assert node.path.read_text() == TEXT
    assert stat.S_IMODE(node.path.stat().st_mode) == 0o640
    assert not node.record.exists()
    assert node.merge(state="absent")["changed"] is False


def test_file_that_was_not_there_goes_again(node: Node) -> None:
    node.merge(subject="kubelet", max_pods=250, validate=[])
    assert "maxPods: 250" in node.path.read_text()
    node.merge(subject="kubelet", state="absent", validate=[])
    assert not node.path.exists()


COMPACT = '{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1","maxPods":110,"clusterDNS":["10.0.0.1"]}'


@pytest.mark.parametrize("text", [COMPACT, COMPACT + "\n", json.dumps(json.loads(COMPACT)), json.dumps(json.loads(COMPACT), indent=2)])
def test_json_keeps_its_own_form(node: Node, text: str) -> None:
    """As the Machine Config Operator writes the kubelet's file."""
    node.path.write_text(text)
    node.merge(subject="kubelet", max_pods=90, validate=[])
    assert node.path.read_text() == text
    node.merge(subject="kubelet", max_pods=250, validate=[])
    assert node.path.read_text() == text.replace("110", "250")
    node.merge(subject="kubelet", state="absent", validate=[])
    assert node.path.read_text() == text


def test_symbolic_link_stays_a_link(node: Node) -> None:
    (node.folder / "real").write_text(TEXT)
    node.path.symlink_to(node.folder / "real")
    node.merge()
    assert node.path.is_symlink()
    assert "nvidia" in (node.folder / "real").read_text()


@pytest.mark.parametrize(
    ("subject", "text", "cause"),
    [
        ("containerd", "version = 3\n[plugins\n", "line 2, column 9: Expected ']'"),
        ("kubelet", "kind: KubeletConfiguration\nmaxPods: [1,\n", "line 3, column 1"),
        ("docker", '{"mtu": 1,}', "line 1"),
        ("containerd", "version = 1\n", "version 1, expected 2, 3 or 4"),
        ("kubelet", "kind: Pod\n", "of kind 'Pod'"),
    ],
)
def test_file_that_forbids_a_merge_is_refused_by_name_and_untouched(node: Node, subject: str, text: str, cause: str) -> None:
    node.path.write_text(text)
    result = node.merge(subject=subject, max_pods=250, validate=[])
    assert result["failed"] is True
    assert str(node.path) in result["msg"]
    assert cause in result["msg"]
    assert result["error_details"]["path"] == str(node.path)
    assert node.path.read_text() == text
    assert not node.record.exists()


def test_file_that_the_engine_refuses_already_is_not_merged(node: Node) -> None:
    node.path.write_text("version = 3\nrefused = 1\n")
    result = node.merge()
    assert result["failed"] is True
    assert "containerd refuses" in result["msg"] and "bad key in" in result["msg"]
    assert node.path.read_text() == "version = 3\nrefused = 1\n"


def test_text_that_the_engine_refuses_is_not_written(node: Node) -> None:
    node.path.write_text(TEXT)
    for check in (True, False):
        result = node.merge(check=check, runtime={"name": "refused"})
        assert result["failed"] is True
        assert "nothing was changed" in result["msg"]
    assert node.path.read_text() == TEXT
    assert sorted(path.name for path in node.folder.iterdir()) == ["config", "containerd"]


def test_merge_that_an_imported_file_makes_vain_is_refused(node: Node) -> None:
    node.path.write_text(TEXT)
    script = (node.folder / "containerd").read_text().replace("cat ", "sed s,/usr/bin/nvidia-container-runtime,/opt/theirs, ")
    (node.folder / "containerd").write_text(script)
    result = node.merge()
    assert "containerd sees containerd.runtimes.nvidia.options.BinaryName = '/opt/theirs'" in result["msg"]
    assert node.path.read_text() == TEXT


def test_file_that_is_not_text_is_refused(node: Node) -> None:
    node.path.write_bytes(b"version = 3 # \xff\n")
    result = node.merge()
    assert result["failed"] is True
    assert "byte 14 is not UTF-8" in result["msg"]


def test_file_that_changed_under_our_hands_is_not_overwritten(node: Node, run_module: RunModule) -> None:
    node.path.write_text(TEXT)
    result = run_module(
        node_config_file.main, path=str(node.path), record_path=str(node.record), step="write", content="x", expected_sha256="0" * 64
    )
    assert result["failed"] is True
    assert "changed by somebody else" in result["msg"]
    assert node.path.read_text() == TEXT


def test_damaged_record_is_refused(node: Node) -> None:
    node.path.write_text(TEXT)
    node.record.write_text("{")
    result = node.merge()
    assert result["failed"] is True
    assert "config.tenfold.json' is damaged" in result["msg"]


def test_missing_option_is_named(node: Node) -> None:
    assert "needs 'engine_version'" in node.merge(engine_version=None)["msg"]
