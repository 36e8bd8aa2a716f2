"""Overhead: contexts, modules and what small blocks waste are measured by NVML and charged, exact in the end and never above the limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region

from tests import ROOT
from tests.hook import scripts, workshop
from tests.hook.workshop import MIB, Machine, Slot

OOM = 2
CONTEXT, MODULE = 420, 6  # MiB; what an A800 takes, about
SLOTS = [f"slice/{name}.c" for name in ("account", "probe", "process", "slots")]
SECONDS = 15.0  # in which everything comes to rest, also on a busy host

# A program that does what it is told: each line of its input is executed, then answered.
TOLD = """
modules, blocks = [], []
def load():
    module = c.c_void_p(); assert cuda.cuModuleLoadData(c.byref(module), SPIN_PTX) == 0; modules.append(module)
def unload():
    assert cuda.cuModuleUnload(modules.pop()) == 0
def take(size):
    result, pointer = cuda.alloc(size)
    if result == 0: blocks.append(pointer)
    return result
def drop():
    while blocks: assert cuda.cuMemFree_v2(blocks.pop()) == 0
for line in sys.stdin:
    answer = None
    exec(line)
    say(answer=answer)
"""


class Told:
    """A program in a slot that executes lines."""

    def __init__(self, slot: Slot, **environment: str) -> None:
        self.process = slot.start(scripts.program(TOLD), **environment)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def __call__(self, line: str) -> Any:
        self.send(line)
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        assert answer, self.process.communicate()[1]
        return json.loads(answer)["answer"]

    def end(self, how: int = signal.SIGKILL) -> None:
        self.process.send_signal(how)
        _out, err = self.process.communicate(timeout=30)
        assert err == ""


@pytest.fixture
def machine(simulator: Path, tmp_path: Path) -> Machine:
    return Machine.make(simulator, tmp_path, context_bytes=CONTEXT * MIB, module_bytes=MODULE * MIB)


@pytest.fixture
def slot(make_slot: Callable[..., Slot]) -> Slot:
    return make_slot(memory_mib=2048)


@pytest.fixture
def tell(slot: Slot) -> Iterator[Callable[..., Told]]:
    """tell() -> a program in the slot (or in another one), that is ended with the test."""
    running: list[Told] = []

    def start(other: Slot | None = None, **environment: str) -> Told:
        running.append(Told(other or slot, **environment))
        return running[-1]

    yield start
    for told in running:
        told.process.kill()
        told.process.communicate()


def truth(machine: Machine, *programs: Told) -> int:
    """Bytes that are gone from the card because of these programs, or of all."""
    pids = {program.process.pid for program in programs}
    return sum(
        usage["reserved_bytes"]
        for process in machine.truth()["processes"]
        for usage in process["cards"]
        if not pids or process["pid"] in pids
    )


def comes_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def assert_books_equal(slot: Slot, *programs: Told) -> None:
    comes_true(lambda: slot.used_bytes == truth(slot.machine, *programs))
    assert slot.used_bytes == truth(slot.machine, *programs)


FIRST_CALLS = {
    "alloc": "answer = cuda.alloc(1 * MIB)[0]",
    "async": "answer = cuda.alloc(1 * MIB, 'cuMemAllocAsync', 0)[0]",
    "physical": "h = c.c_uint64(); answer = cuda.cuMemCreate(c.byref(h), 2 * MIB, c.byref(AllocationProp(1, 0, Location(1, 0))), 0)",
    "look": "answer = OUT_OF_MEMORY if cuda.info()[0] == 0 else cuda.info()[0]",
}


class TestTheFirstMoment:
    """A context is there before the first call that asks or allocates: what it took is known by then, whatever the program does first."""

    @pytest.mark.parametrize("first", FIRST_CALLS)
    def test_a_slice_that_its_context_fills_is_full(self, make_slot: Callable[..., Slot], tell: Callable[..., Told], first: str) -> None:
        told = tell(make_slot(memory_mib=CONTEXT))
        assert told("cuda.start(); " + FIRST_CALLS[first]) == OOM

    def test_so_it_is_beside_siblings_and_strangers(self, make_slot: Callable[..., Slot], tell: Callable[..., Told]) -> None:
        slot, stranger = make_slot(memory_mib=2 * CONTEXT + 10), make_slot(memory_mib=2048)
        tell(stranger)("cuda.start(); take(700 * MIB)")
        one, other = tell(slot), tell(slot)
        assert one("cuda.start(); answer = cuda.info()[0] // MIB") == CONTEXT + 10
        assert other("cuda.start(); answer = cuda.info()[0] // MIB") == 10
        assert other("answer = take(12 * MIB), take(10 * MIB)") == [OOM, 0]

    def test_a_reserve_is_seen_before_anything_is_allocated(self, make_slot: Callable[..., Slot], tell: Callable[..., Told]) -> None:
        told = tell(make_slot(memory_mib=2048, overhead_reserve_bytes=500 * MIB))
        assert told("cuda.start(); answer = cuda.info()[0] // MIB") == 1548

    def test_a_nvml_that_fails_holds_nothing_up_for_long(self, slot: Slot, tell: Callable[..., Told]) -> None:
        slot.machine.tool("inject", "call", "--symbol", "nvmlInit_v2", "--error", "999", "--times", "forever")
        began = time.monotonic()
        assert tell()("cuda.start(); answer = take(2 * MIB)") == 0
        assert time.monotonic() - began < 5


class TestMeasured:
    def test_contexts_modules_and_small_blocks_are_charged_to_the_byte(self, slot: Slot, tell: Callable[..., Told]) -> None:
        one, other = tell(), tell()
        one("cuda.start(); load(); load(); take(100 * MIB); take(512); take(3000)")
        other("cuda.start(); load(); take(10 * MIB)")
        assert_books_equal(slot)
        assert slot.used_bytes == (2 * CONTEXT + 3 * MODULE + 100 + 2 + 10) * MIB
        assert slot.state().overhead_bytes == (2 * CONTEXT + 3 * MODULE + 2) * MIB - 512 - 3072
        assert one("answer = cuda.info()[0]") == 2048 * MIB - slot.used_bytes
        assert one("answer = cuda.info()[0] // MIB; take((answer - 2) * MIB); answer = take(3 * MIB), take(2 * MIB)") == [OOM, 0]
        assert slot.used_bytes == 2048 * MIB

    def test_modules_are_found_when_they_load_and_when_they_go(self, slot: Slot, tell: Callable[..., Told]) -> None:
        told = tell()
        told("cuda.start(); take(2 * MIB)")
        assert_books_equal(slot)
        for line in ("load(); load()", "load()", "unload(); unload()"):
            told(line)
            assert_books_equal(slot)
        assert slot.used_bytes == (CONTEXT + MODULE + 2) * MIB

    def test_a_program_that_only_looks_and_launches_is_charged_too(self, slot: Slot, tell: Callable[..., Told]) -> None:
        told = tell()
        told("cuda.start(); load(); cuda.info()")
        assert_books_equal(slot)
        assert slot.used_bytes == (CONTEXT + MODULE) * MIB

    def test_a_launch_on_a_limited_card_is_enough(self, make_slot: Callable[..., Slot], tell: Callable[..., Told]) -> None:
        limited = make_slot(memory_mib=2048, cores=50)
        told = tell(limited)
        told("cuda.start(); f = cuda.spin(); cuda.launch(f, 100); cuda.cuCtxSynchronize()")
        assert_books_equal(limited, told)

    def test_small_blocks_that_fill_what_was_overhead_are_not_refused(
        self, make_slot: Callable[..., Slot], tell: Callable[..., Told]
    ) -> None:
        """They come out of a block of 2 MiB that counts already, so hardly any room is needed for them."""
        slot = make_slot(memory_mib=2048 + 4096 / MIB)
        told = tell(slot)
        told("cuda.start(); take(512)")
        assert_books_equal(slot)
        told(f"take({2048 - CONTEXT - 2} * MIB)")
        assert slot.used_bytes == 2048 * MIB == truth(slot.machine)
        assert told("answer = [take(512) for _ in range(4095)]") == [0] * 4095
        assert_books_equal(slot)
        assert slot.used_bytes == 2048 * MIB

    def test_a_program_that_unloads_can_use_the_room_at_once(self, slot: Slot, tell: Callable[..., Told]) -> None:
        told = tell()
        told("cuda.start(); load(); take(2 * MIB)")
        assert_books_equal(slot)
        told("unload()")
        assert told(f"answer = take({2048 - CONTEXT - 2} * MIB), take(512)") == [0, OOM]

    def test_a_refusal_just_before_is_no_reason_for_another(self, slot: Slot, tell: Callable[..., Told]) -> None:
        told = tell()
        told("cuda.start(); load(); load(); take(2 * MIB)")
        assert_books_equal(slot)
        size = f"{2048 - CONTEXT - 2} * MIB"
        answers = told(f"answer = take({size}), unload(), take({size}), unload(), take({size})")
        assert answers == [OOM, None, OOM, None, 0]

    def test_two_tenants_that_do_the_same_at_the_same_time_find_themselves(
        self, make_slot: Callable[..., Slot], tell: Callable[..., Told]
    ) -> None:
        slots = [make_slot(memory_mib=2048), make_slot(memory_mib=2048)]
        tenants = [tell(slot) for slot in slots]
        lines = ("cuda.start()", "take(8 * MIB)", "load()", "take(8 * MIB)", "take(64 * MIB)", "load()")
        for line in lines:
            for tenant in tenants:
                tenant.send(line)
            time.sleep(0.03)
        tenants[0].send("load()")
        for tenant, count in zip(tenants, (len(lines) + 1, len(lines))):
            assert [tenant.answer() for _ in range(count)] == [None] * count
        for slot, tenant in zip(slots, tenants):
            assert_books_equal(slot, tenant)
        assert slots[0].used_bytes == slots[1].used_bytes + MODULE * MIB

    def test_looking_for_ourselves_breaks_no_capture_of_the_program(
        self, make_slot: Callable[..., Slot], tell: Callable[..., Told]
    ) -> None:
        """No kernel is measured here: the hook's thread takes memory, which a global capture forbids to all that have not left its mode."""
        slot, neighbour = make_slot(memory_mib=2048), make_slot(memory_mib=2048)
        tell(neighbour)("cuda.start(); take(2 * MIB)")  # so that we are not alone, and must look for ourselves
        told = tell(slot)
        told("cuda.start(); s, graph = c.c_void_p(), c.c_void_p(); assert cuda.cuStreamCreate(c.byref(s), c.c_uint(1)) == 0")
        told("assert cuda.cuStreamBeginCapture_v2(s, c.c_int(0)) == 0; cuda.info()")
        assert comes_true(lambda: slot.state().overhead_bytes == CONTEXT * MIB), "the overhead was never measured"
        assert told("answer = cuda.cuStreamEndCapture(s, c.byref(graph))") == 0

    def test_managed_memory_is_charged_in_full_and_hides_nothing_that_was_seen(self, slot: Slot, tell: Callable[..., Told]) -> None:
        told = tell()
        told("cuda.start(); take(2 * MIB)")
        assert_books_equal(slot)
        told("assert cuda.alloc(64 * MIB, 'cuMemAllocManaged', 1)[0] == 0")
        assert slot.used_bytes == (CONTEXT + 66) * MIB
        told("load()")
        assert_books_equal(slot)

    def test_managed_memory_that_was_freed_hides_nothing(self, slot: Slot, tell: Callable[..., Told]) -> None:
        """NVML shows managed memory once it is on the card: while it is not, nothing tells it from overhead, and afterwards all does."""
        slot.machine.tool("set", "managed_on_touch=1")
        told = tell()
        told("cuda.start(); load(); load(); take(10 * MIB)")
        assert_books_equal(slot)
        told("managed = cuda.alloc(200 * MIB, 'cuMemAllocManaged', 1)[1]; load()")
        time.sleep(0.3)
        assert slot.used_bytes == (CONTEXT + 2 * MODULE + 210) * MIB
        told("assert cuda.cuMemFree_v2(managed) == 0")
        assert_books_equal(slot)
        assert slot.used_bytes == (CONTEXT + 3 * MODULE + 10) * MIB
        told("unload(); unload()")
        assert_books_equal(slot)


