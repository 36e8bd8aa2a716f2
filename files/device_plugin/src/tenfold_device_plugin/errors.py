"""Errors of the device plugin, typed by what to do next.

Owns nothing but the types; the domain's own errors (wrong annotations, tiers, pages) are ``_domain.errors``.
"""

from __future__ import annotations

__all__ = [
    "CardsUnavailable",
    "CdiError",
    "ClusterUnavailable",
    "Conflict",
    "LedgerError",
    "PermanentRefusal",
    "Refused",
    "Rejected",
    "SettingsError",
]


class SettingsError(Exception):
    """A switch is wrong: stop and say so."""


class ClusterUnavailable(Exception):
    """The API server did not answer or answered with a failure of its own: try again later."""


class Conflict(Exception):
    """The object is not the one we meant (deleted, another UID, changed): look again and decide anew."""


class Rejected(Exception):
    """The API server understands the write and will not have it (rights, a policy, a webhook, size): tell people, try again rarely."""


class CardsUnavailable(Exception):
    """NVML is absent or does not answer: no card can be advertised until it does."""


class LedgerError(Exception):
    """The ledger on disk cannot be read or written: give out nothing that we could forget."""


class CdiError(Exception):
    """The node's NVIDIA CDI specification is missing, unreadable or does not know the card."""


class Refused(Exception):
    """A container must not start now; the kubelet tries again. ``reason`` is a word for events and metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PermanentRefusal(Refused):
    """A container must not start with this pod object at all: waiting does not help."""
