"""How much GPU time a container may use from now on: its limit's rate, and what it has saved.

Owns that sum, which holds however busy the machine is: a program that the host stops earns meanwhile, and the limiter keeps a quarter of a
second of it (limiter.h, TF_LIMIT_BANK_DEFAULT_NS). So one window may be above the limit, by what was saved at its beginning and no more.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region

LIMITER_OFFSET = region.STATE_GPUS_OFFSET + 128  # struct tf_limit_state of the first card; it begins with the credit in nanoseconds
# What a change of the limit leaves of it: 0.5 ms and 20 ms at the lower rate (credit.c), a grant of 1 ms and 8 ms of work in flight.
SAVED_AFTER_CHANGE_MS = 0.5 + 20 + 1 + 8


@dataclass
class Allowance:
    """Begins when it is made. ``saved_ms`` is read from the slot's state unless given."""

    folder: Path
    limit_percent: float
    saved_ms: float = -1.0
    began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.saved_ms < 0:
            with (self.folder / "state").open("rb") as state:
                state.seek(LIMITER_OFFSET)
                self.saved_ms = max(0.0, struct.unpack("<q", state.read(8))[0] / 1e6)

    def check(self, used_ms: float, tolerance_percent: float) -> None:
        """Fails if more was used since the beginning; ``tolerance_percent`` of the time for what the measurements are worth."""
        passed_ms = 1000 * (time.monotonic() - self.began_s)
        most_ms = self.limit_percent / 100 * passed_ms + self.saved_ms
        assert used_ms <= most_ms + tolerance_percent / 100 * passed_ms, (
            f"{used_ms:.1f} ms of GPU time in {passed_ms:.0f} ms, "
            f"but {self.limit_percent} % and {self.saved_ms:.1f} ms saved before are {most_ms:.1f} ms"
        )
