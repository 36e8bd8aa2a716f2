"""The probe: exact to the byte, honest about time, quiet without a card, and free of other packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenfold_device_plugin import probe
from tests import ROOT

OUT_OF_MEMORY = 2


class Memory:
    """A card with so many bytes, of which one request gets at most ``largest``."""

    def __init__(self, size_bytes: int, largest: int = 2**40) -> None:
        self.free_bytes = self.size_bytes = size_bytes
        self.largest = largest
        self.blocks: dict[int, int] = {}

    def allocate(self, size_bytes: int) -> tuple[int, int]:
        if size_bytes > min(self.free_bytes, self.largest):
            return OUT_OF_MEMORY, 0
        self.free_bytes -= size_bytes
        address = len(self.blocks) + 1
        self.blocks[address] = size_bytes
        return 0, address

    def free(self, address: int) -> None:
        self.free_bytes += self.blocks[address]


class TestAllocation:
    @given(st.integers(0, 2**38), st.sampled_from([2**40, 2**36 + 1]))
    def test_finds_the_quota_to_the_byte_and_gives_everything_back(self, size_bytes: int, largest: int) -> None:
        memory = Memory(size_bytes, largest)
        found = probe.allocate_until_refused(memory.allocate, memory.free)
        assert found["allocated_bytes"] == size_bytes
        assert (found["result"], memory.free_bytes) == (OUT_OF_MEMORY, size_bytes)

    def test_overhead_is_asked_while_everything_is_held(self) -> None:
        memory = Memory(4096, 2**40)
        found = probe.allocate_until_refused(memory.allocate, memory.free, lambda: 1000 + memory.free_bytes)
        assert (found["overhead_bytes"], memory.free_bytes) == (1000, 4096)

    def test_ends_on_a_driver_that_never_refuses(self) -> None:
        found = probe.allocate_until_refused(lambda _size: (0, 1), lambda _address: None)
        assert (found["blocks"], found["result"]) == (probe.BLOCKS_MAXIMUM, 0)


class TestSpin:
    @pytest.mark.parametrize("share", [1.0, 0.3])
    @pytest.mark.parametrize("kernel_us", [1, 1000, 50_000])
    def test_reports_launched_time_per_wall_time(self, share: float, kernel_us: int) -> None:
        clock = [0.0]
        queued = [0]

        def launch() -> None:
            queued[0] += kernel_us

        def synchronise() -> None:
            clock[0] += queued[0] / 1e6 / share
            queued[0] = 0

        found = probe.spin(launch, synchronise, kernel_us, 2.0, lambda: clock[0])
        assert found["share_percent"] == pytest.approx(share * 100, rel=0.001)
        assert found["gpu_us"] == found["launches"] * kernel_us
        assert 2.0e6 <= found["wall_us"] <= 2.0e6 + max(kernel_us, probe.QUEUED_US) / share + 1000


class TestTheProgram:
    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        source = str(ROOT / "files" / "device_plugin" / "src")
        code = f"import sys; sys.path.insert(0, {source!r}); from tenfold_device_plugin import probe; sys.exit(probe.main())"
        return subprocess.run([sys.executable, "-I", "-S", "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False)

    @pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a card")
    def test_without_a_card_says_so_and_succeeds_with_the_standard_library_alone(self) -> None:
        done = self.run("--json", "--allocate-until-refused", "--spin-seconds", "0.1")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["cards"] == []
        assert "no card is visible in this container" in report["messages"]
        assert report["hook"] == {"loaded": False, "page": Path("/run/tenfold/config").exists()}

    @pytest.mark.parametrize("arguments", [("--kernel-us", "0"), ("--spin-seconds", "-1")])
    def test_refuses_senseless_numbers(self, arguments: tuple[str, str]) -> None:
        done = self.run(*arguments)
        assert done.returncode == 2 and "expected" in done.stderr


def test_uuid_is_written_as_nvml_does() -> None:
    assert probe.uuid_text(bytes(range(16))) == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_the_kernel_is_text_that_ends_in_a_zero_byte_and_takes_microseconds() -> None:
    assert probe.SPIN_PTX.endswith(b"\0") and b".entry tenfold_spin(.param .u32 us)" in probe.SPIN_PTX
