"""The page's one writer, as Python calls it: what it leaves when it dies anywhere, waits for, or cannot be used."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import page_writer, region
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import RegionError

from tests import ROOT

CARD = "GPU-11111111-2222-3333-4444-555555555555"

# Preloaded: the process is killed in its pwrite number DIE_AT (from 0) after DIE_BYTES of it are written.
DEADLY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
ssize_t pwrite(int descriptor, const void *data, size_t bytes, off_t offset)
{
    static int calls;
    ssize_t (*real)(int, const void *, size_t, off_t) = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    if (calls++ == atoi(getenv("DIE_AT"))) {
        real(descriptor, data, (size_t)atoi(getenv("DIE_BYTES")), offset);
        raise(SIGKILL);
    }
    return real(descriptor, data, bytes, offset);
}
"""
WRITE = """
import sys
from pathlib import Path
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region
region.write_config(sys.argv[1], [region.GpuQuota(sys.argv[3], 1 << 30, 99)], library=Path(sys.argv[2]))
"""


TELL = """
import sys
from pathlib import Path
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region
problems = region.tell_busy({sys.argv[1]: [region.BusyWindow(sys.argv[3], 100, 200, 50)]}, library=Path(sys.argv[2]))
assert not problems, problems
"""


def quota(cores: int) -> region.GpuQuota:
    return region.GpuQuota(CARD, 8 << 30, cores)


@pytest.fixture
def slot(tmp_path: Path, page_library: Path) -> Path:
    """A page that has been written twice, so that either copy holds something."""
    folder = tmp_path / "slot"
    region.create_slot(folder, [quota(10)], library=page_library)
    region.write_config(folder, [quota(20)], library=page_library)
    return folder


@pytest.fixture(scope="session")
def deadly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deadly")
    (folder / "deadly.c").write_text(DEADLY)
    library = folder / "deadly.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(folder / "deadly.c"), "-ldl"], check=True, timeout=60)
    return library


COPY_WRITE, SWITCH_WRITE = 0, 1


class TestDeath:
    @pytest.mark.parametrize(
        ("at", "after_bytes"),
        [(COPY_WRITE, 0), (COPY_WRITE, 7), (COPY_WRITE, 100), (COPY_WRITE, 2112), (SWITCH_WRITE, 0), (SWITCH_WRITE, 4), (SWITCH_WRITE, 8)],
    )
    def test_a_writer_that_is_killed_leaves_the_last_good_page(
        self, slot: Path, page_library: Path, deadly: Path, at: int, after_bytes: int
    ) -> None:
        assert self.write(slot, page_library, deadly, at, after_bytes) == -signal.SIGKILL
        page = region.read_config(slot)
        assert (page.generation, page.gpus) == (2, [quota(20)])
        after = region.write_config(slot, [quota(30)], library=page_library)
        assert (after.generation, region.read_config(slot)) == (3, after)

    def test_one_that_is_killed_after_the_switch_has_changed_the_page(self, slot: Path, page_library: Path, deadly: Path) -> None:
        self.write(slot, page_library, deadly, SWITCH_WRITE, 12)
        assert region.read_config(slot).gpus[0].core_limit_percent == 99

    def test_none_that_lives_is_disturbed(self, slot: Path, page_library: Path, deadly: Path) -> None:
        """The test itself: a number of a call that never comes."""
        assert self.write(slot, page_library, deadly, 2, 0) == 0
        assert region.read_config(slot).gpus[0].core_limit_percent == 99

    @pytest.mark.parametrize("after_bytes", [0, 1, 8, 24, 40])
    def test_one_that_is_killed_telling_gpu_time_tells_nothing_and_spoils_nothing(
        self, slot: Path, page_library: Path, deadly: Path, after_bytes: int
    ) -> None:
        page = region.read_config(slot)
        assert self.write(slot, page_library, deadly, 0, after_bytes, TELL) == -signal.SIGKILL
        assert region.read_busy(slot) == {}
        assert region.read_config(slot) == page
        assert self.write(slot, page_library, deadly, 1, 0, TELL) == 0
        assert region.read_busy(slot) == {CARD: region.BusyWindow(CARD, 100, 200, 50)}

    def write(self, slot: Path, page_library: Path, deadly: Path, at: int, after_bytes: int, program: str = WRITE) -> int:
        environment = {
            "PYTHONPATH": str(ROOT / "collections"),
            "LD_PRELOAD": str(deadly),
            "DIE_AT": str(at),
            "DIE_BYTES": str(after_bytes),
        }
        command = [sys.executable, "-S", "-c", program, str(slot), str(page_library), CARD]
        return subprocess.run(command, env=environment, timeout=30, check=False).returncode


