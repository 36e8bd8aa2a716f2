"""Graphs and stream capture: what is recorded runs at launch, takes its time and its memory then, and nothing before."""

from __future__ import annotations

import struct

from .bench import INVALID_VALUE, MIB, Machine, Process, out

MS = 1_000_000


def kernel_node(process: Process, us: int) -> list[str]:
    """CUDA_KERNEL_NODE_PARAMS with one packed parameter in host memory."""
    process.load_spin()
    cell = process.must("cuMemAllocHost_v2", out("u64"), 16)
    process.must("cuMemsetD32_v2", cell, us, 1)
    pointers = process.must("cuMemAllocHost_v2", out("u64"), 16)
    process.must("cuMemsetD32_v2", pointers, cell & 0xFFFFFFFF, 1)
    process.must("cuMemsetD32_v2", pointers + 4, cell >> 32, 1)
    return ["in", struct.pack("<Q7I4xQQ", process.function, 1, 1, 1, 1, 1, 1, 0, pointers, 0).hex()]


def allocation_node(size: int) -> str:
    pool = struct.pack("<iiiiQQH54x", 1, 0, 1, 0, 0, 0, 0)
    return (pool + struct.pack("<QQQQ", 0, 0, size, 0)).hex()


def test_a_graph_of_kernels_spends_their_sum_at_each_launch(machine: Machine) -> None:
    with machine.process().start() as process:
        graph = process.must("cuGraphCreate", out("u64"), 0)
        node = process.must("cuGraphAddKernelNode", out("u64"), graph, None, 0, kernel_node(process, 2000))
        process.must("cuGraphAddKernelNode", out("u64"), graph, ["pointers", [node]], 1, kernel_node(process, 3000))
        executable = process.must("cuGraphInstantiateWithFlags", out("u64"), graph, 0)
        assert machine.usage(process)["gpu_time_ns"] == 0
        for _ in range(3):
            process.must("cuGraphLaunch", executable, 0)
        process.synchronize()
        usage = machine.usage(process)
        assert (usage["gpu_time_ns"], usage["launches"]) == (15 * MS, 6)


def test_a_capturing_stream_runs_nothing(machine: Machine) -> None:
    with machine.process().start() as process:
        process.load_spin()
        stream = process.must("cuStreamCreate", out("u64"), 1)
        process.must("cuStreamBeginCapture_v2", stream, 0)
        assert process.must("cuStreamIsCapturing", stream, out("i32")) == 1
        process.launch(4000, count=2, stream=stream)
        assert process.cuda("cuStreamSynchronize", stream)[0] == 900
        graph = process.must("cuStreamEndCapture", stream, out("u64"))
        assert process.must("cuStreamIsCapturing", stream, out("i32")) == 0
        process.synchronize()
        assert machine.usage(process)["gpu_time_ns"] == 0
        executable = process.must("cuGraphInstantiateWithFlags", out("u64"), graph, 0)
        process.must("cuGraphLaunch", executable, stream)
        process.synchronize()
        assert machine.usage(process)["gpu_time_ns"] == 8 * MS


def test_a_second_stream_joins_a_capture_by_an_event(machine: Machine) -> None:
    with machine.process().start() as process:
        process.load_spin()
        first, second = (process.must("cuStreamCreate", out("u64"), 1) for _ in range(2))
        fork, join = (process.must("cuEventCreate", out("u64"), 2) for _ in range(2))
        process.must("cuStreamBeginCapture_v2", first, 0)
        process.launch(1000, stream=first)
        process.must("cuEventRecord", fork, first)
        process.must("cuStreamWaitEvent", second, fork, 0)
        assert process.must("cuStreamIsCapturing", second, out("i32")) == 1
        process.launch(2000, stream=second)
        process.must("cuEventRecord", join, second)
        process.must("cuStreamWaitEvent", first, join, 0)
        assert process.cuda("cuStreamEndCapture", second, out("u64"))[0] == 903
        graph = process.must("cuStreamEndCapture", first, out("u64"))
        assert process.must("cuStreamIsCapturing", second, out("i32")) == 0
        nodes = process.must("cuGraphGetNodes", graph, None, ["inout", "00" * 8])
        assert struct.unpack("<Q", bytes.fromhex(nodes))[0] == 2


