"""What the host tells of a slot's GPU time makes its limit exact beside neighbours, without NVML in the container; nothing else that lies
where the word lies is believed."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region

from tests import ROOT
from tests.hook import scripts, workshop
from tests.hook.allowance import LIMITER_OFFSET
from tests.hook.workshop import Machine, Slot

TOLERANCE_POINTS = 3.0
TOLD_POINTS = 12.0
OBSERVED_AT = LIMITER_OFFSET + 48  # tf_limit_state.observed_at_ns: when a word was last weighed
SECOND = 10**9


def weighed_at_ns(slot: Slot) -> int:
    with (slot.folder / "state").open("rb") as state:
        return int(struct.unpack("<Q", os.pread(state.fileno(), 8, OBSERVED_AT))[0])


@pytest.fixture
def without_nvml(simulator: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a container that has no `utility` capability: libcuda alone."""
    folder = tmp_path / "compute"
    folder.mkdir()
    (folder / "libcuda.so.1").symlink_to(simulator / "libcuda.so.1")
    return {"LD_LIBRARY_PATH": str(folder)}


@dataclass
class Worker:
    """A program that launches kernels without a pause in a slot of its own."""

    slot: Slot
    process: subprocess.Popen[str]

    def gpu_ns(self) -> int:
        processes = self.slot.machine.truth()["processes"]
        return sum(int(process["cards"][0]["gpu_time_ns"]) for process in processes if process["pid"] == self.process.pid)

    def tell(self, window: region.BusyWindow) -> None:
        assert region.tell_busy({str(self.slot.folder): [window]}, library=self.slot.page_library) == {}


@contextmanager
def working(slots: list[Slot], us: int, environment: dict[str, str]) -> Iterator[list[Worker]]:
    workers = [Worker(slot, slot.start(scripts.spinner(us), **environment)) for slot in slots]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.communicate()


@contextmanager
def told(workers: list[Worker], period_seconds: float = 1.0) -> Iterator[None]:
    """The truth of the machine, once a second, as the device plugin would have it from NVML."""
    before = [(time.monotonic_ns(), worker.gpu_ns()) for worker in workers]

    def tell_all() -> None:
        for number, worker in enumerate(workers):
            now = (time.monotonic_ns(), worker.gpu_ns())
            (from_ns, busy_from), (to_ns, busy_to), before[number] = before[number], now, now
            busy_ns = min(max(0, busy_to - busy_from), to_ns - from_ns)
            worker.tell(region.BusyWindow(worker.slot.machine.uuids[0], from_ns, to_ns, busy_ns))

    with workshop.repeating(tell_all, period_seconds):
        yield


def shares(workers: list[Worker], seconds: float = 1.5) -> list[float]:
    before, began = [worker.gpu_ns() for worker in workers], time.monotonic()
    time.sleep(seconds)
    after, ended = [worker.gpu_ns() for worker in workers], time.monotonic()
    return [(b - a) / (ended - began) / 1e7 for a, b in zip(before, after)]


@pytest.mark.full
@pytest.mark.timing
def test_neighbours_without_nvml_get_their_limits_by_the_hosts_word_and_less_without_it(
    make_slot: Callable[..., Slot], without_nvml: dict[str, str]
) -> None:
    """Kernels of several time slices: events measure the neighbour's slices as well, and nothing in reach of the program tells."""
    limits = (30, 60)
    with working([make_slot(cores=limit) for limit in limits], 5000, without_nvml) as workers:
        time.sleep(3)
        alone = [shares(workers) for _ in range(2)]
        assert [weighed_at_ns(worker.slot) for worker in workers] == [0, 0]
        seen = []
        with told(workers):
            time.sleep(4)
            for _ in range(8):
                seen.append(shares(workers))
                if all(abs(share - limit) <= TOLERANCE_POINTS for share, limit in zip(seen[-1], limits)):
                    break
    assert seen[-1] == [pytest.approx(limit, abs=TOLERANCE_POINTS) for limit in limits], (alone, seen)
    assert all(sum(window) < sum(limits) - 2 * TOLERANCE_POINTS for window in alone), alone


# The device plugin's own rounds over the slots of a folder, in the machine's pid namespace, with NVML and the kernel's /proc.
PLUGIN = """
import sys, time
from pathlib import Path
from tenfold_device_plugin.clock import SystemClock
from tenfold_device_plugin.gpu_times import ROUND_SECONDS, GpuTimes
from tenfold_device_plugin.pages import Pages
from tenfold_device_plugin.processes import Processes
from tenfold_device_plugin.scan import open_source
run, hook = Path(sys.argv[1]), Path(sys.argv[2])
clock = SystemClock()
source = open_source(clock, 300)
source.scan()
times = GpuTimes(Pages(run / "slots", hook), clock, source, Processes())
while True:
    times.tell(sys.argv[3:])
    time.sleep(ROUND_SECONDS)
"""
# As a runtime starts a container: with pids of its own, and the slot's files as mounts (here onto themselves).
CONTAINER = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]
MOUNTED = 'for f in config state; do mount --bind "$TENFOLD_SLOT_DIR/$f" "$TENFOLD_SLOT_DIR/$f" || exit 9; done; exec "$@"'


