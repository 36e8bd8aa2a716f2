"""The two values that the fit rule and the annotation codec share: what a container asks for, what it was given.

Owns nothing but these shapes. ``fit`` decides, ``wire`` reads and writes them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Assignment", "SliceRequest"]


@dataclass(frozen=True)
class SliceRequest:
    """What one container asks of every card that it gets.

    Units:  number = distinct cards; memory_mib per card, None = the whole card; cores_percent of one card, 0 = no share asked for;
            memory_percent of each card, given only where the scheduler is configured to know vgpu-memory-percentage (then
            memory_mib does not count).
    Source: Volcano v1.15.1 pkg/scheduler/api/devices/util.go, ExtractResourceRequest.
    """

    number: int
    memory_mib: int | None = None
    cores_percent: int = 0
    memory_percent: int | None = None

    def memory_on(self, card_memory_mib: int) -> int:
        """MiB that this request takes of a card with that (published) total; a percentage is rounded down."""
        if self.memory_percent is not None:
            # float arithmetic on purpose: the scheduler's own, so that both round alike
            return int(float(card_memory_mib) * float(self.memory_percent) / 100.0)
        return card_memory_mib if self.memory_mib is None else self.memory_mib


@dataclass(frozen=True)
class Assignment:
    """One card, or a share of it, in one container's segment of ``volcano.sh/vgpu-ids-new``.

    Units: memory_mib of that card, cores_percent of that card. ``type`` is what the scheduler writes, always ``NVIDIA``.
    """

    uuid: str
    type: str
    memory_mib: int
    cores_percent: int
