"""Where a driver is stricter than the ideal one: each key of profiles/models varied, and what it changes."""

from __future__ import annotations

import subprocess
import time

import pytest

from .bench import BLOCK, MIB, SUCCESS, Machine, Process, out

CAPTURE_UNSUPPORTED, INVALIDATED, MERGE, ISOLATION, IMPLICIT, CAPTURED_EVENT = 900, 901, 902, 905, 906, 907
RELAXED = 2


def stream_of(process: Process, *, blocking: bool = False) -> int:
    stream: int = process.must("cuStreamCreate", out("u64"), 0 if blocking else 1)
    return stream


def event_on(process: Process, stream: int) -> int:
    event: int = process.must("cuEventCreate", out("u64"), 0)
    process.must("cuEventRecord", event, stream)
    return event


def test_a_model_is_chosen_by_name_and_settings_override_it(bare_machine: Machine) -> None:
    machine = bare_machine.init(model="a800-535")
    with machine.process().start() as process:
        assert machine.usage(process)["context_bytes"] == 450 * MIB
        assert machine.card()["driver_reserved_bytes"] == 600 * MIB
    with bare_machine.init(model="a800-535", context_bytes=0).process().start() as process:
        assert machine.usage(process)["context_bytes"] == 0
    refused = machine.tool("init", "--card", "a800-80gb", "--model", "nowhere", "--force", check=False)
    assert "models/nowhere.conf" in refused.stderr


def test_the_last_bytes_of_a_full_card_are_the_drivers(bare_machine: Machine) -> None:
    """Ten slices of 8 GiB are promised, 80 GiB less what the driver keeps are there."""
    machine = bare_machine.init(model="a800-535", context_bytes=0)
    with machine.process().start() as process:
        for _ in range(9):
            process.alloc(8192 * MIB)
        assert process.cuda("cuMemAlloc_v2", out("u64"), 8192 * MIB)[0] == 2
        assert process.info() == ((8192 - 600) * MIB, (81920 - 600) * MIB)
        process.alloc((8192 - 600) * MIB)


class TestCapture:
    """What crosses the border of a capture fails and breaks it."""

    @pytest.fixture
    def process(self, bare_machine: Machine) -> Process:
        process = bare_machine.init(capture_is_strict=1).process().start()
        process.load_spin()
        return process

    @pytest.fixture
    def stream(self, process: Process) -> int:
        return stream_of(process)

    def begin(self, process: Process, stream: int) -> None:
        process.must("cuStreamBeginCapture_v2", stream, RELAXED)

    def end(self, process: Process, stream: int) -> int:
        code: int = process.cuda("cuStreamEndCapture", stream, out("u64"))[0]
        return code

    @pytest.mark.parametrize("symbol", ["cuEventQuery", "cuEventSynchronize"])
    def test_a_captured_event_is_neither_asked_nor_waited_for(self, process: Process, stream: int, symbol: str) -> None:
        self.begin(process, stream)
        event = event_on(process, stream)
        assert process.cuda(symbol, event)[0] == CAPTURED_EVENT
        assert self.end(process, stream) == INVALIDATED
        assert process.cuda(symbol, event)[0] == CAPTURED_EVENT
        process.must("cuEventRecord", event, stream)
        process.must("cuEventSynchronize", event)

    def test_another_events_query_breaks_nothing(self, process: Process, stream: int) -> None:
        outside = event_on(process, stream)
        self.begin(process, stream)
        process.must("cuEventSynchronize", outside)
        assert self.end(process, stream) == SUCCESS

    def test_a_capturing_stream_is_not_asked(self, process: Process, stream: int) -> None:
        self.begin(process, stream)
        assert process.cuda("cuStreamQuery", stream)[0] == CAPTURE_UNSUPPORTED
        assert self.end(process, stream) == INVALIDATED

    def test_work_outside_is_not_waited_for_inside(self, process: Process, stream: int) -> None:
        outside = event_on(process, stream_of(process))
        self.begin(process, stream)
        assert process.cuda("cuStreamWaitEvent", stream, outside, 0)[0] == ISOLATION
        assert self.end(process, stream) == INVALIDATED

    def test_two_captures_do_not_merge(self, process: Process, stream: int) -> None:
        other = stream_of(process)
        self.begin(process, stream)
        self.begin(process, other)
        assert process.cuda("cuStreamWaitEvent", other, event_on(process, stream), 0)[0] == MERGE
        assert (self.end(process, stream), self.end(process, other)) == (INVALIDATED, INVALIDATED)

    def test_the_legacy_stream_rests_while_a_blocking_stream_captures(self, process: Process, stream: int) -> None:
        self.begin(process, stream)
        event = event_on(process, 0)  # nobody waits for a stream that does not block
        blocking = stream_of(process, blocking=True)
        self.begin(process, blocking)
        assert process.cuda("cuEventRecord", event, 0)[0] == IMPLICIT
        assert (self.end(process, stream), self.end(process, blocking)) == (SUCCESS, INVALIDATED)

    def test_the_ideal_driver_lets_it_pass(self, machine: Machine) -> None:
        with machine.process().start() as process:
            stream = stream_of(process)
            self.begin(process, stream)
            process.must("cuEventQuery", event_on(process, stream))
            assert self.end(process, stream) == SUCCESS


