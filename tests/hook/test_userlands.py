"""Images of every kind under the hook, entered as a container enters them: the preload file, hook and slot where CDI mounts them.

An old C library, another preload library in the image or in the environment, musl, a static program. What is limited there is limited
exactly; what cannot be is unharmed, and docs/enforcement.md says so.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import hook_elf

from tests.hook import userland, workshop
from tests.hook.userland import HOOK_INSIDE, Root
from tests.hook.workshop import HOOK_SOURCE, MIB, Slot

pytestmark = pytest.mark.full

LIMIT_MIB = 64
EXACTLY = f"{LIMIT_MIB * MIB} of {LIMIT_MIB * MIB}, result 2\n"
CARD_BYTES = 80 << 30


@pytest.fixture(scope="module")
def old_tree() -> Path:
    return userland.old_tree()


def library_folder(tree: Path) -> Path:
    return tree / "lib" / "x86_64-linux-gnu"


@pytest.fixture
def root(old_tree: Path, make_slot: Callable[..., Slot], tmp_path: Path) -> Root:
    """The old root with a slice of 64 MiB and 50 percent, and a program that is linked with the driver."""
    slot = make_slot(LIMIT_MIB, 50)
    root = Root(old_tree, tmp_path / "root")
    root.put_slot(slot)
    program = tmp_path / "linked"
    libc = library_folder(old_tree) / "libc.so.6"
    compile_against(libc, workshop.PROGRAMS / "linked.c", program, str(slot.machine.simulator / "libcuda.so.1"))
    root.copy(program, "/usr/local/bin/linked")
    return root


def compile_against(libc: Path, source: Path, out: Path, *words: str) -> None:
    """A program that asks for no more than that C library has."""
    command = [
        "gcc",
        "-O1",
        "-fPIC",
        "-o",
        str(out),
        str(source),
        "-nodefaultlibs",
        "-Wl,--allow-shlib-undefined",
        *words,
        str(libc),
        "-lgcc",
    ]
    subprocess.run(command, check=True, timeout=60)


class TestOldLibrary:
    """glibc 2.31: dlsym in libdl, threads in libpthread."""

    def test_the_root_is_old(self, root: Root) -> None:
        assert "2.31" in root.output(["/usr/bin/ldd", "--version"]).splitlines()[0]

    @pytest.mark.parametrize(
        "words",
        [
            ["/bin/ls", "/"],
            ["/bin/sh", "-c", "ls / | wc -l; (exit 3) || true"],
            ["/usr/bin/perl", "-e", "print 6 * 7"],
            ["/usr/bin/python3", "-c", "import threading; threading.Thread(target=print, args=(42,)).start()"],
        ],
        ids=lambda words: Path(words[0]).name,
    )
    def test_ordinary_programs_say_what_they_say_without_us(self, root: Root, words: list[str]) -> None:
        with_hook = root.output(words)
        del root.binds["/etc/ld.so.preload"]
        assert with_hook == root.output(words) != ""

    def test_the_hook_is_really_there(self, root: Root) -> None:
        assert HOOK_INSIDE in root.output(["/bin/cat", "/proc/self/maps"])

    def test_a_program_linked_with_the_driver_hits_its_limit_exactly(self, root: Root) -> None:
        assert root.output(["linked"]) == EXACTLY
        del root.binds["/etc/ld.so.preload"]
        assert root.output(["linked"]) == f"{CARD_BYTES} of {CARD_BYTES}, result 2\n", "something else than the hook limits"

    @pytest.mark.timing
    def test_a_program_that_looks_the_driver_up_is_limited_in_bytes_and_time(self, root: Root) -> None:
        uuid = json.loads(root.output(["/usr/local/tenfold/vgpuctl", "show", "--json", "/run/tenfold"]))["gpus"][0]["uuid"]
        commands = f"open {uuid}\nfill 2097152 134217728\nspin 1000 1000\n"
        opened, filled, spun = map(json.loads, root.output(["/usr/local/tenfold/tenfold-selftest"], stdin=commands).splitlines())
        assert (opened["result"], filled["result"], filled["allocated_bytes"]) == (0, 2, LIMIT_MIB * MIB)
        assert spun["gpu_us"] < 0.7 * spun["wall_us"], "the helper thread was not found in this C library"
        shown = root.output(["/usr/local/tenfold/vgpuctl", "show", "--json", "/run/tenfold"])
        assert json.loads(shown)["gpus"][0]["refusals"] == 1


def test_an_old_compiler_builds_it_there_without_a_warning(old_tree: Path, hook: Path, tmp_path: Path) -> None:
    """gcc 9, binutils and headers of that suite; the file needs and exports what the one built here does."""
    out = tmp_path / "out"
    for folder in (out, tmp_path / "root"):
        folder.mkdir()
    root = Root(old_tree, tmp_path / "root", {"/src": HOOK_SOURCE, "/out": out})
    root.output(["make", "-s", "-C", "/src", "BUILD=/out", "CC=gcc-9", "all"])
    theirs, ours = (hook_elf.read_library(folder / "libtenfold.so") for folder in (out, hook))
    assert (theirs.needed, theirs.needed_glibc, theirs.exported, theirs.constructors) == (ours.needed, "2.17", ours.exported, 0)


class TestAnotherPreloadLibrary:
    """The image's own, next to ours, in the file and in LD_PRELOAD, in both orders."""

    @pytest.fixture(autouse=True)
    def counted(self, root: Root, old_tree: Path, tmp_path: Path) -> str:
        out = tmp_path / "libcounted.so"
        folder = library_folder(old_tree)
        compile_against(folder / "libc.so.6", workshop.PROGRAMS / "counted.c", out, "-shared", str(folder / "libdl.so.2"))
        root.copy(out, "/opt/libcounted.so")
        return "/opt/libcounted.so"

    def test_in_the_environment_it_comes_before_us_and_both_work(self, root: Root, counted: str) -> None:
        # 32 blocks of 2 MiB and the refusal pass through it, then through us
        assert root.output(["linked"], environment={"LD_PRELOAD": counted}) == EXACTLY + f"counted {LIMIT_MIB // 2 + 1}\n"
        assert root.output(["/bin/true"], environment={"LD_PRELOAD": counted}) == "counted nothing, loaded\n"

    @pytest.mark.parametrize("is_first", [True, False], ids=["before us", "behind us"])
    def test_in_one_file_with_us_both_load_and_the_limit_holds(self, root: Root, counted: str, is_first: bool) -> None:
        lines = [counted, HOOK_INSIDE] if is_first else [HOOK_INSIDE, counted]
        root.binds["/etc/ld.so.preload"].write_text("\n".join(lines) + "\n")
        # behind us it is not asked: our function is met first and calls the driver's own
        seen = f"counted {LIMIT_MIB // 2 + 1}\n" if is_first else "counted nothing, loaded\n"
        assert root.output(["linked"]) == EXACTLY + seen

    def test_both_ways_at_once_load_us_once(self, root: Root, counted: str) -> None:
        seen = root.output(["linked"], environment={"LD_PRELOAD": f"{counted}:{HOOK_INSIDE}"})
        assert seen == EXACTLY + f"counted {LIMIT_MIB // 2 + 1}\n"

    def test_an_images_own_file_is_covered_by_ours(self, root: Root, counted: str) -> None:
        """As docs/enforcement.md says: its entries are not loaded in a slice, and ours cannot be left out by an image."""
        root.write("/etc/ld.so.preload", counted + "\n")
        assert root.output(["linked"]) == EXACTLY
        del root.binds["/etc/ld.so.preload"]
        assert root.output(["/bin/true"]) == "counted nothing, loaded\n", "the image's file does nothing by itself"


