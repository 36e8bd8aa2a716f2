"""Runs one foreign program with a deadline and turns its failure into a sentence.

Long builds that should show signs of life go through ``console.Console.watch`` instead.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from .errors import FleetError

# Enough of a failing program's last words to see the cause, few enough to read.
ERROR_LINES = 15


def run(
    argv: Sequence[str | Path],
    *,
    deadline_seconds: float = 60,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: IO[bytes] | None = None,
    text_in: str | None = None,
    allowed: Sequence[int] = (0,),
) -> subprocess.CompletedProcess[str]:
    """Run ``argv`` to its end and return it with its output.

    Units:  ``env`` is added to this process' environment; ``allowed`` lists the exit statuses that are no failure.
    Errors: FleetError with the command line, the status and the last lines it printed.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            stdin=stdin if stdin is not None else (None if text_in is not None else subprocess.DEVNULL),
            input=text_in,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=deadline_seconds,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError as error:
        raise FleetError(f"cannot run {words[0]!r}: not found; run 'python3 -m tests.cluster setup'") from error
    except subprocess.TimeoutExpired as error:
        raise FleetError(f"`{shlex.join(words)}` did not end within {deadline_seconds:.0f} s") from error
    if done.returncode not in allowed:
        raise FleetError(f"`{shlex.join(words)}` ended with status {done.returncode}:\n{last_lines(done.stderr or done.stdout)}")
    return done


def last_lines(text: str) -> str:
    """The end of a program's output, indented for a message."""
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-ERROR_LINES:]) or "    (it printed nothing)"
