"""The library's file: what it needs and exports, the same bytes twice, other compilers, another machine, an old userland."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tenfold import hook_elf, hook_verify, region
from tests.hook import workshop
from tests.hook.workshop import HOOK_SOURCE, MIB, Machine, Slot


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_library_needs_libc_alone_and_nothing_newer_than_2_17(hook: Path) -> None:
    library = hook_elf.read_library(hook / "libtenfold.so")
    assert library.needed == ("libc.so.6",)
    assert library.needed_glibc == "2.17"
    assert library.constructors == 0


def test_exports_are_hooks_def_and_nothing_else(hook: Path) -> None:
    library = hook_elf.read_library(hook / "libtenfold.so")
    assert library.exported == hook_verify.expected_symbols((HOOK_SOURCE / "src" / "hooks.def").read_text())
    assert set(library.exported) == set(hook_verify.expected_symbols((hook / "symbols.txt").read_text()))


def test_every_hooked_symbol_is_one_that_drivers_export(simulator: Path) -> None:
    driver = subprocess.run(
        ["nm", "-D", "--defined-only", str(simulator / "libcuda.so.1")], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in driver.splitlines()}
    hooked = {name for name in hook_verify.expected_symbols((HOOK_SOURCE / "src" / "hooks.def").read_text()) if name.startswith("cu")}
    assert hooked - exported == set()


def test_each_per_thread_twin_of_a_hooked_symbol_is_hooked_too(simulator: Path) -> None:
    """A program compiled for per-thread streams would else go around us."""
    driver = subprocess.run(
        ["nm", "-D", "--defined-only", str(simulator / "libcuda.so.1")], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in driver.splitlines()}
    hooked = set(hook_verify.expected_symbols((HOOK_SOURCE / "src" / "hooks.def").read_text()))
    twins = {name + suffix for name in hooked for suffix in ("_ptsz", "_ptds")} & exported
    assert twins - hooked == set()


def test_two_builds_in_two_places_give_the_same_bytes(hook: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "hook"
    shutil.copytree(HOOK_SOURCE, copy)
    workshop.make(copy, tmp_path / "out", "all")
    for name in ("libtenfold.so", "vgpuctl", "tenfold-selftest"):
        assert digest(tmp_path / "out" / name) == digest(hook / name), name


@pytest.mark.full
@pytest.mark.parametrize("compiler", ["clang", "gcc-11", "gcc-13"])
def test_other_compilers_build_it_without_a_warning(tmp_path: Path, compiler: str) -> None:
    if not workshop.has(compiler):
        pytest.skip(f"{compiler} is not installed")
    workshop.make(HOOK_SOURCE, tmp_path / "out", "all", CC=compiler)
    assert hook_elf.read_library(tmp_path / "out" / "libtenfold.so").needed_glibc == "2.17"


CROSS_COMPILER = "aarch64-linux-gnu-gcc"


@pytest.fixture(scope="module")
def built() -> Path:
    if not workshop.has(CROSS_COMPILER):
        pytest.skip(f"{CROSS_COMPILER} is not installed (Debian: gcc-aarch64-linux-gnu)")
    return workshop.build_hook("hook-aarch64", CC=CROSS_COMPILER)


@pytest.mark.full
class TestAarch64:
    def test_it_cross_compiles_with_the_same_exports(self, built: Path, hook: Path) -> None:
        library = hook_elf.read_library(built / "libtenfold.so")
        assert (library.machine, library.needed, library.needed_glibc) == ("aarch64", ("libc.so.6",), "2.17")
        assert library.exported == hook_elf.read_library(hook / "libtenfold.so").exported
        assert library.constructors == 0

    def test_dlsym_keeps_its_caller_under_emulation(self, built: Path, tmp_path: Path) -> None:
        if not workshop.has("qemu-aarch64-static"):
            pytest.skip("qemu-aarch64-static is not installed (Debian: qemu-user-static)")
        driver = tmp_path / "libcuda.so.1"
        soname = "-Wl,-soname,libcuda.so.1"
        source = workshop.PROGRAMS / "private_driver.c"
        subprocess.run([CROSS_COMPILER, "-shared", "-fPIC", "-w", soname, "-o", str(driver), str(source)], check=True, timeout=60)
        program = workshop.compile_program("next", cc=CROSS_COMPILER, suffix="-aarch64")
        done = subprocess.run(
            [
                "qemu-aarch64-static",
                "-L",
                "/usr/aarch64-linux-gnu",
                "-E",
                f"LD_PRELOAD={built / 'libtenfold.so'}",
                "-E",
                f"LD_LIBRARY_PATH={tmp_path}",
                str(program),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split() == ["next-same", "driver-hooked", "absent-null", "alloc-closed"]


def test_the_same_program_on_this_machine(slot: Slot, tmp_path: Path) -> None:
    driver = tmp_path / "libcuda.so.1"
    source = workshop.PROGRAMS / "private_driver.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", str(driver), str(source)], check=True, timeout=60)
    done = slot.run([workshop.compile_program("next")], LD_LIBRARY_PATH=str(tmp_path), TENFOLD_SLOT_DIR="")
    assert done.stdout.split() == ["next-same", "driver-hooked", "absent-null", "alloc-closed"]


@pytest.mark.full
def test_a_static_program_and_a_musl_program_run_as_before(slot: Slot, tmp_path: Path) -> None:
    source = tmp_path / "hello.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n')
    static = tmp_path / "static"
    subprocess.run(["gcc", "-static", "-o", str(static), str(source)], check=True, timeout=60)
    assert slot.run([static]).stdout == "hello\n"
    if not workshop.has("musl-gcc"):
        pytest.skip("musl-gcc is not installed (Debian: musl-tools); the static program was checked")
    musl = tmp_path / "musl"
    subprocess.run(["musl-gcc", "-o", str(musl), str(source)], check=True, timeout=60)
    # ld.so.preload, which is how containers get the hook, is not read by musl: no LD_PRELOAD here
    assert slot.run([musl], LD_PRELOAD="").stdout == "hello\n"


@pytest.mark.full
def test_it_loads_and_works_in_an_old_userland(hook: Path, simulator: Path) -> None:
    """A Debian 11 root (glibc 2.31: loader and threads in libraries of their own) by debootstrap, in TENFOLD_OLD_ROOT."""
    root = os.environ.get("TENFOLD_OLD_ROOT")
    if not root or os.geteuid() != 0:
        pytest.skip("TENFOLD_OLD_ROOT names no old userland (debootstrap --variant=minbase bullseye FOLDER), or this is not root")
    inside = Path(root) / "tenfold-test"
    shutil.rmtree(inside, ignore_errors=True)
    inside.mkdir()
    for name in ("libtenfold.so", "tenfold-selftest", "vgpuctl"):
        shutil.copy2(hook / name, inside / name)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy2(simulator / name, inside / name)
    machine = Machine.make(simulator, inside)
    region.create_slot(inside / "slot", [region.GpuQuota(machine.uuids[0], 64 * MIB, 50)])
    variables = {"LD_LIBRARY_PATH": "/tenfold-test", "TENFOLD_SIM_STATE": "/tenfold-test/machine", "TENFOLD_SLOT_DIR": "/tenfold-test/slot"}
    environment = [f"{name}={value}" for name, value in {**variables, "LD_PRELOAD": "/tenfold-test/libtenfold.so"}.items()]
    try:
        shell = chroot(root, [*environment, "/bin/sh", "-c", "ls / >/dev/null && echo works"])
        work = chroot(
            root, [*environment, "/tenfold-test/tenfold-selftest"], f"open {machine.uuids[0]}\nfill 2097152 134217728\nspin 1000 400\n"
        )
        shown = chroot(root, ["/tenfold-test/vgpuctl", "show", "--json", "/tenfold-test/slot"])
    finally:
        shutil.rmtree(inside, ignore_errors=True)
    assert shell == "works\n"
    opened, filled, spun = (json.loads(line) for line in work.splitlines())
    assert (opened["result"], filled["result"], filled["allocated_bytes"]) == (0, 2, 64 * MIB)
    assert spun["gpu_us"] < 0.7 * spun["wall_us"], "the helper thread was not found in this C library"
    assert json.loads(shown)["gpus"][0]["refusals"] == 1


def chroot(root: str, words: list[str], stdin: str = "") -> str:
    command = ["chroot", root, "/usr/bin/env", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_sources_hold_no_constructor_no_exit_no_signal_handler_and_no_umask() -> None:
    forbidden = re.compile(
        r"\b(exit|_exit|abort|signal|sigaction|umask|setenv|putenv|atexit|fork|system|popen)\s*\(|__attribute__\(\(constructor"
    )
    for path in (HOOK_SOURCE / "src").glob("*.c"):
        if path.name in ("vgpuctl.c", "selftest.c"):
            continue
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)
        found = [match.group(0) for match in forbidden.finditer(code) if "__register_atfork" not in match.group(0)]
        assert found == [], path.name
