"""Files that appear whole or not at all, and reading one that may not be there.

Owns how a file is put in place. Every function raises OSError as the system does; callers know what the file is for and say so.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import BinaryIO, Callable, Iterator

__all__ = ["read", "replacing", "write"]


@contextlib.contextmanager
def replacing(
    path: Path, mode: int = 0o644, durable: bool = False, move: Callable[[Path, Path], object] | None = None
) -> Iterator[BinaryIO]:
    """A stream whose content is the file at ``path`` once the block ends, by rename; after any exception everything is as before.

    ``durable``: on the disk, and so is its name, before this returns. ``move(temporary, path)`` takes the place of the rename: it may look
    at the complete file first, and raise. The temporary file lies beside the other one, begins with a dot and has no suffix that a reader
    of the folder (CDI, drop-ins) knows.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=str(path.parent))
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            if durable:
                os.fsync(stream.fileno())
        if move is None:
            temporary.replace(path)
        else:
            move(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    if durable:
        folder = os.open(str(path.parent), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write(
    path: Path, text: str | None, mode: int = 0o644, durable: bool = False, move: Callable[[Path, Path], object] | None = None
) -> None:
    """Puts a text there, with the folders above it; None takes the file away. The rest as in ``replacing``."""
    if text is None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with replacing(path, mode, durable, move) as stream:
        stream.write(text.encode("utf-8"))


def read(path: Path) -> str | None:
    """The file's text with its own line ends, None if there is no file. Errors: OSError, and UnicodeDecodeError for what is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
