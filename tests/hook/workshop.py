"""What the hook's tests stand on: built simulator and hook, simulated machines, slots, and programs run under the hook.

Owns building into a cache folder (``TENFOLD_BUILD`` or ``build/`` of the tree; nothing is written into the source folders), and the handle
objects that tests use. ``conftest`` makes fixtures of them; the simulator itself belongs to tests/simulator.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Sequence

from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region

from tests import ROOT

HOOK_SOURCE = ROOT / "files" / "hook"
SIMULATOR = ROOT / "tests" / "simulator"
PROGRAMS = Path(__file__).resolve().parent / "c"
BUILD = Path(os.environ.get("TENFOLD_BUILD", ROOT / "build" / "hook-tests"))
MIB = 1 << 20
# Another model of the driver for all tests that name none, and rules that differ from it: `TENFOLD_SIM_MODEL=a800-535`,
# `TENFOLD_SIM_SET="capture_is_strict=1 pool_growth_bytes=67108864"`. The models are tests/simulator/profiles/models.
MODEL = os.environ.get("TENFOLD_SIM_MODEL", "ideal")
SETTINGS = dict(word.split("=", 1) for word in os.environ.get("TENFOLD_SIM_SET", "").split())


@contextlib.contextmanager
def only_builder(target: Path) -> Iterator[None]:
    """Tests run in several processes that share the cache: one builds, the others wait and find it built."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(target.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(folder: Path, build: Path, *targets: str, **variables: str) -> None:
    """Run make there; a failure shows its output."""
    build.mkdir(parents=True, exist_ok=True)
    words = [f"{name}={value}" for name, value in variables.items()]
    command = ["make", "-s", f"-j{os.cpu_count() or 1}", "-C", str(folder), f"BUILD={build}", *words, *targets]
    with only_builder(build):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def build_simulator(name: str = "simulator", **variables: str) -> Path:
    make(SIMULATOR, BUILD / name, **variables)
    return BUILD / name


def build_hook(name: str = "hook", source: Path = HOOK_SOURCE, **variables: str) -> Path:
    make(source, BUILD / name, **variables)
    return BUILD / name


def build_broken_hook(folder: Path, damage: Callable[[Path], None], **variables: str) -> Path:
    """The hook from sources that ``damage`` changes (their folder is its argument); what it leaves alone is not compiled again."""
    source, build = folder / "source", folder / "build"
    shutil.copytree(HOOK_SOURCE, source, ignore=shutil.ignore_patterns("build"))
    shutil.copytree(build_hook(), build)
    damage(source / "src")
    make(source, build, str(build / "libtenfold.so"), **variables)
    return build


@functools.lru_cache(maxsize=1)
def build_page_library() -> Path:
    """The page writer alone, in a fraction of a second, for tests that need no hook."""
    library = BUILD / "page" / "libtenfold_page.so"
    make(HOOK_SOURCE, BUILD / "page", str(library))
    return library


def compile_program(
    name: str,
    *,
    hook_sources: Sequence[str] = (),
    flags: Sequence[str] = (),
    link: Sequence[str] = (),
    suffix: str = "",
    cc: str = "gcc",
) -> Path:
    """A test program of tests/hook/c, alone or with some of the hook's own sources; compiled again when something changed."""
    out = BUILD / "programs" / (name + suffix)
    sources = [PROGRAMS / f"{name}.c", *(HOOK_SOURCE / "src" / source for source in hook_sources)]
    inputs = [
        *sources,
        *PROGRAMS.glob("*.h"),
        *(HOOK_SOURCE / "include").glob("*.h"),
        *(HOOK_SOURCE / "src").glob("*/*.h"),
        HOOK_SOURCE / "src/abi/hooks.def",
    ]
    includes = [f"-I{HOOK_SOURCE / 'include'}", f"-I{HOOK_SOURCE / 'src'}"]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = [
        cc,
        "-std=c11",
        "-D_GNU_SOURCE",
        "-O1",
        "-g",
        *warnings,
        *flags,
        *includes,
        "-o",
        str(out),
        *map(str, sources),
        *link,
        "-pthread",
        "-ldl",
    ]
    with only_builder(out):
        if out.exists() and all(out.stat().st_mtime > path.stat().st_mtime for path in inputs):
            return out
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return out


