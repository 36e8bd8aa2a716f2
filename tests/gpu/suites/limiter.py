"""Compute: the share of GPU time follows the core limit, for every style of work and with a neighbour on the card.

Shares are kernel time over wall time as the program sees them; the kernels wait on the card's own clock.
"""

from __future__ import annotations

from tests.gpu.ground import Agent, Ground, Slot

MIB = 1 << 20
WARMUP_MS, MEASURED_MS = 600, 1500


def share(agent: Agent, us: int = 2000, style: str = "sync", milliseconds: int = MEASURED_MS) -> float:
    agent.done("spin", us=us, milliseconds=WARMUP_MS, style=style)
    return float(agent.done("spin", us=us, milliseconds=milliseconds, style=style)["share_percent"])


def share_at(ground: Ground, limit: int, us: int, style: str) -> float:
    with ground.agents(ground.slot(256 * MIB, limit)) as (agent,):
        return share(agent, us, style)


def check_without_a_limit_the_card_is_the_programs(ground: Ground) -> None:
    found = share_at(ground, 0, 2000, "async")
    assert found > 85, f"an unlimited program gets {found:.1f} % of an idle card; is it idle?"


def check_two_milliseconds_at_30_percent(ground: Ground) -> None:
    within(ground, share_at(ground, 30, 2000, "sync"), 30)


def check_short_kernels_at_60_percent(ground: Ground) -> None:
    within(ground, share_at(ground, 60, 300, "async"), 60)


def check_graphs_at_30_percent(ground: Ground) -> None:
    within(ground, share_at(ground, 30, 5000, "graph"), 30)


def check_long_kernels_at_20_percent(ground: Ground) -> None:
    with ground.agents(ground.slot(256 * MIB, 20)) as (agent,):
        found = share(agent, 20000, milliseconds=4000)
    within(ground, found, 20)


def within(ground: Ground, found: float, limit: int) -> None:
    assert abs(found - limit) <= ground.tolerance_points, (
        f"{found:.1f} % of the card's time, expected {limit} +- {ground.tolerance_points:g}"
    )


def check_neighbours_of_30_and_60_percent_get_their_shares(ground: Ground) -> None:
    limits = (30, 60)
    slots: list[Slot] = [ground.slot(128 * MIB, limit, neighbours=1) for limit in limits]
    with ground.agents(*slots) as agents:
        for milliseconds in (2000, 3000):
            for agent in agents:
                agent.send("spin", us=1000, milliseconds=milliseconds, style="async")
            answers = [agent.answer() for agent in agents]
    shares = [answer["share_percent"] for answer in answers]
    ground.observed["neighbours of 30 and 60 %"] = [round(found, 1) for found in shares]
    for found, limit in zip(shares, limits):
        within(ground, found, limit)


def check_processes_of_a_slice_share_its_time(ground: Ground) -> None:
    slot = ground.slot(256 * MIB, 40)
    with ground.agents(slot, slot) as agents:
        for milliseconds in (1000, 3000):
            for agent in agents:
                agent.send("spin", us=1000, milliseconds=milliseconds, style="async")
            shares = [agent.answer()["share_percent"] for agent in agents]
    within(ground, sum(shares), 40)
    assert min(shares) > 10, f"of 40 % together, the two processes got {shares[0]:.1f} and {shares[1]:.1f}"
