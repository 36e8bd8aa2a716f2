"""What a person follows while the harness works: numbered steps, elapsed seconds, signs of life.

Nothing else in the harness prints. Errors are printed once, by ``__main__``.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .command import last_lines
from .errors import FleetError

HEARTBEAT_SECONDS = 20


class Console:
    """Progress on standard error, so that standard output stays for what a script reads.

    Every line begins with the seconds since the command started.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._started = time.monotonic()
        self._quiet = quiet
        self._lock = threading.Lock()

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, sentence: str) -> None:
        if self._quiet:
            return
        with self._lock:
            print(f"[{self.elapsed_seconds:6.1f} s] {sentence}", file=sys.stderr, flush=True)

    @contextmanager
    def heartbeat(self, what: str) -> Iterator[None]:
        """Say every HEARTBEAT_SECONDS that ``what`` is still going on."""
        started = time.monotonic()
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(HEARTBEAT_SECONDS):
                self.say(f"      {what}: still at it after {time.monotonic() - started:.0f} s")

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def watch(
        self,
        what: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        deadline_seconds: float,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Run a long program with its output in ``log`` and a heartbeat here; its last lines are the error if it fails."""
        words = [str(word) for word in argv]
        log.parent.mkdir(parents=True, exist_ok=True)
        with self.heartbeat(what), log.open("a", encoding="utf-8") as output:
            output.write(f"$ {shlex.join(words)}\n")
            output.flush()
            try:
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **(env or {})}, cwd=cwd
                )
            except FileNotFoundError as error:
                raise FleetError(f"cannot run {words[0]!r}: not found; run 'python3 -m tests.cluster setup'") from error
            try:
                status = process.wait(timeout=deadline_seconds)
            except subprocess.TimeoutExpired as error:
                raise FleetError(f"{what} did not end within {deadline_seconds:.0f} s; its output is in {str(log)!r}") from error
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        if status != 0:
            raise FleetError(f"{what} failed with status {status}, output in {str(log)!r}:\n{last_lines(log.read_text(errors='replace'))}")
