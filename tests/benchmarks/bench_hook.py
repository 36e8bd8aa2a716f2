#!/usr/bin/env python3
"""What the hook costs and how exactly it limits, against the bare driver and, on request, against a peer library.

    make bench-hook                                        native, an empty library, and Tenfold
    PEER_PRELOAD=/path/libvgpu.so PEER_ENV='CUDA_DEVICE_MEMORY_LIMIT=8g' PEER_LIMIT_ENV='CUDA_DEVICE_SM_LIMIT={percent}' make bench-hook
Options: --build DIR, --runs N (15; odd), --quick (3 runs, short accuracy windows: a smoke test), --only costs|accuracy, --json FILE
(default build/bench-hook.json), --strict (exit status 1 if a target is missed).

Runs on the simulated driver. Costs: one process per library and run, libraries in turn (A/B/A/B), medians over runs of medians over short
batches, pinned to one CPU where one thread works. ``empty`` is a preloaded library with nothing in it: the loader looks into it, too, for
every name that it is asked for, so it is what any hook costs ``dlsym``, and what that target adds to. Accuracy: the simulator's own count
of GPU time, in windows of 200 ms. The load average is in the result, because other work on the machine shows in it. Owns comparison and
table; ``bench.c`` and ``accuracy`` measure.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "collections")]

from tests.benchmarks import accuracy  # noqa: E402
from tests.benchmarks.bench import LIMITED_PERCENT, Bench, Library  # noqa: E402

# What a call of the driver takes at least: tests/simulator/profiles/models/ideal.conf, memory_call_ns. A ratio to the simulator's own 20 ns
# would say nothing about a driver; the bare row shows what is added all the same.
DRIVER_CALL_NS = 1000


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table: its key in the measurements, its title, how it is judged. Targets: facts of the hook's design, section 7."""

    key: str
    title: str
    unit: str
    target: str
    judge: Callable[[float, float], bool]
    baseline: str = "native"  # judged against this library, or against native where that is slower


def at_most_added(limit: float) -> Callable[[float, float], bool]:
    return lambda native, ours: ours - native <= limit


def at_most_times(factor: float) -> Callable[[float, float], bool]:
    return lambda native, ours: ours <= factor * native


def at_most(limit: float) -> Callable[[float, float], bool]:
    return lambda _native, ours: ours <= limit


COST_ROWS = (
    Row("launch", "cuLaunchKernel, no core limit", "ns", "<= 5 added", at_most_added(5)),
    Row("launch_limited", "cuLaunchKernel, core limit", "ns", "<= 15 added", at_most_added(15)),
    Row("alloc_free_10", "cuMemAlloc + cuMemFree, 10 live", "ns", "<= 100 added", at_most_added(100)),
    Row("alloc_free_8000", "cuMemAlloc + cuMemFree, 8,000 live", "ns", "<= 100 added", at_most_added(100)),
    Row("alloc_free_threads", "4 threads, 8,000 live, driver calls 1 us", "ns", "<= 1.2 x native", at_most_times(1.2)),
    Row("alloc_free_threads_bare", "the same, driver calls 20 ns", "ns", "-", lambda _native, _ours: True),
    Row("info", "cuMemGetInfo", "ns", "<= 50", at_most(50)),
    Row("dlsym", "dlsym of another library's name", "ns", "<= 2 added to empty", at_most_added(2), "empty"),
    Row("get_proc_address", "cuGetProcAddress", "ns", "<= 200 added", at_most_added(200)),
    Row("init_us", "16 concurrent cuInit, wall", "us", "<= 1.5 x native", at_most_times(1.5)),
    Row("rss_kib", "resident memory of a process", "KiB", "-", lambda _native, _ours: True),
)


def peer() -> Library | None:
    """PEER_PRELOAD and PEER_ENV (``K=V K='V W'``); PEER_LIMIT_ENV adds a core limit to it, ``{percent}`` stands for the number."""
    path = os.environ.get("PEER_PRELOAD", "")
    if not path:
        return None
    if not Path(path).is_file():
        sys.exit(f"PEER_PRELOAD is {path!r}, which is no file")
    return Library("peer", path, words_of("PEER_ENV"), words_of("PEER_ENV", "PEER_LIMIT_ENV", percent=LIMITED_PERCENT))


def words_of(*names: str, percent: int = 0) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        words = shlex.split(os.environ.get(name, "").replace("{percent}", str(percent)))
        if any("=" not in word for word in words):
            sys.exit(f"{name} is {os.environ[name]!r}, expected words of the form NAME=VALUE")
        found |= dict(word.split("=", 1) for word in words)
    return found


def limited_peer(percent: int) -> Library:
    return Library("peer", os.environ["PEER_PRELOAD"], words_of("PEER_ENV", "PEER_LIMIT_ENV", percent=percent))


