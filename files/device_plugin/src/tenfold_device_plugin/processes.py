"""Processes of the node as /proc shows them: when they began, what they have mounted.

Owns reading /proc, and nothing else. It must be the node's own: in a pod that takes ``hostPID``. A process may end at any moment, so every
answer may be None.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Processes"]

START_TIME = 22  # number of the field in /proc/<pid>/stat, proc_pid_stat(5); the second may hold anything, spaces and brackets included


@dataclass(frozen=True)
class Processes:
    proc: Path = Path("/proc")

    def pids(self) -> list[int]:
        return [int(path.name) for path in self.proc.iterdir() if path.name.isdecimal()]

    def started_ticks(self, pid: int) -> int | None:
        """Clock ticks since the boot; with the pid it names a process for ever."""
        text = self._read(f"{pid}/stat")
        try:
            return int(text.rpartition(")")[2].split()[START_TIME - 3]) if text else None
        except (IndexError, ValueError):
            return None

    def mountinfo(self, pid: int | str) -> str | None:
        """The mount table of its namespace as far as its root reaches; pid may be "self"."""
        return self._read(f"{pid}/mountinfo")

    def is_of_node(self, pid: int) -> bool | None:
        """Whether it lives among the mounts of the node itself, those of pid 1."""
        try:
            return os.readlink(self.proc / str(pid) / "ns" / "mnt") == os.readlink(self.proc / "1" / "ns" / "mnt")
        except OSError:
            return None

    def _read(self, name: str) -> str | None:
        try:
            return (self.proc / name).read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return None
