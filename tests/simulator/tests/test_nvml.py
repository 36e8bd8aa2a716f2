"""NVML as nvidia-ml-py sees it: in a process of its own, through the real Python binding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from .bench import BLOCK, MIB, Machine, out

pytest.importorskip("pynvml")

FACTS = """
import json, sys, pynvml as n
n.nvmlInit()
def text(x): return x.decode() if isinstance(x, bytes) else x
cards = []
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    uuid = text(n.nvmlDeviceGetUUID(h))
    pci = n.nvmlDeviceGetPciInfo(h)
    memory, second = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2)
    cards.append(dict(
        uuid=uuid, name=text(n.nvmlDeviceGetName(h)), index=n.nvmlDeviceGetIndex(h), minor=n.nvmlDeviceGetMinorNumber(h),
        bus_id=text(pci.busId), device_id=pci.pciDeviceId, total=memory.total, used=memory.used, free=memory.free,
        reserved=second.reserved, used_v2=second.used, capability=n.nvmlDeviceGetCudaComputeCapability(h),
        brand=n.nvmlDeviceGetBrand(h), architecture=n.nvmlDeviceGetArchitecture(h), mode=n.nvmlDeviceGetComputeMode(h),
        same=n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(uuid)),
        by_bus=n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(pci.busId)),
        sm=n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM), sm_max=n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM),
        processes=[(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
        load=n.nvmlDeviceGetUtilizationRates(h).gpu))
print(json.dumps(dict(driver=text(n.nvmlSystemGetDriverVersion()), cuda=n.nvmlSystemGetCudaDriverVersion(), cards=cards)))
"""


def with_pynvml(machine: Machine, script: str, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PATH": os.environ["PATH"], **machine.environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_identity_of_the_cards(machine: Machine) -> None:
    facts = with_pynvml(machine, FACTS)
    truth = machine.truth()
    assert (facts["driver"], facts["cuda"]) == ("535.161.08", 12020)
    for index, card in enumerate(facts["cards"]):
        assert card["uuid"] == truth["cards"][index]["uuid"]
        assert card["name"] == "NVIDIA A800-SXM4-80GB"
        assert card["index"] == card["minor"] == card["same"] == card["by_bus"] == index
        assert card["total"] == 81920 * MIB
        assert card["capability"] == [8, 0]
        assert card["architecture"] == 7
        assert card["sm_max"] == 1410


def test_memory_and_processes(bare_machine: Machine) -> None:
    machine = bare_machine.init(memory_reserved_mib=600, context_bytes=400 * MIB)
    with machine.process().start() as process:
        process.alloc(BLOCK)
        card = with_pynvml(machine, FACTS)["cards"][0]
        assert card["processes"] == [[process.child.pid, 400 * MIB + BLOCK]]
        assert (card["reserved"], card["used_v2"]) == (600 * MIB, 400 * MIB + BLOCK)
        assert card["used"] == 1000 * MIB + BLOCK
        assert card["free"] + card["used"] == card["total"]
    assert with_pynvml(machine, FACTS)["cards"][0]["processes"] == []


@pytest.mark.parametrize(
    ("model", "name", "total_mib", "capability"),
    [
        ("a100-40gb", "NVIDIA A100-SXM4-40GB", 40960, [8, 0]),
        ("h800-80gb", "NVIDIA H800", 81559, [9, 0]),
        ("v100-32gb", "Tesla V100-SXM2-32GB", 32768, [7, 0]),
        ("t4-16gb", "Tesla T4", 15360, [7, 5]),
    ],
)
def test_other_card_models(bare_machine: Machine, model: str, name: str, total_mib: int, capability: list[int]) -> None:
    card = with_pynvml(bare_machine.init(card=model, cards=1), FACTS)["cards"][0]
    assert (card["name"], card["total"], card["capability"]) == (name, total_mib * MIB, capability)


def test_models_can_be_mixed_and_uuids_follow_the_seed(bare_machine: Machine) -> None:
    first = bare_machine.init(card="a800-80gb,t4-16gb", cards=3).truth()["cards"]
    assert [card["name"] for card in first] == ["NVIDIA A800-SXM4-80GB", "Tesla T4", "Tesla T4"]
    assert len({card["uuid"] for card in first}) == 3
    assert [card["uuid"] for card in bare_machine.init(cards=3).truth()["cards"]] == [card["uuid"] for card in first]


class TestUtilisation:
    """Whole windows, whole percent, nothing where nobody worked."""

    WINDOW_US = 40_000

    def sample(self, machine: Machine, since_us: int = 0) -> tuple[int, list[list[int]]]:
        script = """
import json, sys, pynvml as n
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
try:
    rows = [[s.pid, s.smUtil, s.timeStamp] for s in n.nvmlDeviceGetProcessUtilization(h, int(sys.argv[1]))]
    print(json.dumps([0, rows]))
except n.NVMLError as error:
    print(json.dumps([error.value, []]))
