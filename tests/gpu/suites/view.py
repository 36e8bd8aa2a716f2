"""View: a program sees its slice, by CUDA and by NVML, and queries never fail because of it."""

from __future__ import annotations

from tests.gpu.ground import MIB, Ground, NotHere

LIMIT = 256 * MIB


def check_cuda_and_nvml_show_the_slice(ground: Ground) -> None:
    slot = ground.slot(LIMIT)
    with ground.agents(slot) as (agent,):
        agent.done("alloc", size_bytes=64 * MIB)
        info, nvml = agent.done("info"), agent.done("nvml")
    assert (info["total"], info["device_total"], info["free"]) == (LIMIT, LIMIT, LIMIT - 64 * MIB)
    assert nvml["v1"] == {"total": LIMIT, "free": LIMIT - 64 * MIB, "used": 64 * MIB}
    assert nvml.get("v2", nvml["v1"]) == nvml["v1"]


def check_without_a_memory_limit_the_card_is_shown(ground: Ground) -> None:
    with ground.agents(None, ground.slot(0)) as (native, hooked):
        assert hooked.done("info")["total"] == native.done("info")["total"]
        assert hooked.done("nvml")["v1"]["total"] == native.done("nvml")["v1"]["total"]


def check_a_limit_above_the_card_shows_the_card(ground: Ground) -> None:
    with ground.agents(None, ground.slot(1 << 41)) as (native, hooked):
        assert hooked.done("info")["total"] == native.done("info")["total"]


def check_unwanted_outputs_and_foreign_pointers_are_the_drivers_business(ground: Ground) -> None:
    with ground.agents(None) as (native,):
        expected = native.done("nulls")
    with ground.agents(ground.slot(LIMIT)) as (hooked,):
        assert hooked.done("nulls") == expected


def check_a_program_with_the_hook_and_no_slot_sees_the_card(ground: Ground) -> None:
    from tests.gpu.ground import Agent

    with ground.agents(None) as (native,):
        expected = native.done("info")["total"]
    agent = Agent({**ground.base, "LD_PRELOAD": str(ground.hook / "libtenfold.so")})
    try:
        agent.done("open", uuid=ground.uuid)
        assert agent.done("info")["total"] == expected
    finally:
        agent.kill()
    if not expected:
        raise NotHere("the driver reports no memory")