def test_the_default_stream_cannot_capture_and_nobody_ends_what_did_not_begin(machine: Machine) -> None:
    with machine.process().start() as process:
        assert process.cuda("cuStreamBeginCapture_v2", 0, 0)[0] == 900
        stream = process.must("cuStreamCreate", out("u64"), 1)
        assert process.cuda("cuStreamEndCapture", stream, out("u64"))[0] == 401


def test_an_unsafe_call_breaks_a_capture_unless_the_thread_is_relaxed(machine: Machine) -> None:
    with machine.process().start() as process:
        stream = process.must("cuStreamCreate", out("u64"), 1)
        process.must("cuStreamBeginCapture_v2", stream, 0)
        assert process.cuda("cuMemAlloc_v2", out("u64"), MIB)[0] == 900
        assert process.must("cuStreamIsCapturing", stream, out("i32")) == 2
        assert process.cuda("cuStreamEndCapture", stream, out("u64"))[0] == 901
        process.must("cuMemAlloc_v2", out("u64"), MIB)
        assert process.must("cuThreadExchangeStreamCaptureMode", ["inout", "02000000"]) == "00000000"
        process.must("cuStreamBeginCapture_v2", stream, 0)
        process.must("cuMemAlloc_v2", out("u64"), MIB)
        process.must("cuStreamEndCapture", stream, out("u64"))


def test_memory_of_an_allocation_node_comes_with_the_launch(machine: Machine) -> None:
    with machine.process().start() as process:
        graph = process.must("cuGraphCreate", out("u64"), 0)
        node, filled = process.must("cuGraphAddMemAllocNode", out("u64"), graph, None, 0, ["inout", allocation_node(50 * MIB)])
        address = struct.unpack("<Q", bytes.fromhex(filled)[-8:])[0]
        executable = process.must("cuGraphInstantiateWithFlags", out("u64"), graph, 0)
        assert (address > 0, node > 0, machine.card()["used_bytes"]) == (True, True, 0)
        process.must("cuGraphLaunch", executable, 0)
        assert machine.card()["used_bytes"] == 64 * MIB  # the pool's steps of 32 MiB
        assert process.cuda("cuGraphLaunch", executable, 0)[0] == INVALID_VALUE
        process.free(address)
        process.synchronize()
        assert machine.card()["used_bytes"] == 64 * MIB
        assert process.must("cuDeviceGetGraphMemAttribute", 0, 2, out("u64")) == 64 * MIB
        process.must("cuDeviceGraphMemTrim", 0)
        assert machine.card()["used_bytes"] == 0


def test_a_free_node_gives_it_back(machine: Machine) -> None:
    with machine.process().start() as process:
        stream = process.must("cuStreamCreate", out("u64"), 1)
        process.must("cuStreamBeginCapture_v2", stream, 0)
        address = process.must("cuMemAllocAsync", out("u64"), MIB, stream)
        process.must("cuMemFreeAsync", address, stream)
        graph = process.must("cuStreamEndCapture", stream, out("u64"))
        executable = process.must("cuGraphInstantiateWithFlags", out("u64"), graph, 0)
        for _ in range(3):
            process.must("cuGraphLaunch", executable, stream)
        assert machine.usage(process)["allocated_bytes"] == 0


def test_an_executable_keeps_the_graph_as_it_was(machine: Machine) -> None:
    with machine.process().start() as process:
        graph = process.must("cuGraphCreate", out("u64"), 0)
        process.must("cuGraphAddKernelNode", out("u64"), graph, None, 0, kernel_node(process, 1000))
        executable = process.must("cuGraphInstantiateWithFlags", out("u64"), graph, 0)
        process.must("cuGraphAddKernelNode", out("u64"), graph, None, 0, kernel_node(process, 9000))
        process.must("cuGraphDestroy", graph)
        process.must("cuGraphLaunch", executable, 0)
        process.synchronize()
        assert machine.usage(process)["gpu_time_ns"] == 1 * MS


