"""Runs the named steps of a test target one after the other and closes with a summary that hides nothing.

Owns the list of steps and their time shares. A step is a command; exit code 0 passes, 77 skips (its last line is the reason), anything
else fails. Tests that pytest skipped inside a step are counted and their reasons listed. All steps run even if one fails, so that
one CI run shows everything; the exit code is 1 if any failed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIP_EXIT_CODE = 77
CI_GROUPS = ("check", "hook", "nodes", "demo", "cluster", "gpu")


@dataclass(frozen=True)
class Step:
    """A command of a group. timeout_s is a deadline for a hung step, not a target; targets are SHARES_S.

    covered_by names a group that tests all of this and more: where that group runs too, the step is left out.
    """

    group: str
    name: str
    command: str
    timeout_s: int = 600
    covered_by: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came of a step; notes are skip reasons and the like, shown in the summary."""

    step: Step
    status: str
    wall_s: float
    notes: tuple[str, ...]


# Warm targets per group in seconds; the summary prints the measured time against them.
SHARES_S = {"check": 180, "hook": 300, "nodes": 480, "demo": 180, "cluster": 240, "gpu": 60}

PYTHON_PATHS = "plugins files/device_plugin/src tests tools"
NEEDS_ROOT = '[ "$(id -u)" = 0 ] || { echo "skip: not root: tests whose packages are missing skip too"; exit 77; }'
PYTEST = "python -m pytest -q -n3 --dist=worksteal"
# the NVIDIA toolkit that the fleet was built with
TOOLKIT = (
    """export TENFOLD_NVIDIA_CTK=$(python -c 'from tests.cluster.paths import Paths; print(Paths.of_user().current / "bin/nvidia-ctk")');"""
)
FRESH_FLEET = 'python -m tests.cluster down && python -m tests.cluster up && eval "$(python -m tests.cluster env)"'
# NVIDIA's, fetched into the cache; without them the tests that compare with them skip
HEADERS = "export TENFOLD_NVIDIA_HEADERS=$(python -m tests.hook.nvidia_headers);"
STEPS = (
    Step("check", "packages", f"{NEEDS_ROOT}; python -m tests.cluster setup --tests", 1200),
    Step("check", "ruff", f"ruff check {PYTHON_PATHS} && ruff format --check {PYTHON_PATHS}"),
    Step("check", "mypy", "python tools/run_mypy.py"),
    Step("check", "layers", "python tools/check_layers.py"),
    Step("check", "tree", "python tools/check_tree.py"),
    Step("check", "yamllint", "yamllint --strict ."),
    Step("check", "ansible-lint", "ansible-lint --offline -q"),
    Step("check", "collection", "python tools/check_collection.py"),
    Step("check", "unit", f"{PYTEST} tests/unit"),
    Step("check", "simulator", f"{PYTEST} tests/simulator/tests -m 'not full and not toolkit'"),
    Step("check", "hook-quick", "python tests/hook/run.py --quick", covered_by="hook"),
    Step("hook", "hook-full", "python tests/hook/run.py --full", 1200),
    Step("hook", "simulator-full", f"{HEADERS} python -m pytest -q tests/simulator/tests -m full"),
    Step("hook", "virtual-time", "python tests/hook/virtual_time/run.py --full", 900),
    Step("nodes", "molecule default", "python tools/run_molecule.py default", 1800),
    Step("nodes", "molecule cuda_hook", "python tools/run_molecule.py cuda_hook", 1200),
    # One fleet for both groups: check mode while it is fresh, where predictions fail first; the demo; the suite on what the demo leaves.
    Step("cluster", "check-mode", f"{FRESH_FLEET} && ansible-playbook -i inventories/sim site.yml --check", 2400),
    Step("demo", "demo", "python -m tests.demo", 2400),
    Step("cluster", "cluster-suite", "python -m pytest -q tests/cluster_suite", 1800),
    Step("cluster", "simulator-toolkit", f"{TOOLKIT} python -m pytest -q tests/simulator/tests -m toolkit"),
    Step("cluster", "fleet-down", "python -m tests.cluster down", 120),
    Step("gpu", "gpu", "python tests/gpu/run.py"),
)


def steps_of(words: list[str]) -> list[Step]:
    """The steps of the groups named; ``all`` names every group of CI, ``molecule`` every scenario. No steps for an unknown word alone."""
    groups = CI_GROUPS if words == ["all"] else words
    return [
        step
        for step in STEPS
        if (step.group in groups and step.covered_by not in groups) or ("molecule" in groups and step.name.startswith("molecule"))
    ]


def notes_of(output: str, status: str) -> tuple[str, ...]:
    """Skip reasons in a step's output: pytest's SKIPPED lines, lines that begin with 'skip:', and the last line of a skipped step."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    notes = [line for line in lines if re.match(r"SKIPPED \[\d+\]|skip: ", line)]
    if status == "skipped" and lines and lines[-1] not in notes:
        notes.append(lines[-1])
    return tuple(dict.fromkeys(notes))


def run(step: Step) -> Outcome:
    """Runs one step from the project's root, passing its output through as it comes."""
    print(f"\n=== {step.group}: {step.name}", flush=True)
    began = time.monotonic()
    process = subprocess.Popen(
        ["timeout", "--kill-after=30", str(step.timeout_s), "bash", "-c", step.command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    output: list[str] = []
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        output.append(line)
    code = process.wait()
    status = {0: "passed", SKIP_EXIT_CODE: "skipped"}.get(code, "failed")
    notes = notes_of("".join(output), status)
    if code in (124, 137):
        notes = (*notes, f"stopped at its deadline of {step.timeout_s} s")
    return Outcome(step, status, time.monotonic() - began, notes)


def summary(outcomes: list[Outcome]) -> str:
    """The closing table: each step, the groups against their shares, every skip reason, and one line that counts."""
    lines = ["", "=== summary"]
    for outcome in outcomes:
        lines.append(f"  {outcome.status:<8} {outcome.wall_s:7.1f} s  {outcome.step.group}: {outcome.step.name}")
        lines += [f"{'':20} {note}" for note in outcome.notes]
    for group, share_s in SHARES_S.items():
        spent_s = sum(outcome.wall_s for outcome in outcomes if outcome.step.group == group)
        if spent_s:
            lines.append(f"  {group:<8} {spent_s:7.1f} s of a warm share of {share_s} s{'' if spent_s <= share_s else '  (over)'}")
    count = {status: sum(outcome.status == status for outcome in outcomes) for status in ("passed", "failed", "skipped")}
    lines.append(f"total {sum(outcome.wall_s for outcome in outcomes):.0f} s")
    failed = [outcome.step for outcome in outcomes if outcome.status == "failed"]
    lines += [f"failed: {step.name}: run it alone with: {shlex.quote(step.command)}" for step in failed]
    lines.append(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """`run_tests.py all | molecule | GROUP ...`: 0 if nothing failed."""
    steps = steps_of(arguments)
    if not steps:
        print(f"run_tests.py: no such group in {arguments}; expected all, molecule or one of {', '.join(SHARES_S)}", file=sys.stderr)
        return 2
    os.environ["PATH"] = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    outcomes = [run(step) for step in steps]
    print(summary(outcomes))
    return int(any(outcome.status == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
