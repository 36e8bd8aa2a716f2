"""The limiter's targets hold in virtual time, its laws hold under sanitizers, and a broken limiter is noticed."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from . import cases, judge, run
from .cases import Case

HERE = Path(__file__).resolve().parent

# What a limiter may lose, and the group of small() that must notice it; "laws": limit_test.c must.
EARNED = "earned = (int64_t)(passed_ns * earn_percent / 100);"
BANK = "return bank > 2 * CHUNK_NS ? bank : 2 * CHUNK_NS;"
SUPERVISED = "    none.supervised = 1;\n"
TOLD = "    if (to_ns != process->told_to_ns)\n"
SIBLING = "now_ns - observed_ns < SIBLING_NS);"
CUT = "return min_u64(max_u64(step_ns, kernel_ns), most_ns) >> 16;"
GOOD = "    if (beyond_us <= 0)\n"
JUMPS = "put(state->jumps, JUMPS_WINDOWS);"
CALM_ENDS = "#define CALM_WINDOWS 10u"
CHANGED = "earn_max_ns = CHANGE_EARN_NS;\n        limit_forget_overcharge(state);\n"
REST = "*rest_ns = (uint32_t)(whole_ns % UNIT_NS);"
TURN = "if (processes > 1 && process->entitled_ns < 0 && credit < surplus)"
FIRST = "? FACTOR_MIN : FACTOR_FIRST;"
MUCH = "#define GIVEN_BACK_MS UINT64_C(25)"
CALM = "price.cost_ns = price.busy_ns * contention->factor >> 16;"
FORGIVING = "price.cost_ns = clustered ? min_u64(price.busy_ns, segment->charged_ns * 5 / 4) : price.busy_ns;"
WIDE = "#define RATIO_MAX (ONE * 256)"
OLD_CREDIT = "if (credit > CHUNK_NS)\n"
INFLIGHT = "if (inflight_ns > max_u64(INFLIGHT_NS, cost_ns)"
UNKNOWN = "if (!known && process->unknown_count > 0 "
MORE = "more_ns = (int64_t)(price->cost_ns - segment->charged_ns);"
MUTATIONS = {
    "never refills": (EARNED, "earned = (int64_t)(passed_ns * 0);", "alone"),
    "refills twice": (EARNED, "earned = (int64_t)(passed_ns * earn_percent / 50);", "alone"),
    "never waits": ("if (credit < wanted) {", "if (credit < wanted && 0) {", "alone"),
    "never settles": (MORE, "more_ns = 0 * (int64_t)price->cost_ns;", "alone"),
    "charges overlapping streams twice": ("return length_ns - min_u64(covered_ns, length_ns);", "return length_ns;", "streams"),
    "hides a long kernel's debt behind a full bank": ("if (cost_ns > (uint64_t)CHUNK_NS)", "if (0)", "long"),
    "ignores NVML": (SUPERVISED, SUPERVISED + "    if (observed_ns > 0) return none;\n", "shared"),
    "ignores the host": (TOLD, "    if (0)\n", "host"),
    "weighs what the host told once per process": (SIBLING, SIBLING.replace("<", "< 0 *"), "laws"),
    "weighs the host's old word again and again": (TOLD, "    if (1)\n", "laws"),
    "forgets what idle time earned": (BANK, "return 2 * CHUNK_NS;", "duty"),
    "keeps idle time for ever": (BANK, "return bank * 1000;", "duty"),
    "takes a step of the load for a neighbour": (CUT, CUT.replace("return ", "return 0 * "), "change"),
    "gives back all at once": (MUCH, MUCH.replace("25", "250"), "two change"),
    "takes the long ones of a kernel for a neighbour's work": (CALM, FORGIVING, "one key"),
    "believes no factor above 2": (WIDE, WIDE.replace("256", "2"), "one key"),
    "believes the first estimates": (FIRST, FIRST.replace("FACTOR_FIRST", "FACTOR_MIN"), "crowd"),
    "takes a word of nothing for a mistake, however certain": ("|| observation->is_certain)", ")", "laws"),
    "makes nothing good": (GOOD, GOOD.replace("beyond_us <= 0", "1"), "jump"),
    "makes good without bound": ("over_us > most || over_us < -most ? 0 : over_us", "over_us", "laws"),
    "believes the estimates of lengths that jump": (JUMPS, JUMPS.replace("JUMPS_WINDOWS", "0"), "jump"),
    "forgets a neighbour at the first agreement": (CALM_ENDS, CALM_ENDS.replace("10", "1"), "jump"),
    "loses what is too short for the time line": (REST, "*rest_ns = 0;", "laws"),
    "forgets what is settled late": ("if (late_ms <= 0 || late_ms > LATE_MAX_MS)", "if (late_ms != 0)", "laws"),
    "makes good under another limit": (CHANGED, CHANGED.replace("        limit_forget_overcharge(state);\n", ""), "laws"),
    "waits for its turn when alone": (TURN, TURN.replace("processes > 1 && ", ""), "change"),
    "keeps the credit of the old limit": (OLD_CREDIT, "if (0)\n", "laws"),
    "lets the queue grow": (INFLIGHT, INFLIGHT.replace("if (", "if (0 && "), "laws"),
    "does not block on an unknown kernel": (UNKNOWN, UNKNOWN.replace("if (", "if (0 && "), "unknown"),
}


def small() -> dict[str, list[Case]]:
    """A few cases per group: enough to notice, quick enough for a dozen mutants."""
    tenant = cases.Tenant
    limits = [Case("alone", f"1 ms at {limit}", (tenant(limit, (1000.0,)),)) for limit in (10, 50, 90)]
    varied = Case("alone", "2 ms cv 1 at 50", (tenant(50, (2000.0,), cv=1.0),))
    streams = Case(
        "alone", "2 streams of 300 us, no NVML", (tenant(50, (300.0,), streams=2, nvml=False),), settings={"event_noise_percent": 0}
    )
    long = Case("alone", "500 ms sync at 65", (tenant(65, (500000.0,), sync=True),), length_ms=60000)
    shared = [case for case in cases.shared(False) if case.name == "30/60 of 5 ms"]
    jumps = [*cases.jumps(False, 23), *cases.jumps(True, 23)]
    unknown = Case("alone", "100 ms from cold at 20", (tenant(20, (100000.0,)),), warmup_ms=0, length_ms=3000)
    return {
        "alone": [*limits, varied],
        "streams": [streams],
        "long": [long],
        "shared": shared,
        "host": [case for case in cases.told(False) if case.name == "30/60 of 5 ms"],
        "duty": list(cases.duty(False)),
        "crowd": [case for case in cases.crowds(True) if "20+200" in case.name],
        "one key": [case for case in cases.one_key(False) if " at 40" in case.name],
        "jump": [case for case in jumps if case.name.startswith(("15/70, 2 of 300", "45/40, 2 of 50"))],
        "two change": list(cases.neighbour_changes(True, (0, 192), (0, 60))),
        "change": [case for case in cases.changes(False) if "10 and 90" in case.name or case.name.startswith("300 us sync")],
        "unknown": [unknown],
    }


def misses(program: Path, todo: Sequence[Case]) -> list[str]:
    return [str(verdict) for verdict in run.judge_all(todo, run.run(program, todo, timeout_s=60)) if verdict.missed]


def build_laws(folder: Path, limiter: Path = run.LIMITER, compiler: str = "gcc", flags: Sequence[str] = ("-O1",)) -> Path:
    program = folder / "limit_test"
    command = [compiler, "-std=gnu11", "-g", *flags, "-I", str(limiter.parent), "-o", str(program)]
    subprocess.run([*command, str(HERE / "limit_test.c"), *map(str, sorted(limiter.glob("*.c"))), "-lm", "-lpthread"], check=True)
    return program


def mutate(folder: Path, old: str, new: str) -> Path:
    """A copy of the limiter with ``new`` instead of ``old`` in the one file that contains it."""
    limiter = Path(shutil.copytree(run.LIMITER, folder / "limiter"))
    found = [source for source in limiter.iterdir() if old in source.read_text(encoding="utf-8")]
    assert len(found) == 1, f"{old!r} is in {len(found)} of the limiter's files, expected one; adapt the mutation"
    text = found[0].read_text(encoding="utf-8")
    assert text.count(old) == 1
    found[0].write_text(text.replace(old, new), encoding="utf-8")
    return limiter


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run.build(tmp_path_factory.mktemp("virtual-time"))


def test_the_targets_hold_in_the_quick_cases(bench: Path) -> None:
    todo = [*cases.quick(), *cases.held_out(150, 271828), *cases.told_held_out(150, 271828)]
    verdicts, _ = run.judge_held_out(run.judge_all(todo, run.run(bench, todo)))
    assert len(verdicts) > 2000
    assert {verdict.case.group for verdict in verdicts} >= {"shared", "no nvml", "host", "crowd", "two change"}
    assert [str(verdict) for verdict in verdicts if verdict.missed] == []


def test_the_same_seed_gives_the_same_run(bench: Path) -> None:
    todo = list(cases.shared(True))[:3]
    assert run.run(bench, todo) == run.run(bench, todo)


def test_an_unlimited_tenant_fills_the_gpu(bench: Path) -> None:
    case = Case("alone", "unlimited", (cases.Tenant(100, (1000.0,), limited=False),))
    assert run.run(bench, [case])[0]["tenants"][0]["mean"] > 99.9


def test_time_slices_are_shared_evenly_without_a_limiter(bench: Path) -> None:
    tenants = tuple(cases.Tenant(100, (us,), limited=False) for us in (300.0, 5000.0))
    means = [tenant["mean"] for tenant in run.run(bench, [Case("alone", "two", tenants)])[0]["tenants"]]
    assert abs(means[0] - means[1]) < 2
    assert 97 < sum(means) < 98.5  # the rest is context switches: 50 us of 2,050


def test_first_come_first_served_favours_long_kernels_without_a_limiter(bench: Path) -> None:
    tenants = tuple(cases.Tenant(100, (us,), limited=False, sync=True) for us in (300.0, 5000.0))
    means = [tenant["mean"] for tenant in run.run(bench, [Case("alone", "two", tenants, fifo=True)])[0]["tenants"]]
    assert means[1] > 10 * means[0]


@pytest.mark.parametrize("group", sorted(small()))
def test_the_limiter_meets_the_mutants_cases(bench: Path, group: str) -> None:
    assert misses(bench, small()[group]) == []


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_limiter_is_noticed(tmp_path: Path, mutation: str) -> None:
    old, new, group = MUTATIONS[mutation]
    limiter = mutate(tmp_path, old, new)
    if group == "laws":
        assert subprocess.run([build_laws(tmp_path, limiter)], capture_output=True, timeout=60, check=False).returncode == 1
    else:
        assert misses(run.build(tmp_path, limiter, [*run.FLAGS, "-Wno-error"]), small()[group]) != []


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [
        ("gcc", ("-O2",)),
        ("clang", ("-O2",)),
        ("gcc", ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")),
        ("gcc", ("-O1", "-fsanitize=thread")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1].rpartition("=")[2],
)
def test_the_laws_of_the_controller(tmp_path: Path, compiler: str, flags: Sequence[str]) -> None:
    program = build_laws(tmp_path, run.LIMITER, compiler, ["-Wall", "-Wextra", "-Werror", *flags])
    # without address randomisation: gcc 12's thread sanitizer does not know the layout of newer kernels
    start = shlex.split("setarch -R") if "-fsanitize=thread" in flags else []
    done = subprocess.run([*start, str(program)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    cost = json.loads(done.stdout)
    assert cost["state_bytes"] == 256


def test_the_bench_itself_is_clean(tmp_path: Path) -> None:
    program = run.build(tmp_path, flags=["-std=c11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
    run.run(program, [case for case in cases.quick() if case.group in ("hostile", "processes", "flapping", "mode")])


class TestJudging:
    """A judge that lets everything pass would make the bench worthless."""

    case = Case("alone", "1 ms at 50", (cases.Tenant(50, (1000.0,)),))

    def verdicts(self, mean: float, used: float, windows: list[float]) -> set[str]:
        result = {"tenants": [{"mean": mean, "used": used, "windows": windows, "processes": [mean]}]}
        return {verdict.what for verdict in judge.judge(self.case, result) if verdict.missed}

    def test_a_perfect_run_misses_nothing(self) -> None:
        assert self.verdicts(50, 50, [50.0] * 40) == set()

    def test_a_mean_two_points_above_is_a_miss(self) -> None:
        assert self.verdicts(52, 52, [52.0] * 40) == {"mean off by"}

    def test_lost_work_is_a_miss(self) -> None:
        assert self.verdicts(48.6, 48.6, [48.6] * 40) == {"lost % of the quota"}

    def test_swinging_windows_are_a_miss(self) -> None:
        assert self.verdicts(50, 50, [40.0, 60.0] * 20) == {"MAE"}

    def test_a_ledger_that_is_wrong_is_a_miss(self) -> None:
        assert self.verdicts(50, 55, [50.0] * 40) == {"ledger off by"}

    def test_unequal_processes_are_a_miss(self) -> None:
        assert judge.jain([1.0, 1.0, 1.0, 1.0]) == 1.0
        assert judge.jain([1.0, 1.0, 1.0, 0.7]) < judge.JAIN
