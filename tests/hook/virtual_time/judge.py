"""Whether a run met its targets.

Owns the targets and the reasons why one does not apply. The truth it compares with is the simulated engine's own count of GPU time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import cases
from .cases import Case, Tenant

MEAN_POINTS = 1.5
MAE_POINTS = 3.0
LOSS_PERCENT = 2.0
LEDGER_POINTS = 1.5
JAIN = 0.99
# Random tenants, policies and parameters all at once: so many percent of them may miss.
HELD_OUT_PERCENT = {"mean off by": 2.0, "MAE": 2.0, "lost % of the quota": 2.0, "ledger off by": 2.0, "1 - Jain of processes": 3.0}
CHANGE_MS = 300.0
# In the first second after a change beside a neighbour, before NVML's word on it counts.
NEIGHBOUR_MAE_POINTS = 4.5  # over three seconds
NEIGHBOUR_WINDOW_POINTS = 16.0
NEIGHBOUR_SECOND_POINTS = 12.0
# What eight tenants at once may see before NVML's first words count: so long below so much of the limit, so far above it in a second.
STARVED_SHARE = 0.3
CROWD_ABOVE_POINTS = 20.0
# Of a program whose kernels' lengths jump by five or ten times beside others, and of those others: worst of all cases `jump`, pinned.
JUMP_MAE_POINTS = 28.0
JUMP_NEIGHBOUR_MAE_POINTS = 7.5
# The host's word comes up to 2.5 s later. So long one that was charged too little may take what another then has no room for in its bank.
HOST_JUMP_POINTS = 1.0
MAE_KERNEL_US = 10000.0  # longer ones cannot be spread over a window of 200 ms


@dataclass(frozen=True)
class Verdict:
    """One number of one tenant against its bound. ``applies`` is empty, or says why the bound is not asserted."""

    case: Case
    tenant: int
    what: str
    value: float
    bound: float
    exempt: str = ""

    @property
    def missed(self) -> bool:
        return not self.exempt and not self.value <= self.bound

    @property
    def excused(self) -> bool:
        return bool(self.exempt) and not self.value <= self.bound

    def __str__(self) -> str:
        text = f"{self.case.label}, tenant {self.tenant}: {self.what} {self.value:.2f}, at most {self.bound:.2f}"
        return f"{text} ({self.exempt})" if self.exempt else text


def attainable_percent(case: Case, tenant: Tenant) -> float:
    """What the program could use of a GPU of its own: a synchronous one leaves it idle between its kernels."""
    work_us = tenant.mean_us
    host_us = (tenant.launch_us or case.parameter("launch_us")) + tenant.gap_us
    cycle_us = work_us + host_us + case.parameter("sync_us") if tenant.sync else max(work_us, host_us)
    return min(100.0, 100 * work_us * tenant.processes / cycle_us)


def target_percent(case: Case, tenant: Tenant) -> float:
    target = float(tenant.limit)
    if tenant.off_ms:
        period_ms = tenant.on_ms + tenant.off_ms
        earned = target * (tenant.on_ms + min(tenant.off_ms, cases.BANK_MS)) / period_ms
        target = min(earned, 100 * tenant.on_ms / period_ms)
    return min(target, attainable_percent(case, tenant))


def jain(values: list[float]) -> float:
    squares = sum(value * value for value in values)
    return 1.0 if squares == 0 else sum(values) ** 2 / (len(values) * squares)


def slow_neighbour(case: Case, tenant: Tenant) -> bool:
    """Somebody's kernels are ten times ours: whoever waits behind one of them is late by a good part of a window."""
    for other in case.tenants:
        largest_us = max(other.kernel_us) * (1 + 2 * other.cv)
        if other is not tenant and largest_us > 1000 and largest_us >= 10 * tenant.mean_us:
            return True
    return False


def jumps_around(case: Case) -> bool:
    return len(case.tenants) > 1 and any(tenant.phase_ms for tenant in case.tenants)


def mae_points(case: Case, tenant: Tenant) -> float:
    """NVML tells a second after a length has jumped, and what was then wrong is made good in later windows."""
    if not jumps_around(case):
        return MAE_POINTS
    return JUMP_MAE_POINTS if tenant.phase_ms else JUMP_NEIGHBOUR_MAE_POINTS


