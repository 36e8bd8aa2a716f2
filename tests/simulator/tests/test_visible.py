"""CUDA_VISIBLE_DEVICES: CUDA numbers what it names, in its order; NVML and the books go by the card."""

from __future__ import annotations

import pytest

from .bench import BLOCK, NO_DEVICE, Machine, Process, out


def seen(machine: Machine, value: str) -> list[int]:
    """Indices of the cards that CUDA shows, in its order."""
    uuids = [card["uuid"] for card in machine.truth()["cards"]]
    with Process({**machine.environment, "CUDA_VISIBLE_DEVICES": value}) as process:
        if process.cuda("cuInit", 0)[0] == NO_DEVICE:
            return []
        shown = [
            process.must("cuDeviceGetUuid_v2", out("bytes:16"), device) for device in range(process.must("cuDeviceGetCount", out("i32")))
        ]
    return [[uuid[4:].replace("-", "") for uuid in uuids].index(uuid) for uuid in shown]


@pytest.fixture
def four(bare_machine: Machine) -> Machine:
    return bare_machine.init(cards=4)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 1, 0", [1, 0]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [0]),
        ("0,9,1", [0]),
        ("1,1,2", [1]),
        ("NoDevFiles", []),
        ("0x1", []),
    ],
)
def test_lists_of_indices(four: Machine, value: str, expected: list[int]) -> None:
    assert seen(four, value) == expected


def test_uuids_whole_and_cut_short(four: Machine) -> None:
    uuids = [card["uuid"] for card in four.truth()["cards"]]
    assert seen(four, f"{uuids[2]},{uuids[0][:12]}") == [2, 0]
    assert seen(four, "GPU-ffffffff-0000") == []


def test_memory_is_booked_on_the_card_not_on_the_number(four: Machine) -> None:
    with Process({**four.environment, "CUDA_VISIBLE_DEVICES": "2"}) as process:
        process.start(0).alloc(BLOCK)
        assert [card["used_bytes"] for card in four.truth()["cards"]] == [0, 0, BLOCK, 0]
        process.must("nvmlInit_v2")
        assert process.must("nvmlDeviceGetCount_v2", out("u32")) == 4