class TestReserve:
    def test_a_sufficient_reserve_is_all_that_is_ever_charged(self, make_slot: Callable[..., Slot], tell: Callable[..., Told]) -> None:
        strict = make_slot(memory_mib=1024, overhead_reserve_bytes=500 * MIB)
        told = tell(strict)
        told("cuda.start(); load(); take(24 * MIB)")
        assert strict.used_bytes == 524 * MIB
        for _ in range(40):
            time.sleep(0.01)
            assert strict.used_bytes == 524 * MIB
        assert told("answer = take(502 * MIB), take(500 * MIB)") == [OOM, 0]
        assert truth(strict.machine) <= strict.used_bytes == 1024 * MIB
        assert strict.state().overhead_bytes == 500 * MIB

    def test_the_measurement_replaces_a_reserve_that_is_too_small(self, make_slot: Callable[..., Slot], tell: Callable[..., Told]) -> None:
        strict = make_slot(memory_mib=1024, overhead_reserve_bytes=100 * MIB)
        told = tell(strict)
        told("cuda.start(); take(24 * MIB)")
        assert strict.used_bytes >= 124 * MIB
        assert_books_equal(strict)
        told("drop(); cuda.cuDevicePrimaryCtxRelease_v2(0)")
        assert comes_true(lambda: strict.used_bytes == 100 * MIB), strict.used_bytes

    def test_a_reserve_that_does_not_fit_refuses_the_first_allocation(self, make_slot: Callable[..., Slot]) -> None:
        strict = make_slot(memory_mib=64, overhead_reserve_bytes=65 * MIB)
        assert scripts.run(strict, "cuda.start(); say(results=[cuda.alloc(512)[0] for _ in range(2)])") == {"results": [OOM, OOM]}
        assert strict.used_bytes == 0

    def test_it_follows_the_page(self, make_slot: Callable[..., Slot], tell: Callable[..., Told]) -> None:
        strict = make_slot(memory_mib=2048, overhead_reserve_bytes=500 * MIB)
        told = tell(strict)
        told("cuda.start(); take(2 * MIB)")
        for reserve in (600, 450):
            strict.change(overhead_reserve_bytes=reserve * MIB)
            told("take(2 * MIB); drop()")
            assert comes_true(lambda reserve=reserve: strict.used_bytes == reserve * MIB), (strict.used_bytes, reserve)  # type: ignore[misc]
        strict.change(overhead_reserve_bytes=0)
        told("take(2 * MIB)")
        assert_books_equal(strict)

    def test_where_the_page_wants_the_reserve_alone_nothing_is_measured(
        self, make_slot: Callable[..., Slot], tell: Callable[..., Told]
    ) -> None:
        fixed = make_slot(memory_mib=64, overhead="reserved", overhead_reserve_bytes=8 * MIB)
        told = tell(fixed)
        assert told("cuda.start(); answer = take(58 * MIB), take(56 * MIB), take(512)") == [OOM, 0, OOM]
        time.sleep(0.2)
        assert fixed.used_bytes == 64 * MIB
        assert told("answer = len(os.listdir('/proc/self/task')), 'nvidia-ml' in open('/proc/self/maps').read()") == [1, False]
        fixed.change(memory_limit_bytes=2048 * MIB, overhead="measured")
        told("take(2 * MIB)")
        assert_books_equal(fixed)
        fixed.change(overhead="reserved")
        told("take(2 * MIB)")
        assert fixed.used_bytes == (8 + 60) * MIB


