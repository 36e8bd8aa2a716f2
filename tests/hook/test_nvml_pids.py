"""A core limit holds in whatever numbers NVML speaks of processes: those of the caller's pid namespace or of the machine, in its list of
processes and in its samples of their utilisation each for itself (the kernel modules translate them since different drivers)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hook import scripts
from tests.hook.workshop import Slot

pytestmark = pytest.mark.timing

CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
SPEECHES = {"535": ("caller", "machine"), "570": ("caller", "caller")}
TOLERANCE_POINTS = 3.0
BANK_POINTS = 12.5  # of a window of one second at 50 %: 250 ms x limit, which a program may make good (docs/enforcement.md, bursts)


@pytest.fixture(params=SPEECHES)
def slots(make_slot: Callable[..., Slot], request: pytest.FixtureRequest) -> Callable[..., list[Slot]]:
    """slots(30, 60, mode=...) on a card that two tenants share in turns, under a driver that speaks so."""
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespaces here")

    def make(*limits: int, **quota: object) -> list[Slot]:
        made = [make_slot(cores=limit, **quota) for limit in limits]
        pids = (f"{name}={word}" for name, word in zip(("process_pids", "sample_pids"), SPEECHES[request.param]))
        made[0].machine.tool("set", *pids, "policy=round-robin")
        return made

    return make


@contextmanager
def working(slots: list[Slot], us: int) -> Iterator[Callable[[float], list[float]]]:
    """Each slot's program keeps the card as busy as it may; measure(seconds) gives their shares of it in percent."""
    programs = [slot.start([*CONTAINER, *scripts.spinner(us)]) for slot in slots]

    def namespace(launcher: int) -> int:
        """Of the child that ``unshare --fork`` has made."""
        child = Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="ascii").split()[0]
        return Path(f"/proc/{child}/ns/pid").stat().st_ino

    def used_ns() -> list[int]:
        processes = slots[0].machine.truth()["processes"]
        by_namespace = [(process["pid_namespace"], int(process["cards"][0]["gpu_time_ns"])) for process in processes]
        return [sum(used for inside, used in by_namespace if inside == namespace(program.pid)) for program in programs]

    def measure(seconds: float) -> list[float]:
        before, began = used_ns(), time.monotonic()
        time.sleep(seconds)
        after, ended = used_ns(), time.monotonic()
        return [(b - a) / (ended - began) / 1e7 for a, b in zip(before, after)]

    try:
        yield measure
    finally:
        for program in programs:
            program.kill()
            program.communicate()


@pytest.mark.parametrize("us", [500, 5000])
def test_a_limit_holds_alone(slots: Callable[..., list[Slot]], us: int) -> None:
    with working(slots(50), us) as measure:
        time.sleep(1.5)
        shares = [measure(1)[0] for _ in range(6)]
    assert sum(shares) / len(shares) == pytest.approx(50, abs=TOLERANCE_POINTS), shares
    assert max(shares) < 50 + BANK_POINTS + TOLERANCE_POINTS, shares


def test_neighbours_get_no_more_than_their_limits(slots: Callable[..., list[Slot]]) -> None:
    """And theirs, where NVML tells what was whose; below that where it does not."""
    limits = (30, 60)
    made = slots(*limits)
    with working(made, 5000) as measure:
        time.sleep(5)
        windows = [measure(1) for _ in range(8)]
    means = [sum(shares) / len(shares) for shares in zip(*windows)]
    assert all(mean < limit + TOLERANCE_POINTS for mean, limit in zip(means, limits)), windows
    assert all(mean > limit - 15 for mean, limit in zip(means, limits)), windows


def test_an_elastic_limit_holds_beside_those_that_nvml_leaves_out(slots: Callable[..., list[Slot]]) -> None:
    """Nobody else in a list that leaves strangers out is no sign that nobody else works."""
    elastic, neighbour = slots(20, 60, mode="elastic")
    with working([elastic, neighbour], 2000) as measure:
        time.sleep(3)
        shares = [measure(1)[0] for _ in range(4)]
    assert sum(shares) / len(shares) < 20 + TOLERANCE_POINTS, shares
