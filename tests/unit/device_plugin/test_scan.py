"""Cards through NVML: what is sick, what recovers, what stays known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenfold_device_plugin._domain.gpu_time import Sample
from tenfold_device_plugin.errors import CardsUnavailable
from tenfold_device_plugin.scan import AbsentCards, Inventory, NvmlCards, Xids
from tests.unit.device_plugin.bench import CARD_A, CARD_B, FakeCards, ManualClock


class NvmlError(Exception):
    pass


class FakeNvml:
    """pynvml's functions over two cards; ``broken`` names calls that fail, by call or by (call, card)."""

    NVMLError = NvmlError
    nvmlEventTypeXidCriticalError = 8  # noqa: N815 (pynvml's name)
    NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND, NVML_ERROR_TIMEOUT = 0, 3, 6, 10

    def __init__(self) -> None:
        self.uuids = [CARD_A, CARD_B]
        self.total_bytes = 81251 * 2**20 + 5
        self.broken: set[Any] = set()
        self.events: list[tuple[str, int]] = []
        self.sets: list[list[str]] = []
        self.mode = 0
        self.rows: list[Any] | int = []
        self.initialised = 0

    def __getattr__(self, call: str) -> Any:
        def answer(*arguments: Any) -> Any:
            if call in self.broken or (arguments and (call, arguments[0]) in self.broken):
                raise NvmlError(f"{call}: Unknown Error")
            return getattr(self, f"_{call}")(*arguments)

        return answer

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def _nvmlDeviceGetProcessUtilization(self, _handle: str, _since_us: int) -> list[Any]:  # noqa: N802
        if isinstance(self.rows, int):
            error = NvmlError()
            error.value = self.rows  # type: ignore[attr-defined]
            raise error
        return self.rows

    def _nvmlInit(self) -> None:  # noqa: N802
        self.initialised += 1

    def _nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def _nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.uuids)

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return self.uuids[index]

    def _nvmlDeviceGetUUID(self, handle: str) -> bytes:  # noqa: N802 (old bindings return bytes)
        return handle.encode()

    def _nvmlDeviceGetName(self, _handle: str) -> str:  # noqa: N802
        return "NVIDIA A800-SXM4-80GB"

    def _nvmlDeviceGetMemoryInfo(self, _handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(total=self.total_bytes, used=7, free=self.total_bytes - 7)

    def _nvmlDeviceGetMigMode(self, _handle: str) -> list[int]:  # noqa: N802
        return [0, 0]

    def _nvmlDeviceGetComputeMode(self, _handle: str) -> int:  # noqa: N802
        return self.mode

    def _nvmlDeviceGetUtilizationRates(self, _handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=42)

    def _nvmlEventSetCreate(self) -> int:  # noqa: N802
        self.sets.append([])
        return len(self.sets) - 1

    def _nvmlEventSetFree(self, events: int) -> None:  # noqa: N802
        self.sets[events] = []

    def _nvmlDeviceRegisterEvents(self, handle: str, _kinds: int, events: int) -> None:  # noqa: N802
        self.sets[events].append(handle)

    def _nvmlEventSetWait(self, events: int, _timeout_ms: int) -> Any:  # noqa: N802
        if any(("events", handle) in self.broken for handle in self.sets[events]):
            raise NvmlError("GPU is lost")
        for position, (uuid, xid) in enumerate(self.events):
            if uuid in self.sets[events]:
                del self.events[position]
                return SimpleNamespace(device=uuid, eventData=xid)
        error = NvmlError("Timeout")
        error.value = self.NVML_ERROR_TIMEOUT  # type: ignore[attr-defined]
        raise error


def booked(_uuid: str) -> bool:
    return True


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def source(nvml: FakeNvml, clock: ManualClock, tmp_path: Path) -> NvmlCards:
    return NvmlCards(nvml, Xids(tmp_path / "xids.json", clock, 300))


def faults(source: NvmlCards) -> list[str]:
    return [card.fault for card in source.scan()]


class TestNvmlCards:
    def test_are_shown_with_whole_mib(self, source: NvmlCards) -> None:
        assert [(card.index, card.uuid, card.memory_mib, card.healthy) for card in source.scan()] == [
            (0, CARD_A, 81251, True),
            (1, CARD_B, 81251, True),
        ]

    def test_turn_sick_by_a_critical_xid_and_recover_after_the_hold(self, source: NvmlCards, nvml: FakeNvml, clock: ManualClock) -> None:
        source.scan()
        nvml.events = [(CARD_B, 79)]
        assert faults(source) == ["", "critical XID 79"]
        clock.advance(299)
        assert faults(source) == ["", "critical XID 79"]
        clock.advance(1)
        assert faults(source) == ["", ""]

    def test_stay_healthy_by_xids_that_are_a_programs_fault(self, source: NvmlCards, nvml: FakeNvml) -> None:
        source.scan()
        nvml.events = [(CARD_A, xid) for xid in (13, 31, 43, 45, 68, 109)]
        assert faults(source) == ["", ""]

    @pytest.mark.parametrize("call", ["nvmlEventSetCreate", "nvmlDeviceGetMigMode", "nvmlDeviceGetComputeMode", "nvmlDeviceRegisterEvents"])
    def test_do_without_optional_calls(self, source: NvmlCards, nvml: FakeNvml, call: str) -> None:
        nvml.broken = {call}
        assert faults(source) == ["", ""]

    def test_of_a_lost_card_do_not_silence_the_errors_of_others(self, source: NvmlCards, nvml: FakeNvml) -> None:
        nvml.broken = {("nvmlDeviceGetHandleByIndex", 1), ("nvmlDeviceRegisterEvents", CARD_B)}
        source.scan()
        nvml.events = [(CARD_A, 48)]
        assert faults(source) == ["critical XID 48"]

    def test_lost_later_do_not_either_and_are_heard_again_when_they_are_back(self, source: NvmlCards, nvml: FakeNvml) -> None:
        source.scan()
        nvml.broken = {("events", CARD_A), ("nvmlDeviceGetUUID", CARD_A)}
        nvml.events = [(CARD_B, 48), (CARD_A, 79)]
        assert faults(source) == ["critical XID 48"]
        assert list(source.use()) == [CARD_B]
        nvml.broken = set()
        assert faults(source) == ["critical XID 79", "critical XID 48"]

    def test_held_for_an_error_are_held_by_the_next_plugin(
        self, source: NvmlCards, nvml: FakeNvml, clock: ManualClock, tmp_path: Path
    ) -> None:
        source.scan()
        nvml.events = [(CARD_B, 79)]
        source.scan()
        clock.advance(200)
        later = NvmlCards(nvml, Xids(tmp_path / "xids.json", clock, 300))
        assert faults(later) == ["", "critical XID 79"]
        clock.advance(100)
        assert faults(later) == ["", ""]

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 1}', '{"x": ["y", null]}'])
    def test_start_with_a_record_that_cannot_be_read(self, nvml: FakeNvml, clock: ManualClock, tmp_path: Path, text: str) -> None:
        (tmp_path / "xids.json").write_text(text, encoding="utf-8")
        assert faults(NvmlCards(nvml, Xids(tmp_path / "xids.json", clock, 300))) == ["", ""]

    def test_in_exclusive_mode_cannot_be_shared(self, source: NvmlCards, nvml: FakeNvml) -> None:
        nvml.mode = 3
        assert all("compute mode is not DEFAULT" in fault for fault in faults(source))

    def test_are_unavailable_without_a_driver_and_come_back_with_it(self, source: NvmlCards, nvml: FakeNvml) -> None:
        nvml.broken = {"nvmlDeviceGetCount"}
        with pytest.raises(CardsUnavailable, match="NVML does not answer: nvmlDeviceGetCount: Unknown Error"):
            source.scan()
        assert source.use() == {}
        nvml.broken = set()
        assert len(source.scan()) == 2 and nvml.initialised == 2

    def test_show_their_use(self, source: NvmlCards) -> None:
        source.scan()
        assert source.use()[CARD_B].used_bytes == 7 and source.use()[CARD_B].busy_percent == 42

    def test_without_utilisation_still_show_their_memory(self, source: NvmlCards, nvml: FakeNvml) -> None:
        source.scan()
        nvml.broken = {"nvmlDeviceGetUtilizationRates"}
        assert source.use()[CARD_A].busy_percent is None