class TestLimits:
    def test_what_does_not_fit_is_charged_as_soon_as_it_does(self, make_slot: Callable[..., Slot], tell: Callable[..., Told]) -> None:
        small = make_slot(memory_mib=256)
        told = tell(small)
        told("cuda.start(); take(64 * MIB)")
        assert comes_true(lambda: small.used_bytes == 256 * MIB), small.used_bytes
        assert told("answer = take(512), cuda.info()") == [OOM, [0, 256 * MIB]]
        small.change(memory_limit_bytes=300 * MIB)
        assert comes_true(lambda: small.used_bytes == 300 * MIB), small.used_bytes
        small.change(memory_limit_bytes=1024 * MIB)
        assert_books_equal(small)

    def test_a_limit_below_the_overhead_refuses_and_nothing_else(self, slot: Slot, tell: Callable[..., Told]) -> None:
        told = tell()
        told("cuda.start(); take(64 * MIB)")
        assert_books_equal(slot)
        slot.change(memory_limit_bytes=128 * MIB)
        assert told("answer = take(512), cuda.info()") == [OOM, [0, 128 * MIB]]
        told("drop()")
        assert told("answer = take(512), cuda.info()") == [OOM, [0, 128 * MIB]]
        slot.change(memory_limit_bytes=1024 * MIB)
        assert told("answer = take(64 * MIB)") == 0
        assert_books_equal(slot)

    def test_without_a_memory_limit_nothing_is_measured(self, make_slot: Callable[..., Slot], tell: Callable[..., Told]) -> None:
        free = make_slot(memory_mib=0)
        told = tell(free)
        assert told("cuda.start(); take(2 * MIB); answer = len(os.listdir('/proc/self/task'))") == 1
        assert free.used_bytes == 2 * MIB


