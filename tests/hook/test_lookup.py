"""dlsym and dlvsym: everything that is no hooked driver symbol is answered as if the hook were not there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.hook import scripts, workshop
from tests.hook.workshop import MIB, Machine, Slot

CARD_BYTES = 80 << 30
OURS = {"handle cuMemAlloc_v2", "handle nvmlDeviceGetMemoryInfo"}


def facts(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines())


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    library = tmp_path / "libfake.so"
    source = workshop.PROGRAMS / "fake_library.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    return library


def test_only_hooked_symbols_of_the_driver_itself_change(slot: Slot, machine: Machine, fake: Path) -> None:
    program = workshop.compile_program("lookup")
    environment = {"TENFOLD_TEST_FAKE": str(fake)}
    with_hook = slot.run([program], **environment)  # type: ignore[arg-type]
    assert (with_hook.returncode, with_hook.stderr) == (0, "")
    native = subprocess.run(
        [str(program)], env={**machine.environment, **environment}, capture_output=True, text=True, timeout=30, check=True
    ).stdout
    seen, truth = facts(with_hook.stdout), facts(native)
    assert {name for name in truth if seen[name] != truth[name]} == OURS
    assert {seen[name] for name in OURS} == {"libtenfold.so"}
    assert truth["default cu before load"] == "nothing", "the check of an absent driver checks nothing"
    assert truth["umask"] != "000"


def test_another_preloaded_library_before_or_behind_us_works_as_without_us(slot: Slot, tmp_path: Path) -> None:
    """It wraps a hooked function and asks RTLD_NEXT for the one behind it."""
    source = tmp_path / "wrapper.c"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n"
        "int cuMemGetInfo_v2(unsigned long *f, unsigned long *t) {\n"
        '  int (*next)(unsigned long *, unsigned long *) = (void *)dlsym(RTLD_NEXT, "cuMemGetInfo_v2");\n'
        "  int result = next ? next(f, t) : 77; if (t) *t += 1; return result; }\n"
    )
    wrapper = tmp_path / "libwrapper.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(wrapper), str(source), "-ldl"], check=True, timeout=60)
    program = tmp_path / "info"
    (tmp_path / "info.c").write_text(
        "#include <stdio.h>\nint cuInit(unsigned);int cuDevicePrimaryCtxRetain(void **,int);int cuCtxSetCurrent(void *);"
        "int cuMemGetInfo_v2(unsigned long *,unsigned long *);\n"
        "int main(void){void *c;unsigned long f=0,t=0;cuInit(0);cuDevicePrimaryCtxRetain(&c,0);cuCtxSetCurrent(c);\n"
        'int r=cuMemGetInfo_v2(&f,&t);printf("%d %lu\\n",r,t);return 0;}\n'
    )
    subprocess.run(
        ["gcc", "-o", str(program), str(tmp_path / "info.c"), str(slot.machine.simulator / "libcuda.so.1")], check=True, timeout=60
    )
    ours = slot.hook / "libtenfold.so"
    limit = slot.gpus[0].memory_limit_bytes
    assert slot.run([program]).stdout == f"0 {limit}\n", "a program linked against the driver is limited too"
    assert slot.run([program], LD_PRELOAD=f"{wrapper}:{ours}").stdout == f"0 {limit + 1}\n"
    # behind us: our function is met first, the driver's own comes next
    assert slot.run([program], LD_PRELOAD=f"{ours}:{wrapper}").stdout == f"0 {limit}\n"


@pytest.mark.parametrize(("way", "is_limited"), [("dlopen", True), ("deepbind", False), ("dlmopen", False)])
def test_a_library_is_limited_unless_it_looks_past_the_global_scope(slot: Slot, way: str, is_limited: bool) -> None:
    """Linked with the driver or looking it up. docs/enforcement.md says that two ways go past us: if one no longer does, change that."""
    driver = [f"-L{slot.machine.simulator}", "-l:libcuda.so.1"]
    library = workshop.compile_program("scoped_library", flags=["-shared", "-fPIC"], link=driver, suffix=".so")
    done = slot.run([workshop.compile_program("past_scope"), way, library])
    total = slot.gpus[0].memory_limit_bytes if is_limited else CARD_BYTES
    assert (done.stdout, done.stderr) == (f"linked {total}, looked up {total}\n", "")


@pytest.mark.parametrize("first", ["by name", "by path"])
def test_a_second_copy_of_the_driver_is_the_first(slot: Slot, tmp_path: Path, first: str) -> None:
    """An image's compat library beside the node's, or a search by full path: whoever asks a copy is answered by the one that came first."""
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy(slot.machine.simulator / library, tmp_path / library)
    seen = scripts.run(
        slot,
        f"""
