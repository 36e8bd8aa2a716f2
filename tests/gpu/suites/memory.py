"""Memory: the limit holds to the byte for every kind, is shared by a slice's processes, and comes back from the dead exactly once."""

from __future__ import annotations

import time

from tests.gpu.ground import MIB, Agent, Ground, NotHere

OUT_OF_MEMORY, NOT_SUPPORTED = 2, 801
LIMIT = 256 * MIB
KINDS = ("linear", "managed", "pitch", "array", "vmm", "async")


def check_the_limit_is_reached_exactly_and_not_passed(ground: Ground) -> None:
    slot = ground.slot(LIMIT)
    with ground.agents(slot) as (agent,):
        filled = agent.ask("fill", step_bytes=2 * MIB, most_bytes=ground.most_bytes)
        assert filled == {"result": OUT_OF_MEMORY, "allocated": LIMIT}
        assert slot.used_bytes == LIMIT
        assert agent.ask("alloc", size_bytes=1)["result"] == OUT_OF_MEMORY, "one byte above the limit was granted"
        agent.done("free")
        assert agent.ask("alloc", size_bytes=2 * MIB + 1)["result"] == OUT_OF_MEMORY
        agent.done("alloc", size_bytes=2 * MIB)
        agent.done("free", count=10_000)
        assert slot.used_bytes == 0


def check_the_cards_real_memory_is_what_is_counted(ground: Ground) -> None:
    with ground.agents(None, ground.slot(LIMIT)) as (observer, agent):
        before = observer.done("info")["free"]
        agent.done("fill", step_bytes=32 * MIB, most_bytes=LIMIT)
        fallen = before - observer.done("info")["free"]
    ground.observed["card memory that 256 MiB of allocations took, bytes"] = fallen
    assert fallen >= LIMIT, f"256 MiB were allocated, the card lost {fallen} bytes"


def check_every_kind_is_charged_and_given_back(ground: Ground) -> None:
    slot = ground.slot(LIMIT)
    missing = []
    with ground.agents(slot) as (agent,):
        for kind in KINDS:
            result = agent.ask("alloc", size_bytes=64 * MIB, kind=kind)["result"]
            if result == NOT_SUPPORTED:
                missing.append(kind)
                continue
            assert result == 0, f"64 MiB of {kind} memory of a 256 MiB slice: {result}"
            assert 64 * MIB <= slot.used_bytes <= 98 * MIB, f"64 MiB of {kind} memory are charged as {slot.used_bytes} bytes"
            agent.done("free")
            agent.done("info")
            assert slot.used_bytes == 0, f"{kind} memory is freed, {slot.used_bytes} bytes are still charged"
            assert agent.ask("alloc", size_bytes=2 * LIMIT, kind=kind)["result"] == OUT_OF_MEMORY, (
                f"{kind} memory of twice the limit was granted"
            )
    ground.observed["kinds of memory that this driver lacks"] = missing


def check_processes_of_a_slice_share_one_limit(ground: Ground) -> None:
    slot = ground.slot(LIMIT)
    with ground.agents(slot, slot) as (first, second):
        first.done("fill", step_bytes=2 * MIB, most_bytes=160 * MIB)
        filled = second.ask("fill", step_bytes=2 * MIB, most_bytes=ground.most_bytes)
        assert filled == {"result": OUT_OF_MEMORY, "allocated": LIMIT - 160 * MIB}
        assert slot.used_bytes == LIMIT


def check_a_killed_processs_memory_can_be_allocated_at_once(ground: Ground) -> None:
    slot = ground.slot(LIMIT)
    with ground.agents(slot, slot) as (victim, heir):
        victim.done("fill", step_bytes=32 * MIB, most_bytes=LIMIT)
        assert heir.ask("alloc", size_bytes=2 * MIB)["result"] == OUT_OF_MEMORY
        victim.kill()
        filled = heir.ask("fill", step_bytes=2 * MIB, most_bytes=ground.most_bytes)
        assert filled == {"result": OUT_OF_MEMORY, "allocated": LIMIT}
        assert slot.used_bytes == LIMIT


def free_within(agent: Agent, expected: int, seconds: float) -> int:
    """Free bytes that the program sees, waiting until they are as expected."""
    deadline = time.monotonic() + seconds
    while (free := int(agent.done("info")["free"])) != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    return free