class TestEnds:
    @pytest.mark.parametrize(("end", "left_mib"), [("cuDevicePrimaryCtxReset_v2", CONTEXT), ("cuDevicePrimaryCtxRelease_v2", 0)])
    def test_a_context_that_ends_gives_back_what_it_held(self, slot: Slot, tell: Callable[..., Told], end: str, left_mib: int) -> None:
        told = tell()
        told("cuda.start(); load(); take(100 * MIB)")
        assert_books_equal(slot)
        told(f"assert cuda.{end}(0) == 0; blocks.clear()")
        assert_books_equal(slot)
        assert slot.used_bytes == left_mib * MIB
        told("cuda.start(); take(2 * MIB)")
        assert_books_equal(slot)

    def test_a_second_context_takes_its_modules_along(self, slot: Slot, tell: Callable[..., Told]) -> None:
        told = tell()
        told("cuda.start(); take(2 * MIB)")
        told("second = c.c_void_p(); assert cuda.cuCtxCreate_v2(c.byref(second), c.c_uint(0), 0) == 0; load(); load()")
        assert_books_equal(slot)
        assert slot.used_bytes == (CONTEXT + 2 * MODULE + 2) * MIB
        told("assert cuda.cuCtxDestroy_v2(second) == 0")
        assert_books_equal(slot)
        assert slot.used_bytes == (CONTEXT + 2) * MIB

    def test_a_killed_process_leaves_nothing(self, slot: Slot, tell: Callable[..., Told]) -> None:
        victim, sibling = tell(), tell()
        victim("cuda.start(); load(); take(100 * MIB)")
        sibling("cuda.start(); take(2 * MIB)")
        assert_books_equal(slot)
        victim.end()
        assert sibling("answer = cuda.info()[0]; time.sleep(0.15); answer = cuda.info()[0]") == (2048 - CONTEXT - 2) * MIB
        assert slot.state().overhead_bytes == CONTEXT * MIB
        heir = tell()  # in the slot of the dead
        heir("cuda.start(); take(2 * MIB)")
        assert_books_equal(slot)
        assert slot.state().overhead_bytes == 2 * CONTEXT * MIB
        heir.end()
        assert sibling(f"answer = take({2048 - CONTEXT - 2} * MIB), take(512)") == [0, OOM]

    def test_a_forked_child_starts_with_nothing(self, slot: Slot, tell: Callable[..., Told]) -> None:
        told = tell()
        told("cuda.start(); take(100 * MIB)")
        assert_books_equal(slot)
        told("child = os.fork(); (cuda.alloc(512), cuda.info(), time.sleep(0.3), os._exit(0)) if child == 0 else os.waitpid(child, 0)")
        assert_books_equal(slot)
        assert slot.state().overhead_bytes == CONTEXT * MIB

    def test_a_program_that_is_replaced_by_exec_leaves_nothing(self, slot: Slot, tell: Callable[..., Told]) -> None:
        told = tell(NEXT=scripts.program("cuda.start(); cuda.alloc(4 * MIB); say(answer=1); time.sleep(60)")[-1])
        told("cuda.start(); load(); take(100 * MIB)")
        assert_books_equal(slot)
        told("os.execv(sys.executable, [sys.executable, '-B', '-S', '-c', os.environ['NEXT']])")
        assert_books_equal(slot)
        assert slot.used_bytes == (CONTEXT + 4) * MIB


