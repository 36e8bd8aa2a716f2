"""Building the hook: once per content, nothing half-installed, and a builder that lacks something is told what to install."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import hook_build
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.hook_elf import HookError

from tests import ROOT

SOURCE = ROOT / "files" / "hook"
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None or shutil.which("make") is None, reason="gcc or make is not installed")

# Stands for the Makefile of files/hook, which takes seconds: same variables, same results, one small library.
QUICK_MAKEFILE = """
all:
	mkdir -p $(BUILD)
	$(CC) -shared -fPIC -Wl,--hash-style=both -Wl,--build-id=none -o $(BUILD)/libtenfold.so src/small.c
	$(CC) -shared -fPIC -Wl,--build-id=none -o $(BUILD)/libtenfold_page.so src/abi/page.c
	cp /bin/true $(BUILD)/vgpuctl
	cp /bin/true $(BUILD)/tenfold-selftest
	echo 'dlsym resolve' >$(BUILD)/symbols.txt
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "src" / "abi").mkdir(parents=True)
    (folder / "include").mkdir()
    (folder / "Makefile").write_text(QUICK_MAKEFILE)
    (folder / "src" / "small.c").write_text("int dlsym(void);\nint dlsym(void) { return 1; }\n")
    (folder / "src" / "abi" / "page.c").write_text("int page;\n")
    (folder / "src" / "abi" / "hooks.def").write_text("")
    (folder / "include" / "tenfold_region.h").write_text("#define TENFOLD_ABI_VERSION 1u\n")
    return folder


@pytest.fixture
def request_(source: Path, tmp_path: Path) -> hook_build.BuildRequest:
    return hook_build.BuildRequest(source=source, dest=tmp_path / "dest", version="0.1.0")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


class TestOncePerContent:
    def test_the_folder_is_named_by_version_and_the_digest_of_all_its_files(self, request_: hook_build.BuildRequest) -> None:
        hook = hook_build.build(request_)
        folder = Path(hook.path)
        assert names(request_.dest) == [hook.name]
        files = ["ld.so.preload", "libtenfold.so", "libtenfold_page.so", "symbols.txt", "tenfold-selftest", "vgpuctl"]
        assert names(folder) == ["build.json", *files]
        printed = subprocess.run(
            f"sha256sum {' '.join(files)} | sha256sum", shell=True, cwd=folder, capture_output=True, text=True, check=True
        )
        assert hook.name == f"0.1.0-{printed.stdout[:8]}"

    def test_another_writer_of_pages_beside_the_same_hook_is_another_folder(self, request_: hook_build.BuildRequest) -> None:
        """Else a node that has the first one would be told that somebody changed it."""
        first = hook_build.build(request_)
        (request_.source / "src" / "abi" / "page.c").write_text("int other_page;\n")
        second = hook_build.build(request_)
        assert second.sha256 == first.sha256
        assert second.path != first.path

    def test_the_library_is_described(self, request_: hook_build.BuildRequest) -> None:
        hook = hook_build.build(request_)
        assert (Path(hook.path) / "ld.so.preload").read_text() == "/usr/local/tenfold/libtenfold.so\n"
        assert (hook.machine, hook.abi, hook.symbols) == ("x86_64", 1, ["dlsym"])

    def test_before_the_build_nothing_is_found_and_after_it_the_same_hook(self, request_: hook_build.BuildRequest) -> None:
        assert hook_build.find_built(request_) is None
        hook = hook_build.build(request_)
        assert hook_build.find_built(request_) == hook

    @pytest.mark.parametrize("change", ["source", "version", "flags"])
    def test_another_input_is_another_build(self, request_: hook_build.BuildRequest, change: str) -> None:
        hook_build.build(request_)
        changed = request_
        if change == "source":
            (request_.source / "src" / "small.c").write_text("int dlsym(void);\nint dlsym(void) { return 2; }\n")
        elif change == "version":
            changed = hook_build.BuildRequest(request_.source, request_.dest, "0.2.0")
        else:
            changed = hook_build.BuildRequest(request_.source, request_.dest, "0.1.0", cflags=("-O3",))
        assert hook_build.find_built(changed) is None
        hook_build.build(changed)
        assert hook_build.find_built(changed) is not None

    def test_a_comment_alone_gives_the_same_folder_and_is_remembered(self, request_: hook_build.BuildRequest) -> None:
        first = hook_build.build(request_)
        with (request_.source / "src" / "small.c").open("a") as stream:
            stream.write("/* nothing */\n")
        assert hook_build.find_built(request_) is None
        second = hook_build.build(request_)
        assert second.path == first.path
        assert hook_build.find_built(request_) == second

    def test_a_damaged_result_is_built_again(self, request_: hook_build.BuildRequest) -> None:
        hook = hook_build.build(request_)
        (Path(hook.path) / "vgpuctl").write_bytes(b"rubbish")
        assert hook_build.find_built(request_) is None
        assert hook_build.build(request_).path == hook.path
        assert hook_build.find_built(request_) is not None

    @pytest.mark.parametrize("record", ["", "[]", "{}", '{"files": {}}', "not json"])
    def test_a_strange_record_is_no_hook(self, request_: hook_build.BuildRequest, record: str) -> None:
        folder = request_.dest / "0.1.0-00000000"
        folder.mkdir(parents=True)
        (folder / "build.json").write_text(record)
        assert hook_build.find_built(request_) is None

    def test_a_copied_folder_knows_its_own_place(self, request_: hook_build.BuildRequest, tmp_path: Path) -> None:
        hook = hook_build.build(request_)
        shutil.copytree(hook.path, tmp_path / "copy" / hook.name)
        found = hook_build.find_built(hook_build.BuildRequest(request_.source, tmp_path / "copy", "0.1.0"))
        assert found is not None
        assert found.path == str(tmp_path / "copy" / hook.name)


