"""The benchmark measures what it says, takes a peer library, writes table and JSON. Numbers are not judged here: the machine is busy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.hook import workshop

BENCH = ROOT / "tests" / "benchmarks" / "bench_hook.py"


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH), "--build", str(workshop.BUILD), *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.full
def test_costs_of_native_tenfold_and_a_peer_come_as_table_and_json(tmp_path: Path) -> None:
    """The peer is Tenfold itself by its stand-alone variables: something with a known cost."""
    hook = workshop.build_hook() / "libtenfold.so"
    report = tmp_path / "bench.json"
    done = run(
        "--quick",
        "--only",
        "costs",
        "--json",
        str(report),
        PEER_PRELOAD=str(hook),
        PEER_ENV="CUDA_DEVICE_MEMORY_LIMIT=8g",
        PEER_LIMIT_ENV="CUDA_DEVICE_SM_LIMIT={percent}",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(report.read_text())
    assert list(result["costs"]) == ["native", "empty", "tenfold", "peer"]
    for costs in result["costs"].values():
        assert set(costs) >= {"launch", "launch_limited", "alloc_free_10", "alloc_free_8000", "alloc_free_threads", "init_us", "rss_kib"}
        assert all(value > 0 for value in costs.values())
    assert result["costs"]["tenfold"]["alloc_free_10"] > result["costs"]["native"]["alloc_free_10"], "the hook was not in the way"
    assert result["load_average"]["before"]
    assert "<= 5 added" in done.stdout
    assert ("MISSED" in done.stdout) == (not all(result["met"].values()))


def test_a_peer_that_does_not_exist_or_bad_settings_are_refused() -> None:
    assert "which is no file" in run("--quick", PEER_PRELOAD="/nowhere/libpeer.so").stderr
    hook = str(workshop.build_hook() / "libtenfold.so")
    assert "expected words of the form NAME=VALUE" in run("--quick", PEER_PRELOAD=hook, PEER_ENV="LIMIT").stderr
