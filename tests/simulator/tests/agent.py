"""A process that uses the simulated driver under remote control: one JSON request a line on stdin, one JSON answer a line on stdout.

Runs on the standard library alone, so that it works inside any image. Owns the translation between JSON and C arguments; what to call
is ``process.py``'s business, what it means the tests'.

A request is ``[library, symbol, arguments]``. An argument is a number (passed as 64 bits), ``null``, text (a C string), or a list:
``["out", type]`` (storage whose value comes back: i32, u32, u64, f32, bytes:N), ``["in", hex]`` (pointer to these bytes), ``["inout",
hex]`` (the same, and they come back), ``["float", x]``, ``["struct", hex]`` (passed by value), ``["pointers", [n, ...]]`` (an array of
addresses), ``["cell", n]`` (pointer to a 64-bit cell with that number).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from typing import Any, Callable

SIMPLE = {"i32": ctypes.c_int32, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64, "f32": ctypes.c_float}
LIBRARIES: dict[str, Any] = {}


def library(name: str) -> Any:
    if name not in LIBRARIES:
        LIBRARIES[name] = ctypes.CDLL(name)
    return LIBRARIES[name]


def by_value(content: bytes) -> Any:
    kind: Any = type("ByValue", (ctypes.Structure,), {"_fields_": [("content", ctypes.c_ubyte * len(content))]})
    return kind.from_buffer_copy(content)


def storage(kind: str) -> Any:
    if kind.startswith("bytes:"):
        return ctypes.create_string_buffer(int(kind[6:]))
    return SIMPLE[kind]()


def as_argument(word: Any, outputs: list[Any], keep: list[Any]) -> Any:
    if word is None or isinstance(word, int):
        return ctypes.c_uint64((word or 0) & 0xFFFFFFFFFFFFFFFF)
    if isinstance(word, str):
        return ctypes.c_char_p(word.encode())
    kind, value = word
    if kind == "out":
        outputs.append(storage(value))
        return ctypes.byref(outputs[-1])
    if kind in ("in", "inout"):
        content = bytes.fromhex(value)
        keep.append(ctypes.create_string_buffer(content, len(content)))
        if kind == "inout":
            outputs.append(keep[-1])
        return keep[-1]
    if kind == "float":
        return ctypes.c_float(value)
    if kind == "struct":
        return by_value(bytes.fromhex(value))
    if kind == "cell":
        keep.append(ctypes.c_uint64(value))
        return ctypes.byref(keep[-1])
    if kind == "pointers":
        keep.append((ctypes.c_void_p * len(value))(*value))
        return keep[-1]
    raise ValueError(f"argument is {word!r}")


def as_json(output: Any) -> Any:
    return output.raw.hex() if isinstance(output, ctypes.Array) else output.value


def call(name: str, symbol: str, words: list[Any]) -> list[Any]:
    outputs: list[Any] = []
    keep: list[Any] = []
    function = getattr(library(name), symbol)
    function.restype = ctypes.c_int32
    result = function(*[as_argument(word, outputs, keep) for word in words])
    return [result, *map(as_json, outputs)]


def launch(function: int, duration_us: int, count: int, stream: int, symbol: str) -> list[Any]:
    """count launches of tenfold_spin in a row; answers the first error or 0, and the seconds that it took."""
    cell = ctypes.c_uint64(duration_us)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(cell))
    entry = getattr(library("libcuda.so.1"), symbol)
    started = time.monotonic()
    for _ in range(count):
        result = entry(ctypes.c_void_p(function), 1, 1, 1, 1, 1, 1, 0, ctypes.c_void_p(stream), parameters, None)
        if result:
            return [result, time.monotonic() - started]
    return [0, time.monotonic() - started]


def churn(seed: int, operations: int, largest: int) -> list[Any]:
    """Random cuMemAlloc and cuMemFree; answers how many succeeded, and frees what is left."""
    import random

    source = random.Random(seed)
    cuda = library("libcuda.so.1")
    live: list[int] = []
    done = 0
    for _ in range(operations):
        if live and source.random() < 0.5:
            cuda.cuMemFree_v2(ctypes.c_uint64(live.pop(source.randrange(len(live)))))
        else:
            address = ctypes.c_uint64()
            if cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(source.randrange(1, largest))) == 0:
                live.append(address.value)
                done += 1
    for address_value in live:
        cuda.cuMemFree_v2(ctypes.c_uint64(address_value))
    return [0, done]


def in_threads(thread_count: int, context: int, seed: int, operations: int, largest: int) -> list[Any]:
    results: list[Any] = []

    def work(number: int) -> None:
        library("libcuda.so.1").cuCtxSetCurrent(ctypes.c_void_p(context))
        results.append(churn(seed + number, operations, largest))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(thread_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [0, sum(done for _, done in results)]


def fork_and_call(name: str, symbol: str, words: list[Any]) -> list[Any]:
    """The answer that a forked child gets."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(call(name, symbol, words)).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    answer: list[Any] = json.loads(os.read(reader, 65536))
    os.close(reader)
    return answer


def fork_sleeper(seconds: int) -> list[Any]:
    """A child that does nothing; answers its pid once it runs."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"x")
        time.sleep(seconds)
        os._exit(0)
    os.read(reader, 1)
    return [0, child]


CALLED: list[tuple[float, int]] = []
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def note(data: int) -> None:
    CALLED.append((time.monotonic(), data or 0))


NOTE = HOST_FUNCTION(note)
OPENED = threading.Event()
WAIT = HOST_FUNCTION(lambda _: (OPENED.wait(20), None)[1])  # returns once another thread has opened it


def launch_while(function: int, stuck: int, free: int, count: int) -> list[Any]:
    """A thread launches into a stuck stream until it blocks; this one launches into another stream, then opens what holds the first.

    Answers whether the first was blocked until then, and ended.
    """
    library("libcuda.so.1").cuLaunchHostFunc(ctypes.c_void_p(stuck), WAIT, None)
    context = ctypes.c_void_p()
    library("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))

    def work() -> None:
        library("libcuda.so.1").cuCtxSetCurrent(context)
        launch(function, 1, count, stuck, "cuLaunchKernel")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.2)
    was_blocked = thread.is_alive()
    result = launch(function, 1, count // 2, free, "cuLaunchKernel")[0]
    OPENED.set()
    thread.join(10)
    return [result, was_blocked and not thread.is_alive()]


SPECIAL: dict[str, Callable[..., list[Any]]] = {
    "launch": launch,
    "launch_while": launch_while,
    "churn": churn,
    "in_threads": in_threads,
    "fork_and_call": fork_and_call,
    "fork_sleeper": fork_sleeper,
    "host_function": lambda: [0, ctypes.cast(NOTE, ctypes.c_void_p).value],
    "called": lambda: [0, [data for _, data in CALLED]],
    "pid": lambda: [0, os.getpid()],
}


def main() -> None:
    for line in sys.stdin:
        name, symbol, words = json.loads(line)
        answer = SPECIAL[symbol](*words) if name == "" else call(name, symbol, words)
        print(json.dumps(answer), flush=True)


main()
