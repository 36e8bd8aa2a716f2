"""A CUDA program that does what it is told: one JSON command a line on stdin, one JSON answer a line on stdout.

Runs in a process of its own, with or without the hook preloaded, on the driver API by ctypes and PTX text: no toolkit, no Python GPU stack.
Every lookup is a plain dlsym of the process, as in a real program. Owns the commands; ``ground`` starts agents, the suites judge.
"""

from __future__ import annotations

import ctypes as c
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.hook.cuda import AllocationProp, Array3D, Driver, Location, NvmlMemory, NvmlMemoryV2

SUFFIXES = [kind + stream for kind in ("", "_v2", "_v3", "_v4", "_v5") for stream in ("", "_ptsz", "_ptds")]
cuda = Driver()
blocks: list[tuple[Callable[[Any], int], Any]] = []
state: dict[str, Any] = {}


class KernelNode(c.Structure):
    """CUDA_KERNEL_NODE_PARAMS, first version."""

    _fields_ = [
        ("function", c.c_void_p),
        ("grid", c.c_uint * 3),
        ("block", c.c_uint * 3),
        ("shared_bytes", c.c_uint),
        ("parameters", c.c_void_p),
        ("extra", c.c_void_p),
    ]


class Sample(c.Structure):
    """nvmlProcessUtilizationSample_t"""

    _fields_ = [("pid", c.c_uint), ("stamp_us", c.c_ulonglong), ("sm", c.c_uint), ("mem", c.c_uint), ("enc", c.c_uint), ("dec", c.c_uint)]


def address(name: str) -> int:
    try:
        return c.cast(getattr(cuda.library, name), c.c_void_p).value or 0
    except AttributeError:
        return 0


def library_at(pointer: int) -> str:
    """File name of the mapping that holds a pointer."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split()
        low, high = (int(word, 16) for word in words[0].split("-"))
        if low <= pointer < high:
            return Path(words[5]).name if len(words) > 5 else "?"
    return ""


def uuid_of(device: int) -> str:
    raw = (c.c_ubyte * 16)()
    name = "cuDeviceGetUuid_v2" if address("cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    if getattr(cuda, name)(c.byref(raw), c.c_int(device)):
        return ""
    text = bytes(raw).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def command_cards() -> dict[str, Any]:
    count, version = c.c_int(), c.c_int()
    result = cuda.cuInit(0)
    if result:
        return {"result": result, "cards": []}
    cuda.cuDeviceGetCount(c.byref(count))
    cuda.cuDriverGetVersion(c.byref(version))
    return {"result": 0, "cuda_version": version.value, "cards": [uuid_of(device) for device in range(count.value)]}


def command_open(uuid: str) -> dict[str, Any]:
    known: list[str] = command_cards()["cards"]
    if uuid not in known:
        return {"result": 101}
    cuda.start(known.index(uuid))
    state.update(device=known.index(uuid), uuid=uuid)
    return {"result": 0}


def command_info() -> dict[str, Any]:
    free, total, device = c.c_size_t(), c.c_size_t(), c.c_size_t()
    result = cuda.cuMemGetInfo_v2(c.byref(free), c.byref(total))
    cuda.cuDeviceTotalMem_v2(c.byref(device), c.c_int(state["device"]))
    return {"result": result, "free": free.value, "total": total.value, "device_total": device.value}


def nvml_card() -> tuple[Driver, c.c_void_p]:
    if "nvml" not in state:
        nvml, handle = Driver("libnvidia-ml.so.1"), c.c_void_p()
        assert nvml.nvmlInit_v2() == 0
        assert nvml.nvmlDeviceGetHandleByUUID(state["uuid"].encode(), c.byref(handle)) == 0
        state["nvml"] = nvml, handle
    found: tuple[Driver, c.c_void_p] = state["nvml"]
    return found


def command_nvml() -> dict[str, Any]:
    nvml, handle = nvml_card()
    one, two = NvmlMemory(), NvmlMemoryV2(c.sizeof(NvmlMemoryV2) | 2 << 24)
    answer: dict[str, Any] = {"result": nvml.nvmlDeviceGetMemoryInfo(handle, c.byref(one))}
    answer["v1"] = {"total": one.total, "free": one.free, "used": one.used}
    if hasattr(nvml.library, "nvmlDeviceGetMemoryInfo_v2") and nvml.nvmlDeviceGetMemoryInfo_v2(handle, c.byref(two)) == 0:
        answer["v2"] = {"total": two.total, "free": two.free, "used": two.used}
    return answer


def command_driver() -> dict[str, Any]:
    nvml, _handle = nvml_card()
    version = c.create_string_buffer(96)
    nvml.nvmlSystemGetDriverVersion(version, c.c_uint(96))
    return {"result": 0, "version": version.value.decode()}


def command_samples() -> dict[str, Any]:
    """Time stamps of NVML's process samples of the last second."""
    nvml, handle = nvml_card()
    samples, count = (Sample * 256)(), c.c_uint(256)
    result = nvml.nvmlDeviceGetProcessUtilization(handle, samples, c.byref(count), int(time.time() * 1e6) - 2_000_000)
    taken = samples[: count.value] if result == 0 else []
    return {"result": result, "stamps_us": sorted({sample.stamp_us for sample in taken}), "sm": [sample.sm for sample in taken]}


