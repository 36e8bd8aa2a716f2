"""The library's file: what it needs and exports, the same bytes twice,
other compilers. Another machine: test_other_machine. Old userlands: test_userlands.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import hook_elf, hook_verify

from tests.hook import workshop
from tests.hook.workshop import HOOK_SOURCE, Slot
from tools import check_layers

HOOKS_DEF = HOOK_SOURCE / "src" / "abi" / "hooks.def"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_library_needs_libc_alone_and_nothing_newer_than_2_17(hook: Path) -> None:
    library = hook_elf.read_library(hook / "libtenfold.so")
    assert library.needed == ("libc.so.6",)
    assert library.needed_glibc == "2.17"
    assert library.constructors == 0


def test_the_page_writer_is_built_by_the_same_rules(hook: Path) -> None:
    library = hook_elf.read_library(hook / "libtenfold_page.so")
    assert (library.needed, library.needed_glibc, library.constructors) == (("libc.so.6",), "2.17", 0)
    assert library.exported == hook_verify.PAGE_SYMBOLS


def test_exports_are_hooks_def_and_nothing_else(hook: Path) -> None:
    library = hook_elf.read_library(hook / "libtenfold.so")
    assert library.exported == hook_verify.expected_symbols(HOOKS_DEF.read_text())
    assert set(library.exported) == set(hook_verify.expected_symbols((hook / "symbols.txt").read_text()))


def test_every_hooked_symbol_is_one_that_drivers_export(simulator: Path) -> None:
    driver = subprocess.run(
        ["nm", "-D", "--defined-only", str(simulator / "libcuda.so.1")], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in driver.splitlines()}
    hooked = {name for name in hook_verify.expected_symbols(HOOKS_DEF.read_text()) if name.startswith("cu")}
    assert hooked - exported == set()


def test_each_per_thread_twin_of_a_hooked_symbol_is_hooked_too(simulator: Path) -> None:
    """A program compiled for per-thread streams would else go around us."""
    driver = subprocess.run(
        ["nm", "-D", "--defined-only", str(simulator / "libcuda.so.1")], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in driver.splitlines()}
    hooked = set(hook_verify.expected_symbols(HOOKS_DEF.read_text()))
    twins = {name + suffix for name in hooked for suffix in ("_ptsz", "_ptds")} & exported
    assert twins - hooked == set()


def test_the_linker_sees_no_use_upwards_no_circle_and_nothing_that_the_reader_of_sources_misses(hook: Path) -> None:
    """tools/check_layers.py reads text; here are the symbols of the objects, whatever macro or declaration they came by."""
    read = check_layers.c_edges(HOOK_SOURCE / "src")
    owners: dict[str, str] = {}
    wanted: dict[str, set[str]] = {}
    for path in sorted((hook / "obj").glob("*/*.o")):
        file = f"{path.parent.name}/{path.stem}".replace("hooks/entry", f"hooks/entry_{platform.machine()}")
        if file not in read:
            continue  # of sources that are no more
        for line in subprocess.run(["nm", str(path)], capture_output=True, text=True, check=True).stdout.splitlines():
            kind, symbol = line.split()[-2:]
            if kind == "U":
                wanted.setdefault(file, set()).add(symbol)
            elif kind.isupper():
                owners[symbol] = file
    edges = {file: {owners[symbol] for symbol in symbols & owners.keys()} for file, symbols in wanted.items()}
    assert len(edges) > 30
    assert [*check_layers.upward_uses(edges), *check_layers.circles(edges)] == []
    exports = {owners[symbol] for symbol in hook_verify.expected_symbols((hook / "symbols.txt").read_text())}
    for file, needs in edges.items():  # the table of hooked functions names its rows by hooks.def
        assert needs <= reached(read, file) | (exports if file == "hooks/resolve" else set()), file


def reached(edges: check_layers.Edges, start: str) -> set[str]:
    """Files that *start* needs, and those that they need: an inline function of a header brings what it uses."""
    seen, todo = {start}, [start]
    while todo:
        new = edges[todo.pop()] - seen
        seen |= new
        todo += new
    return seen


@pytest.mark.full
def test_two_builds_in_two_places_give_the_same_bytes(hook: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "hook"
    shutil.copytree(HOOK_SOURCE, copy)
    workshop.make(copy, tmp_path / "out", "all")
    for name in ("libtenfold.so", "libtenfold_page.so", "vgpuctl", "tenfold-selftest"):
        assert digest(tmp_path / "out" / name) == digest(hook / name), name


def compilers() -> list[str]:
    """Those that the project installs where Debian has them, and whatever else is here. An older one: test_userlands."""
    found = {file.name for folder in os.environ["PATH"].split(":") for file in Path(folder).glob("gcc-[0-9]*")}
    return sorted({"clang", "gcc-11", *(name for name in found if re.fullmatch(r"gcc-\d+", name))})


@pytest.mark.full
@pytest.mark.parametrize("compiler", compilers())
def test_other_compilers_build_it_without_a_warning(tmp_path: Path, compiler: str) -> None:
    if not workshop.has(compiler):
        pytest.skip(f"{compiler} is not installed")
    workshop.make(HOOK_SOURCE, tmp_path / "out", "all", CC=compiler)
    assert hook_elf.read_library(tmp_path / "out" / "libtenfold.so").needed_glibc == "2.17"


def test_the_same_program_on_this_machine(slot: Slot, tmp_path: Path) -> None:
    driver = tmp_path / "libcuda.so.1"
    source = workshop.PROGRAMS / "private_driver.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", str(driver), str(source)], check=True, timeout=60)
    done = slot.run([workshop.compile_program("next")], LD_LIBRARY_PATH=str(tmp_path), TENFOLD_SLOT_DIR="")
    assert done.stdout.split() == ["next-same", "driver-hooked", "absent-null", "alloc-closed"]


def test_sources_hold_no_constructor_no_exit_no_signal_handler_and_no_umask() -> None:
    forbidden = re.compile(
        r"\b(exit|_exit|abort|signal|sigaction|umask|setenv|putenv|atexit|fork|system|popen)\s*\(|__attribute__\(\(constructor"
    )
    for path in (HOOK_SOURCE / "src").glob("*/*.c"):
        if path.name in ("vgpuctl.c", "selftest.c"):
            continue  # programs of their own
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)
        found = [match.group(0) for match in forbidden.finditer(code) if "__register_atfork" not in match.group(0)]
        assert found == [], path.name