class TestPids:
    """Who is named by which number, in the list of processes and in the samples of their work, to whom."""

    CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

    @pytest.mark.parametrize(("process_pids", "sample_pids"), [("caller", "machine"), ("caller", "caller"), ("machine", "machine")])
    def test_lists_and_samples_translate_by_themselves(self, bare_machine: Machine, process_pids: str, sample_pids: str) -> None:
        if subprocess.run([*self.CONTAINER, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no pid namespaces here")
        machine = bare_machine.init(process_pids=process_pids, sample_pids=sample_pids, window_us=20_000, policy="round-robin")
        with machine.process(*self.CONTAINER).start() as inside, machine.process().start() as stranger:
            for process in (inside, stranger):
                process.launch(20_000, count=50)
            time.sleep(0.2)
            made_up = {entry["pid"]: entry["host_pid"] for entry in machine.truth()["processes"]}[1]
            seen = {"caller": {1}, "machine": {made_up, stranger.child.pid}}
            assert self.listed(inside) == seen[process_pids]
            assert self.sampled(inside) == seen[sample_pids]
            assert len(self.listed(stranger)) == 2

    def listed(self, process: Process) -> set[int]:
        return set(self.numbers(process, "nvmlDeviceGetComputeRunningProcesses_v3", 24))

    def sampled(self, process: Process) -> set[int]:
        return set(self.numbers(process, "nvmlDeviceGetProcessUtilization", 32, 0))

    def numbers(self, process: Process, symbol: str, entry_bytes: int, *more: object) -> list[int]:
        process.must("nvmlInit_v2")
        card = process.must("nvmlDeviceGetHandleByIndex_v2", 0, out("u64"))
        room, entries = ["inout", (8).to_bytes(4, "little").hex()], out(f"bytes:{8 * entry_bytes}")
        answer = process.must(symbol, card, *((entries, room) if more else (room, entries)), *more)
        count, content = reversed(answer) if more else answer
        return [
            int.from_bytes(bytes.fromhex(content)[i * entry_bytes : i * entry_bytes + 4], "little")
            for i in range(int.from_bytes(bytes.fromhex(count), "little"))
        ]


def test_samples_are_off_by_the_noise_and_the_same_for_all(bare_machine: Machine) -> None:
    machine = bare_machine.init(sample_noise_percent=5, window_us=10_000)
    seen = set()
    with machine.process().start() as process:
        process.launch(1_000_000)
        time.sleep(0.03)  # the first window is not a whole one
        for _ in range(25):
            time.sleep(0.01)
            seen.add(machine.card()["utilisation_percent"])
    assert len(seen - {-1}) > 2
    assert min(seen - {-1}) >= 95


def test_the_depth_of_the_queue_is_data(bare_machine: Machine) -> None:
    machine = bare_machine.init(queue_depth=8)
    with machine.process().start() as process:
        assert process.launch(20_000, count=8) < 0.1
        assert process.launch(20_000, count=4) > 0.04


@pytest.mark.parametrize("waits", [0, 1])
def test_a_free_waits_for_the_work_before_it(bare_machine: Machine, waits: int) -> None:
    machine = bare_machine.init(free_waits=waits)
    with machine.process().start() as process:
        address, from_pool = process.alloc(BLOCK), process.must("cuMemAllocAsync", out("u64"), BLOCK, 0)
        process.launch(300_000)
        started = time.monotonic()
        process.free(from_pool)
        assert time.monotonic() - started < 0.2
        process.free(address)
        assert (machine.usage(process)["gpu_time_ns"] == 300_000_000) == bool(waits)


def test_managed_memory_appears_where_it_is_touched(bare_machine: Machine) -> None:
    machine = bare_machine.init(managed_on_touch=1)
    with machine.process().start() as process:
        address = process.must("cuMemAllocManaged", out("u64"), 100 * 1024 * MIB, 1)  # more than the card has

        def used() -> int:
            return int(machine.usage(process)["reserved_bytes"]) // MIB

        assert used() == 0
        process.must("cuMemsetD8_v2", address, 0, 3 * MIB)
        assert used() == 4
        process.must("cuMemPrefetchAsync", address, 64 * 1024 * MIB, 0, 0)
        assert used() == 64 * 1024
        process.must("cuMemPrefetchAsync", address, 100 * 1024 * MIB, 0, 0)
        assert used() == 81920
        process.must("cuMemPrefetchAsync", address, 100 * 1024 * MIB, -1, 0)
        assert used() == 0
        process.must("cuMemsetD8_v2", address, 0, MIB)
        process.free(address)
        assert used() == 0


def test_what_no_card_has_is_not_supported_and_not_missing(machine: Machine) -> None:
    """nvitop and gpustat ask for these at their start."""
    with machine.process() as process:
        process.must("nvmlInit_v2")
        card = process.must("nvmlDeviceGetHandleByIndex_v2", 0, out("u64"))
        for symbol in ("nvmlDeviceGetDriverModel", "nvmlDeviceGetDriverModel_v2"):
            assert process.nvml(symbol, card, out("u32"), out("u32"))[0] == 3
        assert process.nvml("nvmlDeviceGetFanSpeed", card, out("u32"))[0] == 3
        assert process.must("nvmlDeviceGetEncoderUtilization", card, out("u32"), out("u32"))[0] == 0


class TestPools:
    """Steps are data; with pieces, what a stream frees is its own until the work before the free is done."""

    def reserved(self, machine: Machine, process: Process) -> int:
        return int(machine.usage(process)["reserved_bytes"]) // MIB

    def take(self, process: Process, mib: int, stream: int = 0) -> int:
        address: int = process.must("cuMemAllocAsync", out("u64"), mib * MIB, stream)
        return address

    @pytest.mark.parametrize("pieces", [0, 1])
    @pytest.mark.parametrize("step_mib", [2, 32, 64])
    def test_they_grow_by_the_step(self, bare_machine: Machine, step_mib: int, pieces: int) -> None:
        machine = bare_machine.init(pool_growth_bytes=step_mib * MIB, pool_has_pieces=pieces)
        with machine.process().start() as process:
            address = self.take(process, 1)
            assert self.reserved(machine, process) == step_mib
            process.must("cuMemFreeAsync", address, 0)
            assert self.reserved(machine, process) == step_mib
            process.must("cuStreamSynchronize", 0)
            assert self.reserved(machine, process) == 0

    def test_holes_are_not_joined_across_live_pieces(self, bare_machine: Machine) -> None:
        machine = bare_machine.init(pool_has_pieces=1)
        with machine.process().start() as process:
            pieces = [self.take(process, 8) for _ in range(4)]
            for address in pieces[::2]:
                process.must("cuMemFreeAsync", address, 0)
            assert self.take(process, 8) == pieces[0]
            self.take(process, 16)  # 8 MiB are free, in one hole
            assert self.reserved(machine, process) == 64
            process.must("cuStreamSynchronize", 0)
            assert self.reserved(machine, process) == 64

    def test_another_stream_waits_for_what_was_freed_behind_work(self, bare_machine: Machine) -> None:
        machine = bare_machine.init(pool_has_pieces=1)
        with machine.process().start() as process:
            freeing, other = (stream_of(process) for _ in range(2))
            address = self.take(process, 32, freeing)
            process.launch(300_000, stream=freeing)
            process.must("cuMemFreeAsync", address, freeing)
            second = self.take(process, 32, other)
            assert second != address
            assert self.take(process, 32, freeing) == address
            process.must("cuMemFreeAsync", address, freeing)
            process.must("cuStreamSynchronize", other)  # nothing to wait for, and nothing that may go
            assert self.reserved(machine, process) == 64
            process.must("cuStreamSynchronize", freeing)
            assert self.reserved(machine, process) == 32
            process.must("cuMemFreeAsync", second, other)
            process.must("cuStreamSynchronize", other)
            assert self.reserved(machine, process) == 0

    def test_a_destroyed_pool_takes_its_pieces_along(self, bare_machine: Machine) -> None:
        machine = bare_machine.init(pool_has_pieces=1)
        with machine.process().start() as process:
            properties = ["in", (bytes([1, 0, 0, 0] * 1) + bytes(4) + bytes([1, 0, 0, 0]) + bytes(76)).hex()]
            pool = process.must("cuMemPoolCreate", out("u64"), properties)
            address = process.must("cuMemAllocFromPoolAsync", out("u64"), MIB, pool, 0)
            process.must("cuMemPoolDestroy", pool)
            process.launch(100_000)
            process.must("cuMemFreeAsync", address, 0)
            assert self.reserved(machine, process) == 0


class TestStreams:
    """With streams_overlap, each stream has its own order; else one queue has that of all."""

    @pytest.fixture
    def process(self, bare_machine: Machine) -> Process:
        process = bare_machine.init(streams_overlap=4, queue_depth=16).process().start()
        process.load_spin()
        return process

    def took_ms(self, process: Process, *streams: int) -> float:
        """Until they are done, from now."""
        started = time.monotonic()
        for stream in streams:
            process.must("cuStreamSynchronize", stream)
        return (time.monotonic() - started) * 1000

    def test_they_overlap(self, process: Process) -> None:
        streams = [stream_of(process) for _ in range(4)]
        for stream in streams:
            process.launch(200_000, stream=stream)
        assert 150 < self.took_ms(process, *streams) < 350

    def test_the_engine_is_busy_once_however_many_run(self, process: Process, bare_machine: Machine) -> None:
        for stream in [stream_of(process) for _ in range(3)]:
            process.launch(50_000, count=2, stream=stream)
        process.synchronize()
        assert bare_machine.usage(process)["gpu_time_ns"] < 150_000_000
        assert bare_machine.usage(process)["launches"] == 6
        assert bare_machine.usage(process)["pending_ns"] == 0

    def test_events_of_overlapping_kernels_bracket_each_by_itself(self, process: Process) -> None:
        pairs = []
        for stream in [stream_of(process) for _ in range(2)]:
            first = event_on(process, stream)
            process.launch(100_000, stream=stream)
            pairs.append((first, event_on(process, stream)))
        process.synchronize()
        assert all(process.must("cuEventElapsedTime", out("f32"), *pair) == pytest.approx(100, abs=1) for pair in pairs)

    def test_a_stream_waits_for_an_event_of_another(self, process: Process) -> None:
        first, second = (stream_of(process) for _ in range(2))
        process.launch(200_000, stream=first)
        process.must("cuStreamWaitEvent", second, event_on(process, first), 0)
        process.launch(1000, stream=second)
        assert self.took_ms(process, second) > 150

    @pytest.mark.parametrize("blocking", [False, True])
    def test_the_legacy_stream_waits_for_those_that_block(self, process: Process, blocking: bool) -> None:
        process.launch(200_000, stream=stream_of(process, blocking=blocking))
        process.launch(1000, stream=0)
        assert (self.took_ms(process, 0) > 150) == blocking

    def test_a_full_stream_blocks_until_another_thread_has_launched(self, process: Process) -> None:
        assert process.special("launch_while", process.function, stream_of(process), stream_of(process), 30)
        process.synchronize()

    def test_in_one_queue_the_same_takes_turns(self, machine: Machine) -> None:
        with machine.process().start() as process:
            process.load_spin()
            streams = [stream_of(process) for _ in range(4)]
            for stream in streams:
                process.launch(50_000, stream=stream)
            assert self.took_ms(process, *streams) > 170


class TestAfterAnError:
    """What fails stays failed: a context until it ends, a card until it is reset."""

    def fail(self, machine: Machine, process: Process, error: int) -> None:
        machine.tool("inject", "call", "--symbol", "cuCtxSynchronize", "--error", str(error))
        assert process.cuda("cuCtxSynchronize")[0] == error

    @pytest.mark.parametrize("error", [700, 719])
    def test_every_later_call_fails_until_the_context_ends(self, bare_machine: Machine, error: int) -> None:
        machine = bare_machine.init(sticky_errors=1)
        with machine.process().start() as process, machine.process().start() as neighbour:
            stream = stream_of(process)
            address = process.alloc(BLOCK)
            self.fail(machine, process, error)
            calls = (("cuMemAlloc_v2", out("u64"), 512), ("cuMemFree_v2", address), ("cuMemGetInfo_v2", out("u64"), out("u64")))
            streams = (("cuStreamQuery", stream), ("cuStreamSynchronize", stream), ("cuEventCreate", out("u64"), 0), ("cuCtxSynchronize",))
            assert {process.cuda(*call)[0] for call in (*calls, *streams)} == {error}
            process.must("cuCtxPopCurrent_v2", out("u64"))
            assert process.cuda("cuStreamQuery", stream)[0] == error  # by its handle alone
            neighbour.alloc(BLOCK)
            process.must("cuCtxDestroy_v2", process.context)
            process.start().alloc(BLOCK)
            assert machine.usage(process)["reserved_bytes"] == BLOCK

    def test_other_errors_pass(self, bare_machine: Machine) -> None:
        machine = bare_machine.init(sticky_errors=1)
        with machine.process().start() as process:
            self.fail(machine, process, 2)
            process.alloc(BLOCK)

    def test_the_ideal_driver_forgets(self, machine: Machine) -> None:
        with machine.process().start() as process:
            self.fail(machine, process, 700)
            process.alloc(BLOCK)

    def test_a_lost_card_fails_every_call(self, machine: Machine) -> None:
        with machine.process().start() as process, machine.process().start(device=1) as elsewhere:
            process.must("nvmlInit_v2")
            card = process.must("nvmlDeviceGetHandleByIndex_v2", 0, out("u64"))
            address = process.alloc(BLOCK)
            machine.tool("inject", "xid", "--card", "0", "--xid", "79")
            calls = (("cuMemAlloc_v2", out("u64"), 512), ("cuMemFree_v2", address), ("cuMemGetInfo_v2", out("u64"), out("u64")))
            assert {process.cuda(*call)[0] for call in (*calls, ("cuCtxSynchronize",), ("cuStreamQuery", 0))} == {999}
            assert process.nvml("nvmlDeviceGetMemoryInfo", card, out("bytes:24"))[0] == 15
            elsewhere.alloc(BLOCK)
            machine.tool("set", "--card", "0", "lost=0")
            process.free(address)

    @pytest.mark.parametrize("deactivates", [0, 1])
    def test_a_reset_primary_context(self, bare_machine: Machine, deactivates: int) -> None:
        with bare_machine.init(reset_deactivates=deactivates).process() as process:
            process.must("cuInit", 0)
            process.must("cuCtxSetCurrent", process.must("cuDevicePrimaryCtxRetain", out("u64"), 0))
            process.must("cuDevicePrimaryCtxReset_v2", 0)
            assert process.must("cuDevicePrimaryCtxGetState", 0, out("u32"), out("i32"))[1] == 1 - deactivates
            assert process.cuda("cuMemAlloc_v2", out("u64"), 512)[0] == (709 if deactivates else SUCCESS)
            process.must("cuDevicePrimaryCtxRetain", out("u64"), 0)
            process.alloc(512)
