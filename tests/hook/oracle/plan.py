"""Which scenarios the oracle plays, quick and full. Data only: ``run`` plays them, the C program ``conductor`` says what each means."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["INJECTED", "KINDS", "MUTANTS", "Mutant", "Scenario", "full", "quick"]

# Kind of memory -> symbols that the hook must export for it to be covered. The order is that of enum kind in objects.h.
KINDS: dict[str, tuple[str, ...]] = {
    "linear": ("cuMemAlloc_v2", "cuMemFree_v2"),
    "pitch": ("cuMemAllocPitch_v2",),
    "managed": ("cuMemAllocManaged",),
    "array": ("cuArrayCreate_v2", "cuArrayDestroy"),
    "array3d": ("cuArray3DCreate_v2", "cuArrayDestroy"),
    "mipmap": ("cuMipmappedArrayCreate", "cuMipmappedArrayDestroy"),
    "vmm": ("cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemRetainAllocationHandle"),
    "async": ("cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemFreeAsync", "cuMemFreeAsync_ptsz"),
    "pool": ("cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz", "cuMemPoolDestroy", "cuMemPoolTrimTo"),
    "graph": ("cuGraphAddMemAllocNode", "cuGraphLaunch", "cuDeviceGraphMemTrim"),
    "context": ("cuCtxDestroy_v2",),
    "ipc": (),
    "host": (),
}

# Driver functions that fail on purpose: those that the program calls, and those that only the hook calls.
INJECTED: tuple[tuple[str, str], ...] = (
    ("cuMemAlloc_v2", "linear"),
    ("cuMemFree_v2", "linear"),
    ("cuMemAllocPitch_v2", "pitch"),
    ("cuMemAllocManaged", "managed"),
    ("cuArrayCreate_v2", "array"),
    ("cuArray3DCreate_v2", "array3d"),
    ("cuArrayDestroy", "array"),
    ("cuMipmappedArrayCreate", "mipmap"),
    ("cuMipmappedArrayDestroy", "mipmap"),
    ("cuMemCreate", "vmm"),
    ("cuMemRelease", "vmm"),
    ("cuMemMap", "vmm"),
    ("cuMemUnmap", "vmm"),
    ("cuMemRetainAllocationHandle", "vmm"),
    ("cuMemImportFromShareableHandle", "vmm"),
    ("cuMemAllocAsync", "async"),
    ("cuMemAllocAsync_ptsz", "async"),
    ("cuMemFreeAsync", "async"),
    ("cuMemFreeAsync_ptsz", "async"),
    ("cuMemAllocFromPoolAsync", "pool"),
    ("cuMemPoolCreate", "pool"),
    ("cuMemPoolDestroy", "pool"),
    ("cuMemPoolTrimTo", "pool"),
    ("cuGraphAddMemAllocNode", "graph"),
    ("cuGraphInstantiateWithFlags", "graph"),
    ("cuGraphLaunch", "graph"),
    ("cuDeviceGraphMemTrim", "graph"),
    ("cuCtxDestroy_v2", "context"),
    ("cuCtxGetDevice", "linear"),
    ("cuCtxGetCurrent", "linear"),
    ("cuDeviceGetMemPool", "async"),
    ("cuMemPoolGetAttribute", "pool"),
    ("cuDeviceGetGraphMemAttribute", "graph"),
    ("cuArrayGetMemoryRequirements", "array"),
    ("cuMipmappedArrayGetMemoryRequirements", "mipmap"),
)


@dataclass(frozen=True)
class Scenario:
    """One run of the conductor. ``kinds`` empty: all that the hook covers; ``may_be_idle``: a function that this hook need not call."""

    name: str
    command: str
    kinds: tuple[str, ...] = ()
    options: dict[str, int | str] = field(default_factory=dict)
    may_be_idle: bool = False

    @property
    def words(self) -> list[str]:
        return [word for option, value in self.options.items() for word in (f"--{option}", str(value))]


@dataclass(frozen=True)
class Mutant:
    """A broken hook: a function of the account is wrapped at link time (mutant.c), and the oracle must notice."""

    name: str
    wrapped: str
    macro: str


MUTANTS = (
    Mutant("a free in 64 is forgotten", "tf_account_release", "MUTANT_LEAK"),
    Mutant("a free in 64 is given back twice", "tf_account_release", "MUTANT_TWICE"),
    Mutant("the limit is 2 MiB too high", "tf_account_charge", "MUTANT_LIMIT"),
    Mutant("a dead process's memory stays", "tf_account_reap", "MUTANT_REAP"),
)


def rounds(processes: int, threads: int, count: int, operations: int, *kinds: str) -> Scenario:
    which = f"{'+'.join(kinds)}, " if kinds else ""
    name = f"{which}{processes} x {threads}, {count} rounds of {operations} operations"
    return Scenario(name, "rounds", kinds, {"processes": processes, "threads": threads, "rounds": count, "operations": operations})


def injected(symbol: str, kind: str, count: int, operations: int) -> Scenario:
    own = symbol in KINDS[kind] or not symbol.startswith(("cuCtxGet", "cuDeviceGet", "cuMemPoolGet", "cuArrayGet", "cuMipmappedArrayGet"))
    options: dict[str, int | str] = {"symbol": symbol, "processes": 2, "threads": 2, "rounds": count, "operations": operations}
    return Scenario(f"{symbol} fails at times", "inject", (kind,), options, may_be_idle=not own)


def storm(processes: int, threads: int, kills: int) -> Scenario:
    return Scenario(
        f"{kills} kills among {processes} x {threads}", "storm", (), {"processes": processes, "threads": threads, "kills": kills}
    )


def step(operation: str, stride: int) -> Scenario:
    name = f"killed inside {operation}, at every {'' if stride == 1 else f'{stride}. '}instruction"
    return Scenario(name, "step", ("linear",), {"operation": operation, "stride": stride})


def quick() -> list[Scenario]:
    """About ten seconds on two idle cores."""
    return [
        rounds(1, 1, 1500, 2),
        *(rounds(2, 4, 2, 150, kind) for kind in KINDS),
        rounds(8, 4, 3, 150),
        rounds(32, 1, 2, 100),
        *(injected(symbol, kind, 2, 60) for symbol, kind in INJECTED),
        storm(8, 4, 60),
        step("alloc", 173),
        step("free", 173),
        step("reap", 9973),
    ]


def full() -> list[Scenario]:
    """A million operations, every driver call failing, thousands of kills: about 90 seconds on two idle cores."""
    sizes = [(processes, threads) for processes in (1, 8, 32) for threads in (1, 4, 16)]
    return [
        rounds(1, 1, 20000, 1),
        *(rounds(4, 4, 4, 600, kind) for kind in KINDS),
        # 9 x 5 rounds, about 18,000 operations each
        *(rounds(processes, threads, 5, max(1, 18000 // (processes * threads))) for processes, threads in sizes),
        *(injected(symbol, kind, 8, 150) for symbol, kind in INJECTED),
        *(storm(processes, threads, kills) for processes, threads, kills in ((8, 1, 400), (8, 16, 200), (32, 4, 100))),
        step("alloc", 11),
        step("free", 11),
        step("reap", 1009),
    ]
