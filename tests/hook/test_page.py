"""The page has one writer: what vgpuctl and Python write is the same to the byte, and no reader ever sees half of it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import page_writer, region

from tests.hook import workshop
from tests.hook.workshop import MIB, Slot

CARDS = ("GPU-11111111-2222-3333-4444-555555555555", "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")


class Page:
    """Two equal slots: one is changed by vgpuctl, the other by Python."""

    def __init__(self, hook: Path, folder: Path) -> None:
        self.hook = hook
        self.library = hook / "libtenfold_page.so"
        self.by_tool, self.by_python = folder / "tool", folder / "python"
        self.quotas = [region.GpuQuota(card, 8 << 30, 30) for card in CARDS]
        for slot in (self.by_tool, self.by_python):
            region.create_slot(slot, self.quotas, library=self.library)

    def tool(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.hook / "vgpuctl"), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    def set(self, *words: str) -> None:
        done = self.tool("set", str(self.by_tool), *words)
        assert (done.returncode, done.stderr) == (0, "")

    def bytes(self) -> list[bytes]:
        return [(slot / "config").read_bytes() for slot in (self.by_tool, self.by_python)]


@pytest.fixture
def page(hook: Path, tmp_path: Path) -> Page:
    return Page(hook, tmp_path)


# options of vgpuctl -> the same in Python
CHANGES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "memory": (["--memory-mib", "512"], {"memory_limit_bytes": 512 * MIB}),
    "cores": (["--cores", "99"], {"core_limit_percent": 99}),
    "mode": (["--mode", "elastic"], {"mode": "elastic"}),
    "priority": (["--priority", "-7"], {"priority": -7}),
    "overhead": (["--overhead-reserve-mib", "3"], {"overhead_reserve_bytes": 3 * MIB}),
    "what is charged": (["--overhead", "reserved"], {"overhead": "reserved"}),
    "pressure": (["--pressure", "equal"], {"pressure": "equal"}),
    "neighbours": (["--neighbours", "9"], {"neighbours": 9}),
    "several": (
        ["--cores", "0", "--mode", "priority", "--priority", "2147483647"],
        {"core_limit_percent": 0, "mode": "priority", "priority": 2**31 - 1},
    ),
    "most": (["--memory-mib", "4194303"], {"memory_limit_bytes": 4194303 * MIB}),
}


class TestTheSameBytes:
    @pytest.mark.parametrize("name", CHANGES)
    def test_a_change_of_every_card(self, page: Page, name: str) -> None:
        words, quota = CHANGES[name]
        page.set(*words)
        region.write_config(page.by_python, [replace(old, **quota) for old in page.quotas], library=page.library)
        by_tool, by_python = page.bytes()
        assert by_tool == by_python
        assert len(by_tool) == region.CONFIG_BYTES

    def test_a_change_of_one_card_and_of_the_page(self, page: Page) -> None:
        page.set("--gpu", CARDS[1], "--cores", "5", "--policy", "open", "--view", "compute_mode,clocks")
        gpus = [page.quotas[0], replace(page.quotas[1], core_limit_percent=5)]
        region.write_config(page.by_python, gpus, policy="open", view=("clocks", "compute_mode"), library=page.library)
        assert page.bytes()[0] == page.bytes()[1]
        page.set("--view", "none")
        region.write_config(page.by_python, gpus, policy="open", library=page.library)
        assert page.bytes()[0] == page.bytes()[1]

    def test_a_row_of_changes_by_turns(self, page: Page) -> None:
        """Each reads what the other wrote, and goes on from it."""
        for number in range(1, 7):
            page.set("--cores", str(number))
            first = region.change_config(
                page.by_tool,
                lambda old: replace(old, gpus=[replace(old.gpus[0], neighbours=old.generation), old.gpus[1]]),
                library=page.library,
            )
            assert (first.generation, first.gpus[0].core_limit_percent) == (2 * number + 1, number)
            shown = json.loads(page.tool("show", "--json", str(page.by_tool)).stdout)
            assert (shown["generation"], shown["gpus"][0]["neighbours"], shown["gpus"][0]["core_limit_percent"]) == (
                2 * number + 1,
                2 * number,
                number,
            )

    def test_a_damaged_copy_is_replaced_alike(self, page: Page) -> None:
        for slot in (page.by_tool, page.by_python):
            with open(slot / "config", "r+b") as stream:
                stream.seek(region.COPY_OFFSETS[0] + 70)
                stream.write(b"damage")
        page.set("--cores", "44")
        region.write_config(page.by_python, [replace(old, core_limit_percent=44) for old in page.quotas], library=page.library)
        assert page.bytes()[0] == page.bytes()[1]
        assert region.read_config(page.by_tool).gpus[0].core_limit_percent == 44


WRONG = {
    "number": (["--cores", "101"], "--cores is '101', expected 0 to 100"),
    "text": (["--neighbours", "few"], "--neighbours is 'few', expected 0 to 65535"),
    "sign": (["--memory-mib", "+1"], "--memory-mib is '+1', expected 0 to 4194303"),
    "blank": (["--memory-mib", " 1"], "--memory-mib is ' 1', expected 0 to 4194303"),
    "empty": (["--priority", ""], "--priority is '', expected -2147483648 to 2147483647"),
    "large": (["--priority", "2147483648"], "--priority is '2147483648'"),
    "word": (["--pressure", "some"], "--pressure is 'some', expected one of unknown|none|lower|higher|equal"),
    "part of a word": (["--mode", "har"], "--mode is 'har', expected one of hard|elastic|off|priority"),
    "set": (["--view", "clocks,"], "--view is 'clocks,', expected none or some of clocks,compute_mode"),
    "option": (["--colour", "red"], "unknown option '--colour'"),
    "card": (["--gpu", "GPU-0"], "set needs something to change beside the card"),
    "no such card": (["--gpu", "GPU-0", "--cores", "7"], "the slot has no card 'GPU-0'"),
    "no value": (["--cores"], "set needs a slot's folder and pairs of option and value"),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_wrong_option_leaves_everything_as_it_was(page: Page, name: str) -> None:
    words, message = WRONG[name]
    before = page.bytes()[0]
    done = page.tool("set", str(page.by_tool), *(["--policy", "open"] if name != "card" else []), *words)
    assert done.returncode == 1
    assert message in done.stderr
    assert page.bytes()[0] == before


def test_a_tool_that_was_overtaken_begins_anew(page: Page) -> None:
    """It has read the page and waits for the lock while the holder writes another one: neither change may be lost."""
    descriptor = os.open(page.by_tool / "config", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    tool = subprocess.Popen([str(page.hook / "vgpuctl"), "set", str(page.by_tool), "--cores", "20"])
    time.sleep(0.4)
    with open(page.by_tool / "config", "rb") as stream:
        stream.seek(region.COPY_OFFSETS[0])
        copy = bytearray(stream.read(region.COPY_BYTES))
    copy[region.COPY_HEAD.size + 76] = 9  # neighbours of the first card
    assert tool.poll() is None
    page_writer.write(descriptor, bytes(copy), region.ABI_VERSION, library=page.library)  # and gives the lock back
    os.close(descriptor)
    assert tool.wait(timeout=30) == 0
    after = region.read_config(page.by_tool)
    assert (after.generation, after.gpus[0].neighbours, after.gpus[0].core_limit_percent) == (3, 9, 20)


def test_a_reader_never_sees_half_a_page_while_python_flaps_it(page: Page) -> None:
    """At 100 Hz for a second, then as fast as it goes for another; the reader looks on for two more, in case the last write is late."""

    def write(number: int) -> None:
        quotas = [region.GpuQuota(card, number * MIB, number, neighbours=number) for card in CARDS]
        region.write_config(page.by_python, quotas, library=page.library)
        busy_ns = 0x0101_0101_0101 * number
        window = region.BusyWindow(CARDS[0], busy_ns, 3 * busy_ns, busy_ns)
        assert region.tell_busy({str(page.by_python): [window]}, library=page.library) == {}

    write(1)  # the page that the slot was made with is not of that kind
    reader = subprocess.Popen(
        [str(workshop.compile_program("page_reader", hook_sources=("slice/config_page.c",))), str(page.by_python / "config"), "4000"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    began, written = time.monotonic(), 1
    while time.monotonic() - began < 2:
        written += 1
        write(written % 90 + 1)
        if time.monotonic() - began < 1:
            time.sleep(max(0.0, began + (written - 1) / 100 - time.monotonic()))
    seen = json.loads(reader.communicate(timeout=30)[0])
    assert (seen["torn"], seen["backwards"], seen["errors"]) == (0, 0, 0), seen
    assert seen["last"] == written + 1
    assert seen["pages"] > 10, seen  # of 100 and more; a busy host lets the reader see few
    assert seen["torn_words"] == 0, seen
    assert seen["words"] > 10, seen


class TestWhatTheHostTold:
    """vgpuctl shows the host's word on GPU time where there is one, and its age."""

    def shown(self, page: Page) -> tuple[list[dict[str, Any]], str]:
        gpus: list[dict[str, Any]] = json.loads(page.tool("show", "--json", str(page.by_python)).stdout)["gpus"]
        return gpus, page.tool("show", str(page.by_python)).stdout

    def tell(self, page: Page, card: str, percent: int, age_seconds: float) -> None:
        to_ns = time.monotonic_ns() - int(age_seconds * 1e9)
        window = region.BusyWindow(card, to_ns - 500_000_000, to_ns, percent * 5_000_000)
        assert region.tell_busy({str(page.by_python): [window]}, library=page.library) == {}

    def test_nothing_is_shown_where_nothing_is_told(self, page: Page) -> None:
        gpus, table = self.shown(page)
        assert not any(name.startswith("host_") for gpu in gpus for name in gpu)
        assert "the host saw" not in table

    def test_a_word_is_shown_with_its_age_at_its_card(self, page: Page) -> None:
        self.tell(page, CARDS[1], 30, age_seconds=100)
        gpus, table = self.shown(page)
        assert "host_busy_percent" not in gpus[0]
        assert gpus[1]["host_busy_percent"] == 30.0
        assert 100_000 <= gpus[1]["host_busy_age_ms"] < 160_000
        [line] = [line for line in table.splitlines() if "the host saw" in line]
        assert line.startswith("  the host saw 30.0 % of the card's time used here, 10")

    def test_one_of_the_future_or_torn_is_none(self, page: Page) -> None:
        self.tell(page, CARDS[0], 30, age_seconds=-1000)
        self.tell(page, CARDS[1], 40, age_seconds=0)
        with (page.by_python / "config").open("r+b") as stream:
            os.pwrite(stream.fileno(), b"\x55", region.BUSY_OFFSET + region.BUSY_WINDOW.size + 45)
        assert "the host saw" not in self.shown(page)[1]