def keep(result: int, release: Callable[[Any], int], handle: Any) -> dict[str, Any]:
    if result == 0:
        blocks.append((release, handle))
    return {"result": result}


def command_alloc(size_bytes: int, kind: str = "linear") -> dict[str, Any]:
    """kind: linear, managed, pitch (rows of 1000 bytes), array, vmm, async."""
    pointer, handle, pitch = c.c_uint64(), c.c_void_p(), c.c_size_t()
    if kind == "linear":
        return keep(cuda.cuMemAlloc_v2(c.byref(pointer), size_bytes), cuda.cuMemFree_v2, pointer)
    if kind == "managed":
        return keep(cuda.cuMemAllocManaged(c.byref(pointer), size_bytes, c.c_uint(1)), cuda.cuMemFree_v2, pointer)
    if kind == "pitch":
        result = cuda.cuMemAllocPitch_v2(c.byref(pointer), c.byref(pitch), 1000, size_bytes // 1000, c.c_uint(4))
        return keep(result, cuda.cuMemFree_v2, pointer)
    if kind == "array":
        shape = Array3D(1024, size_bytes // 4096, 0, 0x20, 1, 0)
        return keep(cuda.cuArray3DCreate_v2(c.byref(handle), c.byref(shape)), cuda.cuArrayDestroy, handle)
    if kind == "vmm":
        property_ = AllocationProp(1, 0, Location(1, state["device"]), None)
        return keep(cuda.cuMemCreate(c.byref(pointer), size_bytes, c.byref(property_), 0), cuda.cuMemRelease, pointer)
    if kind == "async":
        result = cuda.cuMemAllocAsync(c.byref(pointer), size_bytes, c.c_void_p())
        return keep(result, lambda block: int(cuda.cuMemFreeAsync(block, c.c_void_p())) or int(cuda.cuCtxSynchronize()), pointer)
    return {"result": -1, "error": f"no kind {kind!r}"}


def command_fill(step_bytes: int, most_bytes: int) -> dict[str, Any]:
    """Allocates until refused."""
    taken = 0
    while taken + step_bytes <= most_bytes:
        result = command_alloc(step_bytes)["result"]
        if result:
            return {"result": result, "allocated": taken}
        taken += step_bytes
    return {"result": 0, "allocated": taken}


def command_free(count: int = 1) -> dict[str, Any]:
    result = 0
    for _ in range(min(count, len(blocks))):
        release, handle = blocks.pop()
        result = result or release(handle)
    return {"result": result, "left": len(blocks)}


def command_reset() -> dict[str, Any]:
    """Everything that the primary context holds goes at once; then the card is opened again."""
    blocks.clear()
    state.pop("spin", None)
    result = cuda.cuDevicePrimaryCtxReset_v2(c.c_int(state["device"]))
    return {"result": result or command_open(state["uuid"])["result"]}


def command_context(size_bytes: int) -> dict[str, Any]:
    """A context of its own, a block in it, and the context's destruction; what each said."""
    context, popped, pointer = c.c_void_p(), c.c_void_p(), c.c_uint64()
    created = cuda.cuCtxCreate_v2(c.byref(context), c.c_uint(0), c.c_int(state["device"]))
    result = created or cuda.cuMemAlloc_v2(c.byref(pointer), size_bytes)
    if created == 0:
        cuda.cuCtxPopCurrent_v2(c.byref(popped))
        result = result or cuda.cuCtxDestroy_v2(context)
    return {"result": result}


def command_export() -> dict[str, Any]:
    """IPC handle of the newest block."""
    handle = (c.c_ubyte * 64)()
    result = cuda.cuIpcGetMemHandle(c.byref(handle), blocks[-1][1])
    return {"result": result, "handle": bytes(handle).hex()}


def command_import(handle: str) -> dict[str, Any]:
    """Opens another process's block; ``free`` closes it."""

    class Handle(c.Structure):
        _fields_ = [("bytes", c.c_ubyte * 64)]

    pointer = c.c_uint64()
    value = Handle.from_buffer_copy(bytes.fromhex(handle))
    return keep(cuda.cuIpcOpenMemHandle_v2(c.byref(pointer), value, c.c_uint(1)), cuda.cuIpcCloseMemHandle, pointer)


def command_nulls() -> dict[str, Any]:
    """Outputs that a program does not want."""
    total = c.c_size_t()
    return {
        "result": 0,
        "both": cuda.cuMemGetInfo_v2(None, None),
        "free_only": cuda.cuMemGetInfo_v2(c.byref(total), None),
        "foreign_free": cuda.cuMemFree_v2(0x10),
    }


def spin_function() -> c.c_void_p:
    if "spin" not in state:
        state["spin"] = cuda.spin()
    function: c.c_void_p = state["spin"]
    return function


def make_graph(us: int) -> c.c_void_p:
    graph, node, executable = c.c_void_p(), c.c_void_p(), c.c_void_p()
    value = c.c_uint(us)
    parameters = (c.c_void_p * 1)(c.addressof(value))
    one = (c.c_uint * 3)(1, 1, 1)
    kernel = KernelNode(spin_function().value, one, one, 0, c.addressof(parameters), None)
    assert cuda.cuGraphCreate(c.byref(graph), c.c_uint(0)) == 0
    assert cuda.cuGraphAddKernelNode(c.byref(node), graph, None, 0, c.byref(kernel)) == 0
    assert cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, 0) == 0
    return executable


def command_spin(us: int, milliseconds: int, style: str = "sync") -> dict[str, Any]:
    """Keeps the card as busy as it may. style: sync (two in flight), async (up to 20 ms in flight), graph."""
    function, executable, stream = spin_function(), None, c.c_void_p()
    assert cuda.cuStreamCreate(c.byref(stream), c.c_uint(1)) == 0
    if style == "graph":
        executable = make_graph(us)
    in_flight = 2 if style != "async" else max(2, 20000 // us)
    launches = result = 0
    began = time.monotonic()
    while result == 0 and time.monotonic() - began < milliseconds / 1000:
        for _ in range(in_flight):
            result = result or (cuda.cuGraphLaunch(executable, stream) if executable else cuda.launch(function, us, stream))
            launches += 1
        result = result or cuda.cuCtxSynchronize()
    wall_us = (time.monotonic() - began) * 1e6
    return {"result": result, "launches": launches, "share_percent": 100 * launches * us / wall_us, "wall_us": wall_us}


def command_events(count: int = 200) -> dict[str, Any]:
    """Cost of recording and asking an event, and what two events around an empty kernel and around nothing read."""
    function, first, second, read = spin_function(), c.c_void_p(), c.c_void_p(), c.c_float()
    cuda.cuEventCreate(c.byref(first), c.c_uint(0))
    cuda.cuEventCreate(c.byref(second), c.c_uint(0))
    lengths: dict[str, list[float]] = {"kernel": [], "nothing": []}
    began = time.perf_counter()
    for _ in range(count):
        cuda.cuEventRecord(first, c.c_void_p())
    record_us = (time.perf_counter() - began) * 1e6 / count
    cuda.cuCtxSynchronize()
    began = time.perf_counter()
    for _ in range(count):
        cuda.cuEventQuery(first)
    query_us = (time.perf_counter() - began) * 1e6 / count
    for what in lengths:
        for _ in range(count // 10):
            cuda.cuEventRecord(first, c.c_void_p())
            if what == "kernel":
                cuda.launch(function, 0)
            cuda.cuEventRecord(second, c.c_void_p())
            cuda.cuCtxSynchronize()
            cuda.cuEventElapsedTime(c.byref(read), first, second)
            lengths[what].append(read.value * 1000)
    medians = {what: sorted(values)[len(values) // 2] for what, values in lengths.items()}
    return {"result": 0, "record_us": record_us, "query_us": query_us, "kernel_us": medians["kernel"], "nothing_us": medians["nothing"]}


def resolve(name: str, version: int, flags: int) -> int:
    pointer, status = c.c_void_p(), c.c_int()
    if address("cuGetProcAddress_v2"):
        result = cuda.cuGetProcAddress_v2(name.encode(), c.byref(pointer), c.c_int(version), flags, c.byref(status))
    else:
        result = cuda.cuGetProcAddress(name.encode(), c.byref(pointer), c.c_int(version), flags)
    return (pointer.value or 0) if result == 0 else 0


def command_routes(requests: list[list[Any]]) -> dict[str, Any]:
    """For requests [name, version, flags]: library of the answer, and the exported symbol that it is (by pointer, in this process)."""
    answers = []
    for name, version, flags in requests:
        pointer = resolve(name, version, flags)
        symbol = next((name + suffix for suffix in SUFFIXES if pointer and address(name + suffix) == pointer), "")
        answers.append([library_at(pointer) if pointer else "", symbol])
    return {"result": 0, "answers": answers, "can_ask": bool(address("cuGetProcAddress"))}


def command_lookup(names: list[str]) -> dict[str, Any]:
    """Library of each name by dlsym; empty where the driver has none."""
    return {"result": 0, "libraries": [library_at(pointer) if (pointer := address(name)) else "" for name in names]}


def main() -> int:
    commands = {name[len("command_") :]: function for name, function in globals().items() if name.startswith("command_")}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = commands[request.pop("do")](**request)
        except Exception as error:  # the suite shows it; the agent goes on
            answer = {"result": -1, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
