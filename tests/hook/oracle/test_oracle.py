"""The oracle as part of the hook's test run; by itself it is ``tests/hook/oracle/run.py``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hook import workshop
from tests.hook.oracle import plan

RUN = Path(__file__).resolve().parent / "run.py"
# pytest's workers share the scenarios: more parts than workers, since some scenarios take long
PARTS = {"--quick": 3, "--full": 7}


def play(mode: str, part: int, timeout: int) -> None:
    command = [sys.executable, str(RUN), mode, "--part", f"{part}/{PARTS[mode]}", "--build", str(workshop.BUILD)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    wrong = [line for line in done.stdout.splitlines() if not line.startswith("  ok")]
    assert done.returncode == 0, "\n".join(wrong) + done.stderr


@pytest.mark.parametrize("part", range(1, PARTS["--quick"] + 1))
def test_the_ledger_equals_the_truth_after_random_work_failures_and_kills(part: int) -> None:
    play("--quick", part, 300)


@pytest.mark.full
@pytest.mark.parametrize("part", range(1, PARTS["--full"] + 1))
def test_the_ledger_equals_the_truth_after_a_million_operations_and_broken_hooks_are_found(part: int) -> None:
    play("--full", part, 900)


def test_a_scenario_that_cannot_run_is_an_error_and_no_success() -> None:
    done = subprocess.run(
        [sys.executable, str(RUN), "--only", "no such scenario", "--build", str(workshop.BUILD)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert "no such scenario" in done.stderr


def test_every_driver_function_that_the_hook_calls_fails_in_some_scenario_or_has_a_reason_not_to() -> None:
    text = (workshop.HOOK_SOURCE / "src" / "abi" / "hooks.def").read_text()
    hooked = re.findall(r"^CUDA_HOOK\((\w+), [^,]+, [^,]+, (\w+),", text, re.MULTILINE)
    called = {symbol for symbol, purpose in hooked if purpose in ("memory", "context")}
    called |= set(re.findall(r"^CUDA_REAL\((\w+),", text, re.MULTILINE))
    listed = {symbol for symbol, _kind in (*plan.INJECTED, *plan.INJECTED_UNDER_THE_HOOK)} | set(plan.NOT_INJECTED)
    assert called - listed == set()
    assert set(plan.NOT_INJECTED) <= called, "a reason for something that the hook does not call"
