"""Running a program on a node.

Owns what a program finds there: no input, messages in English, the standard folders at the end of its PATH, a limit of time.
"""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple, Sequence

__all__ = ["CANNOT_RUN", "NOT_ENDED", "NOT_FOUND", "Done", "must", "run"]

# Exit statuses of what did not run to its end, as shells and timeout(1) have them.
NOT_ENDED, CANNOT_RUN, NOT_FOUND = 124, 126, 127
_STANDARD_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Done(NamedTuple):
    """How a program ended. ``err`` says why where the status is one of the three above."""

    status: int
    out: str
    err: str

    @property
    def has_run(self) -> bool:
        return self.status not in (NOT_ENDED, CANNOT_RUN, NOT_FOUND)

    @property
    def message(self) -> str:
        """What it said, for a person."""
        return self.err.strip() or self.out.strip()


def run(argv: Sequence[str], timeout_seconds: float = 300) -> Done:
    """Never raises for what a program does, or for one that is not there."""
    environment = {**os.environ, "LC_ALL": "C", "PATH": f"{os.environ.get('PATH', '')}:{_STANDARD_FOLDERS}"}
    try:
        done = subprocess.run(
            list(argv), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return Done(NOT_ENDED, "", f"{argv[0]} did not end within {timeout_seconds:g} seconds")
    except FileNotFoundError as error:
        return Done(NOT_FOUND, "", str(error.strerror))
    except OSError as error:
        return Done(CANNOT_RUN, "", str(error.strerror))
    return Done(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def must(argv: Sequence[str], error: type[Exception]) -> str:
    """What a program that must work writes. Errors: the given one, with the command and what it said."""
    done = run(argv)
    if done.status != 0:
        raise error(f"`{' '.join(argv)}` failed with {done.status}: {done.message}")
    return done.out
