"""Routing: whoever looks a driver function up gets ours exactly where that symbol is hooked, and never one of another ABI."""

from __future__ import annotations

from pathlib import Path

from tests.gpu.ground import Ground, NotHere

VECTORS = Path(__file__).resolve().parents[2] / "hook" / "vectors"
HOOK = "libtenfold.so"
# Functions that no hook needs: they must stay the driver's.
UNTOUCHED = [
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuStreamCreate",
    "cuEventRecord",
    "cuGetErrorString",
]


def requests() -> list[list[object]]:
    """What real CUDA runtimes ask for: name, CUDA version, flags."""
    found = {tuple(line.split("\t")[:3]) for vector in sorted(VECTORS.glob("*.tsv")) for line in vector.read_text().splitlines()}
    return [[name, int(version), int(flags)] for name, version, flags in sorted(found) if version.isdigit()]


def check_every_hooked_symbol_is_ours_by_dlsym(ground: Ground) -> None:
    names = ground.hooked_symbols()
    with ground.agents(None, ground.slot()) as (native, hooked):
        real = native.done("lookup", names=names)["libraries"]
        ours = hooked.done("lookup", names=names)["libraries"]
    wrong = [name for name, there, here in zip(names, real, ours) if here != (HOOK if there else "")]
    assert not wrong, f"of the driver's functions that are hooked, dlsym gives another than ours for {wrong[:5]}"
    assert sum(map(bool, real)) > 20, "this driver exports hardly any of the hooked functions"


def check_other_functions_stay_the_drivers(ground: Ground) -> None:
    with ground.agents(ground.slot()) as (hooked,):
        libraries = hooked.done("lookup", names=UNTOUCHED)["libraries"]
    wrong = {name: library for name, library in zip(UNTOUCHED, libraries) if not library.startswith("libcuda.so")}
    assert not wrong, f"expected the driver's own, got {wrong}"


def check_every_request_of_three_runtimes_gets_its_exact_symbol(ground: Ground) -> None:
    asked = requests()
    with ground.agents(None, ground.slot()) as (native, hooked):
        there = native.done("routes", requests=asked)
        if not there["can_ask"]:
            raise NotHere("this driver has no cuGetProcAddress (CUDA 11.3 brought it)")
        here = hooked.done("routes", requests=asked)
    symbols = set(ground.hooked_symbols())
    wrong = []
    for request, (_library, symbol), (library, got) in zip(asked, there["answers"], here["answers"]):
        if symbol and ((library == HOOK) != (symbol in symbols) or got != symbol):
            wrong.append((request, symbol, library, got))
    unnamed = sum(1 for (library, symbol), _ in zip(there["answers"], asked) if library and not symbol)
    answered = sum(1 for library, _symbol in there["answers"] if library)
    ground.observed["cuGetProcAddress: answers that are the exported symbol (open point a)"] = f"{answered - unnamed} of {answered}"
    assert not wrong, f"request, the driver's symbol, our library and symbol: {wrong[:3]}"