names = ["libcuda.so.1", {str(tmp_path / "libcuda.so.1")!r}]
one, two = [Driver(name) for name in (names if {first!r} == "by name" else names[::-1])]
two.start()
results = [driver.alloc(40 * MIB)[0] for driver in (two, one, two)]
free, total = one.info()
nvml, handle, memory = Driver({str(tmp_path / "libnvidia-ml.so.1")!r}), c.c_void_p(), NvmlMemory()
Driver("libnvidia-ml.so.1").nvmlInit_v2()
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, c.byref(handle)) == nvml.nvmlDeviceGetMemoryInfo(handle, c.byref(memory)) == 0
say(results=results, free=free, total=total, nvml=[memory.total, memory.used])
say(same=[c.cast(getattr(one.library, name), c.c_void_p).value == c.cast(getattr(two.library, name), c.c_void_p).value
          for name in ("cuInit", "cuGetExportTable", "cuMemAlloc_v2")])
try: two.library.cuNoSuchFunction
except AttributeError as error: say(error=str(error))
""",
    )
    assert seen["results"] == [0, 2, 2]
    assert (seen["free"], seen["total"], seen["nvml"]) == (24 * MIB, 64 * MIB, [64 * MIB, 40 * MIB])
    assert seen["same"] == [True, True, True]
    assert "undefined symbol: cuNoSuchFunction" in seen["error"]


def test_a_program_that_never_calls_cuda_sees_no_trace_of_us(slot: Slot) -> None:
    """No file but the library itself, no thread, no output; compared system call by system call."""
    if not workshop.has("strace"):
        pytest.skip("strace is not installed")
    log = slot.folder.parent / "trace"
    names = "openat,open,creat,clone,clone3,fork,vfork,mmap,write,rt_sigaction,umask,prctl,madvise,socket"
    done = slot.run(
        ["strace", "-f", "-o", log, "-e", f"trace={names}", "-E", f"LD_PRELOAD={slot.hook / 'libtenfold.so'}", "/bin/true"], LD_PRELOAD=""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    opened = [line for line in log.read_text().splitlines() if "open" in line and "ENOENT" not in line]
    foreign = [
        line for line in opened if not any(part in line for part in ("ld.so", "libc.so", "libtenfold.so", "locale", "/proc/self/maps"))
    ]
    assert foreign == []
    calls = log.read_text()
    for word in ("clone", "rt_sigaction", "umask", "socket", "/run/tenfold", str(slot.folder)):
        assert word not in calls, word


def test_the_hook_is_silent_in_ordinary_tools(slot: Slot) -> None:
    for command in (
        ["/bin/ls", "/"],
        ["/bin/sh", "-c", "echo x | cat; (exit 3)"],
        ["/usr/bin/env"],
        ["/usr/bin/python3", "-c", "import ctypes"],
    ):
        if not Path(command[0]).exists():
            continue
        with_hook = slot.run(command)
        plain = subprocess.run(command, env=slot.environment | {"LD_PRELOAD": ""}, capture_output=True, text=True, timeout=30, check=False)
        assert with_hook.returncode == plain.returncode
        assert with_hook.stderr == plain.stderr == ""


def test_an_image_without_our_slot_is_not_limited_and_not_harmed(slot: Slot) -> None:
    environment = {name: value for name, value in slot.environment.items() if name != "TENFOLD_SLOT_DIR"}
    done = subprocess.run(
        [str(slot.hook / "tenfold-selftest")],
        input=f"open {slot.machine.uuids[0]}\nview\nspin 1000 50\n",
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert f'"total_bytes": {CARD_BYTES}' in done.stdout
    assert done.stderr == ""


def test_setuid_like_environments_ignore_our_variables() -> None:
    text = "".join(path.read_text() for path in (workshop.HOOK_SOURCE / "src").glob("*/*.c") if path.parent.name != "host")
    assert "secure_getenv" in text
    assert " getenv(" not in text
    assert os.environ.get("LD_PRELOAD") is None
