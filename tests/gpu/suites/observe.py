"""Observations: numbers that the design assumes and only a real card can tell. They are written down; only absurd ones fail.

The letters are those of the open points in docs/hardware.md.
"""

from __future__ import annotations

import time

from tests.gpu.ground import MIB, Agent, Ground


def check_cost_and_error_of_events(ground: Ground) -> None:
    with ground.agents(None) as (agent,):
        found = agent.done("events")
    ground.observed["events, us (c)"] = {name: round(value, 2) for name, value in found.items() if name.endswith("_us")}
    assert 0 <= found["nothing_us"] <= found["kernel_us"] + 5 < 10_000


def check_the_drivers_version(ground: Ground) -> None:
    with ground.agents(None) as (agent,):
        ground.observed["driver (f)"] = agent.done("driver")["version"]
        ground.observed["CUDA"] = agent.done("cards")["cuda_version"]


def check_footprint_of_a_context(ground: Ground) -> None:
    """Free memory of the card before and after another process opens a context and loads a module."""
    with ground.agents(None) as (observer,):
        before = observer.done("info")["free"]
        other = Agent(ground.base)
        try:
            other.done("open", uuid=ground.uuid)
            with_context = observer.done("info")["free"]
            other.done("spin", us=100, milliseconds=1)
            with_module = observer.done("info")["free"]
        finally:
            other.kill()
    ground.observed["context and first module, MiB (e)"] = [(before - with_context) // MIB, (with_context - with_module) // MIB]


def check_period_of_nvmls_process_samples(ground: Ground) -> None:
    stamps: set[int] = set()
    with ground.agents(None, None) as (worker, watcher):
        worker.send("spin", us=2000, milliseconds=2500, style="async")
        for _ in range(20):
            time.sleep(0.1)
            stamps |= set(watcher.ask("samples").get("stamps_us", []))
        worker.answer()
    ordered = sorted(stamps)
    gaps = sorted(later - earlier for earlier, later in zip(ordered, ordered[1:]))
    ground.observed["period of NVML's process samples, ms (d)"] = gaps[len(gaps) // 2] / 1000 if gaps else "no samples"
