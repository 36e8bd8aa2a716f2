"""What a container sees of its cards, through CUDA and NVML, and how far it gets: ``python3 -m tenfold_device_plugin.probe --json``.

Owns the view from inside a slice; it runs in any image that has this package and Python, with no other package. It believes what the
libraries answer, because that is what a program would believe; the page and the state that the host wrote are shown beside it.

Output (--json), one line: {"cards": [{index, uuid, name, cuda_total_bytes, cuda_free_bytes, cuda_device_total_bytes, nvml_total_bytes,
nvml_used_bytes, nvml_free_bytes, core_limit_percent, page: {memory_limit_bytes, core_limit_percent, mode}, refusal, spin}],
"hook": {loaded, page}, "messages": [...]}. NVML's numbers are None where NVML does not show the card.
refusal (with --allocate-until-refused, else None): {allocated_bytes, overhead_bytes, blocks, refused_bytes, result, name}; result is the
CUresult, 0 if nothing was ever refused.
spin (with --spin-seconds, else None): {launches, kernel_us, gpu_us, wall_us, share_percent, charged_us}.
Exit: 0, also without any card; 1 when a card is visible and CUDA fails in a way that is no refusal.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ._domain import region
from ._domain.errors import RegionError

__all__ = ["main"]

CUDA_LIBRARY = "libcuda.so.1"
NVML_LIBRARY = "libnvidia-ml.so.1"
HOOK_LIBRARY = "libtenfold.so"
SLOT_FOLDER = Path("/run/tenfold")
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
LARGEST_BLOCK_BYTES = 2**40
BLOCKS_MAXIMUM = 4096  # a driver that never refuses must not keep us here
QUEUED_US = 20_000  # launched between two synchronisations: enough to keep the card busy, too little to overshoot

# Busy-waits on the card for so many microseconds of its clock. sm_70 and PTX 6.0 load on every card and driver that Tenfold serves.
SPIN_PTX = b"""
.version 6.0
.target sm_70
.address_size 64
.visible .entry tenfold_spin(.param .u32 us)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %t<5>;
    ld.param.u32 %r1, [us];
    cvt.u64.u32 %t1, %r1;
    mul.lo.u64 %t1, %t1, 1000;
    mov.u64 %t2, %globaltimer;
    add.u64 %t3, %t2, %t1;
SPIN:
    mov.u64 %t4, %globaltimer;
    setp.lt.u64 %p1, %t4, %t3;
    @%p1 bra SPIN;
    ret;
}
\0"""


class ProbeError(Exception):
    """A driver call failed that should not; ``code`` is the CUresult or nvmlReturn_t."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} failed with {code} ({name})")
        self.code = code