class TestNvml:
    def test_without_nvml_the_reserve_is_all(self, make_slot: Callable[..., Slot], tell: Callable[..., Told], tmp_path: Path) -> None:
        bare = tmp_path / "driver-without-nvml"
        bare.mkdir()
        strict = make_slot(memory_mib=1024, overhead_reserve_bytes=100 * MIB)
        (bare / "libcuda.so.1").symlink_to(strict.machine.simulator / "libcuda.so.1")
        told = tell(strict, LD_LIBRARY_PATH=str(bare))
        told("cuda.start(); load(); take(24 * MIB)")
        time.sleep(0.5)
        assert strict.used_bytes == 124 * MIB
        assert told("answer = take(902 * MIB), take(900 * MIB)") == [OOM, 0]

    def test_a_nvml_that_fails_at_times_is_asked_again(self, slot: Slot, tell: Callable[..., Told]) -> None:
        slot.machine.tool("inject", "call", "--symbol", "nvmlInit_v2", "--error", "999", "--times", "2")
        for after in (0, 3, 5):
            failure = ("--error", "999", "--after", str(after), "--times", "2")
            slot.machine.tool("inject", "call", "--symbol", "nvmlDeviceGetComputeRunningProcesses", *failure)
        told = tell()
        told("cuda.start(); load(); take(24 * MIB)")
        assert_books_equal(slot)

    def test_a_child_that_uses_nvml_never_meets_our_locks(self, slot: Slot) -> None:
        """Children are forked while the helper opens and asks NVML; each must be able to use NVML itself."""
        seen = scripts.run(
            slot,
            """
cuda.start()
codes = []
for number in range(40):
    if number == 1: cuda.alloc(2 * MIB)   # starts the helper
    child = os.fork()
    if child == 0:
        nvml = Driver("libnvidia-ml.so.1"); count = c.c_uint()
        os._exit(nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(c.byref(count)) or count.value)
    codes.append(child)
    time.sleep(0.001)
say(codes=[os.waitpid(child, 0)[1] >> 8 for child in codes])
""",
        )
        assert seen == {"codes": [1] * 40}

    def test_threads_that_fork_at_once_do_not_keep_the_lock_of_nvml(self, slot: Slot) -> None:
        program = workshop.compile_program("forks", link=[str(ROOT / "tests/hook/common/cuda_api.c")])
        process = slot.start([str(program), "6", "150"])
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n", process.communicate()[1]
        comes_true(lambda: slot.used_bytes == (CONTEXT + MODULE + 2) * MIB)
        used_bytes = slot.used_bytes
        assert process.communicate(timeout=30) == ("", "")
        assert used_bytes == (CONTEXT + MODULE + 2) * MIB


