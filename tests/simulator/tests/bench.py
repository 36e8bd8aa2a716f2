"""What the simulator's tests stand on: the built driver, simulated machines, and processes under remote control."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Sequence

HERE = Path(__file__).resolve().parent
SIMULATOR = HERE.parent
CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
MIB = 1 << 20
BLOCK = 2 * MIB

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 0, 1, 2, 3
NO_DEVICE, INVALID_CONTEXT, CONTEXT_IS_DESTROYED, INVALID_HANDLE, NOT_FOUND, NOT_READY, NOT_SUPPORTED = 100, 201, 709, 400, 500, 600, 801

SPIN = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry tenfold_spin(.param .u32 us)\n{ ret; }\n.entry other()\n{ ret; }\n"


def build(folder: Path, **variables: str) -> Path:
    """The driver, built into folder. Raises with the compiler's output."""
    words = [f"{name}={value}" for name, value in variables.items()]
    command = ["make", "-s", f"-j{os.cpu_count() or 1}", "-C", str(SIMULATOR), f"BUILD={folder}", *words]
    with (folder / ".lock").open("w") as lock:  # tests run in several processes: one builds, the others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"make failed:\n{done.stdout}{done.stderr}")
    return folder


def out(kind: str) -> list[str]:
    return ["out", kind]


class CudaError(AssertionError):
    """A call did not answer what the test needs to go on."""


class Process:
    """A process that uses the simulated driver; killed at the end of its ``with``."""

    def __init__(self, environment: dict[str, str], prefix: Sequence[str] = ()) -> None:
        self.child = subprocess.Popen(
            [*prefix, sys.executable, "-S", str(HERE / "agent.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **environment},
        )
        self.context = 0
        self.function = 0

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        for stream in (self.child.stdin, self.child.stdout):
            if stream:
                stream.close()

    def close(self) -> None:
        """Ends it the ordinary way."""
        assert self.child.stdin
        self.child.stdin.close()
        self.child.wait(timeout=20)

    def send(self, library: str, symbol: str, *words: object) -> None:
        assert self.child.stdin
        self.child.stdin.write(json.dumps([library, symbol, list(words)]) + "\n")
        self.child.stdin.flush()

    def receive(self) -> list[Any]:
        assert self.child.stdout
        line = self.child.stdout.readline()
        if not line:
            raise CudaError(f"the process died with {self.child.wait(timeout=10)}")
        answer: list[Any] = json.loads(line)
        return answer

    def ask(self, library: str, symbol: str, *words: object) -> list[Any]:
        """Result code, then the outputs."""
        self.send(library, symbol, *words)
        return self.receive()

    def cuda(self, symbol: str, *words: object) -> list[Any]:
        return self.ask(CUDA, symbol, *words)

    def nvml(self, symbol: str, *words: object) -> list[Any]:
        return self.ask(NVML, symbol, *words)

    def special(self, name: str, *words: object) -> Any:
        return self.ask("", name, *words)[1]

    def must(self, symbol: str, *words: object) -> Any:
        """The call's output (one value, a list of them, or None); CudaError unless it succeeds."""
        code, *outputs = self.ask(NVML if symbol.startswith("nvml") else CUDA, symbol, *words)
        if code:
            raise CudaError(f"{symbol} answered {code}")
        return outputs[0] if len(outputs) == 1 else outputs or None

    def start(self, device: int = 0) -> Process:
        """cuInit and a context on the device."""
        self.must("cuInit", 0)
        self.context = self.must("cuCtxCreate_v2", out("u64"), 0, device)
        return self

    def alloc(self, size_bytes: int) -> int:
        address: int = self.must("cuMemAlloc_v2", out("u64"), size_bytes)
        return address

    def free(self, address: int) -> None:
        self.must("cuMemFree_v2", address)

    def info(self) -> tuple[int, int]:
        free, total = self.must("cuMemGetInfo_v2", out("u64"), out("u64"))
        return free, total

    def load_spin(self, name: str = "tenfold_spin", text: str = SPIN) -> int:
        module = self.must("cuModuleLoadData", out("u64"), text)
        self.function = self.must("cuModuleGetFunction", out("u64"), module, name)
        return self.function

    def launch(self, duration_us: int, count: int = 1, stream: int = 0, symbol: str = "cuLaunchKernel") -> float:
        """Seconds that the launch calls themselves took."""
        if not self.function:
            self.load_spin()
        code, seconds = self.ask("", "launch", self.function, duration_us, count, stream, symbol)
        if code:
            raise CudaError(f"{symbol} answered {code}")
        return float(seconds)

    def synchronize(self) -> None:
        self.must("cuCtxSynchronize")


@dataclass
class Machine:
    """A simulated machine: its state file and the driver that goes with it."""

    driver: Path
    state: Path
    processes: list[Process] = field(default_factory=list)

    def tool(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self.driver / "tenfold-sim"), "--state", str(self.state), *words], capture_output=True, text=True, timeout=30, check=False
        )
        if check and done.returncode:
            raise RuntimeError(f"tenfold-sim {' '.join(words)}: {done.stderr}")
        return done

    def init(self, card: str = "a800-80gb", cards: int = 2, driver: str = "535", model: str = "ideal", **settings: object) -> Machine:
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        named = ["--card", card, "--cards", str(cards), "--driver", driver, "--model", model]
        self.tool("init", *named, "--uuid-seed", "test", "--force", *words)
        return self

    @property
    def environment(self) -> dict[str, str]:
        return {"TENFOLD_SIM_STATE": str(self.state), "LD_LIBRARY_PATH": str(self.driver)}

    def process(self, *prefix: str) -> Process:
        """prefix: a command that runs the process, such as unshare."""
        process = Process(self.environment, prefix)
        self.processes.append(process)
        return process

    def truth(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.tool("truth", "--json").stdout)
        return answer

    def card(self, index: int = 0) -> dict[str, Any]:
        answer: dict[str, Any] = self.truth()["cards"][index]
        return answer

    def usage(self, process: Process, card: int = 0) -> dict[str, Any]:
        """A live process's usage of a card."""
        for entry in self.truth()["processes"]:
            if entry["pid"] == process.child.pid and entry["cards"][card]["contexts"]:
                usage: dict[str, Any] = entry["cards"][card]
                return usage
        raise CudaError(f"pid {process.child.pid} has no context on card {card}")

    def smi(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.driver / "nvidia-smi"), *words],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={"PATH": os.environ["PATH"], **self.environment},
        )

    def close(self) -> None:
        for process in self.processes:
            process.kill()


