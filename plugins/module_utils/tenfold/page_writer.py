"""Calls into ``libtenfold_page.so``, the one implementation of how a configuration page is written.

Owns finding and loading the library. Its contract is ``files/hook/src/host/page_writer.h``; what goes into a page and what an error means
to people is ``region``'s.

The library is loaded for a call and let go after it: an upgrade removes old versions of the hook that no process maps, and the next call
uses the version that is then in force.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

from .errors import RegionError

__all__ = ["DEFAULT_LIBRARY", "LIBRARY", "WAIT_MS", "create", "teller", "write"]

LIBRARY = "libtenfold_page.so"
DEFAULT_LIBRARY = Path("/usr/local/tenfold/hook/current") / LIBRARY

# A writer holds the lock for microseconds; one that needs longer than this is stuck.
WAIT_MS = 2000


def create(descriptor: int, copy: bytes, abi: int, library: Path | None = None) -> None:
    """Make a page of generation 1 of an open file of a page's size, not seen by readers yet.

    Errors: RegionError when there is no library for this ABI; OSError with the library's number.
    """
    with _loaded(library, abi) as page:
        _check(page.tenfold_page_create(descriptor, copy, len(copy)))


def write(descriptor: int, copy: bytes, abi: int, expected_generation: int = 0, library: Path | None = None) -> int:
    """Put ``copy`` in force in an open page and return its generation; with ``expected_generation`` only over that one.

    Errors: RegionError when there is no library for this ABI; OSError: ESTALE, ETIMEDOUT, EPROTO, EBADMSG, EINVAL (page_writer.h says
    which is which) or the file's own.
    """
    import ctypes

    generation = ctypes.c_uint64()
    with _loaded(library, abi) as page:
        _check(page.tenfold_page_write(descriptor, copy, len(copy), expected_generation, WAIT_MS, ctypes.byref(generation)))
    return generation.value


@contextmanager
def teller(abi: int, library: Path | None = None) -> Iterator[Callable[[int, bytes], None]]:
    """A function that puts one ``tenfold_busy_window`` into an open page; it raises OSError with the library's number.

    For many pages at once: the library is loaded for all of them. Errors: RegionError when there is no library for this ABI.
    """
    with _loaded(library, abi) as page:
        yield lambda descriptor, window: _check(page.tenfold_page_tell_busy(descriptor, window, len(window)))


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))


@contextmanager
def _loaded(library: Path | None, abi: int) -> Iterator[Any]:
    """The library, with its functions declared. Errors: RegionError that says which file and what to do; nothing has been written then."""
    path = library or DEFAULT_LIBRARY
    try:
        import ctypes  # here, because importing it loads the C library
        from _ctypes import dlclose
    except ImportError as error:
        raise RegionError(f"cannot write pages: this Python has no ctypes ({error}); use one that was built with libffi") from error
    try:
        page = ctypes.CDLL(str(path.resolve(strict=True)))
    except (OSError, RuntimeError) as error:
        raise RegionError(
            f"cannot load {str(path)!r}, which writes pages: {error}; install this version of the hook on this node first (role cuda_hook)",
            path=str(path),
        ) from error
    try:
        _declare(page, path, abi)
        yield page
    finally:
        dlclose(page._handle)


def _declare(page: Any, path: Path, abi: int) -> None:
    from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint32, c_uint64

    try:
        page.tenfold_page_abi.restype = c_uint32
        page.tenfold_page_create.argtypes = [c_int, c_char_p, c_size_t]
        page.tenfold_page_tell_busy.argtypes = [c_int, c_char_p, c_size_t]
        page.tenfold_page_write.argtypes = [c_int, c_char_p, c_size_t, c_uint64, c_uint32, POINTER(c_uint64)]
    except AttributeError as error:
        raise RegionError(
            f"{str(path)!r} is no page writer of this version ({error}); upgrade the hook and the device plugin together", path=str(path)
        ) from error
    found = page.tenfold_page_abi()
    if found != abi:
        raise RegionError(
            f"{str(path)!r} writes pages of ABI {found}, expected {abi}; upgrade the hook and the device plugin together",
            path=str(path),
            abi=found,
        )