def measure_once(bench: Bench, library: Library) -> dict[str, float]:
    single = ["launch", "alloc_free_10", "alloc_free_8000", "info", "dlsym", "get_proc_address"]
    values = bench.run(library, ["calls", *single])
    values["launch_limited"] = bench.run(library, ["calls", "launch"], limited=True)["launch"]
    values["alloc_free_threads_bare"] = bench.run(library, ["calls", "alloc_free_threads"], pinned=False)["alloc_free_threads"]
    with bench.driver_calls_of(DRIVER_CALL_NS):
        values |= bench.run(library, ["calls", "alloc_free_threads"], pinned=False)
    values["init_us"] = statistics.median(bench.run(library, ["init", "16"], pinned=False)["init_us"] for _ in range(5))
    values |= bench.run(library, ["rss"])
    return values


def measure_costs(bench: Bench, runs: int) -> dict[str, dict[str, float]]:
    """Medians per library, measured in turn."""
    libraries = [Library("native"), Library("empty", str(bench.empty)), bench.tenfold(), *filter(None, [peer()])]
    samples: dict[str, list[dict[str, float]]] = {library.name: [] for library in libraries}
    for run in range(runs):
        for library in libraries if run % 2 == 0 else libraries[::-1]:
            samples[library.name].append(measure_once(bench, library))
        progress(f"costs: run {run + 1} of {runs}")
    return {name: {row.key: statistics.median(sample[row.key] for sample in taken) for row in COST_ROWS} for name, taken in samples.items()}


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<60}", end="", file=sys.stderr, flush=True)


def cost_table(costs: dict[str, dict[str, float]]) -> tuple[list[str], dict[str, bool]]:
    names = list(costs)
    lines = [f"{'':<40} {'':>4} " + " ".join(f"{name:>10}" for name in names) + f" {'added':>9}  target"]
    met: dict[str, bool] = {}
    for row in COST_ROWS:
        native, ours = costs["native"][row.key], costs["tenfold"][row.key]
        met[row.key] = row.judge(max(native, costs[row.baseline][row.key]), ours)
        verdict = "" if row.target == "-" else "  met" if met[row.key] else "  MISSED"
        values = " ".join(f"{costs[name][row.key]:10.1f}" for name in names)
        lines.append(f"{row.title:<40} {row.unit:>4} {values} {ours - native:+9.1f}  {row.target}{verdict}")
    return lines, met


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests/benchmarks/bench_hook.py")
    parser.add_argument("--build", type=Path, default=Path(os.environ.get("TENFOLD_BUILD", ROOT / "build" / "hook-tests")))
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["costs", "accuracy"])
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-hook.json")
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args(arguments)
    load_before = os.getloadavg()
    result: dict[str, Any] = {}
    met: dict[str, bool] = {}
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tenfold-bench-") as folder:
        bench = Bench(options.build.resolve(), Path(folder))
        if options.only != "accuracy":
            result["costs"] = measure_costs(bench, 3 if options.quick else options.runs)
            table, met = cost_table(result["costs"])
            lines += table
        if options.only != "costs":
            windows = 5 if options.quick else 25
            outcomes = [accuracy.measure(bench, workload, windows, bench.tenfold) for workload in accuracy.WORKLOADS]
            peers: dict[str, accuracy.Outcome] = {}
            if peer() and "{percent}" in os.environ.get("PEER_LIMIT_ENV", ""):
                steady = [workload for workload in accuracy.WORKLOADS if not workload.change_to]
                peers = {workload.name: accuracy.measure(bench, workload, windows, limited_peer) for workload in steady}
            result["accuracy"] = [dataclasses.asdict(outcome) for outcome in outcomes]
            result["accuracy_of_peer"] = [dataclasses.asdict(outcome) for outcome in peers.values()]
            lines += ["", *accuracy.table(outcomes, peers)]
            met |= {f"accuracy: {outcome.name}": outcome.is_met for outcome in outcomes}
    result["load_average"] = {"before": load_before, "after": os.getloadavg()}
    result["cpus"] = os.cpu_count()
    result["met"] = met
    lines.append("")
    load_after = os.getloadavg()
    lines.append(
        f"load average {load_before[0]:.1f} before, {load_after[0]:.1f} after; {os.cpu_count()} CPUs (more load than CPUs blurs wall times)"
    )
    lines.append("accounting error: 0 bytes, proved by tests/hook/oracle/run.py --full")
    missed = [name for name, is_met in met.items() if not is_met]
    lines.append(f"{len(met) - len(missed)} targets met, {len(missed)} missed{': ' + ', '.join(missed) if missed else ''}")
    progress("")
    print("\n".join(lines))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written to {options.json}")
    return int(options.strict and bool(missed))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RuntimeError as error:  # a build that fails, or a program that ends by itself: their own words
        print(f"tests/benchmarks/bench_hook.py: {error}", file=sys.stderr)
        sys.exit(2)