@dataclass(frozen=True)
class Symbol:
    """An exported name: what cuGetProcAddress is asked for to get it (empty: it never is), since which CUDA version."""

    exported: str
    asked: str
    version: int
    is_per_thread: bool = False
    is_stub: bool = False


def symbols() -> list[Symbol]:
    """What cuda_symbols.def lists, in its order."""
    found = []
    table = (SIMULATOR / "src" / "cuda" / "cuda_symbols.def").read_text().partition("*/")[2]
    for row in re.finditer(r"(SYMBOL|SYMBOL_TWINS|STUB|STUB_TWINS|UNROUTED)\((.*?)\)", table):
        kind, words = row[1], [word.strip() for word in row[2].split(",")]
        is_stub = kind.startswith("STUB")
        if kind == "UNROUTED":
            found.append(Symbol(words[0], "", int(words[1])))
        elif kind.endswith("TWINS"):
            name, suffix, asked, version, twin_version = words
            found.append(Symbol(name, asked, int(version), is_stub=is_stub))
            found.append(Symbol(name + suffix, asked, int(twin_version), is_per_thread=True, is_stub=is_stub))
        else:
            found.append(Symbol(words[0], words[1], int(words[2]), is_stub=is_stub))
    return found


def run(command: Sequence[str], timeout: float = 60) -> str:
    done = subprocess.run(list(command), capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}"
    return done.stdout
