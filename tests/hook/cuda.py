"""CUDA driver and NVML by ctypes, for the small scripts that tests run inside a slot.

Owns argument types and structs as far as the scripts need them. Every function returns the driver's result; nothing is raised. Imported by
scripts in a process of their own (``python -c``), never by pytest itself.
"""

from __future__ import annotations

import ctypes as c
import json
from typing import Any

SPIN_PTX = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry tenfold_spin(.param .u32 us)
{
.reg .pred %p<2>;
.reg .b32 %r<2>;
.reg .b64 %rd<6>;
ld.param.u32 %r1, [us];
mul.wide.u32 %rd1, %r1, 1000;
mov.u64 %rd2, %globaltimer;
again:
mov.u64 %rd3, %globaltimer;
sub.u64 %rd4, %rd3, %rd2;
setp.lt.u64 %p1, %rd4, %rd1;
@%p1 bra again;
ret;
}
"""
MIB = 1 << 20
OUT_OF_MEMORY = 2


class Location(c.Structure):
    _fields_ = [("type", c.c_int), ("id", c.c_int)]


class AllocationProp(c.Structure):
    _fields_ = [("type", c.c_int), ("handles", c.c_int), ("location", Location), ("win32", c.c_void_p), ("flags", c.c_ubyte * 8)]


class PoolProps(c.Structure):
    _fields_ = [
        ("alloc_type", c.c_int),
        ("handle_types", c.c_int),
        ("location", Location),
        ("win32", c.c_void_p),
        ("max_size", c.c_size_t),
        ("reserved", c.c_ubyte * 56),
    ]


class Array3D(c.Structure):
    _fields_ = [
        ("width", c.c_size_t),
        ("height", c.c_size_t),
        ("depth", c.c_size_t),
        ("format", c.c_int),
        ("channels", c.c_uint),
        ("flags", c.c_uint),
    ]


class NvmlMemory(c.Structure):
    _fields_ = [("total", c.c_ulonglong), ("free", c.c_ulonglong), ("used", c.c_ulonglong)]


class NvmlMemoryV2(c.Structure):
    _fields_ = [
        ("version", c.c_uint),
        ("total", c.c_ulonglong),
        ("reserved", c.c_ulonglong),
        ("free", c.c_ulonglong),
        ("used", c.c_ulonglong),
    ]


class Driver:
    """``driver.cuMemAlloc_v2(...)``: ints go as 64-bit values, bytes as pointers, ctypes objects as they are."""

    def __init__(self, name: str = "libcuda.so.1") -> None:
        self.library = c.CDLL(name)

    def __getattr__(self, symbol: str) -> Any:
        function = getattr(self.library, symbol)

        def call(*arguments: Any) -> int:
            return int(function(*(c.c_uint64(word) if isinstance(word, int) else word for word in arguments)))

        return call

    def start(self, device: int = 0) -> None:
        """cuInit and the primary context."""
        context = c.c_void_p()
        assert self.cuInit(0) == 0
        assert self.cuDevicePrimaryCtxRetain(c.byref(context), device) == 0
        assert self.cuCtxSetCurrent(context) == 0

    def alloc(self, size_bytes: int, symbol: str = "cuMemAlloc_v2", *rest: int) -> tuple[int, int]:
        """(result, pointer)"""
        pointer = c.c_uint64()
        return getattr(self, symbol)(c.byref(pointer), size_bytes, *rest), pointer.value

    def info(self) -> tuple[int, int]:
        """(free, total)"""
        free, total = c.c_size_t(), c.c_size_t()
        assert self.cuMemGetInfo_v2(c.byref(free), c.byref(total)) == 0
        return free.value, total.value

    def spin(self) -> c.c_void_p:
        module, function = c.c_void_p(), c.c_void_p()
        assert self.cuModuleLoadData(c.byref(module), SPIN_PTX) == 0
        assert self.cuModuleGetFunction(c.byref(function), module, b"tenfold_spin") == 0
        return function

    def launch(self, function: c.c_void_p, us: int, stream: Any = None, symbol: str = "cuLaunchKernel") -> int:
        value = c.c_uint(us)
        parameters = (c.c_void_p * 1)(c.addressof(value))
        return int(getattr(self.library, symbol)(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None))


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)
