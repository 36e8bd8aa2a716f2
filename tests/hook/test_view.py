"""The view: a program sees its slice, by CUDA and by NVML, and never a negative or absurd number."""

from __future__ import annotations

from collections.abc import Callable

from tests.hook import scripts
from tests.hook.workshop import MIB, Slot

NVML = """
nvml = Driver("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
card = c.c_void_p()
assert nvml.nvmlDeviceGetHandleByIndex_v2(c.c_uint(0), c.byref(card)) == 0
def memory():
    one, two = NvmlMemory(), NvmlMemoryV2(c.sizeof(NvmlMemoryV2) | 2 << 24)
    assert nvml.nvmlDeviceGetMemoryInfo(card, c.byref(one)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo_v2(card, c.byref(two)) == 0
    assert (one.total, one.free, one.used) == (two.total, two.free, two.used)
    return [one.total // MIB, one.free // MIB, one.used // MIB, two.reserved]
"""


def test_cuda_and_nvml_agree_on_total_used_and_free(slot: Slot) -> None:
    seen = scripts.run(
        slot,
        NVML
        + """
before = memory()
cuda.start(); cuda.alloc(24 * MIB)
total = c.c_size_t()
cuda.cuDeviceTotalMem_v2(c.byref(total), 0)
say(before=before, after=memory(), info=cuda.info(), device=total.value)
""",
    )
    assert seen == {"before": [64, 64, 0, 0], "after": [64, 40, 24, 0], "info": [40 * MIB, 64 * MIB], "device": 64 * MIB}


def test_usage_above_a_shrunk_limit_shows_zero_free_and_no_error(slot: Slot) -> None:
    with slot.session() as session:
        session.ask(f"alloc {48 * MIB}")
        slot.change(memory_limit_bytes=32 * MIB)
        view = session.ask("view")
    assert view["result"] == 0
    assert (view["total_bytes"], view["free_bytes"], view["device_total_bytes"]) == (32 * MIB, 0, 32 * MIB)
    assert (view["nvml_total_bytes"], view["nvml_free_bytes"], view["nvml_used_bytes"]) == (32 * MIB, 0, 32 * MIB)


def test_without_a_memory_limit_the_card_is_shown_as_it_is(make_slot: Callable[..., Slot]) -> None:
    seen = scripts.run(make_slot(memory_mib=0), NVML + "cuda.start(); say(total=cuda.info()[1] // MIB, nvml=memory()[0])")
    assert seen == {"total": 81920, "nvml": 81920}


def test_a_limit_above_the_card_shows_the_card(make_slot: Callable[..., Slot]) -> None:
    seen = scripts.run(make_slot(memory_mib=100_000), "cuda.start(); say(total=cuda.info()[1] // MIB)")
    assert seen == {"total": 81920}


def test_null_outputs_are_answered_like_the_driver_does(slot: Slot) -> None:
    seen = scripts.run(
        slot,
        NVML
        + """
cuda.start()
free, total = c.c_size_t(), c.c_size_t()
say(only_free=cuda.cuMemGetInfo_v2(c.byref(free), None), only_total=cuda.cuMemGetInfo_v2(None, c.byref(total)))
say(values=[free.value, total.value], none=cuda.cuMemGetInfo_v2(None, None))
say(device=cuda.cuDeviceTotalMem_v2(None, 0), nvml=nvml.nvmlDeviceGetMemoryInfo(card, None))
""",
    )
    assert (seen["only_free"], seen["only_total"]) == (0, 0)
    assert seen["values"] == [64 * MIB, 64 * MIB]
    assert seen["device"] == 1
    assert seen["nvml"] == 2


def test_a_later_version_of_the_nvml_struct_is_not_touched(slot: Slot) -> None:
    seen = scripts.run(
        slot,
        NVML
        + """
three = NvmlMemoryV2(c.sizeof(NvmlMemoryV2) | 3 << 24)
say(result=nvml.nvmlDeviceGetMemoryInfo_v2(card, c.byref(three)), total=three.total)
""",
    )
    assert seen["total"] == 0
    assert seen["result"] != 0


def test_clocks_and_mode_are_shown_scaled_only_by_option(make_slot: Callable[..., Slot]) -> None:
    from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region

    body = (
        NVML
        + """
clock, mode = c.c_uint(), c.c_int()
nvml.nvmlDeviceGetClockInfo(card, c.c_int(1), c.byref(clock)); nvml.nvmlDeviceGetComputeMode(card, c.byref(mode))
say(clock=clock.value, mode=mode.value)
"""
    )
    slot = make_slot(cores=20)
    plain = scripts.run(slot, body)
    region.write_config(slot.folder, slot.gpus, view=("clocks", "compute_mode"), library=slot.page_library)
    scaled = scripts.run(slot, body)
    assert plain["mode"] == 0
    assert scaled == {"clock": plain["clock"] * 20 // 100, "mode": 3}
