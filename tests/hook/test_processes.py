"""Processes: many, forked, replaced, killed, of other users; a full table, a damaged or missing state. Nothing hangs or ends its host."""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region

from tests import ROOT
from tests.hook import scripts, workshop
from tests.hook.workshop import MIB, Machine, Slot

OOM = 2
HOLD = "cuda.start(); assert cuda.alloc({mib} * MIB)[0] == 0; say(ready=1); sys.stdin.read()"


def hold(slot: Slot, mib: int) -> object:
    process = slot.start(scripts.program(HOLD.format(mib=mib)))
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"ready": 1}
    return process


def finish(process: object, how: int | None = None) -> None:
    assert hasattr(process, "communicate")
    if how is not None:
        process.send_signal(how)  # type: ignore[attr-defined]
    process.communicate(timeout=30)


class TestSharing:
    def test_processes_share_one_limit_to_the_byte(self, slot: Slot) -> None:
        first, second = hold(slot, 30), hold(slot, 30)
        seen = scripts.run(slot, "cuda.start(); say(over=cuda.alloc(6 * MIB)[0], fits=cuda.alloc(4 * MIB)[0], free=cuda.info()[0])")
        assert seen == {"over": OOM, "fits": 0, "free": 0}
        assert slot.state().processes >= 2
        finish(first)
        finish(second)

    @pytest.mark.parametrize("how", [None, signal.SIGKILL, signal.SIGTERM])
    def test_what_a_process_held_comes_back_when_it_is_gone(self, slot: Slot, how: int | None) -> None:
        finish(hold(slot, 64), how)
        assert scripts.run(slot, "cuda.start(); say(all=cuda.alloc(64 * MIB)[0])") == {"all": 0}
        assert slot.state().reaped >= 1

    def test_a_zombie_holds_nothing(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            """
child = os.fork()
if child == 0:
    cuda.start(); os._exit(0 if cuda.alloc(64 * MIB)[0] == 0 else 1)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)   # it stays a zombie
cuda.start()
say(all=cuda.alloc(64 * MIB)[0], status=os.waitpid(child, 0)[1])
""",
        )
        assert seen == {"all": 0, "status": 0}