@contextmanager
def plugin_at_work(slots: list[Slot], folder: Path) -> Iterator[None]:
    machine, hook = slots[0].machine, slots[0].hook
    version = folder / "hook" / "current"
    version.mkdir(parents=True)
    for name in ("libtenfold.so", "libtenfold_page.so"):
        (version / name).symlink_to(hook / name)
    (version / "ld.so.preload").touch()
    environment = {**os.environ, **machine.environment, "PYTHONPATH": str(ROOT / "files" / "device_plugin" / "src")}
    names = [slot.folder.name for slot in slots]
    process = subprocess.Popen([sys.executable, "-c", PLUGIN, str(folder), str(folder / "hook"), *names], env=environment)
    try:
        yield
        assert process.poll() is None, "the plugin's rounds have ended"
    finally:
        process.kill()
        process.wait()


@pytest.mark.full
@pytest.mark.timing
def test_the_device_plugin_tells_containers_by_their_mounts(
    hook: Path, machine: Machine, tmp_path: Path, without_nvml: dict[str, str]
) -> None:
    """From NVML's true pids and /proc to the page and the limiter: two slots, of which one has two processes, beside each other."""
    if subprocess.run([*CONTAINER, "mount --bind /proc/version /proc/version"], capture_output=True, check=False).returncode:
        pytest.skip("no mount and pid namespaces here")
    limits = (30, 60)
    slots = [
        Slot(tmp_path / "slots" / (digit * 32), hook, machine, [region.GpuQuota(machine.uuids[0], 64 << 20, limit)]).create()
        for digit, limit in zip("ab", limits)
    ]
    program = scripts.spinner(5000)
    owners = [*slots, slots[1]]
    started = [slot.start([*CONTAINER, MOUNTED, "container", *program], **without_nvml) for slot in owners]
    seen: list[list[float]] = []
    try:
        with plugin_at_work(slots, tmp_path):
            deadline = time.monotonic() + 30
            while not all(weighed_at_ns(slot) for slot in slots):
                assert time.monotonic() < deadline, "no word arrived"
                time.sleep(0.1)
            time.sleep(4)
            namespaces = [pid_namespace(process.pid) for process in started]
            for _ in range(8):
                by_process = namespace_shares(machine, namespaces)
                seen.append([sum(share for share, owner in zip(by_process, owners) if owner is slot) for slot in slots])
                if all(abs(share - limit) <= TOLERANCE_POINTS for share, limit in zip(seen[-1], limits)):
                    break
            told = told_shares(slots, limits)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert seen[-1] == [pytest.approx(limit, abs=TOLERANCE_POINTS) for limit in limits], seen
    assert told == [pytest.approx(limit, abs=TOLD_POINTS) for limit in limits], (told, seen)


def told_shares(slots: list[Slot], limits: tuple[int, ...], seconds: float = 15) -> list[float]:
    """What the pages say, once it is near the limits: a window is half a second, which one stall of the machine spoils."""
    deadline = time.monotonic() + seconds
    while True:
        windows = [region.read_busy(slot.folder)[slot.gpus[0].uuid] for slot in slots]
        told = [100 * window.busy_ns / (window.to_ns - window.from_ns) for window in windows]
        if all(abs(share - limit) <= TOLD_POINTS for share, limit in zip(told, limits)) or time.monotonic() > deadline:
            return told
        time.sleep(0.2)


def pid_namespace(launcher: int) -> int:
    """Of the child that ``unshare --fork`` has made."""
    child = Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="ascii").split()[0]
    return Path(f"/proc/{child}/ns/pid").stat().st_ino


def namespace_shares(machine: Machine, namespaces: list[int], seconds: float = 1.5) -> list[float]:
    def busy_ns() -> list[int]:
        processes = machine.truth()["processes"]
        return [sum(p["cards"][0]["gpu_time_ns"] for p in processes if p["pid_namespace"] == namespace) for namespace in namespaces]

    before, began = busy_ns(), time.monotonic()
    time.sleep(seconds)
    after, ended = busy_ns(), time.monotonic()
    return [(b - a) / (ended - began) / 1e7 for a, b in zip(before, after)]


def fresh(uuid: str, seconds: float = 1.0, share: float = 0.3, late_seconds: float = 0.0) -> region.BusyWindow:
    to_ns = time.monotonic_ns() - int(late_seconds * SECOND)
    return region.BusyWindow(uuid, to_ns - int(seconds * SECOND), to_ns, int(share * seconds * SECOND))


