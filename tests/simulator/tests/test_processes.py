"""Processes come, fork and die; the machine's books stay true."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .bench import BLOCK, MIB, NOT_INITIALIZED, Machine, Process, out


def test_the_memory_of_a_killed_process_comes_back(machine: Machine) -> None:
    with machine.process().start() as process:
        process.alloc(1 << 30)
        assert machine.card()["used_bytes"] == 1 << 30
        process.kill()
        assert machine.card()["used_bytes"] == 0


def test_an_allocation_finds_the_memory_of_the_dead(machine: Machine) -> None:
    with machine.process().start() as holder, machine.process().start() as other:
        holder.alloc(81920 * MIB)
        assert other.cuda("cuMemAlloc_v2", out("u64"), BLOCK)[0] == 2
        holder.kill()
        other.alloc(BLOCK)


def test_what_a_process_had_used_is_known_after_its_end(machine: Machine) -> None:
    with machine.process().start() as process:
        process.alloc(4 * BLOCK)
        process.launch(3000)
        process.synchronize()
        pid = process.child.pid
        process.close()
    ended = [entry for entry in machine.truth()["ended"] if entry["pid"] == pid]
    assert ended[0]["cards"][0] == {"index": 0, "gpu_time_ns": 3_000_000, "launches": 1, "peak_reserved_bytes": 4 * BLOCK}


def test_a_forked_child_of_a_cuda_process_has_no_cuda(machine: Machine) -> None:
    with machine.process().start() as process:
        for symbol, words in (("cuInit", [0]), ("cuMemAlloc_v2", [out("u64"), 512]), ("cuDriverGetVersion", [out("i32")])):
            assert process.ask("", "fork_and_call", "libcuda.so.1", symbol, words)[0] == NOT_INITIALIZED
        process.alloc(512)  # the parent is as it was


def test_a_forked_child_of_an_uninitialised_process_has(machine: Machine) -> None:
    with machine.process() as process:
        assert process.ask("", "fork_and_call", "libcuda.so.1", "cuInit", [0])[0] == 0


def test_nvml_goes_on_in_a_forked_child(machine: Machine) -> None:
    with machine.process() as process:
        process.must("nvmlInit_v2")
        assert process.ask("", "fork_and_call", "libnvidia-ml.so.1", "nvmlDeviceGetCount_v2", [out("u32")]) == [0, 2]


def test_a_child_that_outlives_its_parent_holds_nothing(machine: Machine) -> None:
    with machine.process().start() as process:
        process.alloc(BLOCK)
        child = process.special("fork_sleeper", 5)
        try:
            process.kill()
            assert machine.card()["used_bytes"] == 0
        finally:
            os.kill(child, signal.SIGKILL)


WHO = """
import json, time, pynvml as n
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
pids, at_work, deadline = [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)], [], time.monotonic() + 10
while not at_work and time.monotonic() < deadline:
    try:
        at_work = [s.pid for s in n.nvmlDeviceGetProcessUtilization(h, 0)]
    except n.NVMLError_NotFound:
        time.sleep(0.05)