class TestForkAndExec:
    def test_a_forked_child_has_its_own_slot_and_inherits_no_usage(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            """
child = os.fork()
if child == 0:
    cuda.start(); code = cuda.alloc(16 * MIB)[0]; time.sleep(0.5); os._exit(code)
cuda.start()
say(mine=cuda.alloc(16 * MIB)[0]); time.sleep(0.2)
say(free=cuda.info()[0] // MIB, status=os.waitpid(child, 0)[1], after=0 if cuda.alloc(48 * MIB)[0] == 0 else 1)
""",
        )
        assert seen == {"mine": 0, "free": 32, "status": 0, "after": 0}

    def test_a_child_of_a_process_that_uses_cuda_does_not_give_back_its_parents_memory(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            """
nvml = Driver("libnvidia-ml.so.1"); nvml.nvmlInit_v2()
cuda.start(); cuda.alloc(16 * MIB)
card, memory = c.c_void_p(), NvmlMemory()
if os.fork() == 0:
    nvml.nvmlDeviceGetHandleByIndex_v2(c.c_uint(0), c.byref(card)); nvml.nvmlDeviceGetMemoryInfo(card, c.byref(memory))
    os._exit(0)
os.wait()
say(free=cuda.info()[0] // MIB, rest=cuda.alloc(48 * MIB)[0], over=cuda.alloc(512)[0])
""",
        )
        assert seen == {"free": 48, "rest": 0, "over": OOM}

    def test_memory_of_a_program_that_was_replaced_by_exec_comes_back(self, slot: Slot) -> None:
        body = """
cuda.start(); assert cuda.alloc(64 * MIB)[0] == 0
os.execv(sys.executable, [sys.executable, '-B', '-S', '-c', os.environ['NEXT']])
"""
        follow = scripts.program("cuda.start(); say(all=cuda.alloc(64 * MIB)[0])")[-1]
        assert scripts.run(slot, body, NEXT=follow) == {"all": 0}

    def test_a_replaced_program_that_never_uses_cuda_blocks_nobody(self, slot: Slot) -> None:
        """It keeps pid and start time, so only its mappings tell that its memory is gone."""
        body = "cuda.start(); assert cuda.alloc(64 * MIB)[0] == 0; say(ready=1); os.execv('/bin/sleep', ['sleep', '60'])"
        process = slot.start(scripts.program(body))
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + 10
        while Path(f"/proc/{process.pid}/comm").read_text().strip() != "sleep" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert scripts.run(slot, "cuda.start(); say(all=cuda.alloc(64 * MIB)[0])") == {"all": 0}
        finish(process, signal.SIGKILL)

    def test_a_fork_storm_leaves_the_books_at_zero(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            """
import random
for wave in range(4):
    children = []
    for number in range(12):
        child = os.fork()
        if child == 0:
            cuda.start()
            for _ in range(20):
                cuda.alloc(random.choice([512, 4096, 2 * MIB]))
            os.kill(os.getpid(), 9) if number % 2 else os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
cuda.start()
say(all=cuda.alloc(64 * MIB)[0], over=cuda.alloc(512)[0])
""",
        )
        assert seen == {"all": 0, "over": OOM}
        assert slot.used_bytes in (0, 64 * MIB)

    def test_threads_that_allocate_while_the_process_forks_do_not_hang_the_child(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            """
import threading
cuda.start()
stop = False
def work():
    cuda.start()
    while not stop:
        result, pointer = cuda.alloc(4096)
        if result == 0: cuda.cuMemFree_v2(pointer)
workers = [threading.Thread(target=work) for _ in range(4)]
for worker in workers: worker.start()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        free, total = c.c_size_t(), c.c_size_t()
        cuda.cuMemGetInfo_v2(c.byref(free), c.byref(total)); cuda.alloc(512); os._exit(7)
    codes.append(os.waitpid(child, 0)[1] >> 8)
stop = True
for worker in workers: worker.join()
end = time.monotonic() + 10  # what small blocks have wasted of theirs is measured now and then
while cuda.info()[0] != 64 * MIB and time.monotonic() < end: time.sleep(0.01)
say(codes=set(codes) == {7}, free=cuda.info()[0])
""",
            timeout=120,
        )
        assert seen == {"codes": True, "free": 64 * MIB}