"""
        code, rows = with_pynvml(machine, script, str(since_us))
        return code, rows

    def test_nobody_at_work_is_not_found(self, machine: Machine) -> None:
        with machine.process().start():
            assert self.sample(machine)[0] == 6

    def test_a_busy_process_reads_as_busy(self, bare_machine: Machine) -> None:
        machine = bare_machine.init(window_us=self.WINDOW_US)
        with machine.process().start() as process:
            process.load_spin()
            before_us = int(time.time() * 1e6)
            process.launch(20_000_000)  # killed with its process
            time.sleep(0.15)
            code, rows = self.sample(machine)
            assert (code, len(rows)) == (0, 1)
            pid, percent, stamp_us = rows[0]
            assert pid == process.child.pid
            assert 50 <= percent <= 100  # the first window is partly empty
            assert before_us <= stamp_us <= time.time() * 1e6
            code, rows = self.sample(machine, stamp_us + self.WINDOW_US // 2)
            assert rows == [] or rows[0][1] == 100

    def test_shares_add_up(self, bare_machine: Machine) -> None:
        machine = bare_machine.init(window_us=self.WINDOW_US, policy="round-robin", slice_us=1000)
        tenants = [machine.process().start() for _ in range(2)]
        for tenant in tenants:
            tenant.load_spin()
        for tenant in tenants:
            tenant.launch(20_000_000)  # killed with its process
        time.sleep(0.1)
        since_us = int(time.time() * 1e6)
        time.sleep(0.2)
        _, rows = self.sample(machine, since_us)
        assert all(45 <= row[1] <= 55 for row in rows)
        assert len(rows) == 2

    def test_a_sample_is_published_only_after_its_lag(self, bare_machine: Machine) -> None:
        machine = bare_machine.init(window_us=self.WINDOW_US, window_lag_us=60_000_000)
        with machine.process().start() as process:
            process.launch(200_000)
            process.synchronize()
            assert self.sample(machine)[0] == 6


class TestEvents:
    WAIT = """
import json, sys, pynvml as n
n.nvmlInit(); s = n.nvmlEventSetCreate()
for i in range(n.nvmlDeviceGetCount()):
    n.nvmlDeviceRegisterEvents(n.nvmlDeviceGetHandleByIndex(i), n.nvmlEventTypeXidCriticalError, s)
print("ready", flush=True)
try:
    e = n.nvmlEventSetWait_v2(s, int(sys.argv[1]))
    print(json.dumps([e.eventType, e.eventData, n.nvmlDeviceGetIndex(e.device)]))
except n.NVMLError as error:
    print(json.dumps(error.value))
"""

    def wait(self, machine: Machine, timeout_ms: int, *, xid: int = 0, card: int = 0) -> Any:
        child = subprocess.Popen(
            [sys.executable, "-c", self.WAIT, str(timeout_ms)],
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], **machine.environment},
        )
        assert child.stdout and child.stdout.readline() == "ready\n"
        if xid:
            machine.tool("inject", "xid", "--card", str(card), "--xid", str(xid))
        output, _ = child.communicate(timeout=20)
        return json.loads(output)

    def test_an_xid_reaches_a_waiter_of_that_card(self, machine: Machine) -> None:
        assert self.wait(machine, 10_000, xid=31, card=1) == [8, 31, 1]

    def test_nothing_happens_until_the_timeout(self, machine: Machine) -> None:
        started = time.monotonic()
        assert self.wait(machine, 200) == 10
        assert time.monotonic() - started >= 0.2

    def test_xids_of_before_are_not_told(self, machine: Machine) -> None:
        machine.tool("inject", "xid", "--card", "0", "--xid", "31")
        assert self.wait(machine, 100) == 10


def test_a_card_that_fell_off_the_bus_stays_lost_until_reset(machine: Machine) -> None:
    with machine.process() as process:
        process.must("nvmlInit_v2")
        handle = process.must("nvmlDeviceGetHandleByIndex_v2", 0, out("u64"))
        machine.tool("inject", "xid", "--card", "0", "--xid", "79")
        for _ in range(2):
            assert process.nvml("nvmlDeviceGetUUID", handle, out("bytes:96"), 96)[0] == 15
        machine.tool("set", "--card", "0", "lost=0")
        assert process.nvml("nvmlDeviceGetUUID", handle, out("bytes:96"), 96)[0] == 0


def test_calls_before_init_and_after_shutdown_are_refused(machine: Machine) -> None:
    with machine.process() as process:
        assert process.nvml("nvmlDeviceGetCount_v2", out("u32"))[0] == 1
        process.must("nvmlInit_v2")
        process.must("nvmlInit_v2")
        process.must("nvmlShutdown")
        assert process.nvml("nvmlDeviceGetCount_v2", out("u32")) == [0, 2]
        process.must("nvmlShutdown")
        assert process.nvml("nvmlDeviceGetCount_v2", out("u32"))[0] == 1
        assert process.nvml("nvmlShutdown")[0] == 1


def test_a_short_buffer_is_refused(machine: Machine) -> None:
    with machine.process() as process:
        process.must("nvmlInit_v2")
        handle = process.must("nvmlDeviceGetHandleByIndex_v2", 0, out("u64"))
        assert process.nvml("nvmlDeviceGetUUID", handle, out("bytes:96"), 8)[0] == 7
        assert process.nvml("nvmlDeviceGetUUID", 0x1234, out("bytes:96"), 96)[0] == 2


def test_wrong_struct_versions_are_refused(machine: Machine) -> None:
    with machine.process() as process:
        process.must("nvmlInit_v2")
        handle = process.must("nvmlDeviceGetHandleByIndex_v2", 0, out("u64"))
        assert process.nvml("nvmlDeviceGetMemoryInfo_v2", handle, ["inout", "00" * 40])[0] == 25


def test_mig_is_off_where_it_exists_and_unknown_elsewhere(bare_machine: Machine) -> None:
    machine = bare_machine.init(card="a800-80gb,t4-16gb", cards=2)
    with machine.process() as process:
        process.must("nvmlInit_v2")
        ampere, turing = (process.must("nvmlDeviceGetHandleByIndex_v2", index, out("u64")) for index in (0, 1))
        assert process.must("nvmlDeviceGetMigMode", ampere, out("u32"), out("u32")) == [0, 0]
        assert process.nvml("nvmlDeviceGetMigMode", turing, out("u32"), out("u32"))[0] == 3
        assert process.nvml("nvmlDeviceGetMigDeviceHandleByIndex", ampere, 0, out("u64"))[0] == 6
