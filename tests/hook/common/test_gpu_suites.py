"""The suites of tests/gpu, run where there is no card: against the simulated driver, and refusing politely without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.hook import workshop

RUN = ROOT / "tests" / "gpu" / "run.py"


def run(*words: str, timeout: int = 300) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    return subprocess.run([sys.executable, str(RUN), *words], env=environment, capture_output=True, text=True, timeout=timeout, check=False)


def play(suite: str) -> None:
    done = run("--simulated", str(workshop.BUILD), "--only", suite)
    wrong = [line for line in done.stdout.splitlines() if "FAILED" in line]
    assert done.returncode == 0, "\n".join(wrong) + done.stderr
    assert "0 failed, 0 skipped" in done.stdout.splitlines()[-1], done.stdout


@pytest.mark.parametrize("suite", ["routing", "memory", "view", pytest.param("observe", marks=pytest.mark.full)])
def test_a_suite_for_real_cards_passes_on_the_simulated_driver(suite: str) -> None:
    play(suite)


@pytest.mark.full
@pytest.mark.timing
@pytest.mark.parametrize("suite", ["limiter", "live_change"])
def test_a_suite_that_measures_time_passes_on_the_simulated_driver(suite: str) -> None:
    play(suite)


def test_a_hook_without_limits_fails_the_memory_suite(tmp_path: Path) -> None:
    """The suites can fail: a library that exports nothing is preloaded instead of the hook."""
    workshop.build_hook()
    for name in ("symbols.txt", "libtenfold_page.so"):
        shutil.copy(workshop.BUILD / "hook" / name, tmp_path / name)
    (tmp_path / "empty.c").write_text("int tenfold_test_empty;\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "libtenfold.so"), str(tmp_path / "empty.c")], check=True, timeout=60)
    done = run("--simulated", str(workshop.BUILD), "--only", "memory", "--hook", str(tmp_path))
    assert done.returncode == 1
    assert "FAILED" in done.stdout


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a card")
def test_without_a_driver_the_run_is_skipped_and_says_so() -> None:
    done = run()
    assert done.returncode == 77, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "skip: no NVIDIA driver on this machine (libcuda.so.1 not found)"


def test_an_unknown_card_is_refused_with_the_cards_that_exist() -> None:
    done = run("--simulated", str(workshop.BUILD), "--card", "GPU-00000000-0000-0000-0000-000000000000")
    assert done.returncode == 77
    assert "expected one of GPU-" in done.stdout.splitlines()[-1]
