"""Version numbers as programs write them, and their order.

Owns reading and comparing. Which version is old enough for what is said where it matters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import TypeVar

from .errors import VersionError

__all__ = ["Version"]

_Version = TypeVar("_Version", bound="Version")
_FORM = re.compile(r"v?(\d+(?:\.\d+)*)([-+~].*)?", re.ASCII)
_IN_OUTPUT = re.compile(r"\bv?(\d+\.\d+(?:\.\d+)*)([-+.~\w]*)", re.ASCII)


@total_ordering
@dataclass(frozen=True, eq=False)
class Version:
    """``text`` as it was written, without a leading v; ``release`` is its numbers, ``parts`` the same to compare (missing ones count as 0).

    What follows the numbers is no part of the order: 1.16.0-alpha.1 has everything that we ask 1.16 for.
    """

    text: str
    release: str
    parts: tuple[int, ...]

    @classmethod
    def parse(cls: type[_Version], text: str) -> _Version:
        """From ``535.104.05``, ``v1.31.4+k3s1``, ``1.7.24~ds1`` or ``440``. Errors: VersionError for anything else."""
        match = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise VersionError(f"version is {text!r}, expected numbers and dots such as 1.7.24", version=str(text))
        return cls._of(match)

    @classmethod
    def find(cls: type[_Version], output: str) -> _Version | None:
        """The first version of at least two numbers in what a program writes, None if there is none."""
        match = _IN_OUTPUT.search(output)
        return cls._of(match) if match else None

    @classmethod
    def _of(cls: type[_Version], match: re.Match[str]) -> _Version:
        parts = [int(part) for part in match.group(1).split(".")]
        while len(parts) > 1 and parts[-1] == 0:
            parts.pop()
        return cls(match.group(1) + (match.group(2) or ""), match.group(1), tuple(parts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __lt__(self, other: Version) -> bool:
        return self.parts < other.parts

    def __str__(self) -> str:
        return self.text
