"""The module on a machine with pretended programs: real processes, real files, no GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable

import pytest
from ansible_collections.tenfold.vgpu.plugins.modules import gpu_node_facts

RunModule = Callable[..., "dict[str, Any]"]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """``programs(name, script)`` puts a shell script first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(name: str, script: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    write("kubelet", "echo Kubernetes v1.31.4")
    return write


def smi(driver: str, mode: str = "Default") -> str:
    return f"echo '0, GPU-aaaa, NVIDIA A800-SXM4-80GB, 81920, {mode}, 00000000:07:00.0, {driver}, Disabled'"


class TestTheModule:
    def test_a_good_node_passes_and_nothing_changes(self, run_module: RunModule, programs: Callable[[str, str], None]) -> None:
        programs("nvidia-smi", smi("535.104.05"))
        result = run_module(gpu_node_facts.main, required=True, card="a800-80gb")
        assert result["changed"] is False
        assert result["problems"] == []
        assert result["gpu_node"]["cards"][0]["memory_mib"] == 81920
        assert result["gpu_node"]["python"].startswith("3.")

    def test_driver_418_fails_the_node_where_it_is_required(self, run_module: RunModule, programs: Callable[[str, str], None]) -> None:
        programs("nvidia-smi", smi("418.226.00"))
        result = run_module(gpu_node_facts.main, required=True)
        assert result["failed"]
        assert "driver is 418.226.00, expected 440 or newer; upgrade the NVIDIA driver on this node" in result["msg"]
        assert result["gpu_node"]["driver"] == "418.226.00"

    def test_the_same_is_only_reported_where_it_is_not(self, run_module: RunModule, programs: Callable[[str, str], None]) -> None:
        programs("nvidia-smi", smi("418.226.00"))
        result = run_module(gpu_node_facts.main)
        assert [problem["rule"] for problem in result["problems"]] == ["driver_too_old"]

    def test_check_mode_does_the_same(self, run_module: RunModule, programs: Callable[[str, str], None]) -> None:
        programs("nvidia-smi", smi("535.104.05", "Exclusive_Process"))
        result = run_module(gpu_node_facts.main, required=True, _ansible_check_mode=True)
        assert "nvidia-smi -i GPU-aaaa -c DEFAULT" in result["msg"]

    def test_a_hanging_nvidia_smi_is_an_answer_too(self, run_module: RunModule, programs: Callable[[str, str], None]) -> None:
        programs("nvidia-smi", "exec sleep 30")
        result = run_module(gpu_node_facts.main, command_timeout_seconds=1)
        assert result["gpu_node"]["nvidia_smi_error"] == "nvidia-smi did not end within 1 seconds"

    def test_an_unknown_card_model_is_refused_with_the_known_ones(self, run_module: RunModule) -> None:
        result = run_module(gpu_node_facts.main, card="rtx-9090")
        assert "expected one of: a100-40gb" in result["msg"]
        assert result["error_details"]["card"] == "rtx-9090"
