"""What both measurements stand on: built programs, one simulated machine, and the library that a program is run under."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region

ROOT = Path(__file__).resolve().parents[2]
MEMORY_LIMIT_BYTES = 8 << 30
LIMITED_PERCENT = 50


@dataclasses.dataclass(frozen=True)
class Library:
    """What is preloaded. ``environment`` of the limited launch row is ``limited``."""

    name: str
    preload: str = ""
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    limited: dict[str, str] = dataclasses.field(default_factory=dict)

    def variables(self, base: dict[str, str], limited: bool = False) -> dict[str, str]:
        own = self.limited if limited else self.environment
        return {**base, **own, **({"LD_PRELOAD": self.preload} if self.preload else {})}


class Bench:
    """Built programs, one machine, a slot without and one with a core limit."""

    def __init__(self, build: Path, folder: Path) -> None:
        os.environ["TENFOLD_BUILD"] = str(build)
        from tests.hook import workshop

        workshop.BUILD = build
        self.simulator, self.hook, self.program = workshop.build_simulator(), workshop.build_hook(), build / "bench"
        sources = [str(ROOT / "tests/benchmarks/bench.c"), str(ROOT / "tests/hook/common/cuda_api.c")]
        flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
        subprocess.run(["gcc", *flags, "-o", str(self.program), *sources, "-ldl", "-lm"], check=True, timeout=120)
        self.empty = build / "empty.so"
        empty = ["gcc", "-shared", "-fPIC", "-O2", "-x", "c", "-o", str(self.empty), "-"]
        subprocess.run(empty, input="extern int tenfold_bench_empty;\nint tenfold_bench_empty;\n", text=True, check=True, timeout=120)
        self.folder = folder
        self.machine = workshop.Machine.make(self.simulator, folder, policy="round-robin")
        self.base = {"PATH": os.environ["PATH"], **self.machine.environment}
        self.slots = 0
        self.cpu = max(os.sched_getaffinity(0))

    def slot(self, core_limit_percent: int) -> Path:
        """A fresh slot: no credit and no history from another run."""
        self.slots += 1
        folder = self.folder / f"slot-{self.slots}"
        quota = region.GpuQuota(self.machine.uuids[0], MEMORY_LIMIT_BYTES, core_limit_percent)
        region.create_slot(folder, [quota], library=self.hook / "libtenfold_page.so")
        return folder

    def tenfold(self, core_limit_percent: int = 0) -> Library:
        return Library(
            "tenfold",
            str(self.hook / "libtenfold.so"),
            {"TENFOLD_SLOT_DIR": str(self.slot(core_limit_percent))},
            {"TENFOLD_SLOT_DIR": str(self.slot(LIMITED_PERCENT))},
        )

    @contextlib.contextmanager
    def driver_calls_of(self, call_ns: int) -> Iterator[None]:
        """cuMemAlloc and cuMemFree take that long within."""
        self.machine.tool("set", f"memory_call_ns={call_ns}")
        try:
            yield
        finally:
            self.machine.tool("set", "memory_call_ns=0")

    def run(self, library: Library, words: list[str], *, limited: bool = False, pinned: bool = True) -> dict[str, float]:
        prefix = ["taskset", "-c", str(self.cpu)] if pinned else []
        done = subprocess.run(
            [*prefix, str(self.program), *words],
            env=library.variables(self.base, limited),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"bench {' '.join(words)} under {library.name} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return answer
