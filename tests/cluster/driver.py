"""The simulated NVIDIA driver on GPU machines: built from ``tests/simulator``, laid out as the real driver's packages do.

Owns building it into the cache, which file goes where, and the unit that stands for loading the kernel module at boot (device nodes
and the machine's cards). What a card does is the simulator's business.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT

from . import fingerprint
from .console import Console
from .disk import Content
from .errors import FleetError
from .layout import Machine
from .machine import MachineFile
from .paths import Paths, keep_newest
from .systemd import Unit

SIMULATOR = ROOT / "tests" / "simulator"
BUILD_DEADLINE_SECONDS = 600
BUILDS_KEPT = 4
CARD_MODEL = "a800-80gb"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
PROFILES = "usr/share/tenfold-sim/profiles"
CONFIG_FILE = "/etc/tenfold-sim/machine.conf"
UNIT = Unit(
    "fleet-driver.service",
    "NVIDIA driver (simulated): cards and device nodes",
    ["/usr/bin/tenfold-sim", "boot", "--config", CONFIG_FILE],
    once=True,
)
# parts of the simulator's tree that do not end in its binaries
NOT_SOURCES = ("build", "tests", "__pycache__")


@dataclass(frozen=True)
class Driver:
    """folder holds the built simulator: libraries with their links, programs, profiles."""

    folder: Path

    @property
    def key(self) -> str:
        return self.folder.name

    @property
    def version(self) -> str:
        """The driver version that the libraries carry in their names, "535.161.08"."""
        found = sorted(self.folder.glob("libcuda.so.*.*"))
        if not found:
            raise FleetError(f"no libcuda.so.<version> in {str(self.folder)!r}; remove that folder and run again")
        return found[0].name.removeprefix("libcuda.so.")

    def contents(self) -> list[Content]:
        """Libraries with their soname links, programs, card profiles."""
        libraries = sorted(self.folder.glob("lib*.so*"))
        profiles = sorted(path for path in (self.folder / "profiles").rglob("*") if path.is_file())
        return [
            *(Content(f"{LIBRARIES}/{path.name}", str(path.readlink()) if path.is_symlink() else path) for path in libraries),
            *(Content(f"usr/bin/{name}", self.folder / name) for name in ("nvidia-smi", "tenfold-sim")),
            *(Content(f"{PROFILES}/{path.relative_to(self.folder / 'profiles')}", path) for path in profiles),
        ]

    def files(self, machine: Machine) -> list[MachineFile]:
        """The machine's cards; their UUIDs come from its name, so that they stay over rebuilds and differ between machines."""
        options = {"card": CARD_MODEL, "cards": machine.cards, "driver": self.version, "uuid-seed": machine.name}
        text = "".join(f"{name} {value}\n" for name, value in options.items())
        return [MachineFile(CONFIG_FILE, text), MachineFile(f"/etc/systemd/system/{UNIT.name}", UNIT.text())]


def ensure(paths: Paths, console: Console) -> Driver:
    """Build the simulator if the cache lacks this version of its sources."""
    if not (SIMULATOR / "Makefile").is_file():
        raise FleetError(f"no simulated driver: {str(SIMULATOR / 'Makefile')!r} is missing; use --without-driver for machines without one")
    sources = [path for path in SIMULATOR.rglob("*") if path.is_file() and not set(path.relative_to(SIMULATOR).parts) & set(NOT_SOURCES)]
    folder = paths.cache / "driver" / fingerprint.of_files(SIMULATOR, sources)
    if not folder.is_dir():
        staging = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        log = paths.logs / "driver.log"
        log.unlink(missing_ok=True)
        console.say("simulated driver: building")
        argv = ["make", "-C", str(SIMULATOR), f"BUILD={staging}"]
        console.watch("simulated driver", argv, log=log, deadline_seconds=BUILD_DEADLINE_SECONDS)
        shutil.rmtree(staging / "obj", ignore_errors=True)
        staging.rename(folder)
        # machines have hard links to the files of theirs
        keep_newest(folder.parent, "[0-9a-f]*", BUILDS_KEPT)
    return Driver(folder)