class TestInventory:
    def test_remembers_a_card_that_fell_off_the_bus(self, source: NvmlCards, nvml: FakeNvml) -> None:
        inventory = Inventory(source)
        inventory.refresh(booked)
        nvml.broken = {("nvmlDeviceGetName", CARD_A)}
        assert [(card.uuid, card.fault) for card in inventory.refresh(booked)] == [(CARD_A, "NVML does not answer for it"), (CARD_B, "")]
        nvml.broken = set()
        assert all(card.healthy for card in inventory.refresh(booked))

    def test_forgets_a_card_that_is_gone_and_holds_nothing(self, source: NvmlCards, nvml: FakeNvml) -> None:
        inventory = Inventory(source)
        inventory.refresh(booked)
        nvml.broken = {("nvmlDeviceGetName", CARD_A)}
        assert [card.uuid for card in inventory.refresh(lambda uuid: uuid == CARD_B)] == [CARD_B]

    def test_remembers_all_cards_while_nvml_is_silent(self) -> None:
        cards = FakeCards()
        inventory = Inventory(cards)
        inventory.refresh(booked)
        cards.silent = True
        assert [card.healthy for card in inventory.refresh(booked)] == [False, False]
        assert inventory.problem == "NVML does not answer: Driver Not Loaded"

    def test_of_a_node_without_nvml_is_empty_and_the_source_says_why(self) -> None:
        assert list(Inventory(AbsentCards("no package")).refresh(booked)) == []
        with pytest.raises(CardsUnavailable, match="no package"):
            AbsentCards("no package").scan()


