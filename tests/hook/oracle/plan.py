"""Which scenarios the oracle plays, quick and full. Data only: ``run`` plays them, the C program ``conductor`` says what each means."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "INJECTED",
    "INJECTED_UNDER_THE_HOOK",
    "KINDS",
    "MUTANTS",
    "NOT_INJECTED",
    "Mutant",
    "Scenario",
    "full",
    "mutant_scenarios",
    "quick",
]

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
    "external": (),
    "module": (),
}

# Driver functions that fail on purpose, and the kind of memory whose work calls them. Each must be called, or nothing was tested.
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
    ("cuGraphExecDestroy", "graph"),
    ("cuCtxSynchronize", "pool"),
    ("cuStreamSynchronize", "graph"),
)

# Driver functions that the hook calls for its own ends; a hook that needs one of them less often is no worse.
INJECTED_UNDER_THE_HOOK: tuple[tuple[str, str], ...] = (
    ("cuCtxGetDevice", "linear"),
    ("cuCtxGetCurrent", "linear"),
    ("cuDeviceGetUuid_v2", "linear"),
    ("cuDevicePrimaryCtxGetState", "linear"),
    ("cuDeviceGetMemPool", "async"),
    ("cuStreamIsCapturing", "async"),
    ("cuStreamIsCapturing_ptsz", "async"),
    ("cuMemPoolGetAttribute", "pool"),
    ("cuDeviceGetGraphMemAttribute", "graph"),
    ("cuGraphGetNodes", "graph"),
    ("cuGraphNodeGetType", "graph"),
    ("cuGraphMemAllocNodeGetParams", "graph"),
    ("cuArrayGetMemoryRequirements", "array"),
    ("cuMipmappedArrayGetMemoryRequirements", "mipmap"),
)

# Functions of hooks.def that no scenario makes fail, and why. tests/hook/oracle/test_oracle.py compares the three lists with hooks.def.
NOT_INJECTED: dict[str, str] = {
    **dict.fromkeys(
        ("cuMemAlloc", "cuMemAllocPitch", "cuMemFree", "cuArrayCreate", "cuArray3DCreate", "cuCtxDestroy", "cuCtxAttach", "cuCtxDetach"),
        "before CUDA 3.2 and 4: no program has them",
    ),
    **dict.fromkeys(
        (
            "cuGraphAddNode",
            "cuGraphAddNode_v2",
            "cuGraphAddNode_v3",
            "cuGraphUpload",
            "cuGraphUpload_ptsz",
            "cuGraphInstantiate",
            "cuGraphInstantiate_v2",
            "cuGraphInstantiateWithParams",
            "cuGraphInstantiateWithParams_ptsz",
            "cuMemAllocFromPoolAsync_ptsz",
            "cuDeviceGetUuid",
        ),
        "a twin of one that is injected, by the same code",
    ),
    **dict.fromkeys(
        (
            "cuDevicePrimaryCtxRelease",
            "cuDevicePrimaryCtxRelease_v2",
            "cuDevicePrimaryCtxReset",
            "cuDevicePrimaryCtxReset_v2",
            "cuDevicePrimaryCtxRetain",
        ),
        "would take the card from under the program; tests/gpu resets contexts",
    ),
    "cuDeviceGetCount": "asked once for a shortcut; a failure leaves the long way, which the scenarios on two cards go",
    **dict.fromkeys(
        ("cuMemMapArrayAsync", "cuMemMapArrayAsync_ptsz"), "tiles are graphics' kind of memory; tests/hook/test_memory.py has them"
    ),
    **dict.fromkeys(
        ("cuGreenCtxDestroy", "cuCtxFromGreenCtx"), "green contexts are the primary's memory; tests/hook/test_green.py has them"
    ),
    "cuGraphChildGraphNodeGetGraph": "asked where a graph has children; tests/hook/test_graphs.py has them",
    **dict.fromkeys(
        (
            "cuEventCreate",
            "cuEventDestroy_v2",
            "cuEventRecord",
            "cuEventRecord_ptsz",
            "cuEventQuery",
            "cuEventElapsedTime",
            "cuThreadExchangeStreamCaptureMode",
            "cuCtxPushCurrent_v2",
            "cuCtxPopCurrent_v2",
        ),
        "the limiter's, which moves no memory",
    ),
}


@dataclass(frozen=True)
class Scenario:
    """One run of the conductor. ``kinds`` empty: all that the hook covers; ``may_be_idle``: a function that this hook need not call.

    ``driver``: branch of the simulated driver; an old one lacks kinds of memory, which are left out then. ``is_measured``: contexts and
    modules take memory of the card, and the page wants it charged; elsewhere they take none and the page's reserve (of nothing) is all.
    """

    name: str
    command: str
    kinds: tuple[str, ...] = ()
    options: dict[str, int | str] = field(default_factory=dict)
    may_be_idle: bool = False
    cards: int = 2
    driver: str = "535"
    is_measured: bool = False

    @property
    def words(self) -> list[str]:
        options = {"devices": self.cards, **self.options, "measured": int(self.is_measured)}
        return [word for option, value in options.items() for word in (f"--{option}", str(value))]


@dataclass(frozen=True)
class Mutant:
    """A broken hook that the oracle must notice: a function wrapped at link time (mutant.c), or a line of a source file replaced."""

    name: str
    macro: str
    wrapped: str = ""
    patch: tuple[str, str, str] = ("", "", "")  # file of files/hook/src, line, its replacement


MUTANTS = (
    Mutant("a free in 64 is forgotten", "MUTANT_LEAK", "tf_account_release"),
    Mutant("a free in 64 is given back twice", "MUTANT_TWICE", "tf_account_release"),
    Mutant("the limit is 2 MiB too high", "MUTANT_LIMIT", "tf_account_charge"),
    Mutant("a dead process's memory stays", "MUTANT_REAP", "tf_account_reap"),
    Mutant(
        "whoever overtakes a stopped process leaves no mark",
        "MUTANT_HELP",
        patch=("slice/account.c", "help(state, before, phase);", "if (0) help(state, before, phase);"),
    ),
    Mutant(
        "overhead is never given back",
        "MUTANT_OVERHEAD_STAYS",
        patch=("memory/overhead.c", "if (wanted_bytes < charged_bytes)", "if (0)"),
    ),
)


def mutant_scenarios() -> list[Scenario]:
    """What a broken hook must go through; linear memory alone, which the sound hook has just passed."""
    return [rounds(2, 4, 3, 400, "linear"), storm(4, 2, 20), measured(2, 4, 6, 400), step("alloc", 3)]


def rounds(processes: int, threads: int, count: int, operations: int, *kinds: str) -> Scenario:
    which = f"{'+'.join(kinds)}, " if kinds else ""
    name = f"{which}{processes} x {threads}, {count} rounds of {operations} operations"
    return Scenario(name, "rounds", kinds, {"processes": processes, "threads": threads, "rounds": count, "operations": operations})


def on_one_card(processes: int, threads: int, count: int, operations: int) -> Scenario:
    """The usual slice, in which the hook need not ask which card a call means; more threads than lanes."""
    options: dict[str, int | str] = {"processes": processes, "threads": threads, "rounds": count, "operations": operations}
    return Scenario(f"one card, {processes} x {threads}, {count} rounds of {operations} operations", "rounds", (), options, cards=1)


def flapping(processes: int, threads: int, count: int, operations: int) -> Scenario:
    options: dict[str, int | str] = {"processes": processes, "threads": threads, "rounds": count, "operations": operations, "flap": 1}
    return Scenario(
        f"limits change 100 times a second, {processes} x {threads}, {count} rounds of {operations} operations", "rounds", (), options
    )


def reserved(processes: int, threads: int, count: int, operations: int) -> Scenario:
    kinds = ("managed", "vmm", "async", "pool", "graph")
    options: dict[str, int | str] = {"processes": processes, "threads": threads, "rounds": count, "operations": operations, "reserve": 1}
    name = f"what is gone from the card stays within the limit, {processes} x {threads}, {count} rounds of {operations} operations"
    return Scenario(name, "rounds", kinds, options)


# Not managed memory: what NVML shows of it may be elsewhere, so a process that has any keeps the highest overhead that was seen.
MEASURED_KINDS = tuple(kind for kind in KINDS if kind != "managed")


def measured(processes: int, threads: int, count: int, operations: int) -> Scenario:
    options: dict[str, int | str] = {"processes": processes, "threads": threads, "rounds": count, "operations": operations}
    name = f"overhead is measured, {processes} x {threads}, {count} rounds of {operations} operations"
    return Scenario(name, "rounds", MEASURED_KINDS, options, is_measured=True)


def measured_storm(processes: int, threads: int, kills: int) -> Scenario:
    options: dict[str, int | str] = {"processes": processes, "threads": threads, "kills": kills}
    name = f"overhead is measured, {kills} kills among {processes} x {threads}"
    return Scenario(name, "storm", MEASURED_KINDS, options, is_measured=True)


def on_driver(driver: str) -> Scenario:
    options: dict[str, int | str] = {"processes": 2, "threads": 4, "rounds": 4, "operations": 400}
    return Scenario(f"driver {driver}, 2 x 4, 4 rounds of 400 operations", "rounds", (), options, driver=driver)


def injected(count: int, operations: int) -> list[Scenario]:
    """One scenario per driver function: it fails at random calls."""
    found = []
    for symbol, kind in (*INJECTED, *INJECTED_UNDER_THE_HOOK):
        options: dict[str, int | str] = {"symbol": symbol, "processes": 2, "threads": 2, "rounds": count, "operations": operations}
        found.append(Scenario(f"{symbol} fails at times", "inject", (kind,), options, may_be_idle=(symbol, kind) not in INJECTED))
    return found


def storm(processes: int, threads: int, kills: int) -> Scenario:
    return Scenario(
        f"{kills} kills among {processes} x {threads}", "storm", (), {"processes": processes, "threads": threads, "kills": kills}
    )


def step(operation: str, stride: int, resume: bool = False) -> Scenario:
    name = f"{'stopped and resumed' if resume else 'killed'} inside {operation}, at every {stride}. instruction"
    return Scenario(name, "step", ("linear",), {"operation": operation, "stride": stride, "resume": int(resume)}, cards=1)


def quick() -> list[Scenario]:
    """About ten seconds on two idle cores."""
    return [
        rounds(1, 1, 1500, 2),
        *(rounds(2, 4, 2, 150, kind) for kind in KINDS),
        rounds(8, 4, 3, 150),
        rounds(32, 1, 2, 100),
        on_one_card(4, 12, 2, 150),
        *injected(2, 60),
        reserved(4, 2, 2, 300),
        flapping(4, 2, 2, 600),
        storm(8, 4, 60),
        measured(4, 2, 3, 150),
        measured_storm(4, 2, 30),
        step("alloc", 173),
        step("free", 173),
        step("alloc", 197, resume=True),
        step("free", 197, resume=True),
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
        on_one_card(4, 16, 5, 300),
        *(on_driver(driver) for driver in ("418", "450", "470", "525", "580", "620")),
        *injected(8, 150),
        reserved(4, 4, 10, 1000),
        flapping(4, 4, 10, 2000),
        *(storm(processes, threads, kills) for processes, threads, kills in ((8, 1, 400), (8, 16, 200), (32, 4, 100))),
        measured(1, 1, 30, 40),
        measured(8, 4, 10, 600),
        *(measured_storm(processes, threads, kills) for processes, threads, kills in ((8, 1, 200), (8, 8, 100))),
        step("alloc", 11),
        step("free", 11),
        step("alloc", 13, resume=True),
        step("free", 13, resume=True),
        step("reap", 5003, resume=True),
        step("attach", 14009),
        step("reap", 1009),
    ]
