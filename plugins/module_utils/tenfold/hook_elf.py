"""What an ELF shared library is and needs, read from its own bytes.

Owns the parser (no readelf on a node) and ``HookError``, the error of everything about the hook's file. ``hook_build`` reports with it
what it built, ``hook_verify`` judges. Source: System V ABI, chapters 4 and 5; Linux Standard Base 5.0, section 10.7 (symbol versions).
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Union

from .errors import TenfoldError, VersionError
from .versions import Version

__all__ = ["GLIBC_FLOOR", "ElfLibrary", "HookError", "parse_glibc_version", "read_library"]

PathLike = Union[str, "os.PathLike[str]"]

GLIBC_FLOOR = "2.17"  # what the hook needs of a node and of an image
MACHINES = {62: "x86_64", 183: "aarch64", 3: "i386", 40: "arm", 243: "riscv", 21: "ppc64", 22: "s390"}
PT_DYNAMIC = 2
PT_LOAD = 1
DT_NEEDED, DT_SONAME, DT_STRTAB, DT_SYMTAB, DT_HASH = 1, 14, 5, 6, 4
DT_INIT, DT_INIT_ARRAY, DT_INIT_ARRAYSZ = 12, 25, 27
DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
MAX_FILE_BYTES = 64 << 20
MAX_RECORDS = 1 << 16


class HookError(TenfoldError):
    """A hook that cannot be built, is not what it should be, or does not do what it must."""


@dataclass(frozen=True)
class ElfLibrary:
    """bits is 32 or 64; needs_versions maps a library to the symbol versions wanted of it; constructors counts what runs at load."""

    machine: str
    bits: int
    soname: str
    needed: tuple[str, ...]
    needs_versions: dict[str, tuple[str, ...]]
    exported: tuple[str, ...]
    constructors: int

    @property
    def needed_glibc(self) -> str:
        """The oldest glibc that has every symbol it wants, as "2.17"; "" if it wants none."""
        versions = [version for wanted in self.needs_versions.values() for version in wanted if version.startswith("GLIBC_")]
        newest = max((parse_glibc_version(version) for version in versions if version != "GLIBC_PRIVATE"), default=None)
        return ".".join(newest.release.split(".")[:2]) if newest else ""


def parse_glibc_version(text: str) -> Version:
    """``GLIBC_2.2.5`` or ``2.31``. Errors: HookError."""
    try:
        return Version.parse(text[6:] if text.startswith("GLIBC_") else text)
    except VersionError as error:
        raise HookError(f"glibc version is {text!r}, expected numbers and dots", version=text) from error


def read_library(path: PathLike) -> ElfLibrary:
    """Errors: HookError naming the file when it is no little-endian ELF shared library or is cut short."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_FILE_BYTES)
    except OSError as error:
        raise HookError(f"cannot read {os.fspath(path)!r}: {error.strerror}", path=os.fspath(path)) from error
    if data[:4] != b"\x7fELF":
        raise HookError(f"{os.fspath(path)!r} is no ELF file", path=os.fspath(path))
    try:
        return _Reader(data).library()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise HookError(f"{os.fspath(path)!r} is cut short or damaged: {error}", path=os.fspath(path)) from error


class _Reader:
    """One file's bytes. Addresses are translated to offsets through the load segments."""

    def __init__(self, data: bytes) -> None:
        if data[5] != 1:
            raise HookError("the library is big-endian, expected little-endian")
        self.data = data
        self.bits = 64 if data[4] == 2 else 32
        self.machine_number: int = struct.unpack_from("<H", data, 18)[0]
        wide = self.bits == 64
        self.segments = []
        offset, size, count = (
            struct.unpack_from("<Q", data, 32)[0] if wide else struct.unpack_from("<I", data, 28)[0],
            struct.unpack_from("<H", data, 54 if wide else 42)[0],
            struct.unpack_from("<H", data, 56 if wide else 44)[0],
        )
        for index in range(count):
            base = offset + index * size
            if wide:
                kind, _flags, file_offset, address, _physical, file_bytes = struct.unpack_from("<IIQQQQ", data, base)
            else:
                kind, file_offset, address, _physical, file_bytes = struct.unpack_from("<IIIII", data, base)
            self.segments.append((kind, file_offset, address, file_bytes))

    def offset_of(self, address: int) -> int:
        for kind, file_offset, start, file_bytes in self.segments:
            if kind == PT_LOAD and start <= address < start + file_bytes:
                return int(file_offset + address - start)
        raise IndexError(f"address {address:#x} is in no segment")

    def text(self, offset: int) -> str:
        return self.data[offset : self.data.index(b"\0", offset)].decode("ascii")

    def dynamic(self) -> list[tuple[int, int]]:
        entries: list[tuple[int, int]] = []
        for kind, file_offset, _address, file_bytes in self.segments:
            if kind == PT_DYNAMIC:
                form = "<qQ" if self.bits == 64 else "<iI"
                step = struct.calcsize(form)
                entries += [struct.unpack_from(form, self.data, file_offset + at) for at in range(0, file_bytes, step)]
        if not entries:
            raise HookError("the file has no dynamic section: it is no shared library")
        end = next((index for index, (tag, _value) in enumerate(entries) if tag == 0), len(entries))
        return entries[:end]

    def library(self) -> ElfLibrary:
        dynamic = self.dynamic()
        first = dict(reversed(dynamic))
        strings = self.offset_of(first[DT_STRTAB])
        constructors = first.get(DT_INIT_ARRAYSZ, 0) // (self.bits // 8) + (1 if first.get(DT_INIT) else 0)
        return ElfLibrary(
            machine=MACHINES.get(self.machine_number, f"machine {self.machine_number}"),
            bits=self.bits,
            soname=self.text(strings + first[DT_SONAME]) if DT_SONAME in first else "",
            needed=tuple(self.text(strings + value) for tag, value in dynamic if tag == DT_NEEDED),
            needs_versions=self.needs_versions(first, strings),
            exported=tuple(sorted(self.exported(first, strings))),
            constructors=constructors,
        )

    def needs_versions(self, first: dict[int, int], strings: int) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        if DT_VERNEED not in first:
            return found
        offset = self.offset_of(first[DT_VERNEED])
        for _ in range(min(first.get(DT_VERNEEDNUM, 0), MAX_RECORDS)):
            _version, count, file_name, auxiliary, following = struct.unpack_from("<HHIII", self.data, offset)
            wanted = []
            at = offset + auxiliary
            for _index in range(count):
                _hash, _flags, _other, name, step = struct.unpack_from("<IHHII", self.data, at)
                wanted.append(self.text(strings + name))
                at += step
            found[self.text(strings + file_name)] = tuple(sorted(wanted))
            if not following:
                break
            offset += following
        return found

    def exported(self, first: dict[int, int], strings: int) -> set[str]:
        """Names of defined global symbols. DT_HASH tells their number (our build asks the linker for both tables)."""
        if DT_HASH not in first:
            raise HookError("the library has no DT_HASH table; link it with --hash-style=both")
        _buckets, count = struct.unpack_from("<II", self.data, self.offset_of(first[DT_HASH]))
        table = self.offset_of(first[DT_SYMTAB])
        names = set()
        for index in range(1, min(count, MAX_RECORDS)):
            if self.bits == 64:
                name, info, _other, section = struct.unpack_from("<IBBH", self.data, table + index * 24)
            else:
                name, _value, _size, info, _other, section = struct.unpack_from("<IIIBBH", self.data, table + index * 16)
            if section and info >> 4 in (1, 2):
                names.add(self.text(strings + name))
        return names
