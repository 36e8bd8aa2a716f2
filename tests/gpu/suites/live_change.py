"""Live change: the host's page is in force for running processes at once, memory and cores, up and down."""

from __future__ import annotations

import time

from tests.gpu.ground import MIB, Ground
from tests.hook.allowance import SAVED_AFTER_CHANGE_MS, Allowance

OUT_OF_MEMORY = 2


def check_memory_grows_in_a_running_process(ground: Ground) -> None:
    slot = ground.slot(128 * MIB)
    with ground.agents(slot) as (agent,):
        agent.done("fill", step_bytes=32 * MIB, most_bytes=128 * MIB)
        assert agent.ask("alloc", size_bytes=32 * MIB)["result"] == OUT_OF_MEMORY
        slot.change(memory_limit_bytes=160 * MIB)
        agent.done("alloc", size_bytes=32 * MIB)
        assert agent.done("info")["total"] == 160 * MIB
        assert agent.ask("alloc", size_bytes=512)["result"] == OUT_OF_MEMORY


def check_a_limit_below_the_usage_blocks_new_allocations_and_nothing_else(ground: Ground) -> None:
    slot = ground.slot(256 * MIB)
    with ground.agents(slot) as (agent,):
        agent.done("fill", step_bytes=32 * MIB, most_bytes=192 * MIB)
        slot.change(memory_limit_bytes=64 * MIB)
        assert agent.ask("alloc", size_bytes=512)["result"] == OUT_OF_MEMORY
        info, nvml = agent.done("info"), agent.done("nvml")["v1"]
        assert (info["total"], info["free"]) == (64 * MIB, 0)
        assert (nvml["total"], nvml["free"]) == (64 * MIB, 0)
        agent.done("spin", us=500, milliseconds=50)
        agent.done("free", count=5)
        assert slot.used_bytes == 32 * MIB
        agent.done("alloc", size_bytes=32 * MIB)


def check_a_core_limit_changes_in_a_running_process(ground: Ground) -> None:
    """In force after 300 ms, and at no time more than the limit and what was saved: a change leaves little of what the old one did."""
    slot = ground.slot(256 * MIB, 20)
    with ground.agents(slot) as (agent,):

        def spin(milliseconds: int) -> tuple[float, float]:
            spun = agent.done("spin", us=1000, milliseconds=milliseconds, style="async")
            return float(spun["launches"]), spun["wall_us"] / 1000  # kernels of 1 ms

        late = []
        for limit in (20, 70, 10, 75):
            slot.change(core_limit_percent=limit)
            first_second = Allowance(slot.folder, limit, saved_ms=SAVED_AFTER_CHANGE_MS)
            settling_ms, _ = spin(300)
            soon_ms, wall_ms = spin(700)
            first_second.check(settling_ms + soon_ms, ground.tolerance_points)
            soon = 100 * soon_ms / wall_ms
            if abs(soon - limit) > 4 * ground.tolerance_points:
                late.append(f"300 ms after the change to {limit} %: {soon:.1f} %")
            # A host that stops the program gives it credit to spend later, so one window may be off where the mean is not.
            windows: list[float] = []
            while len(windows) < 3 and not any(abs(found - limit) <= ground.tolerance_points for found in windows):
                allowance = Allowance(slot.folder, limit)
                used_ms, wall_ms = spin(2000)
                allowance.check(used_ms, ground.tolerance_points)
                windows.append(100 * used_ms / wall_ms)
            shown = ", ".join(f"{found:.1f}" for found in windows)
            assert abs(windows[-1] - limit) <= ground.tolerance_points, f"a second after the change to {limit} %: {shown} %"
        assert len(late) <= 1, late  # a busy host may stop the program in one of those moments


def check_a_core_limit_can_be_lifted_and_put_back(ground: Ground) -> None:
    slot = ground.slot(256 * MIB, 20)
    with ground.agents(slot) as (agent,):

        def share(milliseconds: int) -> float:
            return float(agent.done("spin", us=1000, milliseconds=milliseconds, style="async")["share_percent"])

        agent.done("spin", us=1000, milliseconds=300, style="async")
        slot.change(core_limit_percent=0)
        agent.done("spin", us=1000, milliseconds=300, style="async")
        assert any(share(500) > 70 for _ in range(3)), "the limit is lifted, and the program is still held"
        slot.change(core_limit_percent=20)
        assert any(abs(share(1500) - 20) <= ground.tolerance_points for _ in range(3)), (
            "the limit of 20 % is back, and the program is not at it"
        )


def check_a_hundred_changes_a_second_harm_nothing(ground: Ground) -> None:
    slot = ground.slot(256 * MIB, 50)
    with ground.agents(slot) as (agent,):
        agent.send("spin", us=500, milliseconds=1000)
        for turn in range(100):
            slot.change(memory_limit_bytes=(128 + turn % 2 * 128) * MIB, core_limit_percent=30 + turn % 2 * 40)
            time.sleep(0.01)
        spun = agent.answer()
        assert spun["result"] == 0
        assert 15 < spun["share_percent"] < 85, f"between 30 and 70 %, the program got {spun['share_percent']:.1f} %"
        slot.change(memory_limit_bytes=64 * MIB)
        assert agent.ask("fill", step_bytes=2 * MIB, most_bytes=ground.most_bytes) == {"result": OUT_OF_MEMORY, "allocated": 64 * MIB}
