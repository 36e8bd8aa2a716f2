"""Lets one process at a time work on the fleet or on the cache, and lets the second one say who the first is."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import FleetError


@contextmanager
def held(path: Path, purpose: str) -> Iterator[None]:
    """Hold the lock file ``path`` or fail at once.

    The kernel drops the lock with the process, so an interrupted run leaves none behind; the words in the file only name the owner.
    Errors: FleetError with the owner's process id and purpose.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise FleetError(f"cannot {purpose}: {str(path)!r} is held by {owner}; wait for it, or end that process") from error
        file.truncate(0)
        file.write(f"process {os.getpid()} (to {purpose})\n")
        file.flush()
        os.set_inheritable(file.fileno(), False)
        yield
        file.truncate(0)