class TestFindingOurselves:
    """NVML's list has more than one process: which is the one in the slot?"""

    @pytest.fixture(autouse=True)
    def neighbour(self, make_slot: Callable[..., Slot], tell: Callable[..., Told]) -> Told:
        neighbour = tell(make_slot(memory_mib=4096))
        neighbour("cuda.start(); take(3000 * MIB)")
        return neighbour

    def test_a_program_that_gave_up_its_context_takes_nobody_else_for_itself(self, slot: Slot, tell: Callable[..., Told]) -> None:
        told = tell()
        told("cuda.start(); cuda.info(); assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0; time.sleep(0.4)")
        assert slot.used_bytes == 0
        assert told("cuda.start(); answer = take(100 * MIB)") == 0
        assert_books_equal(slot, told)

    def test_a_program_that_holds_memory_without_a_context_takes_nobody_else_for_itself(
        self, slot: Slot, tell: Callable[..., Told]
    ) -> None:
        told = tell()
        told("handle, kind = c.c_ulonglong(), AllocationProp(1, 0, Location(1, 0)); cuda.start()")
        told("assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0")
        told("assert cuda.cuMemCreate(c.byref(handle), 4 * MIB, c.byref(kind), 0) == 0; time.sleep(0.4)")
        assert slot.used_bytes == 4 * MIB
        assert told("cuda.start(); answer = take(100 * MIB)") == 0
        assert_books_equal(slot, told)

    def test_room_for_one_block_is_enough(self, slot: Slot, tell: Callable[..., Told]) -> None:
        told = tell()
        failure = ("--error", "999", "--times", "forever", "--pid", str(told.process.pid))
        slot.machine.tool("inject", "call", "--symbol", "nvmlDeviceGetComputeRunningProcesses", *failure)
        assert told("cuda.start(); answer = take(2045 * MIB)") == 0
        slot.machine.tool("inject", "clear")
        assert comes_true(lambda: slot.used_bytes == 2048 * MIB), slot.used_bytes

    def test_a_program_that_cannot_find_itself_for_long_does_so_in_the_end(self, slot: Slot, tell: Callable[..., Told]) -> None:
        told = tell()
        told("cuda.start()")
        slot.machine.tool(
            "inject", "call", "--symbol", "cuMemCreate", "--error", "999", "--times", "forever", "--pid", str(told.process.pid)
        )
        for turn in range(60):  # a page that changes is a reason to look again
            slot.change(memory_limit_bytes=(2048 + turn % 2) * MIB)
            told("take(512); time.sleep(0.03)")
        assert slot.machine.truth()["injections"][0]["fired"] >= 40
        assert slot.state().overhead_bytes == 0
        slot.machine.tool("inject", "clear")
        assert_books_equal(slot, told)

    def test_programs_that_fill_a_card_at_their_start_know_themselves(
        self, simulator: Path, tmp_path: Path, hook: Path, tell: Callable[..., Told]
    ) -> None:
        """Once all have taken what they may, no room is left to find out: on the card for nobody, in no slice."""
        card = Machine.make(simulator, tmp_path / "full", card="t4-16gb", context_bytes=CONTEXT * MIB, module_bytes=MODULE * MIB)
        size = card.truth()["cards"][0]["total_bytes"] // 10 // (2 * MIB) * 2 * MIB
        quota = region.GpuQuota(card.uuids[0], size, 100)
        slots = [Slot(tmp_path / f"full-{index}", hook, card, [quota]).create() for index in range(10)]
        programs = [tell(slot) for slot in slots]
        assert [program("cuda.start(); answer = take(cuda.info()[0] // (2 * MIB) * 2 * MIB)") for program in programs] == [0] * 10
        assert [slot.used_bytes for slot in slots] == [truth(card, program) for program in programs]
        assert all(slot.state().overhead_bytes == CONTEXT * MIB for slot in slots)


