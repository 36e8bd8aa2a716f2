"""Content keys of cached things: same inputs, same twelve hex digits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

KEY_DIGITS = 12


def of(*parts: str | bytes) -> str:
    """Key of an ordered list of inputs; the length of each is part of it, so that ("ab", "c") is not ("a", "bc")."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()[:KEY_DIGITS]


def of_files(root: Path, files: Iterable[Path]) -> str:
    """Key of files by name under ``root``, mode and content."""
    parts: list[str | bytes] = []
    for file in sorted(files):
        parts += [str(file.relative_to(root)), oct(file.stat().st_mode & 0o111), file.read_bytes()]
    return of(*parts)