class Cuda:
    """The driver API by ctypes. Errors: OSError when the library is missing, ProbeError from every call."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(CUDA_LIBRARY)

    def call(self, name: str, *arguments: Any) -> None:
        code = self.code(name, *arguments)
        if code:
            raise ProbeError(name, code, self.name_of(code))

    def code(self, name: str, *arguments: Any) -> int:
        return int(getattr(self._library, name)(*arguments))

    def name_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        try:
            known = self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) == 0
        except AttributeError:
            known = False
        return (text.value or b"").decode("ascii", "replace") if known else "unknown"

    def devices(self) -> list[int]:
        """Handles of the visible cards; none when there is no card."""
        code = self.code("cuInit", ctypes.c_uint(0))
        if code == NO_DEVICE:
            return []
        if code:
            raise ProbeError("cuInit", code, self.name_of(code))
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        handles = []
        for index in range(count.value):
            handle = ctypes.c_int()
            self.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(index))
            handles.append(handle.value)
        return handles

    def describe(self, handle: int) -> dict[str, Any]:
        uuid, name, total = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(128), ctypes.c_size_t()
        self.call("cuDeviceGetUuid", ctypes.byref(uuid), ctypes.c_int(handle))
        self.call("cuDeviceGetName", name, ctypes.c_int(len(name)), ctypes.c_int(handle))
        self.call("cuDeviceTotalMem_v2", ctypes.byref(total), ctypes.c_int(handle))
        return {"uuid": uuid_text(bytes(uuid)), "name": name.value.decode("utf-8", "replace"), "total_bytes": total.value}

    def enter(self, handle: int) -> None:
        """Make a context of the card current."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(handle))
        self.call("cuCtxSetCurrent", context)

    def leave(self, handle: int) -> None:
        self.call("cuCtxSetCurrent", ctypes.c_void_p())
        self.call("cuDevicePrimaryCtxRelease_v2", ctypes.c_int(handle))

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the current card."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size_bytes: int) -> tuple[int, int]:
        """CUresult and address (0 when refused)."""
        address = ctypes.c_uint64()
        code = self.code("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        return code, address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(address))


class Nvml:
    """The few NVML calls that show a card. Errors: OSError when the library is missing, ProbeError."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(NVML_LIBRARY)

    def cards(self) -> list[dict[str, Any]]:
        self._call("nvmlInit_v2")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._card(index) for index in range(count.value)]

    def _card(self, index: int) -> dict[str, Any]:
        handle, uuid, name = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
        memory = (ctypes.c_uint64 * 3)()  # nvmlMemory_t: total, free, used
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        self._call("nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(len(uuid)))
        self._call("nvmlDeviceGetName", handle, name, ctypes.c_uint(len(name)))
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return {
            "uuid": uuid.value.decode("ascii", "replace"),
            "name": name.value.decode("utf-8", "replace"),
            "total_bytes": memory[0],
            "free_bytes": memory[1],
            "used_bytes": memory[2],
        }

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code:
            raise ProbeError(name, code, "nvmlReturn_t")


def uuid_text(raw: bytes) -> str:
    """NVML's way of writing a card's 16 bytes."""
    digits = raw.hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def allocate_until_refused(
    allocate: Callable[[int], tuple[int, int]], free: Callable[[int], None], overhead: Callable[[], int] = lambda: 0
) -> dict[str, Any]:
    """The exact largest sum of bytes that can be held at once, found with halving blocks down to one byte, and how the end is told.

    ``allocate`` returns CUresult and address; everything is given back. ``overhead`` is asked while all is held: what the slice is charged
    for the context beside it.
    """
    held: list[int] = []
    sum_bytes = 0
    size_bytes, refused_bytes, refusal = LARGEST_BLOCK_BYTES, 0, 0
    while size_bytes and len(held) < BLOCKS_MAXIMUM:
        code, address = allocate(size_bytes)
        if code:
            refused_bytes, refusal = size_bytes, code
            size_bytes //= 2
        else:
            held.append(address)
            sum_bytes += size_bytes
    overhead_bytes = overhead()
    for address in held:
        free(address)
    return {
        "allocated_bytes": sum_bytes,
        "overhead_bytes": overhead_bytes,
        "blocks": len(held),
        "refused_bytes": refused_bytes,
        "result": refusal,
    }


def spin(
    launch: Callable[[], None], synchronise: Callable[[], None], kernel_us: int, seconds: float, now: Callable[[], float]
) -> dict[str, Any]:
    """Keep the card as busy as it lets us for so many seconds of wall time; what got through, as GPU time per wall time."""
    batch = max(1, QUEUED_US // kernel_us)
    kernels = 0
    start = now()
    while now() - start < seconds:
        for _ in range(batch):
            launch()
        synchronise()
        kernels += batch
    wall_us = (now() - start) * 1e6
    gpu_us = kernels * kernel_us
    return {
        "launches": kernels,
        "kernel_us": kernel_us,
        "gpu_us": gpu_us,
        "wall_us": round(wall_us),
        "share_percent": round(100 * gpu_us / wall_us, 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(sys.argv[1:] if arguments is None else arguments)
    report: dict[str, Any] = {"cards": [], "hook": _hook(), "messages": []}
    failed = False
    try:
        cuda = Cuda()
        for index, handle in enumerate(cuda.devices()):
            if options.card in (None, index):
                report["cards"].append(_card(cuda, index, handle, options))
    except OSError as error:
        report["messages"].append(f"no CUDA in this container: {error}")
    except AttributeError as error:
        report["messages"].append(f"the driver lacks a call: {error}")
        failed = True
    except ProbeError as error:
        report["messages"].append(str(error))
        failed = True
    _add_nvml(report)
    _add_page(report)
    if not report["cards"] and not failed:
        report["messages"].append("no card is visible in this container")
    print(json.dumps(report, sort_keys=True) if options.json else _for_people(report))
    return 1 if failed else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tenfold_device_plugin.probe", description="Show what this container sees of its cards.")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    parser.add_argument("--card", type=int, help="look at this CUDA index only")
    parser.add_argument("--allocate-until-refused", action="store_true", help="find the exact largest sum of bytes")
    parser.add_argument("--spin-seconds", type=float, default=0.0, metavar="N", help="launch busy kernels for N seconds")
    parser.add_argument("--kernel-us", type=int, default=1000, metavar="U", help="duration of one such kernel (default 1000)")
    options = parser.parse_args(list(arguments))
    if not 1 <= options.kernel_us < 2**32:
        parser.error(f"--kernel-us is {options.kernel_us}, expected 1 to 4294967295")
    if options.spin_seconds < 0:
        parser.error(f"--spin-seconds is {options.spin_seconds:g}, expected 0 or more")
    return options


def _card(cuda: Cuda, index: int, handle: int, options: argparse.Namespace) -> dict[str, Any]:
    seen = cuda.describe(handle)
    card: dict[str, Any] = {"index": index, "uuid": seen["uuid"], "name": seen["name"], "refusal": None, "spin": None}
    cuda.enter(handle)
    try:
        free_bytes, total_bytes = cuda.memory()
        card.update(cuda_device_total_bytes=seen["total_bytes"], cuda_total_bytes=total_bytes, cuda_free_bytes=free_bytes)
        if options.allocate_until_refused:
            found = allocate_until_refused(cuda.allocate, cuda.free, _overhead_bytes)
            card["refusal"] = {**found, "name": cuda.name_of(found["result"])}
        if options.spin_seconds:
            card["spin"] = _spin_on(cuda, seen["uuid"], options)
    finally:
        cuda.leave(handle)
    return card


def _spin_on(cuda: Cuda, uuid: str, options: argparse.Namespace) -> dict[str, Any]:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(SPIN_PTX))
    cuda.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"tenfold_spin"))
    duration = ctypes.c_uint32(options.kernel_us)
    parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(duration), ctypes.c_void_p))
    one, none = ctypes.c_uint(1), ctypes.c_void_p()
    before = _charged_us(uuid)

    def launch() -> None:
        cuda.call("cuLaunchKernel", function, one, one, one, one, one, one, ctypes.c_uint(0), none, parameters, none)

    found = spin(launch, lambda: cuda.call("cuCtxSynchronize"), options.kernel_us, options.spin_seconds, time.monotonic)
    after = _charged_us(uuid)
    cuda.call("cuModuleUnload", module)
    return {**found, "charged_us": after - before if before is not None and after is not None else None}


def _charged_us(uuid: str) -> int | None:
    """GPU time that the hook has charged to this container so far; None where no state is mounted."""
    try:
        return next((gpu.gpu_time_us for gpu in region.read_state(SLOT_FOLDER).gpus if gpu.uuid == uuid), None)
    except RegionError:
        return None


def _overhead_bytes() -> int:
    """What the hook has charged for contexts and modules; 0 where no state is mounted."""
    try:
        return region.read_state(SLOT_FOLDER).overhead_bytes
    except RegionError:
        return 0


def _hook() -> dict[str, Any]:
    try:
        loaded = HOOK_LIBRARY in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        loaded = False
    return {"loaded": loaded, "page": (SLOT_FOLDER / "config").exists()}


def _add_nvml(report: dict[str, Any]) -> None:
    """NVML's view beside CUDA's, by UUID; cards that only NVML shows are worth a message."""
    seen: dict[str, dict[str, Any]] = {}
    try:
        seen = {card["uuid"]: card for card in Nvml().cards()}
    except (OSError, ProbeError, AttributeError) as error:
        report["messages"].append(f"no NVML in this container: {error}")
    for card in report["cards"]:
        memory = seen.pop(card["uuid"], {})
        card.update({f"nvml_{name}": memory.get(name) for name in ("total_bytes", "used_bytes", "free_bytes")})
    if seen:
        report["messages"].append(f"NVML shows cards that CUDA does not: {', '.join(sorted(seen))}")


def _add_page(report: dict[str, Any]) -> None:
    try:
        quotas = {quota.uuid: quota for quota in region.read_config(SLOT_FOLDER).gpus}
    except RegionError as error:
        if report["hook"]["page"]:
            report["messages"].append(f"the configuration page is unreadable: {error}")
        quotas = {}
    for card in report["cards"]:
        quota = quotas.get(card["uuid"])
        card["page"] = quota and {
            "memory_limit_bytes": quota.memory_limit_bytes,
            "core_limit_percent": quota.core_limit_percent,
            "mode": quota.mode,
        }
        card["core_limit_percent"] = quota.core_limit_percent or 100 if quota else None


def _for_people(report: dict[str, Any]) -> str:
    lines = []
    for card in report["cards"]:
        limit = card["core_limit_percent"]
        lines.append(
            f"card {card['index']}  {card['uuid']}  {card['name']}  {card['cuda_total_bytes'] // 2**20} MiB  "
            f"{card['cuda_free_bytes'] // 2**20} MiB free  cores {'unlimited' if limit in (None, 100) else f'{limit} %'}"
        )
        if card["refusal"]:
            found = card["refusal"]
            lines.append(f"  allocated {found['allocated_bytes']} bytes, then {found['name']} ({found['result']})")
        if card["spin"]:
            lines.append(f"  {card['spin']['share_percent']} percent of GPU time in {card['spin']['wall_us'] / 1e6:g} s")
    return "\n".join(lines + report["messages"])


if __name__ == "__main__":
    sys.exit(main())
