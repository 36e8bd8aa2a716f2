"""A slot's CDI file: the card and the driver, no graphics, no door left open for the nvidia runtime."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tenfold_device_plugin import cdi
from tenfold_device_plugin.errors import CdiError
from tests.unit.device_plugin.bench import CARD_A, CARD_B, NVIDIA_SPEC

SLOT = "0123456789abcdef0123456789abcdef"
COMPUTE_FILES = (
    "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4", "libnvoptix.so.1", "nvidia-smi",
    "libcudadebugger.so.1", "libnvidia-opencl.so.1",
)  # fmt: skip
MOUNT = cdi.Mount(Path("/run/tenfold/slots/x/state"), "/run/tenfold/state", writable=True)


def edits(uuids: list[str], spec: dict[str, Any] | None = None) -> dict[str, Any]:
    document = cdi.slot_spec(spec or yaml.safe_load(NVIDIA_SPEC), SLOT, uuids, [MOUNT])
    (device,) = document["devices"]
    assert (document["kind"], device["name"]) == ("tenfold.dev/vgpu", SLOT)
    found: dict[str, Any] = device["containerEdits"]
    return found


class TestSlotSpec:
    def test_holds_the_card_and_the_common_nodes_once_and_no_other_card(self) -> None:
        assert [node["path"] for node in edits([CARD_A])["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"]

    def test_of_two_cards_has_the_common_part_once(self) -> None:
        assert [node["path"] for node in edits([CARD_B, CARD_A])["deviceNodes"]] == [
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia1",
            "/dev/nvidia0",
        ]

    def test_leaves_graphics_out_of_nodes_mounts_links_and_hooks(self) -> None:
        text = json.dumps(edits([CARD_A]))
        for word in ("dri", "modeset", "EGL", "vulkan", "glxserver", "chmod"):
            assert word not in text
        assert [hook["args"] for hook in edits([CARD_A])["hooks"]] == [
            ["nvidia-cdi-hook", "create-symlinks", "--link", "libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so"],
            ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib/x86_64-linux-gnu"],
        ]

    def test_tells_the_nvidia_runtime_to_add_nothing_even_if_the_specification_says_otherwise(self) -> None:
        spec = yaml.safe_load(NVIDIA_SPEC)
        spec["containerEdits"]["env"] = ["NVIDIA_VISIBLE_DEVICES=all", "A=b"]
        assert edits([CARD_A], spec)["env"] == ["A=b", "NVIDIA_VISIBLE_DEVICES=void"]

    def test_mounts_ours_after_the_drivers(self) -> None:
        assert edits([CARD_A])["mounts"][-1] == {
            "hostPath": "/run/tenfold/slots/x/state",
            "containerPath": "/run/tenfold/state",
            "options": ["rw", "nosuid", "nodev", "bind"],
        }
        assert edits([CARD_A])["mounts"][0]["containerPath"].endswith("libcuda.so.535.1")

    def test_without_the_card_names_those_that_are_there(self) -> None:
        with pytest.raises(CdiError, match=f"has no device 'GPU-x', only 0, {CARD_A}, {CARD_B}"):
            edits(["GPU-x"])

    def test_takes_links_in_both_forms(self) -> None:
        spec = yaml.safe_load(NVIDIA_SPEC)
        spec["containerEdits"]["hooks"] = [
            {
                "hookName": "createContainer",
                "path": "/h",
                "args": ["h", "create-symlinks", "--link=libcuda.so.1::/l/libcuda.so", "--link=x::/l/libEGL.so"],
            }
        ]
        assert edits([CARD_B], spec)["hooks"][0]["args"] == ["h", "create-symlinks", "--link", "libcuda.so.1::/l/libcuda.so"]

    @pytest.mark.parametrize(
        "name",
        [
            "libcuda.so.1",
            "libnvidia-ml.so.1",
            "libnvidia-ptxjitcompiler.so.1",
            "libnvidia-nvvm.so.4",
            "libnvoptix.so.1",
            "nvidia-smi",
            "libcudadebugger.so.1",
            "libnvidia-opencl.so.1",
        ],
    )
    def test_keeps_what_computing_needs(self, name: str) -> None:
        spec = yaml.safe_load(NVIDIA_SPEC)
        spec["containerEdits"]["mounts"] = [{"hostPath": f"/usr/lib/{name}", "containerPath": f"/usr/lib/{name}"}]
        assert [mount["containerPath"] for mount in edits([CARD_A], spec)["mounts"]][:-1] == [f"/usr/lib/{name}"]


class TestNvidiaSpec:
    def test_is_read_from_the_first_place_that_has_one_in_yaml_or_json(self, tmp_path: Path) -> None:
        path = tmp_path / "nvidia.json"
        path.write_text(json.dumps({"devices": [{"name": "x"}]}), encoding="utf-8")
        assert cdi.NvidiaSpec([tmp_path / "no.yaml", path]).read()["devices"] == [{"name": "x"}]

    def test_is_read_again_when_it_changes(self, tmp_path: Path) -> None:
        path = tmp_path / "nvidia.yaml"
        path.write_text("devices: [{name: a}]", encoding="utf-8")
        spec = cdi.NvidiaSpec([path])
        first = spec.read()
        assert spec.read() is first
        path.write_text("devices: [{name: bb}]", encoding="utf-8")
        os.utime(path, (1, 1))
        assert spec.read()["devices"] == [{"name": "bb"}]

    @pytest.mark.parametrize("text", ["devices: [", "[]", "devices: {}"])
    def test_that_is_none_is_named(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "nvidia.yaml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(CdiError, match=f"(cannot parse )?'{path}'"):
            cdi.NvidiaSpec([path]).read()

    def test_that_is_missing_comes_with_the_command_that_makes_it(self, tmp_path: Path) -> None:
        with pytest.raises(CdiError, match="run 'nvidia-ctk cdi generate"):
            cdi.NvidiaSpec([tmp_path / "a.yaml"]).read()


class TestCdiFolder:
    def test_a_file_appears_whole_and_leaves_nothing_behind(self, tmp_path: Path) -> None:
        folder = cdi.CdiFolder(tmp_path / "cdi")
        folder.write(SLOT, {"a": 1})
        assert [path.name for path in (tmp_path / "cdi").iterdir()] == [f"tenfold-{SLOT}.json"]
        assert folder.slots() == {SLOT}
        folder.remove(SLOT)
        folder.remove(SLOT)
        assert folder.slots() == set()

    def test_files_of_others_are_not_ours_and_those_of_killed_writers_go(self, tmp_path: Path) -> None:
        folder = cdi.CdiFolder(tmp_path)
        folder.write(SLOT, {"a": 1})
        others = [
            "tenfold-site-extra.json",
            f"tenfold-{SLOT.upper()}x.json",
            ".tenfold-site.json.tmp",
            f".other-{SLOT}.json.tmp",
            "nvidia.yaml",
        ]
        leftovers = [f".tenfold-{SLOT}.json.tmp", f".tenfold-{'0' * 32}.json.a1b2"]
        for name in others + leftovers:
            (tmp_path / name).touch()
        assert folder.slots() == {SLOT}
        folder.remove_leftovers()
        assert {path.name for path in tmp_path.iterdir()} == {f"tenfold-{SLOT}.json", *others}

    def test_a_folder_that_is_none_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "cdi").write_text("", encoding="utf-8")
        with pytest.raises(CdiError, match="cannot write"):
            cdi.CdiFolder(tmp_path / "cdi").write(SLOT, {})