def check_a_dead_siblings_memory_is_free_again_in_the_view(ground: Ground) -> None:
    slot = ground.slot(LIMIT)
    with ground.agents(slot, slot) as (victim, sibling):
        victim.done("alloc", size_bytes=128 * MIB)
        assert sibling.done("info")["free"] == LIMIT - 128 * MIB
        victim.kill()
        free = free_within(sibling, LIMIT, 2)
        assert free == LIMIT, f"2 s after its sibling's death a program still sees {free} of {LIMIT} bytes free"


def check_two_slices_of_one_card_do_not_disturb_each_other(ground: Ground) -> None:
    one, other = ground.slot(LIMIT), ground.slot(128 * MIB)
    if ground.most_bytes < LIMIT + 128 * MIB:
        raise NotHere("needs 384 MiB of the card")
    with ground.agents(one, other) as (first, second):
        assert first.ask("fill", step_bytes=2 * MIB, most_bytes=ground.most_bytes)["allocated"] == LIMIT
        assert second.ask("fill", step_bytes=2 * MIB, most_bytes=ground.most_bytes)["allocated"] == 128 * MIB


def check_a_context_takes_its_memory_with_it(ground: Ground) -> None:
    slot = ground.slot(LIMIT)
    with ground.agents(slot) as (agent,):
        agent.done("context", size_bytes=64 * MIB)
        assert slot.used_bytes == 0, f"the context is destroyed, {slot.used_bytes} bytes of it are still charged"
        for kind in ("linear", "array"):
            agent.done("alloc", size_bytes=32 * MIB, kind=kind)
        agent.done("reset")
        assert slot.used_bytes == 0, f"the primary context was reset, {slot.used_bytes} bytes of it are still charged"
        assert agent.ask("fill", step_bytes=2 * MIB, most_bytes=ground.most_bytes) == {"result": OUT_OF_MEMORY, "allocated": LIMIT}


def check_memory_that_another_process_opened_is_charged_once(ground: Ground) -> None:
    slot = ground.slot(LIMIT)
    with ground.agents(slot, slot) as (owner, guest):
        owner.done("alloc", size_bytes=64 * MIB)
        exported = owner.ask("export")
        if exported["result"] in (NOT_SUPPORTED, 1):
            raise NotHere(f"this card or driver has no IPC of memory (cuIpcGetMemHandle gave {exported['result']})")
        guest.done("import", handle=exported["handle"])
        assert slot.used_bytes == 64 * MIB, f"64 MiB in two processes are charged as {slot.used_bytes} bytes"
        guest.done("free")
        assert slot.used_bytes == 64 * MIB
        owner.done("free")
        assert slot.used_bytes == 0


def check_a_reserve_for_the_drivers_overhead_is_charged_once_per_process(ground: Ground) -> None:
    slot = ground.slot(LIMIT, overhead_reserve_bytes=32 * MIB)
    with ground.agents(slot, slot) as (first, second):
        first.done("alloc", size_bytes=2 * MIB)
        first.done("alloc", size_bytes=2 * MIB)
        assert slot.used_bytes == (32 + 4) * MIB
        second.done("alloc", size_bytes=2 * MIB)
        assert slot.used_bytes == (64 + 6) * MIB
        assert second.ask("fill", step_bytes=2 * MIB, most_bytes=ground.most_bytes) == {
            "result": OUT_OF_MEMORY,
            "allocated": LIMIT - 70 * MIB,
        }


def check_what_the_driver_takes_for_itself_is_measured_and_charged(ground: Ground) -> None:
    slot = ground.slot(4096 * MIB, overhead="measured")
    with ground.agents(slot) as (agent,):
        agent.done("alloc", size_bytes=64 * MIB)
        deadline = time.monotonic() + 5
        while not slot.overhead_bytes and not ground.is_simulated and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(1)
        overhead = slot.overhead_bytes
        assert slot.used_bytes == 64 * MIB + overhead
        assert int(agent.done("info")["free"]) == 4096 * MIB - slot.used_bytes
        ground.observed["overhead of a process with one context, bytes"] = overhead
        assert overhead or ground.is_simulated, "a context takes memory, and none is charged: does NVML show this process?"
