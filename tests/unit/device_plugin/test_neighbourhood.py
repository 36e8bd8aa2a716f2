"""What pages tell of neighbours: written when it changes and at no other time, from claims in real slot folders."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tenfold_device_plugin._domain import page_writer, pressure, region
from tenfold_device_plugin._domain.errors import RegionError
from tenfold_device_plugin.neighbourhood import Neighbourhood
from tenfold_device_plugin.pages import Pages
from tenfold_device_plugin.scan import CardUse
from tests.unit.device_plugin.bench import CARD_A, CARD_B, MIB, ManualClock

HOOK_FILES = ("libtenfold.so", "ld.so.preload")


class Street:
    """A node's slots, and the plugin's look at them once a second."""

    def __init__(self, folder: Path, page_library: Path) -> None:
        hook = folder / "hook" / "0.1.0-11111111"
        hook.mkdir(parents=True)
        for name in HOOK_FILES:
            (hook / name).touch()
        self.library = hook / page_writer.LIBRARY
        shutil.copy(page_library, self.library)
        (folder / "hook" / "current").symlink_to(hook.name)
        self.clock = ManualClock()
        self.pages = Pages(folder / "slots", folder / "hook")
        self.busy_percent: int | None = 0
        self.asked = 0
        self.slots: list[str] = []
        self.neighbourhood = self.fresh()

    def fresh(self) -> Neighbourhood:
        """As after a restart of the plugin."""
        return Neighbourhood(self.pages, self.clock, self._uses)

    def _uses(self) -> Mapping[str, CardUse]:
        self.asked += 1
        return {CARD_A: CardUse(0, 1, self.busy_percent)}

    def slot(self, letter: str, mode: str = "hard", priority: int = 0, cores: int = 30, cards: tuple[str, ...] = (CARD_A,)) -> str:
        name = letter * 32
        quotas = [region.GpuQuota(card, 8 << 30, cores, mode, priority) for card in cards]
        region.create_slot(self.pages.folder(name), quotas, library=self.library)
        self.slots.append(name)
        return name

    def round(self, *working: str, us: int = 300_000, seconds: float = 1.0) -> list[str]:
        """A second passes in which these slots work."""
        self.clock.advance(seconds)
        for name in working:
            self.claim(name, us)
        return self.neighbourhood.tell(self.slots)

    def claim(self, name: str, us: int) -> None:
        with open(self.pages.folder(name) / "state", "r+b") as stream:
            offset = region.STATE_GPUS_OFFSET + 56
            (before,) = struct.unpack("<Q", os.pread(stream.fileno(), 8, offset))
            os.pwrite(stream.fileno(), struct.pack("<Q", before + us), offset)

    def hold(self, name: str, size_bytes: int) -> None:
        """A process of the slot is attached and holds memory."""
        with open(self.pages.folder(name) / "state", "r+b") as stream:
            os.pwrite(stream.fileno(), struct.pack("<Q", size_bytes), region.STATE_GPUS_OFFSET + 48)
            os.pwrite(stream.fileno(), struct.pack("<Q", 1), region.STATE_SLOTS_OFFSET)

    def page(self, name: str) -> region.SlotConfig:
        return region.read_config(self.pages.folder(name))

    def word(self, name: str) -> tuple[int, str]:
        [quota] = self.page(name).gpus
        return quota.neighbours, quota.pressure


@pytest.fixture
def street(tmp_path: Path, page_library: Path) -> Street:
    return Street(tmp_path, page_library)


class TestNeighbours:
    def test_every_page_has_the_number_of_others_on_its_card(self, street: Street) -> None:
        one, two = street.slot("1"), street.slot("2")
        both = street.slot("3", cards=(CARD_A, CARD_B))
        assert sorted(street.round()) == [one, two, both]
        assert (street.word(one), street.word(two)) == ((2, "unknown"), (2, "unknown"))
        assert [quota.neighbours for quota in street.page(both).gpus] == [2, 0]
        street.slots.remove(two)
        assert sorted(street.round()) == [one, both]
        assert street.word(one) == (1, "unknown")

    def test_where_nothing_listens_nothing_is_written_or_looked_at_again(self, street: Street) -> None:
        one, two = street.slot("1"), street.slot("2")
        street.round()
        generations = [street.page(name).generation for name in (one, two)]
        for name in (one, two):
            (street.pages.folder(name) / "state").unlink()  # nobody misses it
        for _ in range(5):
            assert street.round() == []
        assert [street.page(name).generation for name in (one, two)] == generations


class TestPressure:
    def test_it_follows_who_works_by_priority(self, street: Street) -> None:
        low, high, peer = street.slot("1", "priority", 5), street.slot("2", "priority", 0), street.slot("3", "elastic", 5)
        street.round()
        assert [street.word(name)[1] for name in (low, high, peer)] == ["none", "none", "none"]
        street.round(low)
        assert [street.word(name)[1] for name in (low, high, peer)] == ["none", "lower", "equal"]
        street.round(low, high)
        assert [street.word(name)[1] for name in (low, high, peer)] == ["higher", "lower", "higher"]

    def test_it_goes_when_the_others_have_rested_for_a_while(self, street: Street) -> None:
        elastic, other = street.slot("1", "elastic"), street.slot("2")
        street.round()
        street.round(other)
        assert street.word(elastic) == (1, "equal")
        street.round()
        street.round()
        assert street.word(elastic) == (1, "equal")
        street.round(seconds=pressure.HOLD_SECONDS)
        assert street.word(elastic) == (1, "none")

    def test_a_steady_state_is_no_write(self, street: Street) -> None:
        elastic, other = street.slot("1", "elastic"), street.slot("2")
        street.round()
        assert street.round(elastic, other) == [elastic]
        generation = street.page(elastic).generation
        for _ in range(10):
            assert street.round(elastic, other) == []
        assert street.page(elastic).generation == generation

    def test_one_that_does_not_listen_is_told_nothing(self, street: Street) -> None:
        street.slot("1", "elastic")
        hard = street.slot("2")
        street.round()
        street.round("1" * 32)
        assert street.word(hard) == (1, "unknown")

    def test_other_cards_are_other_streets(self, street: Street) -> None:
        elastic = street.slot("1", "elastic", cards=(CARD_B,))
        worker = street.slot("2", cards=(CARD_A,))
        street.round()
        street.round(worker)
        assert street.word(elastic) == (0, "none")

    def test_what_an_operator_has_set_by_hand_counts_and_stays(self, street: Street) -> None:
        one, two = street.slot("1"), street.slot("2")
        street.round()
        folder = street.pages.folder(one)
        region.change_config(
            folder, lambda page: replace(page, gpus=[replace(page.gpus[0], mode="elastic", core_limit_percent=7)]), library=street.library
        )
        street.round()
        street.round(two)
        [quota] = street.page(one).gpus
        assert (quota.mode, quota.core_limit_percent, quota.pressure) == ("elastic", 7, "equal")
        region.change_config(folder, lambda page: replace(page, gpus=[replace(page.gpus[0], mode="hard")]), library=street.library)
        street.round(two)
        assert street.word(one) == (1, "unknown")


class TestWhatIsNotMeasured:
    """Without a core limit the hook counts no GPU time: memory in use on a card that is not idle has to do."""

    def test_it_works_while_it_holds_memory_and_the_card_is_busy(self, street: Street) -> None:
        elastic, unlimited = street.slot("1", "elastic"), street.slot("2", cores=100)
        street.busy_percent = 90
        street.round()
        assert (street.word(elastic)[1], street.asked) == ("none", 0)
        street.hold(unlimited, 5 * MIB)
        street.round()
        assert street.word(elastic)[1] == "equal"
        street.busy_percent = 0
        street.round()
        assert street.word(elastic)[1] == "none"

    def test_on_a_card_that_does_not_tell_it_works(self, street: Street) -> None:
        elastic, off = street.slot("1", "elastic"), street.slot("2", "off")
        street.hold(off, 5 * MIB)
        street.busy_percent = None
        street.round()
        assert street.word(elastic)[1] == "equal"


class TestBadDays:
    def test_after_a_restart_pages_stay_until_a_second_look(self, street: Street) -> None:
        elastic, other = street.slot("1", "elastic"), street.slot("2")
        street.round()
        street.round(other)
        street.neighbourhood = street.fresh()
        assert street.round(other) == []
        assert street.word(elastic) == (1, "equal")
        street.round()
        assert street.word(elastic) == (1, "none")

    @pytest.mark.parametrize("damage", ["missing", "short", "rubbish"])
    def test_a_state_that_its_tenant_has_damaged_claims_nothing(self, street: Street, damage: str) -> None:
        elastic, other = street.slot("1", "elastic"), street.slot("2")
        state = street.pages.folder(other) / "state"
        if damage == "missing":
            state.unlink()
        else:
            state.write_bytes(b"" if damage == "short" else os.urandom(region.STATE_BYTES))
        street.round()
        street.round()
        assert street.word(elastic) == (1, "none")

    def test_a_slot_without_a_readable_page_is_nobodys_neighbour(self, street: Street) -> None:
        one, two = street.slot("1", "elastic"), street.slot("2")
        (street.pages.folder(two) / "config").unlink()
        street.round()
        assert street.word(one) == (0, "none")

    def test_without_a_hook_nothing_is_done(self, street: Street) -> None:
        street.slot("1", "elastic")
        street.library.unlink()
        assert street.round() == []

    def test_a_page_that_cannot_be_written_is_said_once_and_the_others_go_on(
        self, street: Street, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        one, two = street.slot("1"), street.slot("2")
        real = region.change_config

        def stuck(folder: Path, *arguments: object, **options: object) -> region.SlotConfig:
            if folder.name == one:
                raise RegionError("another writer has held it for 2 s")
            return real(folder, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(region, "change_config", stuck)
        with caplog.at_level("WARNING"):
            assert street.round() == [two]
            assert street.round() == []
        assert caplog.text.count("cannot tell slot") == 1