def steady(case: Case, number: int, tenant: Tenant, result: dict[str, Any]) -> Iterator[Verdict]:
    """Mean, error per window, lost work, ledger and fairness of a tenant whose limit does not change.

    The ledger is held in every case: it is the limiter's own word on what was used.
    """
    target = target_percent(case, tenant)
    mean = float(result["mean"])
    kernel_share = 100 * tenant.mean_us * (1 + tenant.cv) / 1000 / case.length_ms  # one kernel more or less
    contended = len(case.tenants) > 1
    excuse = case.informative
    if (contended or tenant.processes > 1) and tenant.sync and mean < target and float(result["used"]) < target - 0.5:
        excuse = excuse or "synchronous: waits for its turn and asks for less than its quota"
    unknown_us = case.parameter("event_bias_us") * (1 - case.parameter("event_null_percent") / 100)
    alone_us = min(tenant.kernel_us) if tenant.sync or tenant.streams > 1 else 400.0  # a segment of short launches shares its events
    tiny = f"events show {unknown_us:.1f} us of their own per launch" if 100 * unknown_us / alone_us > LOSS_PERCENT * 0.6 else ""
    coarse = (
        0.5 if unknown_us > 0.1 * alone_us else 0.0
    )  # events blur such launches by a tenth, and what corrects it, NVML, by half a percent
    late = HOST_JUMP_POINTS if tenant.host and jumps_around(case) else 0.0
    yield Verdict(case, number, "mean off by", abs(mean - target), MEAN_POINTS + kernel_share + coarse + late, excuse)
    windows = result["windows"]
    mae = sum(abs(window - target) for window in windows) / len(windows)
    largest_us = max(tenant.kernel_us)
    if contended and largest_us * (1 + 2 * tenant.cv) >= MAE_KERNEL_US and tenant.cv:
        excuse = excuse or "one kernel in twenty is longer than 10 ms"
    elif largest_us > MAE_KERNEL_US or (case.fifo and any(max(other.kernel_us) > MAE_KERNEL_US for other in case.tenants)):
        excuse = excuse or "kernels longer than the window can spread"
    elif slow_neighbour(case, tenant):
        excuse = excuse or "short kernels among slow ones"
    elif tenant.off_ms:
        excuse = excuse or "pauses: judged by the mean"
    yield Verdict(case, number, "MAE", mae, mae_points(case, tenant), excuse)
    loss = 100 * max(0.0, target - mean - kernel_share) / target
    reason = case.informative or tiny or ("judged by the mean: NVML counts whole percents" if contended or tenant.processes > 1 else "")
    yield Verdict(case, number, "lost % of the quota", loss, LOSS_PERCENT, reason)
    yield Verdict(case, number, "ledger off by", abs(float(result["used"]) - mean), LEDGER_POINTS + kernel_share, case.informative)
    if tenant.processes > 1 and not tenant.kill_ms:
        reason = case.informative or ("lengths jump: one process may be charged for the other's" if contended and tenant.phase_ms else "")
        yield Verdict(case, number, "1 - Jain of processes", 1 - jain(result["processes"]), 1 - JAIN, reason)


def limits_over_time(case: Case, number: int) -> list[tuple[float, int]]:
    return [(0.0, case.tenants[number].limit), *((at_ms, limit) for at_ms, tenant, limit in case.changes if tenant == number)]


