"""Every error that the domain raises.

Owns the error types; the message is for a person, ``details`` for a program (an Ansible module returns them as ``error_details``).
Who catches decides what to do; the domain never logs and never exits.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CardError",
    "DriverError",
    "MergeError",
    "QuantityError",
    "RegionError",
    "TenfoldError",
    "TierError",
    "VersionError",
    "WireError",
]


class TenfoldError(Exception):
    """Something the caller gave us is wrong, or something we read is not what it should be.

    ``str(error)`` says what is wrong, where, and what to do. ``details`` holds the same facts as plain values (str, int, float, bool,
    None, lists and dicts of them).
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details


class TierError(TenfoldError):
    """A tier file, or a request for a slice, that cannot be served. ``details["problems"]`` lists every one with its key path."""


class CardError(TenfoldError):
    """A card model that Tenfold does not know, or a card that cannot carry slices."""


class WireError(TenfoldError):
    """An annotation that is not in the scheduler's format."""


class RegionError(TenfoldError):
    """A slot's configuration page or state that cannot be read or written."""


class MergeError(TenfoldError):
    """A user's file that cannot be merged; ``details`` names file and line where known."""


class DriverError(TenfoldError):
    """A driver version that is unreadable or below a floor."""


class VersionError(TenfoldError):
    """A text that states no version."""


class QuantityError(TenfoldError):
    """A Kubernetes quantity that is not an integer amount."""
