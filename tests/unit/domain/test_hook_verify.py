"""Judging a hook's file: every property has a library that lacks it. The functional run is tested on the simulated driver in tests/hook."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import hook_elf, hook_verify, page_writer
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.hook_elf import HookError

from tests import ROOT
from tests.hook import workshop

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

GOOD = "int dlsym(void); int dlvsym(void);\nint dlsym(void) { return 1; }\nint dlvsym(void) { return 2; }\n"
SYMBOLS = ("dlsym", "dlvsym")


def library(folder: Path, code: str = GOOD, *flags: str) -> Path:
    """A folder with libtenfold.so and symbols.txt. Without the C library and start files, so that nothing comes along."""
    folder.mkdir(exist_ok=True)
    source = folder / "library.c"
    source.write_text(code)
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-Wl,--hash-style=both", *flags, "-o", str(folder / "libtenfold.so"), str(source)]
    subprocess.run(command, check=True, timeout=60)
    (folder / "symbols.txt").write_text("dlsym resolve\ndlvsym resolve\n")
    shutil.copy(workshop.build_page_library(), folder / page_writer.LIBRARY)
    return folder


def failures(folder: Path, **request: object) -> dict[str, str]:
    defaults = {"machine": "x86_64", "functional": "never", "slots": folder / "no-slots"}
    report = hook_verify.verify(hook_verify.VerifyRequest(folder, **{**defaults, **request}))  # type: ignore[arg-type]
    return {check.name: f"{check.expected} | {check.seen}" for check in report.failures}


NEEDS_LIBC = ("-Wl,--no-as-needed", "-lc")


class TestTheFile:
    def test_a_good_file_has_no_failure(self, tmp_path: Path) -> None:
        assert failures(library(tmp_path / "hook", GOOD, *NEEDS_LIBC)) == {}

    def test_another_machine_is_named(self, tmp_path: Path) -> None:
        seen = failures(library(tmp_path / "hook", GOOD, *NEEDS_LIBC), machine="aarch64")
        assert seen == {"machine": "aarch64 | x86_64", "page writer: machine": "aarch64 | x86_64"}

    def test_another_library_among_the_needed_is_named(self, tmp_path: Path) -> None:
        folder = library(tmp_path / "hook", GOOD, *NEEDS_LIBC, "-lm")
        assert failures(folder) == {"needed libraries": "libc.so.6 | libc.so.6 libm.so.6"}

    def test_a_newer_symbol_is_named_by_version(self, tmp_path: Path) -> None:
        code = GOOD + "#include <stdlib.h>\nint newer(void) { return (int)(long)reallocarray(0, 1, 1); }\n"  # GLIBC_2.26
        folder = library(tmp_path / "hook", code, "-D_GNU_SOURCE", "-fvisibility=default", *NEEDS_LIBC)
        seen = failures(folder, symbols=(*SYMBOLS, "newer"))
        assert seen == {"glibc floor": "nothing newer than 2.17 | 2.26"}

    def test_the_glibc_of_every_image_counts(self, tmp_path: Path) -> None:
        code = GOOD + "#include <string.h>\nvoid *copy(void *a, void *b, unsigned long n) { return memcpy(a, b, n); }\n"  # GLIBC_2.14
        folder = library(tmp_path / "hook", code, "-O0", *NEEDS_LIBC)
        seen = failures(folder, symbols=(*SYMBOLS, "copy"), image_glibcs=("2.12", "2.31"))
        assert seen == {"glibc of image 2.12": "nothing newer than 2.12 | 2.14"}

    def test_a_constructor_is_counted(self, tmp_path: Path) -> None:
        code = GOOD + "__attribute__((constructor)) static void early(void) { }\n"
        assert failures(library(tmp_path / "hook", code, *NEEDS_LIBC)) == {"constructors": "0 | 1"}

    def test_a_symbol_too_few_and_one_too_many_are_named(self, tmp_path: Path) -> None:
        folder = library(tmp_path / "hook", "int dlsym(void);\nint dlsym(void) { return 1; }\nint extra;\n", *NEEDS_LIBC)
        assert failures(folder) == {"missing symbols": "none | dlvsym", "unexpected symbols": "none | extra"}

    def test_the_functional_part_is_not_run_on_a_wrong_file(self, tmp_path: Path) -> None:
        folder = library(tmp_path / "hook", GOOD, *NEEDS_LIBC)
        report = hook_verify.verify(hook_verify.VerifyRequest(folder, machine="aarch64", slots=tmp_path / "none"))
        assert report.functional == "not run: the file itself is wrong"


FUNCTION = "int tenfold_page_{0}(void);\nint tenfold_page_{0}(void) {{ return {1}; }}\n"


class TestThePageWriter:
    """The library by which the host writes pages is as much a part of a version as the hook."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return library(tmp_path / "hook", GOOD, *NEEDS_LIBC)

    def compile(self, folder: Path, code: str, *flags: str) -> None:
        (folder / "page.c").write_text(code)
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            "-nostdlib",
            "-Wl,--hash-style=both",
            *NEEDS_LIBC,
            *flags,
            "-o",
            str(folder / page_writer.LIBRARY),
            str(folder / "page.c"),
        ]
        subprocess.run(command, check=True, timeout=60)

    def test_a_version_without_it_fails(self, folder: Path) -> None:
        (folder / page_writer.LIBRARY).unlink()
        [(name, words)] = failures(folder).items()
        assert name == "page writer: file"
        assert words.startswith("libtenfold_page.so beside the hook | cannot read")

    def test_one_that_writes_nothing_fails(self, folder: Path) -> None:
        self.compile(
            folder, FUNCTION.format("abi", 1) + FUNCTION.format("create", 0) + FUNCTION.format("tell_busy", 0) + FUNCTION.format("write", 0)
        )
        [(name, words)] = failures(folder).items()
        assert name == "page writer: call"
        assert "is no file of a slot" in words

    def test_one_of_another_abi_fails_with_both_numbers(self, folder: Path) -> None:
        self.compile(
            folder, FUNCTION.format("abi", 2) + FUNCTION.format("create", 0) + FUNCTION.format("tell_busy", 0) + FUNCTION.format("write", 0)
        )
        [words] = failures(folder).values()
        assert "writes pages of ABI 2, expected 1" in words

    def test_one_symbol_too_few_is_named(self, folder: Path) -> None:
        self.compile(folder, FUNCTION.format("abi", 1) + FUNCTION.format("create", 0) + FUNCTION.format("tell_busy", 0))
        seen = failures(folder)
        assert seen["page writer: missing symbols"] == "none | tenfold_page_write"
        assert "is no page writer of this version" in seen["page writer: call"]


