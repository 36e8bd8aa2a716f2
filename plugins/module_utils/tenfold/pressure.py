"""Who else works on a card: the host's word for the modes ``elastic`` and ``priority``.

Owns the rule, and nothing else: it takes what every slot of a card claims and says what each page should tell. ``region`` reads the claims
and writes the pages; the device plugin calls all three about once a second (``neighbourhood``).

A claim is a tenant's own: who lies can only hold others down to the share that their mode guarantees them (``elastic``: the core limit,
``priority``: a quarter of it below a higher priority, else all of it), never raise its own. Who hides its work loses its own protection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable

from .region import GpuQuota

__all__ = ["HOLD_SECONDS", "WORK_LEAST_PERCENT", "Sight", "Tenant", "is_measured", "listens", "look", "pressure_on"]

HOLD_SECONDS = 2.5  # a tenant that paused for less, or launches kernels that take longer than a round, has not stopped working
WORK_LEAST_PERCENT = 1.0  # of the time between two looks: less is a desktop that blinks, not a tenant that needs its card


@dataclass(frozen=True)
class Sight:
    """What a slot's counter of GPU time said when it was looked at last. Units: seconds of any steady clock.

    ``worked_at`` is when it was last seen to grow, None: not yet. ``is_known`` is false while a single look cannot tell.
    """

    gpu_time_us: int
    at_seconds: float
    worked_at_seconds: float | None = None
    is_known: bool = True

    def is_working(self, now_seconds: float) -> bool:
        return self.worked_at_seconds is not None and now_seconds - self.worked_at_seconds < HOLD_SECONDS


@dataclass(frozen=True)
class Tenant:
    """A slot on one card. Priority 0 is the highest."""

    slot: str
    priority: int
    is_working: bool


def look(before: Sight | None, gpu_time_us: int, now_seconds: float) -> Sight:
    """The next sight of a slot. A counter that stands at 0 has seen no work; one that went back belongs to a fresh state, or to a liar."""
    if before is None:
        return Sight(gpu_time_us, now_seconds, is_known=gpu_time_us == 0)
    elapsed_us = (now_seconds - before.at_seconds) * 1e6
    grown_us = gpu_time_us - before.gpu_time_us
    has_worked = elapsed_us > 0 and grown_us * 100 >= elapsed_us * WORK_LEAST_PERCENT
    return Sight(gpu_time_us, now_seconds, now_seconds if has_worked else before.worked_at_seconds)


def is_measured(quota: GpuQuota) -> bool:
    """Whether the hook counts this slot's GPU time: it does where there is a limit that could hold."""
    return quota.mode != "off" and 0 < quota.core_limit_percent < 100


def listens(quota: GpuQuota) -> bool:
    """Whether the slot's limit depends on who else works."""
    return quota.mode in ("elastic", "priority") and is_measured(quota)


def pressure_on(slot: str, priority: int, tenants: Iterable[Tenant]) -> str:
    """What the page of ``slot`` should say of its card: one of ``region.PRESSURES``, never "unknown"."""
    working = [tenant.priority for tenant in tenants if tenant.is_working and tenant.slot != slot]
    if not working:
        return "none"
    if min(working) < priority:
        return "higher"
    return "equal" if priority in working else "lower"
