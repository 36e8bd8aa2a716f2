"""The one error of the harness: what is wrong, where, and what to do about it."""

from __future__ import annotations


class FleetError(RuntimeError):
    """Raised by every part of the harness; only the command line catches it."""
