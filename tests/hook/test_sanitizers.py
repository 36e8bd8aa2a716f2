"""The hook under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer: linked into one program, and (undefined) preloaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region

from tests.hook import workshop
from tests.hook.workshop import HOOK_SOURCE, MIB, Machine, Slot

SOURCES = [f"{path.parent.name}/{path.name}" for path in sorted((HOOK_SOURCE / "src").glob("*/*.c")) if path.parent.name != "host"]
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=99",
    "TSAN_OPTIONS": "exitcode=99:report_signal_unsafe=0:ignore_noninstrumented_modules=1",  # the driver keeps its own locks
}


@pytest.fixture
def machine(simulator: Path, tmp_path: Path) -> Machine:
    """Contexts and modules take memory, so that overhead is measured while all else goes on."""
    return Machine.make(simulator, tmp_path, context_bytes=16 * MIB, module_bytes=2 * MIB)


def told_all_the_time(slot: Slot) -> AbstractContextManager[None]:
    """The host tells the slot's GPU time, far oftener than the device plugin does."""

    def tell() -> None:
        now_ns = time.monotonic_ns()
        window = region.BusyWindow(slot.machine.uuids[0], now_ns - 10**9, now_ns, 10**8)
        region.tell_busy({str(slot.folder): [window]}, library=slot.page_library)

    return workshop.repeating(tell, 0.02)


@pytest.mark.full
@pytest.mark.parametrize("name", SANITIZERS)
def test_threads_and_children_with_every_kind_of_memory_give_no_report(make_slot: Callable[..., Slot], simulator: Path, name: str) -> None:
    flags = [f"-fsanitize={SANITIZERS[name]}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", f"-L{simulator}", "-l:libcuda.so.1"]
    program = workshop.compile_program(
        "inside", hook_sources=SOURCES, flags=['-DTENFOLD_VERSION="test"', "-Wno-unused-function"], link=flags, suffix=f"-{name}"
    )
    slot = make_slot(memory_mib=256, cores=80)
    with told_all_the_time(slot):
        done = slot.run([program, "8", "300"], timeout=240, LD_PRELOAD="", **OPTIONS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    assert "runtime error" not in done.stderr
    assert done.stdout == "used 0\n"
    assert slot.used_bytes == slot.state().overhead_bytes > 0


@pytest.mark.full
def test_the_preloaded_hook_gives_no_undefined_behaviour(make_slot: Callable[..., Slot]) -> None:
    built = workshop.build_hook("hook-undefined", SANITIZE="undefined")
    slot = make_slot(memory_mib=64, cores=60)
    work = f"open {slot.machine.uuids[0]}\nroutes\nview\nfill 2097152 134217728\nalloc 512\nview\ndrain\nspin 500 200\nview\nquit\n"
    done = slot.run([slot.hook / "tenfold-selftest"], stdin=work, LD_PRELOAD=str(built / "libtenfold.so"), **OPTIONS)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