class TestABuilderThatCannot:
    def test_a_missing_compiler_is_named_with_its_package(self, request_: hook_build.BuildRequest) -> None:
        missing = hook_build.BuildRequest(request_.source, request_.dest, "0.1.0", compiler="no-such-cc")
        with pytest.raises(HookError, match=r"compiler 'no-such-cc' is not installed.*Debian, Ubuntu: gcc; RHEL, Rocky: gcc"):
            hook_build.build(missing)
        assert not request_.dest.exists()

    def test_missing_headers_are_named_with_their_package(self, request_: hook_build.BuildRequest, tmp_path: Path) -> None:
        compiler = tmp_path / "cc-without-headers"
        compiler.write_text('#!/bin/sh\ncase "$*" in *--version*|*-dumpmachine*) exec gcc "$@";; *) exec gcc -nostdinc "$@";; esac\n')
        compiler.chmod(0o755)
        with pytest.raises(HookError, match=r"no C library headers; install them .Debian, Ubuntu: libc6-dev; RHEL, Rocky: glibc-devel"):
            hook_build.build(hook_build.BuildRequest(request_.source, request_.dest, "0.1.0", compiler=str(compiler)))
        assert names(request_.dest) == []

    def test_a_missing_static_library_is_named_with_its_package(self, request_: hook_build.BuildRequest, tmp_path: Path) -> None:
        compiler = tmp_path / "cc-without-static"
        compiler.write_text('#!/bin/sh\ncase "$*" in *-static*) echo "cannot find -lc" >&2; exit 1;; *) exec gcc "$@";; esac\n')
        compiler.chmod(0o755)
        with pytest.raises(HookError, match=r"no static C library.*RHEL, Rocky: glibc-static"):
            hook_build.build(hook_build.BuildRequest(request_.source, request_.dest, "0.1.0", compiler=str(compiler)))

    def test_missing_make_is_named_with_its_package(self, request_: hook_build.BuildRequest) -> None:
        with pytest.raises(HookError, match="'no-such-make' is not installed"):
            hook_build.build(hook_build.BuildRequest(request_.source, request_.dest, "0.1.0", make="no-such-make"))

    def test_a_compile_error_comes_with_the_compilers_words_and_leaves_nothing(self, request_: hook_build.BuildRequest) -> None:
        (request_.source / "src" / "small.c").write_text("int broken(void) { return missing_name; }\n")
        with pytest.raises(HookError, match=r"does not compile with 'gcc'(.|\n)*missing_name") as caught:
            hook_build.build(request_)
        assert "missing_name" in caught.value.details["compiler_output"]
        assert names(request_.dest) == []

    def test_a_folder_that_holds_no_sources_is_said_so(self, request_: hook_build.BuildRequest, tmp_path: Path) -> None:
        with pytest.raises(HookError, match="does not hold the hook's sources"):
            hook_build.find_built(hook_build.BuildRequest(tmp_path, request_.dest, "0.1.0"))

    def test_a_destination_that_is_a_file_is_an_error_not_a_traceback(self, request_: hook_build.BuildRequest) -> None:
        request_.dest.write_text("")
        with pytest.raises(HookError, match="cannot write to"):
            hook_build.build(request_)


def test_the_real_sources_are_all_part_of_the_digest() -> None:
    listed = {str(path.relative_to(SOURCE)) for path in hook_build._sources(SOURCE)}
    assert {"Makefile", "src/abi/hooks.def", "src/hooks/entry_x86_64.S", "include/tenfold_region.h", "toolchain/libc-symbols.txt"} <= listed
    assert not any(name.startswith("build/") for name in listed)


def test_the_record_holds_no_path_of_the_builder(request_: hook_build.BuildRequest) -> None:
    hook = hook_build.build(request_)
    record = json.loads((Path(hook.path) / "build.json").read_text())
    assert str(request_.source) not in json.dumps({key: value for key, value in record.items() if key != "path"})
