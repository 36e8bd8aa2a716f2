"""How exactly the hook holds a core limit: share of simulated GPU time per window, for workloads that peers get wrong.

Owns the workloads (hook.md 3.2 of the design's facts) and their measurement. The number is the simulator's own: GPU time that a process has
spent between two instants of the simulator's clock. A busy host delays the program that launches, so a share below the limit can be the
host's fault; a share above it never is.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region

from tests.benchmarks.bench import Bench, Library

__all__ = ["WORKLOADS", "Outcome", "measure", "table"]

WINDOW_MS = 200
WARMUP_MS = 2000  # credit that the start-up leaves unused may be spent within the first second
LONG_KERNEL_US = 20000
ENDLESS_MS = "600000"
MEAN_POINTS, MAE_POINTS, CONVERGENCE_MS = 1.5, 3.0, 300
MAE_KERNEL_US = 10000  # the MAE target holds up to this length


@dataclass(frozen=True)
class Tenant:
    limit: int
    kernel_us: int
    style: str = "async"
    cv: float = 0.0


@dataclass(frozen=True)
class Workload:
    """``change_to``: the first tenant's new limit, put in force in the middle."""

    name: str
    tenants: tuple[Tenant, ...]
    change_to: int = 0


# Grid sizes are left out: this hook charges time, so the three grids of the facts' table are one workload.
WORKLOADS = (
    Workload("1 ms async at 50", (Tenant(50, 1000),)),
    Workload("200 us async at 20", (Tenant(20, 200),)),
    Workload("50 ms sync at 50", (Tenant(50, 50000, "sync"),)),
    Workload("5 ms lognormal cv 0.5 at 50", (Tenant(50, 5000, cv=0.5),)),
    Workload("10 ms graph at 30", (Tenant(30, 10000, "graph"),)),
    Workload("10 ms graph at 50", (Tenant(50, 10000, "graph"),)),
    Workload("2 tenants, 1 ms, 30 and 60", (Tenant(30, 1000), Tenant(60, 1000))),
    Workload("1 ms, live change 50 to 20", (Tenant(50, 1000),), change_to=20),
)


@dataclass(frozen=True)
class Outcome:
    """Percent of the card's time per tenant. ``converged_ms``: from a change to the first window that is within 3 points, else -1."""

    name: str
    limits: list[int]
    means: list[float]
    maes: list[float]
    is_met: bool
    converged_ms: float = -1


def measure(bench: Bench, workload: Workload, windows: int, library: Callable[[int], Library]) -> Outcome:
    """Runs all tenants at once, each under ``library(limit)``; a live change needs a library with a slot."""
    if max(tenant.kernel_us for tenant in workload.tenants) >= LONG_KERNEL_US:
        windows *= 2  # one kernel more or less must not be a point of the mean
    programs, slots = [], []
    for tenant in workload.tenants:
        under = library(tenant.limit)
        slots.append(under.environment.get("TENFOLD_SLOT_DIR", ""))
        command = [str(bench.program), "spin", str(tenant.kernel_us), ENDLESS_MS, tenant.style, str(tenant.cv)]
        programs.append(subprocess.Popen(command, env=under.variables(bench.base), stdout=subprocess.PIPE, text=True))
    try:
        pids = [int(json.loads(program.stdout.readline())["ready"]) for program in programs if program.stdout]
        time.sleep(WARMUP_MS / 1000)
        shares = sample(bench, pids, windows)
        converged_ms = -1.0
        limits = [tenant.limit for tenant in workload.tenants]
        if workload.change_to:
            quota = region.GpuQuota(bench.machine.uuids[0], 8 << 30, workload.change_to)
            region.write_config(slots[0], [quota], library=bench.hook / "libtenfold_page.so")
            limits = [workload.change_to]
            converged_ms = convergence(bench, pids[0], workload.change_to)
            shares = sample(bench, pids, windows)
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    return judge(workload, limits, shares, converged_ms)


