"""The ledger: what was promised is on the disk before anyone hears of it, and survives damage."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenfold_device_plugin.errors import LedgerError
from tenfold_device_plugin.ledger import Ledger
from tenfold_device_plugin.state import Booking, ContainerShare, Share, Slot

texts = st.text(max_size=20)
names = st.text("0123456789abcdef", min_size=32, max_size=32)
shares = st.builds(
    Share,
    uuid=texts,
    memory_mib=st.integers(0, 2**31),
    cores_percent=st.integers(0, 100),
    limit_cores_percent=st.integers(0, 100),
    mode=st.sampled_from(["hard", "elastic"]),
    priority=st.integers(0, 2),
)
containers = st.builds(ContainerShare, name=texts, shares=st.lists(shares, max_size=2).map(tuple))
bookings = st.builds(
    Booking,
    uid=texts,
    namespace=texts,
    name=texts,
    tier=texts,
    revision=texts,
    source=texts,
    containers=st.lists(containers, max_size=2).map(tuple),
)
slots = st.builds(Slot, name=names, ids=st.lists(texts, min_size=1, max_size=3).map(lambda ids: tuple(sorted(ids))), owner_uid=texts)

SLOT = Slot("0" * 32, ("GPU-a::0",))


class TestSurvival:
    @given(bookings=st.lists(bookings, max_size=4), slots=st.lists(slots, max_size=4))
    def test_what_was_put_is_there_after_a_restart(self, tmp_path_factory: Any, bookings: list[Booking], slots: list[Slot]) -> None:
        folder = tmp_path_factory.mktemp("ledger")
        ledger = Ledger.load(folder)
        for booking in bookings:
            ledger.put_booking(booking)
        ledger.put_slots(slots)
        again = Ledger.load(folder)
        assert (again.bookings, again.slots, again.refusals) == (ledger.bookings, ledger.slots, ledger.refusals)

    def test_slots_of_the_same_ids_stay_in_the_order_they_were_given_out(self, tmp_path: Path) -> None:
        ledger = Ledger.load(tmp_path)
        for digit in "fa3":
            ledger.put_slots([Slot(digit * 32, ("GPU-a::0", "GPU-a::1"))])
        again = Ledger.load(tmp_path)
        assert [slot.name[0] for slot in again.slots_of_ids(["GPU-a::1", "GPU-a::0"])] == ["f", "a", "3"]

    def test_the_file_is_flushed_to_the_disk_before_the_rename(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ledger = Ledger.load(tmp_path)
        calls: list[str] = []
        fsync, replace = os.fsync, Path.replace

        def seen_fsync(descriptor: int) -> None:
            calls.append("fsync")
            fsync(descriptor)

        def seen_replace(path: Path, target: Path) -> Path:
            calls.append(f"rename {target.name}")
            return replace(path, target)

        monkeypatch.setattr(os, "fsync", seen_fsync)
        monkeypatch.setattr(Path, "replace", seen_replace)
        ledger.put_slots([SLOT])
        assert calls == ["fsync", "rename ledger.json", "fsync"]


class TestDamage:
    def test_a_torn_file_is_replaced_by_the_version_before_and_said(self, tmp_path: Path) -> None:
        ledger = Ledger.load(tmp_path)
        ledger.put_slots([SLOT])
        ledger.put_slots([Slot("1" * 32, ("GPU-a::1",))])
        text = (tmp_path / "ledger.json").read_text(encoding="utf-8")
        (tmp_path / "ledger.json").write_text(text[: len(text) // 2], encoding="utf-8")
        again = Ledger.load(tmp_path)
        assert set(again.slots) == {SLOT.name}
        assert "ledger.json' is damaged" in again.recovered_from

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "null",
            '{"format": 0}',
            '{"format": "2"}',
            '{"format": 1}',
            '{"format": 1, "bookings": [{}], "slots": [], "refusals": {}}',
        ],
    )
    def test_without_a_good_version_the_start_is_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "ledger.json").write_text(text, encoding="utf-8")
        with pytest.raises(LedgerError, match=r"ledger\.json' is damaged .*; drain this node of slice pods"):
            Ledger.load(tmp_path)

    def test_one_of_a_newer_version_is_kept_aside_and_named(self, tmp_path: Path) -> None:
        texts = {"ledger.json": '{"format": 2, "rows": []}', "ledger.previous.json": '{"format": 3}'}
        for name, text in texts.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        ledger = Ledger.load(tmp_path)
        assert ledger.slots == {}
        assert (tmp_path / "ledger.format-2.json").read_text(encoding="utf-8") == texts["ledger.json"]
        assert "ledger.json' is of a newer version (format 2), kept as '" in ledger.recovered_from
        assert "ledger.previous.format-3.json" in ledger.recovered_from
        assert Ledger.load(tmp_path).recovered_from  # as long as nothing was written since
        ledger.put_slots([SLOT])
        assert not Ledger.load(tmp_path).recovered_from

    def test_keys_that_we_do_not_know_are_left_out(self, tmp_path: Path) -> None:
        ledger = Ledger.load(tmp_path)
        ledger.put_slots([SLOT])
        ledger.put_booking(Booking("u", "ns", "p", "", "", "limits", (ContainerShare("c", (Share("GPU-a", 1, 2, 3),)),)))
        path = tmp_path / "ledger.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        document["slots"][0]["allocated_at"] = document["bookings"][0]["note"] = "x"
        document["bookings"][0]["containers"][0]["shares"][0]["unit"] = "x"
        path.write_text(json.dumps({**document, "quotas": []}), encoding="utf-8")
        again = Ledger.load(tmp_path)
        assert (again.slots, again.bookings, again.recovered_from) == (ledger.slots, ledger.bookings, "")

    def test_a_full_disk_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ledger = Ledger.load(tmp_path)
        ledger.put_slots([SLOT])

        def full(_fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(LedgerError, match=r"cannot write .*: No space left on device"):
            ledger.put_slots([Slot("1" * 32, ("GPU-a::1",))])
        assert set(ledger.slots) == {SLOT.name}
        monkeypatch.undo()
        assert set(Ledger.load(tmp_path).slots) == {SLOT.name}

    def test_the_folder_is_for_the_plugin_alone(self, tmp_path: Path) -> None:
        Ledger.load(tmp_path / "lib")
        assert (tmp_path / "lib").stat().st_mode & 0o777 == 0o700


class TestShape:
    def test_mode_and_priority_are_written_only_where_they_are_used(self, tmp_path: Path) -> None:
        """A plugin of an older version refuses a ledger with keys that it does not know, and a node may go back to it."""
        ledger = Ledger.load(tmp_path)
        shares = (Share("GPU-a", 1, 2, 3), Share("GPU-b", 1, 2, 3, "priority", 4))
        ledger.put_booking(Booking("u", "ns", "p", "", "", "limits", (ContainerShare("c", shares),)))
        [booking] = json.loads((tmp_path / "ledger.json").read_text(encoding="utf-8"))["bookings"]
        plain, other = booking["containers"][0]["shares"]
        assert set(plain) == {"uuid", "memory_mib", "cores_percent", "limit_cores_percent"}
        assert (other["mode"], other["priority"]) == ("priority", 4)

    def test_the_format_is_one_that_later_versions_can_read(self, tmp_path: Path) -> None:
        ledger = Ledger.load(tmp_path)
        ledger.put_booking(
            Booking("u", "ns", "p", "small", "12345678", "annotation", (ContainerShare("c", (Share("GPU-a", 8192, 10, 10),)),))
        )
        ledger.put_refusal("v", "bypass", "no")
        assert json.loads((tmp_path / "ledger.json").read_text(encoding="utf-8")) == {
            "format": 1,
            "bookings": [
                {
                    "uid": "u",
                    "namespace": "ns",
                    "name": "p",
                    "tier": "small",
                    "revision": "12345678",
                    "source": "annotation",
                    "containers": [
                        {"name": "c", "shares": [{"uuid": "GPU-a", "memory_mib": 8192, "cores_percent": 10, "limit_cores_percent": 10}]}
                    ],
                }
            ],
            "slots": [],
            "refusals": {"v": ["bypass", "no"]},
        }
