"""Time as an argument: whoever waits or compares times takes a Clock, so that tests need not wait.

Owns the interface and the real form.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go back; meaningful as differences only."""

    def now(self) -> datetime:
        """The date in UTC, for annotations and records on disk."""


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(timezone.utc)
