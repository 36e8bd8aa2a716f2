"""Waits for a condition with a deadline, never for time, and says what it waited for when it gives up."""

from __future__ import annotations

import time
from collections.abc import Callable

from .errors import FleetError

# A condition here costs a few milliseconds to ask; 20 Hz keeps the start of the fleet free of rounding up.
PAUSE_SECONDS = 0.05


def until(
    what: str,
    condition: Callable[[], str | None],
    *,
    deadline_seconds: float,
    diagnose: Callable[[], str] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Ask ``condition`` until it answers None; its answer otherwise says what is missing.

    Returns the seconds it took.
    Errors: FleetError that names ``what``, the last answer, and what ``diagnose`` found (a journal, say).
    """
    started = clock()
    while True:
        missing = condition()
        waited = clock() - started
        if missing is None:
            return waited
        if waited >= deadline_seconds:
            evidence = f"\n{diagnose()}" if diagnose else ""
            raise FleetError(f"waited {deadline_seconds:.0f} s for {what}: {missing}{evidence}")
        sleep(PAUSE_SECONDS)