def changing(case: Case, number: int, tenant: Tenant, result: dict[str, Any]) -> Iterator[Verdict]:
    """From 300 ms after a change on, windows of 200 ms are within the error that a steady limit may have, and so is the first second."""
    per_window = round(cases.WINDOW_MS / case.window_ms)
    windows = result["windows"]
    timeline = limits_over_time(case, number)
    ends_ms = [at_ms for at_ms, _ in timeline[1:]] + [case.warmup_ms + case.length_ms]
    together = case.group == "two change"
    for (at_ms, limit), end_ms in zip(timeline, ends_ms):
        if together and at_ms == 0:
            continue  # crowds() judges how tenants start
        begin_ms, until_ms = working(tenant, max(at_ms, tenant.start_ms, case.warmup_ms), end_ms)
        first = int((begin_ms + CHANGE_MS - case.warmup_ms) / case.window_ms) + 1
        last = int((until_ms - case.warmup_ms) / case.window_ms)
        spans = [windows[i : i + per_window] for i in range(first, last - per_window + 1)]
        if not spans:
            continue
        target = min(100.0 if limit >= 100 else float(limit), attainable_percent(case, tenant))
        errors = [abs(sum(span) / len(span) - target) for span in spans]
        # a single window may split a kernel: one more or less
        one_kernel = 100 * tenant.mean_us / 1000 / cases.WINDOW_MS
        yield Verdict(case, number, f"MAE 300 ms after {limit} at {at_ms:g} ms", sum(errors) / len(errors),
                      NEIGHBOUR_MAE_POINTS if together else MAE_POINTS)  # fmt: skip
        yield Verdict(case, number, f"worst window after {limit} at {at_ms:g} ms", max(errors),
                      NEIGHBOUR_WINDOW_POINTS if together else MAE_POINTS + one_kernel)  # fmt: skip
        second = windows[first : min(last, first + round((1000 - CHANGE_MS) / case.window_ms))]
        yield Verdict(case, number, f"first second after {limit} at {at_ms:g} ms", abs(sum(second) / len(second) - target),
                      NEIGHBOUR_SECOND_POINTS if together else MAE_POINTS)  # fmt: skip


def working(tenant: Tenant, begin_ms: float, until_ms: float) -> tuple[float, float]:
    """The first stretch of this time in which the program does not pause."""
    if tenant.off_ms:
        period_ms = tenant.on_ms + tenant.off_ms
        phase_ms = (begin_ms - tenant.start_ms) % period_ms
        if phase_ms >= tenant.on_ms:
            begin_ms, phase_ms = begin_ms + period_ms - phase_ms, 0.0
        until_ms = min(until_ms, begin_ms + tenant.on_ms - phase_ms)
    return begin_ms, until_ms


def flapping(case: Case, number: int, result: dict[str, Any]) -> Iterator[Verdict]:
    """While it flaps, between the limits and not above their mean (a raise counts from when it is seen); after it, the last limit."""
    windows = result["windows"]
    at_ms = [at for at, _, _ in case.changes]
    begin_ms = max(at_ms[0], case.tenants[0].start_ms)
    first, last = int((begin_ms + CHANGE_MS - case.warmup_ms) / case.window_ms), int((at_ms[-1] - case.warmup_ms) / case.window_ms)
    mean = sum(windows[first:last]) / (last - first)
    yield Verdict(case, number, "mean of 20/80 above 50 by", mean - 50, MAE_POINTS)
    yield Verdict(case, number, "mean of 20/80 below 35 by", 35 - mean, 0.0)
    after = windows[int((at_ms[-1] + CHANGE_MS - case.warmup_ms) / case.window_ms) + 1 :]
    yield Verdict(case, number, "mean after it off by", abs(sum(after) / len(after) - case.changes[-1][2]), MEAN_POINTS)


def mode(case: Case, results: list[dict[str, Any]]) -> Iterator[Verdict]:
    if case.name.startswith(("elastic, alone", "never")):
        yield Verdict(case, 0, "unused by the only tenant", 100 - float(results[0]["mean"]), 3.0)
    elif case.name.startswith("elastic, both"):
        for number, tenant in enumerate(case.tenants):
            yield Verdict(case, number, "mean off by", abs(float(results[number]["mean"]) - tenant.limit), MEAN_POINTS)
    else:
        windows = results[1]["windows"]
        both = windows[: int(6000 / case.window_ms) - 1]
        alone = windows[int(6000 / case.window_ms) + 2 : int(10000 / case.window_ms) - 1]
        yield Verdict(case, 1, "lower one beside a higher one off a quarter of 40 by", abs(sum(both) / len(both) - 10), MEAN_POINTS)
        yield Verdict(case, 1, "unused by the lower one while alone", 100 - sum(alone) / len(alone), 5.0)