class TestProbes:
    """A process that looks for itself takes memory for a moment: nobody is refused because of it."""

    @staticmethod
    def refusals(*words: str) -> dict[str, int]:
        program = workshop.compile_program("refusals", hook_sources=SLOTS)
        done = subprocess.run([str(program), *words], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        counted: dict[str, int] = json.loads(done.stdout)
        return counted

    def test_the_protocol_refuses_nobody_below_the_limit(self) -> None:
        counted = self.refusals("hammer", "3")
        assert counted["refused"] == 0, counted
        assert min(counted["allocations"], counted["probes"], counted["met"]) > 0, counted

    def test_two_never_probe_at_once(self) -> None:
        counted = self.refusals("stepped")
        assert counted["steps"] > 50
        assert counted["both"] == 0, counted

    @pytest.mark.parametrize("held_up", ["stopped", "dead", "reaping"])
    def test_nobody_is_refused_because_another_process_is_held_up_or_dies(self, held_up: str) -> None:
        assert self.refusals(held_up) == {"refused": 0}

    def test_processes_that_look_for_themselves_refuse_nobody(self, simulator: Path, tmp_path: Path, hook: Path) -> None:
        """One process fills its slice again and again; siblings come, launch, look for themselves by probes, and go."""
        machine = Machine.make(simulator, tmp_path)
        slot = Slot(tmp_path / "probed", hook, machine, [region.GpuQuota(machine.uuids[0], 256 * MIB, 60)]).create()
        other = Slot(tmp_path / "other", hook, machine, [region.GpuQuota(machine.uuids[0], 256 * MIB, 0)]).create()
        neighbour = Told(other)  # so that nobody is alone on the card
        neighbour("cuda.start(); take(2 * MIB)")
        seeker = """
end = time.monotonic() + 4
while time.monotonic() < end:
    child = os.fork()
    if child == 0:
        cuda.start(); f = cuda.spin(); begin = time.monotonic()
        while time.monotonic() < begin + 0.3: cuda.launch(f, 500); cuda.cuCtxSynchronize()
        os._exit(0)
    os.waitpid(child, 0)
"""
        seekers = [slot.start(scripts.program(seeker)) for _ in range(2)]
        seen = scripts.run(
            slot,
            """
cuda.start(); f = cuda.spin()
refused = filled = 0
end = time.monotonic() + 4
while time.monotonic() < end:
    cuda.launch(f, 100)
    result, pointer = cuda.alloc(256 * MIB)
    refused += result != 0; filled += 1
    if result == 0: cuda.cuMemFree_v2(pointer)
    time.sleep(0.0005)
say(refused=refused, filled=filled > 100)
""",
        )
        for process in seekers:
            assert process.communicate(timeout=30)[1] == ""
        neighbour.end()
        assert seen == {"refused": 0, "filled": True}
        probed = int.from_bytes((slot.folder / "state").read_bytes()[region.STATE_GPUS_OFFSET + 72 :][:8], "little")
        assert probed, "nobody has probed, so nothing was tested"


def test_vgpuctl_tells_it_apart(slot: Slot, tell: Callable[..., Told]) -> None:
    tell()("cuda.start(); take(100 * MIB)")
    assert_books_equal(slot)
    show = [str(slot.hook / "vgpuctl"), "show"]
    shown = json.loads(subprocess.run([*show, "--json", str(slot.folder)], capture_output=True, text=True, check=True).stdout)
    assert shown["gpus"][0]["memory_used_bytes"] == (CONTEXT + 100) * MIB
    assert shown["overhead_bytes"] == CONTEXT * MIB
    table = subprocess.run([*show, str(slot.folder)], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}).stdout
    assert f"{CONTEXT + 100} / 2048 MiB" in table
    assert f"of the memory in use, {CONTEXT} MiB are contexts and modules" in table
