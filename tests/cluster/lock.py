"""Lets one process at a time work on the fleet or on the cache, and lets the second one say who the first is."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from . import wait
from .console import Console
from .errors import FleetError


@contextmanager
def held(path: Path, purpose: str) -> Iterator[None]:
    """Hold the lock file ``path`` or fail at once.

    The kernel drops the lock with the process, so an interrupted run leaves none behind; the words in the file only name the owner.
    Errors: FleetError with the owner's process id and purpose.
    """
    with _opened(path) as file:
        if not _taken(file):
            raise FleetError(f"cannot {purpose}: {str(path)!r} is held by {_owner(file)}; wait for it, or end that process")
        with _signed(file, purpose):
            yield


@contextmanager
def awaited(path: Path, purpose: str, console: Console, *, deadline_seconds: float) -> Iterator[None]:
    """Hold the lock file ``path`` as soon as whoever has it is done, and say whom we wait for.

    Errors: FleetError after deadline_seconds.
    """
    with _opened(path) as file:
        if not _taken(file):
            console.say(f"waiting to {purpose}: {_owner(file)} is at work")
            wait.until(f"the lock {str(path)!r}", lambda: None if _taken(file) else _owner(file), deadline_seconds=deadline_seconds)
        with _signed(file, purpose):
            yield


def _opened(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a+", encoding="utf-8")


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "another process"


@contextmanager
def _signed(file: IO[str], purpose: str) -> Iterator[None]:
    file.truncate(0)
    file.write(f"process {os.getpid()} (to {purpose})\n")
    file.flush()
    try:
        yield
    finally:
        file.truncate(0)