name = n.nvmlSystemGetProcessName(pids[0])
print(json.dumps({"list": pids, "at_work": at_work, "name": name if isinstance(name, str) else name.decode()}))
"""


def who_works(machine: Machine, *prefix: str) -> dict[str, Any]:
    """What NVML tells a program of the processes on the first card, once one of them has worked for a window."""
    command = [*prefix, sys.executable, "-c", WHO]
    environment = {"PATH": os.environ["PATH"], **machine.environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


class TestOtherNamespaces:
    """Containers have pid namespaces of their own; the machine is one all the same."""

    @pytest.fixture
    def inside(self, machine: Machine) -> Process:
        command = ["unshare", "--pid", "--fork", "--kill-child"]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no pid namespaces here")
        return machine.process(*command).start()

    def test_a_process_has_its_own_pid_and_a_made_up_host_pid(self, machine: Machine, inside: Process) -> None:
        inside.alloc(BLOCK)
        entry = machine.truth()["processes"][0]
        assert inside.special("pid") == entry["pid"] == 1
        assert entry["host_pid"] >= 4_200_000

    def test_the_machine_sees_its_true_pid_in_every_call(self, machine: Machine, inside: Process) -> None:
        inside.alloc(BLOCK)
        inside.load_spin()
        inside.launch(20_000_000)  # killed with its process
        true_pid = int(Path(f"/proc/{inside.child.pid}/task/{inside.child.pid}/children").read_text())
        name = machine.truth()["processes"][0]["name"]
        assert Path(f"/proc/{true_pid}/status").read_text().split("NSpid:")[1].split()[:2] == [str(true_pid), "1"]
        assert str(true_pid) in machine.smi().stdout.split()
        assert who_works(machine) == {"list": [true_pid], "at_work": [true_pid], "name": name}
        inside.kill()
        with machine.process("unshare", "--pid", "--fork", "--kill-child").start() as successor:
            successor.alloc(BLOCK)  # in the slot of the dead one, perhaps
            another = int(Path(f"/proc/{successor.child.pid}/task/{successor.child.pid}/children").read_text())
            assert another != true_pid
            assert str(another) in machine.smi().stdout.split()

    def test_from_another_namespace_it_goes_on_being_made_up(self, machine: Machine, inside: Process) -> None:
        inside.alloc(BLOCK)
        inside.load_spin()
        inside.launch(20_000_000)
        [entry] = machine.truth()["processes"]
        seen = who_works(machine, "unshare", "--pid", "--fork", "--kill-child")
        assert seen == {"list": [entry["host_pid"]], "at_work": [entry["host_pid"]], "name": entry["name"]}

    def test_its_life_is_seen_from_outside(self, machine: Machine, inside: Process) -> None:
        inside.alloc(BLOCK)
        assert machine.card()["used_bytes"] == BLOCK
        inside.kill()
        deadline = time.monotonic() + 5
        while machine.card()["used_bytes"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert machine.card()["used_bytes"] == 0

    def test_another_user_may_use_the_machine(self, machine: Machine) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root to become someone else")
        # the test's folders are root's alone: an open descriptor leads the way in
        with open(machine.state, "r+b") as state:
            done = subprocess.run(
                [str(machine.driver / "tenfold-sim"), "--state", f"/proc/self/fd/{state.fileno()}", "info"],
                pass_fds=[state.fileno()],
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
                user=65534,
                group=65534,
            )
        assert done.returncode == 0, done.stderr


def test_without_a_machine_there_is_no_device(bare_machine: Machine) -> None:
    with bare_machine.process() as process:
        assert process.cuda("cuInit", 0)[0] == 100
        assert process.nvml("nvmlInit_v2")[0] == 9


def test_a_file_that_is_no_machine_is_a_mismatch(bare_machine: Machine) -> None:
    bare_machine.state.write_bytes(bytes(1 << 26))
    with bare_machine.process() as process:
        assert process.cuda("cuInit", 0)[0] == 803
        assert process.nvml("nvmlInit_v2")[0] == 18


@pytest.mark.parametrize("count", [8])
def test_a_kill_storm_loses_nothing(machine: Machine, count: int) -> None:
    """Processes allocate, launch and are killed at random moments; afterwards everything is free and a newcomer works."""
    source = random.Random(5)
    for _ in range(2):
        processes = [machine.process().start() for _ in range(count)]
        for number, process in enumerate(processes):
            process.send("", "churn", number, 2_000_000, 8 * MIB)
        deadline = time.monotonic() + 10
        while processes and time.monotonic() < deadline:
            time.sleep(source.random() * 0.05)
            processes.pop(source.randrange(len(processes))).kill()
    truth = machine.truth()
    assert truth["processes"] == []
    assert truth["cards"][0]["used_bytes"] == 0
    with machine.process().start() as process:
        process.alloc(81920 * MIB)


def test_a_holder_of_the_lock_that_is_killed_blocks_nobody(machine: Machine) -> None:
    """The lock word is set to a slot that nobody owns, as a process killed inside the lock leaves it."""
    with machine.process().start() as process:
        process.alloc(BLOCK)
        offset = lock_word_offset(machine)
        with open(machine.state, "r+b") as state:
            state.seek(offset)
            state.write((900).to_bytes(4, "little"))
        process.alloc(BLOCK)
        truth = machine.truth()
        assert truth["lock_steals"] == 1
        assert truth["cards"][0]["used_bytes"] == 2 * BLOCK


def test_a_holder_of_the_lock_that_is_killed_does_not_block_whoever_gets_its_slot(machine: Machine) -> None:
    """The next process takes the lowest free slot, which may be the dead one's: then the lock seems to be its own."""
    with open(machine.state, "r+b") as state:
        state.seek(lock_word_offset(machine))
        state.write((1).to_bytes(4, "little"))
    with machine.process().start() as process:
        process.alloc(BLOCK)
        assert machine.truth()["cards"][0]["used_bytes"] == BLOCK


def lock_word_offset(machine: Machine) -> int:
    return int(machine.tool("layout").stdout.split("lock_word ")[1].split()[0])


def test_slots_are_given_again(machine: Machine) -> None:
    for _ in range(3):
        with machine.process().start() as process:
            process.alloc(512)
    assert machine.truth()["processes"] == []


def test_a_second_init_refuses_while_the_machine_is_used(machine: Machine) -> None:
    with machine.process().start():
        done = machine.tool("init", "--card", "a800-80gb", check=False)
        assert done.returncode == 2
        assert "1 processes use the machine" in done.stderr