def hostile(case: Case, results: list[dict[str, Any]]) -> Iterator[Verdict]:
    """The writer harms itself; its neighbour has at worst an unlimited neighbour. That the run ended says that nothing hung."""
    yield Verdict(case, 0, "launches that the writer lacks of 100", max(0.0, 100 - float(results[0]["launches"])), 0.0)
    excuse = "an unlimited neighbour fills its queue first" if case.fifo else ""
    turn = 98.0 / sum(tenant.processes for tenant in case.tenants)  # of the time slices, less their switches, if nobody waits
    below = case.tenants[1].limit - float(results[1]["mean"])
    yield Verdict(case, 1, "neighbour's mean below its limit by", below, case.tenants[1].limit - turn, excuse)


def crowd(case: Case, number: int, tenant: Tenant, result: dict[str, Any]) -> Iterator[Verdict]:
    """The first seconds of many at once: nobody starves, nobody takes the card, and from the 8th second on the means are right."""
    windows = result["windows"]
    per_second = round(1000 / case.window_ms)
    starved = longest = 0
    for window in windows:
        starved = starved + 1 if window < STARVED_SHARE * tenant.limit else 0
        longest = max(longest, starved)
    turns = "synchronous: each launch waits for the slow ones of all others" if tenant.sync and slow_neighbour(case, tenant) else ""
    yield Verdict(case, number, "starved for ms", longest * case.window_ms, case.starved_ms, turns)
    above = max(sum(windows[at : at + per_second]) / per_second - tenant.limit for at in range(len(windows) - per_second + 1))
    yield Verdict(case, number, "worst second above its limit by", above, CROWD_ABOVE_POINTS)
    settled = windows[8 * per_second :]
    mean = sum(settled) / len(settled)
    excuse = "synchronous: waits for its turn and asks for less than its quota" if tenant.sync and mean < tenant.limit else ""
    yield Verdict(case, number, "mean from the 8th second off by", abs(mean - tenant.limit), MEAN_POINTS, excuse)


def strict(case: Case, number: int, tenant: Tenant, result: dict[str, Any]) -> Iterator[Verdict]:
    """Never above the limit, and not further below it than the case says; what the ledger charges is the limit."""
    kernel_share = 100 * tenant.mean_us * (1 + tenant.cv) / 1000 / case.length_ms
    target = target_percent(case, tenant)
    mean, used = float(result["mean"]), float(result["used"])
    yield Verdict(case, number, "mean above its limit by", mean - target, case.above_points + kernel_share)
    excuse = "synchronous: waits for its turn and asks for less than its quota" if tenant.sync and used < target - 0.5 else ""
    yield Verdict(case, number, "mean below its limit by", target - mean, case.below_points + kernel_share, excuse)
    yield Verdict(case, number, "charged other than its limit by", abs(used - target), MEAN_POINTS + kernel_share, excuse)


def judge(case: Case, result: dict[str, Any]) -> list[Verdict]:
    tenants: list[dict[str, Any]] = result["tenants"]
    if case.group == "mode":
        return list(mode(case, tenants))
    if case.group == "hostile":
        return list(hostile(case, tenants))
    verdicts: list[Verdict] = []
    for number, tenant in enumerate(case.tenants):
        if not tenant.judged:
            continue
        if case.group in ("no nvml", "one key"):
            verdicts += strict(case, number, tenant, tenants[number])
        elif case.group == "crowd":
            verdicts += crowd(case, number, tenant, tenants[number])
        elif case.group == "flapping":
            verdicts += flapping(case, number, tenants[number])
        elif case.changes:
            verdicts += changing(case, number, tenant, tenants[number])
        else:
            verdicts += steady(case, number, tenant, tenants[number])
    judged = [(tenant, float(tenants[i]["mean"])) for i, tenant in enumerate(case.tenants) if tenant.judged]
    if (
        case.group not in ("crowd", "two change")
        and len(judged) > 1
        and all(tenant == judged[0][0] for tenant, _ in judged)
        and not case.informative
    ):
        verdicts.append(Verdict(case, 0, "1 - Jain of equal tenants", 1 - jain([mean for _, mean in judged]), 1 - JAIN))
    return verdicts