@dataclass
class Machine:
    """A simulated machine with its own state file."""

    simulator: Path
    state: Path
    uuids: list[str] = field(default_factory=list)

    @classmethod
    def make(
        cls,
        simulator: Path,
        folder: Path,
        *,
        card: str = "a800-80gb",
        cards: int = 1,
        driver: str = "535",
        model: str = MODEL,
        **settings: object,
    ) -> Machine:
        """settings: keys of the model that differ, for this machine alone."""
        machine = cls(simulator, folder / "machine")
        named = ["--card", card, "--cards", str(cards), "--driver", driver, "--model", model, "--device-nodes", "ignored"]
        changed = [word for name, value in {**SETTINGS, **settings}.items() for word in ("--set", f"{name}={value}")]
        machine.tool("init", *named, "--force", *changed)
        machine.uuids = [card["uuid"] for card in machine.truth()["cards"]]
        return machine

    @property
    def environment(self) -> dict[str, str]:
        return {"TENFOLD_SIM_STATE": str(self.state), "LD_LIBRARY_PATH": str(self.simulator)}

    def tool(self, *words: str) -> str:
        done = subprocess.run(
            [str(self.simulator / "tenfold-sim"), *words, "--state", str(self.state)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"tenfold-sim {' '.join(words)} failed: {done.stderr}")
        return done.stdout

    def truth(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.tool("truth", "--json"))
        return answer

    def allocated_bytes(self, card: int = 0) -> int:
        """Bytes that living processes have allocated on a card, each allocation rounded as the driver does."""
        return sum(
            usage["allocated_bytes"] for process in self.truth()["processes"] for usage in process["cards"] if usage["index"] == card
        )


@dataclass
class Slot:
    """A slot on a machine, with the programs that run in it."""

    folder: Path
    hook: Path
    machine: Machine
    gpus: list[region.GpuQuota]
    policy: str = "closed"

    @property
    def page_library(self) -> Path:
        """This machine's: the hook may be one of another machine."""
        return build_page_library()

    def create(self) -> Slot:
        region.create_slot(self.folder, self.gpus, policy=self.policy, library=self.page_library)
        return self

    def change(self, card: int = 0, **quota: Any) -> None:
        """Put other numbers in force for running processes."""
        self.gpus[card] = region.GpuQuota(**{**vars(self.gpus[card]), **quota})
        region.write_config(self.folder, self.gpus, policy=self.policy, library=self.page_library)

    def state(self) -> region.SlotState:
        return region.read_state(self.folder)

    @property
    def used_bytes(self) -> int:
        return self.state().gpus[0].used_bytes

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            **self.machine.environment,
            "LD_PRELOAD": str(self.hook / "libtenfold.so"),
            "TENFOLD_SLOT_DIR": str(self.folder),
        }

    def start(self, command: Sequence[str | Path], **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(word) for word in command],
            env={**self.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, command: Sequence[str | Path], *, timeout: float = 60, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in command],
            env={**self.environment, **environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def session(self) -> Session:
        return Session(self)


class Session:
    """The self-test program in a slot: a command, then its answer. A context manager."""

    def __init__(self, slot: Slot, launcher: Sequence[str] = ()) -> None:
        self.slot = slot
        self.process = slot.start([*launcher, slot.hook / "tenfold-selftest"])

    def __enter__(self) -> Session:
        assert self.ask(f"open {self.slot.gpus[0].uuid}")["result"] == 0
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the self-test died in {command!r}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def spin_ms(self, kernel_us: int = 2000, milliseconds: int = 500) -> tuple[float, float]:
        """GPU time and wall time, in ms."""
        spun = self.ask(f"spin {kernel_us} {milliseconds}")
        assert spun["result"] == 0
        return spun["gpu_us"] / 1000, spun["wall_us"] / 1000

    def share_percent(self, kernel_us: int = 2000, milliseconds: int = 500) -> float:
        used_ms, wall_ms = self.spin_ms(kernel_us, milliseconds)
        return 100 * used_ms / wall_ms

    def has_the_card(self) -> bool:
        """Does no limit hold it? A busy host takes from a window; a limit of 40 % and what was saved under it leave less in each."""
        return any(self.share_percent(kernel_us=10000) > 70 for _ in range(15))


def has(*programs: str) -> bool:
    return all(shutil.which(program) for program in programs)


@contextlib.contextmanager
def repeating(action: Callable[[], None], period_seconds: float) -> Iterator[None]:
    """Does it beside the test, again and again, until the block ends."""
    ended = threading.Event()

    def rounds() -> None:
        while not ended.wait(period_seconds):
            action()

    thread = threading.Thread(target=rounds)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