def is_weighed(worker: Worker, tell: Callable[[], object], rounds: int = 6) -> bool:
    """Whether the slot's limiter takes what is told twice a second: oftener, and it would forget words before it can weigh them."""
    before = weighed_at_ns(worker.slot)
    for _ in range(rounds):
        tell()
        time.sleep(0.5)
        if weighed_at_ns(worker.slot) != before:
            return True
    return False


class TestWhoseWordCounts:
    @pytest.fixture
    def worker(self, make_slot: Callable[..., Slot], without_nvml: dict[str, str]) -> Iterator[Worker]:
        slot = make_slot(cores=30, memory_mib=0)
        with working([slot], 1000, without_nvml) as [worker]:
            deadline = time.monotonic() + 20
            while not slot.state().gpus[0].gpu_time_us:
                assert time.monotonic() < deadline, "it does not work"
                time.sleep(0.05)
            yield worker

    def test_a_fresh_one_does_and_a_page_of_before_tells_nothing(self, worker: Worker, machine: Machine) -> None:
        assert not is_weighed(worker, lambda: None, rounds=3)
        assert is_weighed(worker, lambda: worker.tell(fresh(machine.uuids[0])), rounds=60)

    @pytest.mark.parametrize(
        "wrong",
        [
            pytest.param({"late_seconds": 3.5}, id="old"),
            pytest.param({"late_seconds": -60}, id="of the future"),
            pytest.param({"seconds": 2.5}, id="longer than what the limiter remembers"),
        ],
    )
    def test_one_that_cannot_be_compared_does_not(self, worker: Worker, machine: Machine, wrong: dict[str, float]) -> None:
        assert not is_weighed(worker, lambda: worker.tell(fresh(machine.uuids[0], **wrong)))

    def test_one_of_another_card_does_not(self, worker: Worker) -> None:
        assert not is_weighed(worker, lambda: worker.tell(fresh("GPU-11111111-2222-3333-4444-555555555555")))

    @pytest.mark.parametrize("whole_bytes", [8, 24, 32, 40, 64])
    def test_half_of_one_does_not(self, worker: Worker, make_slot: Callable[..., Slot], whole_bytes: int) -> None:
        """A writer that died: the first bytes are of a new word, the rest is of an old one. The last case is the whole word."""
        elsewhere = Worker(make_slot(), worker.process)

        def entry(window: region.BusyWindow) -> bytes:
            elsewhere.tell(window)
            return (elsewhere.slot.folder / "config").read_bytes()[region.BUSY_OFFSET :][: region.BUSY_WINDOW.size]

        def tell() -> None:
            old, new = (entry(fresh(worker.slot.machine.uuids[0], share=share)) for share in (0.2, 0.4))
            with (worker.slot.folder / "config").open("r+b") as page:
                os.pwrite(page.fileno(), new[:whole_bytes] + old[whole_bytes:], region.BUSY_OFFSET)

        is_whole = whole_bytes == region.BUSY_WINDOW.size
        assert is_weighed(worker, tell, rounds=60 if is_whole else 6) == is_whole

    def test_random_bytes_do_not(self, worker: Worker) -> None:
        def tell() -> None:
            with (worker.slot.folder / "config").open("r+b") as page:
                os.pwrite(page.fileno(), os.urandom(region.BUSY_WINDOWS * region.BUSY_WINDOW.size), region.BUSY_OFFSET)

        assert not is_weighed(worker, tell)
        assert worker.process.poll() is None

    def test_one_does_while_the_page_is_rewritten_all_the_time(self, worker: Worker, machine: Machine) -> None:
        def rewrite() -> None:
            worker.slot.change(neighbours=(worker.slot.gpus[0].neighbours + 1) % 9)

        with workshop.repeating(rewrite, 0.002):
            assert is_weighed(worker, lambda: worker.tell(fresh(machine.uuids[0])), rounds=60)


def test_where_the_host_tells_nvml_is_not_even_loaded(make_slot: Callable[..., Slot], machine: Machine) -> None:
    """From before the first launch on, and with ever new words: the hook has no reason to ask NVML, which it could."""
    slot = make_slot(cores=30, memory_mib=0)
    window = fresh(machine.uuids[0])
    assert region.tell_busy({str(slot.folder): [window]}, library=slot.page_library) == {}
    with working([slot], 1000, {}) as [worker]:
        deadline = time.monotonic() + 30
        while not weighed_at_ns(slot):
            assert time.monotonic() < deadline, "no word was weighed"
            worker.tell(fresh(machine.uuids[0]))
            time.sleep(0.5)
        maps = Path(f"/proc/{worker.process.pid}/maps").read_text(encoding="utf-8")
        assert "libcuda.so" in maps
        assert "libnvidia-ml" not in maps


@pytest.mark.full
def test_the_reader_takes_whole_words_and_nothing_else() -> None:
    """Under AddressSanitizer and UndefinedBehaviorSanitizer, from pages of every kind of damage."""
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program = workshop.compile_program("busy_reader", hook_sources=("slice/config_page.c",), flags=flags)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