class TestMusl:
    """A root with musl's loader alone: ours is never loaded there, and nothing breaks."""

    @pytest.fixture
    def musl_root(self, make_slot: Callable[..., Slot], tmp_path: Path) -> Root:
        userland.require_root()
        if not workshop.has("musl-gcc"):
            pytest.skip("musl-gcc is not installed (Debian: musl-tools)")
        tree = tmp_path / "tree"
        tree.mkdir()
        root = Root(tree, tmp_path / "root")
        slot = make_slot()
        root.put_slot(slot)
        loader = Path("/lib/ld-musl-x86_64.so.1").resolve()
        root.copy(loader, "/lib/ld-musl-x86_64.so.1")
        program = tmp_path / "musl_image"
        subprocess.run(["musl-gcc", "-o", str(program), str(workshop.PROGRAMS / "musl_image.c")], check=True, timeout=60)
        root.copy(program, "/bin/image")
        static = tmp_path / "musl_static"
        subprocess.run(["musl-gcc", "-static", "-o", str(static), str(workshop.PROGRAMS / "musl_image.c")], check=True, timeout=60)
        root.copy(static, "/bin/static")
        return root

    @pytest.mark.parametrize("program", ["/bin/image", "/bin/static"])
    def test_threads_children_and_lookups_work_and_we_are_not_there(self, musl_root: Root, program: str) -> None:
        seen = musl_root.output([program, program])
        assert seen.splitlines() == ["thread", "child", "libtenfold absent"]

    def test_the_slot_is_untouched(self, musl_root: Root) -> None:
        state = musl_root.binds["/run/tenfold"] / "state"
        before = state.read_bytes()
        musl_root.output(["/bin/image", "/bin/image"])
        assert state.read_bytes() == before


def test_a_static_program_in_a_slice_runs_as_before(root: Root, tmp_path: Path) -> None:
    source = tmp_path / "hello.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n')
    subprocess.run(["gcc", "-static", "-o", str(tmp_path / "hello"), str(source)], check=True, timeout=60)
    root.copy(tmp_path / "hello", "/usr/local/bin/hello")
    assert root.output(["hello"]) == "hello\n"