class TestTheLock:
    def test_a_writer_that_is_stuck_is_waited_for_and_then_named(
        self, slot: Path, page_library: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(page_writer, "WAIT_MS", 100)
        before = (slot / "config").read_bytes()
        with open(slot / "config", "rb") as holder:
            fcntl.flock(holder, fcntl.LOCK_EX)
            began = time.monotonic()
            with pytest.raises(RegionError, match=r"another writer has held '.*/config' for 0\.1 s"):
                region.write_config(slot, [quota(30)], library=page_library)
            assert 0.09 <= time.monotonic() - began < 10  # it counts whole milliseconds
        assert (slot / "config").read_bytes() == before
        assert region.write_config(slot, [quota(30)], library=page_library).generation == 3

    def test_the_lock_goes_with_its_holder(self, slot: Path, page_library: Path) -> None:
        descriptor = os.open(slot / "config", os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        pid = os.fork()
        if pid == 0:
            time.sleep(0.2)
            os._exit(0)
        os.close(descriptor)  # the child's copy holds the lock until it ends
        assert region.write_config(slot, [quota(30)], library=page_library).generation == 3
        os.waitpid(pid, 0)


class TestTheLibrary:
    def test_a_missing_one_is_named_with_what_to_do_and_nothing_is_changed(self, slot: Path, tmp_path: Path) -> None:
        before = {path.name: path.read_bytes() for path in slot.iterdir()}
        missing = tmp_path / "hook" / "current" / page_writer.LIBRARY
        for call in (region.write_config, region.create_slot):
            with pytest.raises(RegionError, match=rf"cannot load '{missing}', which writes pages: .*\(role cuda_hook\)"):
                call(slot, [quota(30)], library=missing)
        with pytest.raises(RegionError, match="cannot load"):
            region.create_slot(tmp_path / "new", [quota(30)], library=missing)
        assert {path.name: path.read_bytes() for path in slot.iterdir()} == before
        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            (
                "int tenfold_page_abi(void) { return 9; } int tenfold_page_create; int tenfold_page_tell_busy; int tenfold_page_write;",
                "writes pages of ABI 9, expected 1",
            ),
            ("int tenfold_page_abi(void) { return 1; }", "is no page writer of this version"),
        ],
    )
    def test_another_ones_calls_are_never_made(self, slot: Path, tmp_path: Path, code: str, message: str) -> None:
        (tmp_path / "other.c").write_text(code)
        library = tmp_path / page_writer.LIBRARY
        subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "other.c")], check=True, timeout=60)
        with pytest.raises(RegionError, match=message):
            region.write_config(slot, [quota(30)], library=library)
        assert region.read_config(slot).generation == 2

    def test_what_is_no_library_is_an_error_with_its_name(self, slot: Path, tmp_path: Path) -> None:
        library = tmp_path / page_writer.LIBRARY
        library.write_text("rubbish")
        with pytest.raises(RegionError, match=rf"cannot load '{library}'"):
            region.write_config(slot, [quota(30)], library=library)

    def test_it_is_let_go_after_a_call_and_the_next_call_uses_the_one_in_force(
        self, slot: Path, page_library: Path, tmp_path: Path
    ) -> None:
        """A version that is mapped could not be removed; and ``current`` moves under a plugin that goes on."""
        versions = [tmp_path / name for name in ("0.1.0-aaaaaaaa", "0.2.0-bbbbbbbb")]
        for version in versions:
            version.mkdir()
            shutil.copy(page_library, version / page_writer.LIBRARY)
        current = tmp_path / "current"
        current.symlink_to(versions[0])
        region.write_config(slot, [quota(30)], library=current / page_writer.LIBRARY)
        assert page_writer.LIBRARY not in Path("/proc/self/maps").read_text()
        current.unlink()
        shutil.rmtree(versions[0])
        current.symlink_to(versions[1])
        assert region.write_config(slot, [quota(40)], library=current / page_writer.LIBRARY).generation == 4

    def test_values_that_no_reader_understands_are_refused_by_the_library_itself(self, slot: Path, page_library: Path) -> None:
        copy = bytearray((slot / "config").read_bytes()[region.COPY_OFFSETS[0] : region.COPY_OFFSETS[0] + region.COPY_BYTES])
        copy[16:20] = (17).to_bytes(4, "little")  # cards
        with open(slot / "config", "r+b") as stream, pytest.raises(OSError, match="Invalid argument"):
            page_writer.write(stream.fileno(), bytes(copy), region.ABI_VERSION, library=page_library)
        with open(slot / "config", "r+b") as stream, pytest.raises(OSError, match="Protocol error"):
            page_writer.write(stream.fileno(), bytes(copy[:-1]), region.ABI_VERSION, library=page_library)
        assert region.read_config(slot).generation == 2