class TestWhoUsesACard:
    @pytest.fixture
    def nvml(self) -> FakeNvml:
        return FakeNvml()

    @pytest.fixture
    def cards(self, nvml: FakeNvml, tmp_path: Path) -> NvmlCards:
        made = NvmlCards(nvml, Xids(tmp_path / "xids.json", ManualClock(), 300))
        made.scan()
        return made

    def test_each_line_is_a_sample(self, nvml: FakeNvml, cards: NvmlCards) -> None:
        nvml.rows = [SimpleNamespace(pid=7, timeStamp=1234567, smUtil=42, memUtil=1)]
        assert cards.samples(CARD_A, 0) == [Sample(7, 1234567, 42)]

    @pytest.mark.parametrize("code", [0, 6])
    def test_no_samples_is_nobody(self, nvml: FakeNvml, cards: NvmlCards, code: int) -> None:
        nvml.rows = code
        assert cards.samples(CARD_A, 0) == []

    def test_a_card_that_cannot_tell_says_so_once_and_is_not_asked_again(
        self, nvml: FakeNvml, cards: NvmlCards, caplog: pytest.LogCaptureFixture
    ) -> None:
        nvml.rows = 3
        with caplog.at_level("WARNING"):
            assert cards.samples(CARD_A, 0) is None
            nvml.rows = []
            assert cards.samples(CARD_A, 0) is None
            assert cards.samples(CARD_B, 0) == []
        assert caplog.text.count(f"card {CARD_A} does not tell who uses it") == 1

    def test_any_other_failure_is_no_answer_and_may_pass(self, nvml: FakeNvml, cards: NvmlCards) -> None:
        nvml.rows = 999
        assert cards.samples(CARD_A, 0) is None
        nvml.rows = []
        assert cards.samples(CARD_A, 0) == []

    def test_before_the_first_scan_and_without_nvml_there_is_no_answer(self, nvml: FakeNvml, tmp_path: Path) -> None:
        assert NvmlCards(nvml, Xids(tmp_path / "xids.json", ManualClock(), 300)).samples(CARD_A, 0) is None
        assert AbsentCards("no NVML").samples(CARD_A, 0) is None