class TestStrangeStates:
    def test_a_recycled_pid_is_another_process(self, slot: Slot) -> None:
        """A slot of this very pid, but of another start time, is a dead one's."""
        mine = os.getpid()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        identity = 1 | mine << 2 | 12345 << 24 | (namespace & 0xFFF) << 52
        forge_slot(slot, identity, 64 * MIB)
        assert scripts.run(slot, "cuda.start(); say(all=cuda.alloc(64 * MIB)[0])") == {"all": 0}

    def test_a_process_of_another_pid_namespace_is_left_alone(self, slot: Slot) -> None:
        namespace = Path("/proc/self/ns/pid").stat().st_ino + 1
        forge_slot(slot, 1 | 4194000 << 2 | 1 << 24 | (namespace & 0xFFF) << 52, 64 * MIB)
        assert scripts.run(slot, "cuda.start(); say(over=cuda.alloc(512)[0])") == {"over": OOM}

    def test_a_full_table_is_cleared_of_the_dead_and_else_obeys_the_policy(self, make_slot: Callable[..., Slot]) -> None:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        for policy, alive, expected in (("closed", False, 0), ("closed", True, OOM), ("open", True, 0)):
            slot = make_slot(policy=policy)
            pid = os.getpid() if alive else 4193999
            start = int(Path(f"/proc/{os.getpid()}/stat").read_text().rsplit(") ", 1)[1].split()[19])
            for index in range(region.SLOTS_MAX):
                forge_slot(slot, 1 | pid << 2 | (start & 0xFFFFFFF) << 24 | (namespace & 0xFFF) << 52, 0, index)
            with (slot.folder / "state").open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ):
                # mapped here, so that this process counts as one that uses the slot
                done = slot.run(scripts.program("cuda.start(); say(result=cuda.alloc(2 * MIB)[0])"))
            assert json.loads(done.stdout) == {"result": expected}
            assert done.stderr.count("tenfold:") == (1 if alive else 0)

    @pytest.mark.parametrize(("policy", "expected"), [("closed", OOM), ("open", 0)])
    @pytest.mark.parametrize("damage", ["missing", "short", "magic", "abi", "readonly"])
    def test_a_state_that_cannot_be_used_obeys_the_policy_with_one_message(
        self, make_slot: Callable[..., Slot], policy: str, expected: int, damage: str
    ) -> None:
        slot = make_slot(policy=policy)
        state = slot.folder / "state"
        if damage == "missing":
            state.unlink()
        elif damage == "short":
            os.truncate(state, 100)
        elif damage == "magic":
            poke(state, 0, b"\xff" * 8)
        elif damage == "abi":
            poke(state, 8, struct.pack("<I", 99))
        elif damage == "readonly":
            state.unlink()
            state.mkdir()
        done = slot.run(scripts.program("cuda.start(); say(result=cuda.alloc(2 * MIB)[0], again=cuda.alloc(2 * MIB)[0])"))
        assert done.returncode == 0
        assert json.loads(done.stdout) == {"result": expected, "again": expected}
        assert done.stderr.count("\n") == done.stderr.count("tenfold:") == 1
        assert "by policy" in done.stderr

    @pytest.mark.parametrize("damage", ["both copies", "newer abi", "short"])
    def test_a_page_that_cannot_be_read_gives_out_no_memory(self, slot: Slot, damage: str) -> None:
        config = slot.folder / "config"
        if damage == "both copies":
            for offset in region.COPY_OFFSETS:
                poke(config, offset + 64, b"x")
        elif damage == "newer abi":
            poke(config, 8, struct.pack("<I", 2))
        else:
            os.truncate(config, 4096)
        done = slot.run(scripts.program("cuda.start(); say(result=cuda.alloc(2 * MIB)[0])"))
        assert json.loads(done.stdout) == {"result": OOM}
        assert done.stderr.count("tenfold:") == 1

    def test_the_page_is_found_by_its_good_copy(self, slot: Slot) -> None:
        region.write_config(slot.folder, [region.GpuQuota(slot.gpus[0].uuid, 32 * MIB, 100)], library=slot.page_library)
        poke(slot.folder / "config", region.COPY_OFFSETS[1] + 64, b"x")
        assert scripts.run(slot, "cuda.start(); say(total=cuda.info()[1] // MIB)") == {"total": 64}

    def test_another_users_processes_share_the_slot(self, slot: Slot, tmp_path: Path) -> None:
        """Root's process holds memory; one of uid 65534 attaches, is limited, and its death is noticed."""
        for path in (tmp_path, *tmp_path.parents):
            if str(path).startswith("/tmp/pytest"):
                path.chmod(0o755)
        slot.machine.state.chmod(0o666)
        holder = hold(slot, 32)
        body = "os.setgid(65534); os.setuid(65534); cuda.start(); say(over=cuda.alloc(34 * MIB)[0], fits=cuda.alloc(32 * MIB)[0])"
        assert scripts.run(slot, body) == {"over": OOM, "fits": 0}
        finish(holder)
        assert scripts.run(slot, "cuda.start(); say(all=cuda.alloc(64 * MIB)[0])") == {"all": 0}


class TestLiveChange:
    def test_a_page_that_flaps_at_100_hertz_harms_nothing(self, slot: Slot) -> None:
        process = slot.start(
            scripts.program(
                """
cuda.start()
end = time.monotonic() + 2.0
refused = 0
while time.monotonic() < end:
    held = []
    for _ in range(20):
        result, pointer = cuda.alloc(2 * MIB)
        assert result in (0, 2), result
        refused += result == 2
        if result == 0: held.append(pointer)
    for pointer in held: assert cuda.cuMemFree_v2(pointer) == 0
    free, total = cuda.info()
    assert free <= total and total in (16 * MIB, 64 * MIB), (free, total)
say(refused=refused > 0, total=cuda.info()[1])
"""
            )
        )
        deadline = time.monotonic() + 1.5
        flips = 0
        while time.monotonic() < deadline:
            slot.change(memory_limit_bytes=(16 if flips % 2 else 64) * MIB, core_limit_percent=10 + flips % 80)
            flips += 1
            time.sleep(0.01)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (0, "")
        assert json.loads(out)["refused"] is True
        assert slot.used_bytes == 0
        assert flips > 20