class TestReadingElf:
    @pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF" + b"\2\1\1" + bytes(200)])
    def test_what_is_no_library_is_an_error_with_its_name(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "thing"
        path.write_bytes(content)
        with pytest.raises(HookError, match=r"thing|big-endian|no dynamic section"):
            hook_elf.read_library(path)

    def test_a_library_that_is_cut_anywhere_is_an_error_and_nothing_else(self, tmp_path: Path) -> None:
        data = (library(tmp_path / "hook", GOOD, *NEEDS_LIBC) / "libtenfold.so").read_bytes()
        path = tmp_path / "cut"
        for size in range(0, len(data), max(1, len(data) // 97)):
            path.write_bytes(data[:size])
            try:
                hook_elf.read_library(path)
            except HookError:
                continue

    def test_a_missing_file_is_an_error_with_its_name(self, tmp_path: Path) -> None:
        with pytest.raises(HookError, match=r"cannot read .*nothing"):
            hook_elf.read_library(tmp_path / "nothing")


def test_symbols_are_read_from_the_list_and_from_the_definition() -> None:
    hooks = 'CUDA_HOOK(cuInit, "cuInit", 2000, view, (unsigned flags))\nNVML_HOOK(nvmlInit, view, (void))\n'
    definition = "/* CUDA_HOOK(comment) */\n" + hooks + "CUDA_REAL(cuX, (void))\n"
    assert hook_verify.expected_symbols(definition) == ("cuInit", "dlsym", "dlvsym", "nvmlInit")
    assert hook_verify.expected_symbols("cuInit view\ndlsym resolve\n") == ("cuInit", "dlsym", "dlvsym")


@pytest.mark.parametrize("text", ["2.17", "GLIBC_2.2.5", "2"])
def test_glibc_versions_compare_by_number(text: str) -> None:
    assert hook_elf.parse_glibc_version(text) < hook_elf.parse_glibc_version("2.100")


def test_a_glibc_version_that_is_none_is_refused() -> None:
    with pytest.raises(HookError, match="glibc version is 'new'"):
        hook_verify.images_glibc(["2.17", "new"])


@pytest.mark.parametrize("memory_mib", [0, 1, 257])
def test_a_test_slice_of_a_forbidden_size_is_refused(tmp_path: Path, memory_mib: int) -> None:
    folder = library(tmp_path / "hook", GOOD, *NEEDS_LIBC)
    with pytest.raises(HookError, match="memory_mib"):
        hook_verify.verify(hook_verify.VerifyRequest(folder, machine="x86_64", memory_mib=memory_mib, slots=tmp_path / "none"))


def test_the_documented_table_of_symbols_is_the_definitions() -> None:
    script = ROOT / "files" / "hook" / "toolchain" / "symbols_table.py"
    table = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=30).stdout
    document = (ROOT / "docs" / "enforcement.md").read_text()
    assert table in document, "run python files/hook/toolchain/symbols_table.py --write docs/enforcement.md"
    definition = (ROOT / "files" / "hook" / "src" / "abi" / "hooks.def").read_text()
    assert all(symbol in table for symbol in hook_verify.expected_symbols(definition))