def judge(workload: Workload, limits: list[int], shares: list[list[float]], converged_ms: float) -> Outcome:
    means = [sum(own) / len(own) for own in shares]
    maes = [sum(abs(share - limit) for share in own) / len(own) for own, limit in zip(shares, limits)]
    is_met = all(abs(mean - limit) <= MEAN_POINTS for mean, limit in zip(means, limits))
    # a kernel cannot be cut: with few of them in a window, its share is a whole number of kernels, whatever the limiter does
    is_met &= all(mae <= MAE_POINTS for mae, tenant in zip(maes, workload.tenants) if tenant.kernel_us <= MAE_KERNEL_US)
    is_met &= not workload.change_to or 0 <= converged_ms <= CONVERGENCE_MS
    return Outcome(workload.name, limits, means, maes, is_met, converged_ms)


def gpu_times(bench: Bench, pids: list[int]) -> tuple[int, list[int]]:
    """The simulator's clock, and each process's GPU time so far, ns."""
    truth: dict[str, Any] = bench.machine.truth()
    # a process that uses NVML too is there twice
    spent = [(process["pid"], process["cards"][0]["gpu_time_ns"]) for process in truth["processes"]]
    alive = {pid for pid, _ns in spent}
    if not alive.issuperset(pids):
        raise RuntimeError("a program that keeps the card busy has ended by itself")
    return truth["now_ns"], [sum(ns for owner, ns in spent if owner == pid) for pid in pids]


def sample(bench: Bench, pids: list[int], windows: int) -> list[list[float]]:
    """Per tenant: share in percent of each window, by the simulator's clock."""
    shares: list[list[float]] = [[] for _ in pids]
    before_ns, before = gpu_times(bench, pids)
    for window in range(windows):
        time.sleep(max(0.0, WINDOW_MS / 1000 - 0.004) if window else WINDOW_MS / 1000)
        now_ns, now = gpu_times(bench, pids)
        for own, old, new in zip(shares, before, now):
            own.append(100 * (new - old) / (now_ns - before_ns))
        before_ns, before = now_ns, now
    return shares


def convergence(bench: Bench, pid: int, limit: int) -> float:
    """Milliseconds until the share of the last 100 ms is within 3 points of the new limit for the first time."""
    began_ns, before = gpu_times(bench, [pid])
    last_ns = began_ns
    while last_ns - began_ns < 3_000_000_000:
        time.sleep(0.1)
        now_ns, now = gpu_times(bench, [pid])
        if abs(100 * (now[0] - before[0]) / (now_ns - last_ns) - limit) <= MAE_POINTS:
            return (last_ns - began_ns) / 1e6
        last_ns, before = now_ns, now
    return -1.0


def table(outcomes: list[Outcome], peers: dict[str, Outcome]) -> list[str]:
    """A line per workload; ``peers``: the peer's outcome by the workload's name."""
    peer_title = f"  {'peer mean / MAE':>20}" if peers else ""
    lines = [f"{'core limit':<40} {'limit':>9} {'mean':>13} {'MAE':>11}{peer_title}  target"]
    for outcome in outcomes:
        limits, means, maes = joined(outcome.limits, "d"), joined(outcome.means, ".1f"), joined(outcome.maes, ".1f")
        peer = peers.get(outcome.name)
        beside = f"  {joined(peer.means, '.1f') + ', ' + joined(peer.maes, '.1f') if peer else '-':>20}" if peers else ""
        change = f", in force after {outcome.converged_ms:.0f} ms (<= {CONVERGENCE_MS})" if outcome.converged_ms >= 0 else ""
        verdict = "met" if outcome.is_met else "MISSED"
        target = f"mean +-{MEAN_POINTS}, MAE <= {MAE_POINTS:g}"
        lines.append(f"{outcome.name:<40} {limits:>9} {means:>13} {maes:>11}{beside}  {target}{change}  {verdict}")
    return lines


def joined(numbers: Sequence[float], form: str) -> str:
    return " / ".join(format(number, form) for number in numbers)