def test_no_thread_of_ours_calls_the_driver_once_it_may_take_itself_apart(make_slot: Callable[..., Slot]) -> None:
    program = workshop.compile_program("leave", link=[str(ROOT / "tests/hook/common/cuda_api.c")])
    done = make_slot(cores=80).run([program])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"threads": 1, "switches": 0}


class TestStandAlone:
    def test_hami_cores_variables_count_where_there_is_no_page(self, slot: Slot) -> None:
        body = "cuda.start(); say(total=cuda.info()[1] // MIB, over=cuda.alloc(34 * MIB)[0], fits=cuda.alloc(32 * MIB)[0])"
        seen = scripts.run(slot, body, TENFOLD_SLOT_DIR="", CUDA_DEVICE_MEMORY_LIMIT="32m")
        assert seen == {"total": 32, "over": OOM, "fits": 0}
        seen = scripts.run(slot, body, TENFOLD_SLOT_DIR="", CUDA_DEVICE_MEMORY_LIMIT="1g", CUDA_DEVICE_MEMORY_LIMIT_0="32M")
        assert seen["total"] == 32

    def test_processes_that_name_one_cache_share_it(self, slot: Slot, tmp_path: Path) -> None:
        variables = {"TENFOLD_SLOT_DIR": "", "CUDA_DEVICE_MEMORY_LIMIT": "32m", "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "cache")}
        process = slot.start(scripts.program(HOLD.format(mib=20)), **variables)
        assert process.stdout is not None
        process.stdout.readline()
        assert scripts.run(slot, "cuda.start(); say(over=cuda.alloc(20 * MIB)[0])", **variables) == {"over": OOM}  # type: ignore[arg-type]
        finish(process)

    def test_one_ordinal_in_two_processes_may_be_two_cards(self, simulator: Path, hook: Path, tmp_path: Path) -> None:
        machine = Machine.make(simulator, tmp_path, cards=2)
        slot = Slot(tmp_path / "none", hook, machine, [])
        variables = {"TENFOLD_SLOT_DIR": "", "CUDA_DEVICE_MEMORY_LIMIT": "32m", "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "cache")}
        process = slot.start(scripts.program(HOLD.format(mib=20)), CUDA_VISIBLE_DEVICES="1", **variables)
        assert process.stdout is not None
        process.stdout.readline()
        body = "cuda.start(); say(got=cuda.alloc(20 * MIB)[0], free=cuda.info()[0] // MIB)"
        other = scripts.run(slot, body, CUDA_VISIBLE_DEVICES="0", **variables)  # type: ignore[arg-type]
        same = scripts.run(slot, body, CUDA_VISIBLE_DEVICES="1", **variables)  # type: ignore[arg-type]
        finish(process)
        assert other == {"got": 0, "free": 12}
        assert same == {"got": OOM, "free": 12}

    def test_where_a_page_exists_they_are_ignored(self, slot: Slot) -> None:
        seen = scripts.run(slot, "cuda.start(); say(total=cuda.info()[1] // MIB)", CUDA_DEVICE_MEMORY_LIMIT="1g", CUDA_DISABLE_CONTROL="1")
        assert seen == {"total": 64}

    @pytest.mark.parametrize("value", ["0", "0m", "", "-1", "x", "99999999999999999999g", "1.5g", "12q"])
    def test_a_value_that_is_no_size_is_no_limit(self, slot: Slot, value: str) -> None:
        seen = scripts.run(slot, "cuda.start(); say(total=cuda.info()[1] // MIB)", TENFOLD_SLOT_DIR="", CUDA_DEVICE_MEMORY_LIMIT=value)
        assert seen == {"total": 81920}


def poke(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def forge_slot(slot: Slot, identity: int, used_bytes: int, index: int = 0) -> None:
    """Write a slot as a process would have, and its bytes into the card's word."""
    state = slot.folder / "state"
    if not os.access(state, os.W_OK):
        state.chmod(0o666)
    offset = region.STATE_SLOTS_OFFSET + index * region.SLOT_STRIDE
    poke(state, offset, struct.pack("<Q", identity))
    poke(state, offset + region.SLOT_USED_OFFSET, struct.pack("<Q", used_bytes))
    poke(state, region.HEADER_BYTES, struct.pack("<Q", index + 1))
    if used_bytes:
        poke(state, region.STATE_GPUS_OFFSET + 48, struct.pack("<Q", used_bytes))
