"""Runs the compute limiter's C code against a GPU in virtual time and judges it.

``run.py --quick`` (default, seconds) or ``--full`` (the whole sweep); exit status 1 when a target is missed, with a table of what missed.
``--held-out N --held-out-seed S`` adds random cases. Needs a C compiler and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    __package__ = "tests.hook.virtual_time"

from . import cases, judge
from .cases import Case
from .judge import Verdict

HERE = Path(__file__).resolve().parent
LIMITER = HERE.parents[2] / "files" / "hook" / "src" / "limiter"
SOURCES = (HERE / "bench.c", HERE / "host.c", HERE / "gpu.c")
FLAGS = ("-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror")


class BenchError(Exception):
    """The bench itself failed: it does not compile, crashes or hangs."""


def build(folder: Path, limiter: Path = LIMITER, flags: Sequence[str] = FLAGS) -> Path:
    """Compiles the bench with the limiter's files into ``folder``; returns the program. BenchError with the compiler's message."""
    program = folder / "bench"
    sources = [*SOURCES, *sorted(limiter.glob("*.c"))]
    command = [*shlex.split(os.environ.get("CC", "cc")), *flags, "-I", str(limiter.parent), "-o", str(program), *map(str, sources), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"cannot compile the virtual bench: {' '.join(command)}\n{done.stderr}")
    return program


def run(program: Path, todo: Sequence[Case], timeout_s: float = 300) -> list[dict[str, Any]]:
    """One result per case: {"tenants": [{"mean", "used", "windows", "processes", ...}]}, percent of GPU time. On every processor."""
    parts = os.cpu_count() or 1
    with ThreadPoolExecutor(parts) as pool:
        done = list(pool.map(lambda part: run_in_a_row(program, part, timeout_s), [todo[first::parts] for first in range(parts)]))
    return [done[number % parts][number // parts] for number in range(len(todo))]


def run_in_a_row(program: Path, todo: Sequence[Case], timeout_s: float) -> list[dict[str, Any]]:
    text = "\n".join(line for case in todo for line in case.lines()) + "\n"
    try:
        done = subprocess.run([str(program)], input=text, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"the virtual bench did not end within {timeout_s:.0f} s: a case hangs") from error
    if done.returncode != 0:
        raise BenchError(f"the virtual bench ended with status {done.returncode}: {done.stderr.strip()}")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    if len(results) != len(todo):
        raise BenchError(f"the virtual bench answered {len(results)} of {len(todo)} cases")
    return results


def judge_all(todo: Sequence[Case], results: Sequence[dict[str, Any]]) -> list[Verdict]:
    return [verdict for case, result in zip(todo, results) for verdict in judge.judge(case, result)]


def judge_held_out(verdicts: Sequence[Verdict]) -> tuple[list[Verdict], str]:
    """Random cases are judged together: their single misses do not fail the run unless too many tenants have one."""
    rest = [verdict for verdict in verdicts if verdict.case.group != "held out"]
    lines = []
    for what in judge.HELD_OUT_PERCENT:
        found = [verdict for verdict in verdicts if verdict.case.group == "held out" and verdict.what == what and not verdict.exempt]
        if not found:
            continue
        missed = [verdict for verdict in found if verdict.missed]
        share = 100 * len(missed) / len(found)
        worst = max(found, key=lambda verdict: verdict.value - verdict.bound)
        lines.append(f"  {what}: {len(missed)} of {len(found)} tenants over the bound ({share:.1f} %); worst {worst}")
        rest.append(Verdict(found[0].case, -1, f"% of held-out tenants with {what} over", share, judge.HELD_OUT_PERCENT[what]))
    return rest, "\n".join(lines)


def family(verdict: Verdict) -> str:
    """The kind of a number, without the instant it was taken at."""
    return (
        verdict.what.split(" 300 ms after")[0].split(" after ")[0]
        if verdict.case.group in ("change", "two change", "varied")
        else verdict.what
    )


def table(verdicts: Sequence[Verdict]) -> str:
    """Per group and number: how many, the worst, the bound, misses, and the worst of those that a reason excuses."""
    rows: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        rows[verdict.case.group, family(verdict)].append(verdict)
    lines = [f"{'group':<11}{'what':<52}{'cases':>6}{'worst':>8}{'bound':>8}{'missed':>8}{'excused':>9}{'worst excused':>15}"]
    for (group, what), found in rows.items():
        held = [verdict for verdict in found if not verdict.exempt]
        excused = [verdict for verdict in found if verdict.excused]
        worst = max(held, key=lambda verdict: verdict.value - verdict.bound, default=None)
        lines.append(
            f"{group:<11}{what[:51]:<52}{len(held):>6}"
            + (f"{worst.value:>8.2f}{worst.bound:>8.2f}" if worst else f"{'-':>8}{'-':>8}")
            + f"{sum(verdict.missed for verdict in held):>8}{len(excused):>9}"
            + (f"{max(verdict.value for verdict in excused):>15.2f}" if excused else f"{'-':>15}")
        )
    return "\n".join(lines)


def excuses(verdicts: Sequence[Verdict]) -> str:
    """Each reason that excuses a number over its bound, with how often and its worst case."""
    reasons: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.excused:
            reasons[verdict.what, verdict.exempt].append(verdict)
    lines = []
    for (what, reason), found in sorted(reasons.items()):
        worst = max(found, key=lambda verdict: verdict.value)
        lines.append(
            f"  {what} over its bound in {len(found)} ({reason}); worst {worst.value:.2f}: {worst.case.label}, tenant {worst.tenant}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="the default: every kind of case, few limits")
    size.add_argument("--full", action="store_true", help="limits 1 to 99, three seeds, every parameter at +-50 %% on every shared case")
    parser.add_argument("--held-out", type=int, metavar="N", help="random cases (default: 150 quick, 600 full)")
    parser.add_argument("--held-out-seed", type=int, default=271828, metavar="S")
    parser.add_argument("--only", metavar="TEXT", help="cases whose label contains TEXT")
    parser.add_argument("--verbose", action="store_true", help="every tenant's mean and error")
    options = parser.parse_args(argv)

    begun = time.monotonic()
    todo = cases.full() if options.full else cases.quick()
    held_out = options.held_out if options.held_out is not None else 600 if options.full else 150
    todo += cases.held_out(held_out, options.held_out_seed)
    todo += cases.told_held_out(held_out, options.held_out_seed)
    if options.only:
        todo = [case for case in todo if options.only in case.label]
    try:
        with tempfile.TemporaryDirectory(prefix="tenfold-virtual-time-") as folder:
            results = run(build(Path(folder)), todo)
    except BenchError as error:
        print(f"virtual time: {error}", file=sys.stderr)
        return 2
    verdicts = judge_all(todo, results)
    if options.verbose:
        for case, result in zip(todo, results):
            for number, tenant in enumerate(result["tenants"]):
                target = judge.target_percent(case, case.tenants[number])
                mae = sum(abs(window - target) for window in tenant["windows"]) / len(tenant["windows"])
                numbers = f"target {target:.1f} mean {tenant['mean']:.2f} MAE {mae:.2f} ledger {tenant['used']:.2f}"
                print(f"{case.label}, tenant {number}: {numbers}")
    print(table(verdicts))
    verdicts, held_out_summary = judge_held_out(verdicts)
    if held_out_summary:
        print(f"\nheld out, seed {options.held_out_seed}:\n{held_out_summary}")
    print("\nover the bound for a reason:")
    print(excuses(verdicts))
    missed = [verdict for verdict in verdicts if verdict.missed]
    print(f"\n{len(todo)} cases, {len(verdicts)} numbers, {len(missed)} missed, {time.monotonic() - begun:.1f} s")
    if missed:
        print("\nmissed:", file=sys.stderr)
        for verdict in missed[:200]:
            print(f"  {verdict}", file=sys.stderr)
        if len(missed) > 200:
            print(f"  and {len(missed) - 200} more", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
