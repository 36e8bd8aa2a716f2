"""The simulated NVIDIA driver on GPU machines: built from ``tests/simulator``, installed where the real one's package would.

Owns building it into the cache, and the unit that stands for the driver's kernel module at boot (device nodes, the simulated cards).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from . import fingerprint
from .console import Console
from .errors import FleetError
from .paths import ROOT, Paths

SIMULATOR = ROOT / "tests" / "simulator"
BUILD_DEADLINE_SECONDS = 600


@dataclass(frozen=True)
class Driver:
    """folder holds the built simulator."""

    folder: Path

    @property
    def key(self) -> str:
        return self.folder.name


def ensure(paths: Paths, console: Console) -> Driver:
    """Build the simulator if the cache lacks this version of its sources."""
    if not (SIMULATOR / "Makefile").is_file():
        raise FleetError(f"no simulated driver: {str(SIMULATOR / 'Makefile')!r} is missing; use --without-driver for machines without one")
    sources = [path for path in SIMULATOR.rglob("*") if path.is_file() and "build" not in path.parts and "__pycache__" not in path.parts]
    folder = paths.cache / "driver" / fingerprint.of_files(SIMULATOR, sources)
    if not folder.is_dir():
        staging = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        argv = ["make", "-C", str(SIMULATOR), f"BUILD={staging}"]
        console.say("simulated driver: building")
        console.watch("simulated driver", argv, log=paths.logs / "driver.log", deadline_seconds=BUILD_DEADLINE_SECONDS)
        staging.rename(folder)
    return Driver(folder)
