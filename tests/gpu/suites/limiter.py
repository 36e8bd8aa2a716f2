"""Compute: the share of GPU time follows the core limit, for every style of work and with a neighbour on the card.

Shares are kernel time over wall time as the program sees them; the kernels wait on the card's own clock.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.gpu.ground import Agent, Ground, Slot
from tests.hook.allowance import Allowance

MIB = 1 << 20
WARMUP_MS, MEASURED_MS = 600, 1500
WINDOWS = 3  # one of which must be at the limit: a busy host takes from some, and the program spends later what it saved meanwhile


def spin(agent: Agent, us: int, style: str = "sync", milliseconds: int = MEASURED_MS) -> tuple[float, float]:
    """GPU time in ms, and the share of the time."""
    spun = agent.done("spin", us=us, milliseconds=milliseconds, style=style)
    return spun["share_percent"] / 100 * spun["wall_us"] / 1000, float(spun["share_percent"])


def check_without_a_limit_the_card_is_the_programs(ground: Ground) -> None:
    with ground.agents(ground.slot(256 * MIB, 0)) as (agent,):
        found = [spin(agent, 2000, "async", milliseconds)[1] for milliseconds in (WARMUP_MS, *[MEASURED_MS] * WINDOWS)]
    assert max(found) > 100 - 5 * ground.tolerance_points, f"an unlimited program gets {max(found):.1f} % of an idle card; is it idle?"


def holds(ground: Ground, limit: int, us: int, style: str = "sync", milliseconds: int = MEASURED_MS) -> None:
    """No window uses more than the limit and what was saved before it, and one of them is at the limit."""
    slot = ground.slot(256 * MIB, limit)
    found: list[float] = []
    with ground.agents(slot) as (agent,):
        spin(agent, us, style, WARMUP_MS)
        while len(found) < WINDOWS and not any(abs(share - limit) <= ground.tolerance_points for share in found):
            allowance = Allowance(slot.folder, limit)
            used_ms, share = spin(agent, us, style, milliseconds)
            allowance.check(used_ms, ground.tolerance_points)
            found.append(share)
    within(ground, found[-1], limit)


def check_two_milliseconds_at_30_percent(ground: Ground) -> None:
    holds(ground, 30, 2000)


def check_short_kernels_at_60_percent(ground: Ground) -> None:
    holds(ground, 60, 300, "async")


def check_graphs_at_30_percent(ground: Ground) -> None:
    holds(ground, 30, 5000, "graph")


def check_long_kernels_at_20_percent(ground: Ground) -> None:
    holds(ground, 20, 20000, milliseconds=4000)


def within(ground: Ground, found: float, limit: int) -> None:
    assert abs(found - limit) <= ground.tolerance_points, (
        f"{found:.1f} % of the card's time, expected {limit} +- {ground.tolerance_points:g}"
    )


def shares_beside_each_other(ground: Ground, slots: list[Slot], warmup_ms: int, is_right: Callable[[list[float]], bool]) -> list[float]:
    """Of programs that spin at the same time, one per slot; measured until they are right, a few times."""
    with ground.agents(*slots) as agents:
        for milliseconds in (warmup_ms, *[3000] * WINDOWS):
            for agent in agents:
                agent.send("spin", us=1000, milliseconds=milliseconds, style="async")
            shares = [float(agent.answer()["share_percent"]) for agent in agents]
            if milliseconds != warmup_ms and is_right(shares):
                break
    return shares


def check_neighbours_of_30_and_60_percent_get_their_shares(ground: Ground) -> None:
    limits = (30, 60)
    slots = [ground.slot(128 * MIB, limit, neighbours=1) for limit in limits]
    shares = shares_beside_each_other(
        ground, slots, 2000, lambda found: all(abs(share - limit) <= ground.tolerance_points for share, limit in zip(found, limits))
    )
    ground.observed["neighbours of 30 and 60 %"] = [round(found, 1) for found in shares]
    for found, limit in zip(shares, limits):
        within(ground, found, limit)


def check_processes_of_a_slice_share_its_time(ground: Ground) -> None:
    slot = ground.slot(256 * MIB, 40)
    shares = shares_beside_each_other(ground, [slot, slot], 1000, lambda found: abs(sum(found) - 40) <= ground.tolerance_points)
    within(ground, sum(shares), 40)
    assert min(shares) > 10, f"of 40 % together, the two processes got {shares[0]:.1f} and {shares[1]:.1f}"
