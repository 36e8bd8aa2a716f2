"""What the suites stand on: a card (real or simulated), a built hook, slots, and agents that run in them.

Owns the difference between a real driver and the simulated one, so that no suite knows it. ``agent`` is the program, ``run`` the command.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region

__all__ = ["MIB", "Agent", "Ground", "NotHere"]

MIB = 1 << 20
AGENT = Path(__file__).resolve().parent / "agent.py"
ANSWER_SECONDS = 60


class NotHere(Exception):
    """This check cannot be made on this card or driver; the text says why."""


class Agent:
    """A running program. ``ask`` raises AssertionError when it dies or answers with an error of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-B", str(AGENT)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.send(do, **arguments)
        return self.answer()

    def send(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr
            raise AssertionError(f"the program died with {self.process.wait()}: {self.process.stderr.read().strip()[-500:]}")
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer

    def done(self, do: str, **arguments: Any) -> dict[str, Any]:
        """``ask``, and the driver must say success."""
        answer = self.ask(do, **arguments)
        assert answer["result"] == 0, f"{do} {arguments or ''} gave {answer['result']}"
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class Slot:
    """A slice of the card."""

    folder: Path
    quota: region.GpuQuota
    page_library: Path

    def change(self, **quota: Any) -> None:
        self.quota = region.GpuQuota(**{**vars(self.quota), **quota})
        region.write_config(self.folder, [self.quota], library=self.page_library)

    @property
    def used_bytes(self) -> int:
        return region.read_state(self.folder).gpus[0].used_bytes

    @property
    def overhead_bytes(self) -> int:
        return region.read_state(self.folder).overhead_bytes


@dataclass
class Ground:
    """``base`` is the environment that reaches the driver; ``tolerance_points`` of shares of GPU time.

    The simulated driver runs where builds and other tests run too: a program that the host delays leaves credit unused and spends it later
    (the limiter banks a quarter of a second), so shares there are judged less strictly; the virtual bench judges exactly.
    """

    hook: Path
    uuid: str
    folder: Path
    base: dict[str, str]
    is_simulated: bool
    tolerance_points: float = 3.0
    most_bytes: int = 512 * MIB
    observed: dict[str, Any] = field(default_factory=dict)
    _slots: int = 0

    def slot(self, memory_bytes: int = 256 * MIB, cores: int = 0, **quota: Any) -> Slot:
        self._slots += 1
        # what a context takes differs by driver: only where it is what is looked at, it is charged
        quota.setdefault("overhead", "reserved")
        slot = Slot(
            self.folder / f"slot-{self._slots}", region.GpuQuota(self.uuid, memory_bytes, cores, **quota), self.hook / "libtenfold_page.so"
        )
        region.create_slot(slot.folder, [slot.quota], library=slot.page_library)
        return slot

    @contextlib.contextmanager
    def agents(self, *slots: Slot | None) -> Iterator[list[Agent]]:
        """One open program per slot; None is a program without the hook."""
        running: list[Agent] = []
        try:
            for slot in slots:
                running.append(self.start(slot))
                running[-1].done("open", uuid=self.uuid)
            yield running
        finally:
            for agent in running:
                agent.kill()

    def start(self, slot: Slot | None) -> Agent:
        hooked = {"LD_PRELOAD": str(self.hook / "libtenfold.so"), "TENFOLD_SLOT_DIR": str(slot.folder)} if slot else {}
        return Agent({**self.base, **hooked})

    def hooked_symbols(self, prefix: str = "cu") -> list[str]:
        lines = (self.hook / "symbols.txt").read_text(encoding="utf-8").splitlines()
        return [line.split()[0] for line in lines if line.startswith(prefix)]


def cards(environment: dict[str, str]) -> dict[str, Any]:
    """What a program without the hook finds: result of cuInit and UUIDs."""
    agent = Agent(environment)
    try:
        return agent.ask("cards")
    finally:
        agent.kill()


def plain_environment(
    names: Sequence[str] = ("PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
) -> dict[str, str]:
    """The caller's, without anything that hooks already."""
    return {name: os.environ[name] for name in names if name in os.environ}