class TestProcesses:
    """vgpuctl and Python count the same processes."""

    def counts(self, slot: Slot) -> tuple[list[int], list[int]]:
        shown = json.loads(slot.run([slot.hook / "vgpuctl", "show", "--json", slot.folder], LD_PRELOAD="").stdout)
        return [gpu["processes"] for gpu in shown["gpus"]], [gpu.processes for gpu in slot.state().gpus]

    def test_one_that_launches_and_holds_no_memory_is_counted(self, make_slot: Callable[..., Slot]) -> None:
        slot = make_slot(cores=50)
        assert self.counts(slot) == ([0], [0])
        with slot.session() as session:
            session.ask("spin 1000 50")
            assert slot.used_bytes == 0
            assert self.counts(slot) == ([1], [1])
            table = slot.run([slot.hook / "vgpuctl", "show", slot.folder], LD_PRELOAD="").stdout
            assert table.splitlines()[1].split()[-1] == "1"

    def test_on_several_cards_it_counts_where_it_holds_memory(self, hook: Path, simulator: Path, tmp_path: Path) -> None:
        machine = workshop.Machine.make(simulator, tmp_path, cards=2)
        slot = Slot(tmp_path / "slot", hook, machine, [region.GpuQuota(uuid, 64 * MIB, 0) for uuid in machine.uuids]).create()
        with slot.session() as first, slot.session() as second:
            second.ask("view")
            first.ask(f"alloc {2 * MIB}")
            assert self.counts(slot) == ([1, 0], [1, 0])
            assert slot.state().processes == 2