def test_an_upload_takes_the_memory_and_runs_nothing(machine: Machine) -> None:
    """What is mapped for a graph counts as used until it is trimmed, or the executable is destroyed."""
    with machine.process().start() as process:
        child, graph = (process.must("cuGraphCreate", out("u64"), 0) for _ in range(2))
        process.must("cuGraphAddMemAllocNode", out("u64"), child, None, 0, ["inout", allocation_node(50 * MIB)])
        process.must("cuGraphAddChildGraphNode", out("u64"), graph, None, 0, child)
        executable = process.must("cuGraphInstantiateWithFlags", out("u64"), graph, 0)
        for _ in range(2):
            process.must("cuGraphUpload", executable, 0)
            assert (machine.card()["used_bytes"], machine.usage(process)["allocated_bytes"]) == (64 * MIB, 0)
        assert process.must("cuDeviceGetGraphMemAttribute", 0, 0, out("u64")) == 50 * MIB
        process.must("cuGraphExecDestroy", executable)
        assert process.must("cuDeviceGetGraphMemAttribute", 0, 0, out("u64")) == 0
        process.must("cuDeviceGraphMemTrim", 0)
        assert machine.card()["used_bytes"] == 0


def capture(process: Process, stream: int, kernels_us: list[int], allocation: int = MIB) -> None:
    for us in kernels_us:
        process.launch(us, stream=stream)
    address = process.must("cuMemAllocAsync", out("u64"), allocation, stream)
    process.must("cuMemFreeAsync", address, stream)


def test_a_graph_that_is_captured_again_keeps_its_shape_and_takes_the_new_parameters(machine: Machine) -> None:
    with machine.process().start() as process:
        process.load_spin()
        stream = process.must("cuStreamCreate", out("u64"), 1)
        process.must("cuStreamBeginCapture_v2", stream, 0)
        capture(process, stream, [1000, 2000])
        graph = process.must("cuStreamEndCapture", stream, out("u64"))
        process.must("cuStreamBeginRecaptureToGraph", stream, 0, graph, None, None)
        capture(process, stream, [3000, 4000])
        assert process.must("cuStreamEndCapture", stream, out("u64")) == graph
        executable = process.must("cuGraphInstantiateWithFlags", out("u64"), graph, 0)
        process.must("cuGraphLaunch", executable, stream)
        process.synchronize()
        assert machine.usage(process)["gpu_time_ns"] == 7 * MS


def test_another_shape_or_another_size_is_no_recapture(machine: Machine) -> None:
    failure = 918
    with machine.process().start() as process:
        process.load_spin()
        stream = process.must("cuStreamCreate", out("u64"), 1)

        def recorded() -> int:
            process.must("cuStreamBeginCapture_v2", stream, 0)
            capture(process, stream, [1000])
            return int(process.must("cuStreamEndCapture", stream, out("u64")))

        process.must("cuStreamBeginRecaptureToGraph", stream, 0, recorded(), None, None)
        process.launch(1000, stream=stream)
        assert process.cuda("cuMemAllocAsync", out("u64"), 2 * MIB, stream)[0] == failure
        assert process.cuda("cuStreamEndCapture", stream, out("u64"))[0] == 901
        process.must("cuStreamBeginRecaptureToGraph", stream, 0, recorded(), None, None)
        process.launch(1000, stream=stream)
        assert process.cuda("cuStreamEndCapture", stream, out("u64"))[0] == failure


def test_a_capture_for_graphics_leaves_nothing_behind(machine: Machine) -> None:
    with machine.process().start() as process:
        process.load_spin()
        stream = process.must("cuStreamCreate", out("u64"), 1)
        assert process.cuda("cuStreamBeginCaptureToCig", stream, None)[0] == INVALID_VALUE
        process.must("cuStreamBeginCaptureToCig", stream, ["pointers", [0]])
        process.launch(4000, stream=stream)
        assert process.cuda("cuStreamEndCapture", stream, out("u64"))[0] == 401
        process.must("cuStreamEndCaptureToCig", stream)
        process.launch(1000, stream=stream)
        process.synchronize()
        assert machine.usage(process)["gpu_time_ns"] == 1 * MS
