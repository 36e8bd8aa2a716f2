"""Proof that a built hook is what it should be and does what it must, on the node where it will serve.

Owns the checks and their verdicts: the files (ELF, glibc floor, exports, no constructors), the ABI against running slots, and a functional
run with the node's own driver: the self-test program runs under the hook in a slot of its own on an idle card, says what it saw, and this
module compares. ``hook_build`` made the folder; ``region`` makes the slot; the role decides what to do with a failure.

A node at work is not disturbed: at most 256 MiB and two seconds of a card on which nothing runs, else the functional part is reported as
not run, with the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Iterable, Sequence, cast

from . import page_writer, region
from .errors import RegionError
from .hook_elf import GLIBC_FLOOR, ElfLibrary, HookError, parse_glibc_version, read_library

__all__ = ["Check", "Report", "VerifyRequest", "expected_symbols", "verify"]

LIBRARY = "libtenfold.so"
SELFTEST = "tenfold-selftest"
PAGE_SYMBOLS = ("tenfold_page_abi", "tenfold_page_create", "tenfold_page_tell_busy", "tenfold_page_write")
MEMORY_BYTES_MAX = 256 << 20
STEP_BYTES = 2 << 20
ANSWER_SECONDS = 20.0
OUT_OF_MEMORY = 2

# Throttling is judged on kernels of 2 ms; the first stretch only lets the limiter learn what they cost.
KERNEL_US = 2000
LEARN_MS, MEASURE_MS, MEASURE_AGAIN = 250, 400, 3
CORE_LIMITS_PERCENT = (25, 60)
CORE_TOLERANCE_POINTS = 10.0


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    expected: str
    seen: str

    def __str__(self) -> str:
        return f"{self.name}: expected {self.expected}, seen {self.seen}"


@dataclass
class Report:
    """functional is "passed", "failed" or "not run: <reason>"."""

    checks: list[Check] = field(default_factory=list)
    functional: str = "not run: not asked for"
    card: str = ""

    def add(self, name: str, ok: bool, expected: object, seen: object) -> bool:
        self.checks.append(Check(name, ok, str(expected), str(seen)))
        return ok

    def equal(self, name: str, expected: object, seen: object) -> bool:
        return self.add(name, expected == seen, expected, seen)

    @property
    def failures(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]

    def as_dict(self) -> dict[str, Any]:
        return {"checks": [asdict(check) for check in self.checks], "functional": self.functional, "card": self.card}


@dataclass(frozen=True)
class VerifyRequest:
    """folder holds the library, the self-test and symbols.txt. symbols overrides the list beside the library. machine is what the node is
    (``os.uname().machine``); image_glibcs are versions of the images that will load it, as "2.28". functional is "auto" (skip where the
    node has no idle card), "required" or "never". memory_mib and the card's UUID are for the functional part."""

    folder: Path
    machine: str
    symbols: tuple[str, ...] = ()
    image_glibcs: tuple[str, ...] = ()
    functional: str = "auto"
    memory_mib: int = 64
    card: str = ""
    slots: Path = Path("/run/tenfold/slots")


def expected_symbols(text: str) -> tuple[str, ...]:
    """Names in ``symbols.txt`` ("name class" a line) or in ``hooks.def``."""
    names = []
    for line in text.splitlines():
        head, _separator, rest = line.partition("(")
        if head in ("CUDA_HOOK", "NVML_HOOK"):
            names.append(rest.partition(",")[0].strip())
        elif len(line.split()) == 2 and line[0].isalpha() and "(" not in line:
            names.append(line.split()[0])
    return tuple(sorted({*names, "dlsym", "dlvsym"}))


def verify(request: VerifyRequest) -> Report:
    """Everything that can be known. Errors: HookError only when the file cannot be read at all; a wrong hook is a report with failures."""
    report = Report()
    _check_file(request, read_library(request.folder / LIBRARY), report)
    _check_page_writer(request, report)
    _check_running_slots(request, report)
    if request.functional != "never" and not report.failures:
        _check_function(request, report)
    elif report.failures:
        report.functional = "not run: the file itself is wrong"
    return report


# --- the file -----------------------------------------------------------------------------------------------------------------


def _check_file(request: VerifyRequest, library: ElfLibrary, report: Report) -> None:
    symbols = request.symbols or expected_symbols(_read_text(request.folder / "symbols.txt"))
    _check_library(request, library, symbols, request.image_glibcs, report, "")


def _check_page_writer(request: VerifyRequest, report: Report) -> None:
    """The second library, by which the host writes pages: its file, then a page that it makes and changes."""
    path, prefix = request.folder / page_writer.LIBRARY, "page writer: "
    try:
        library = read_library(path)
    except HookError as error:
        report.add(f"{prefix}file", False, f"{page_writer.LIBRARY} beside the hook", str(error))
        return
    _check_library(request, library, PAGE_SYMBOLS, (), report, prefix)
    if library.machine != request.machine:
        return
    slot = Path(tempfile.mkdtemp(prefix="tenfold-verify-"))
    card = "GPU-00000000-0000-0000-0000-000000000000"
    try:
        region.create_slot(slot, [region.GpuQuota(card, STEP_BYTES, 10)], library=path)
        region.write_config(slot, [region.GpuQuota(card, MEMORY_BYTES_MAX, 20)], library=path)
        page = region.read_config(slot)
        seen = (page.generation, page.gpus[0].memory_limit_bytes, page.gpus[0].core_limit_percent)
        report.equal(f"{prefix}page after a change", (2, MEMORY_BYTES_MAX, 20), seen)
    except RegionError as error:
        report.add(f"{prefix}call", False, "a page that is made and changed", str(error))
    finally:
        shutil.rmtree(str(slot), ignore_errors=True)


def _check_library(
    request: VerifyRequest, library: ElfLibrary, symbols: Sequence[str], image_glibcs: Sequence[str], report: Report, prefix: str
) -> None:
    report.equal(f"{prefix}ELF class", 64, library.bits)
    report.equal(f"{prefix}machine", request.machine, library.machine)
    report.equal(f"{prefix}needed libraries", "libc.so.6", " ".join(library.needed))
    report.equal(f"{prefix}constructors", 0, library.constructors)
    needed = library.needed_glibc or "0"
    for name, version in [("glibc floor", GLIBC_FLOOR), *((f"glibc of image {text}", text) for text in image_glibcs)]:
        fits = parse_glibc_version(needed) <= parse_glibc_version(version)
        report.add(f"{prefix}{name}", fits, f"nothing newer than {version}", needed)
    missing, extra = sorted(set(symbols) - set(library.exported)), sorted(set(library.exported) - set(symbols))
    report.add(f"{prefix}missing symbols", not missing, "none", " ".join(missing) or "none")
    report.add(f"{prefix}unexpected symbols", not extra, "none", " ".join(extra) or "none")


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise HookError(f"cannot read {str(path)!r}: {error.strerror}", path=str(path)) from error


def _abi_of(folder: Path) -> int:
    try:
        return int(json.loads((folder / "build.json").read_text())["abi"])
    except (OSError, ValueError, KeyError, TypeError):
        return region.ABI_VERSION


def _check_running_slots(request: VerifyRequest, report: Report) -> None:
    """Containers that start after an upgrade get slots of the plugin that runs now: hook and slots must speak one ABI."""
    abi = _abi_of(request.folder)
    unreadable = []
    for config in sorted(request.slots.glob("*/config")):
        try:
            with config.open("rb") as stream:
                found = region.HEADER.unpack(stream.read(region.HEADER_BYTES))[1]
        except Exception as error:  # a slot that goes away under our eyes is no failure of the hook
            if config.exists():
                unreadable.append(f"{config.parent.name}: {error}")
            continue
        if not report.equal(f"ABI of slot {config.parent.name}", abi, found):
            break
    report.add("running slots", not unreadable, "readable", "; ".join(unreadable[:3]) or "readable")


# --- the function -------------------------------------------------------------------------------------------------------------


class _Selftest:
    """The self-test program: a command in, a JSON object out."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        foreign = ("LD_PRELOAD", "LD_AUDIT", "TENFOLD_SLOT_DIR", "CUDA_")  # what would change the hook's or the driver's mind
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.process = subprocess.Popen(
            [str(folder / SELFTEST)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**kept, **environment},
        )
        self.questions, self.answers = cast("IO[bytes]", self.process.stdin), cast("IO[bytes]", self.process.stdout)
        self.buffer = b""

    def ask(self, command: str) -> dict[str, Any]:
        try:
            self.questions.write(command.encode() + b"\n")
            self.questions.flush()
        except OSError as error:
            raise HookError(f"the self-test died before {command!r}: {self._death()}") from error
        line = self._line(command)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise HookError(f"the self-test could not {command!r}: {answer['error']}")
        return answer

    def _line(self, command: str) -> bytes:
        deadline = time.monotonic() + ANSWER_SECONDS
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.answers], [], [], left)[0]:
                raise HookError(f"the self-test did not answer {command!r} within {ANSWER_SECONDS:g} s")
            data = os.read(self.answers.fileno(), 65536)
            if not data:
                raise HookError(f"the self-test died in {command!r}: {self._death()}")
            self.buffer += data
        line, _newline, self.buffer = self.buffer.partition(b"\n")
        return line

    def _death(self) -> str:
        try:
            code = self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        return f"signal {-code}" if code < 0 else f"status {code}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.questions, self.answers):
            with contextlib.suppress(OSError):
                stream.close()


def _idle_card(request: VerifyRequest) -> tuple[str, str]:
    """UUID of a card on which nothing runs, or "" and why there is none."""
    if Path("/run/tenfold/config").exists():
        return "", "this is the inside of a slice; run it on the node"
    if not (request.folder / SELFTEST).is_file():
        return "", f"{SELFTEST} is not beside the library"
    program = _Selftest(request.folder, {})
    try:
        answer = program.ask("cards")
    except HookError as error:
        return "", str(error)
    finally:
        program.close()
    cards = [card for card in answer["cards"] if request.card in ("", card["uuid"])]
    if not cards:
        return "", f"the driver shows no card {request.card!r}" if request.card else "the driver shows no card"
    needed = (request.memory_mib << 20) * 2
    for card in cards:
        if card["processes"] == 0 and card["busy_percent"] == 0 and card["free_bytes"] >= needed:
            return str(card["uuid"]), ""
    return "", f"no card is idle ({len(cards)} looked at)"


def _check_function(request: VerifyRequest, report: Report) -> None:
    if not 2 <= request.memory_mib <= MEMORY_BYTES_MAX >> 20:
        raise HookError(f"memory_mib is {request.memory_mib}, expected 2 to {MEMORY_BYTES_MAX >> 20}")
    card, reason = _idle_card(request)
    if not card:
        report.functional = f"not run: {reason}"
        if request.functional == "required":
            report.add("functional run", False, "a run on an idle card", reason)
        return
    report.card = card
    slot = Path(tempfile.mkdtemp(prefix="tenfold-verify-"))
    before = len(report.failures)
    try:
        region.create_slot(slot, [_quota(request, card, CORE_LIMITS_PERCENT[0])], library=request.folder / page_writer.LIBRARY)
        program = _Selftest(request.folder, {"LD_PRELOAD": str(request.folder / LIBRARY), "TENFOLD_SLOT_DIR": str(slot)})
        try:
            _judge(request, report, slot, card, program)
        finally:
            program.close()
    except (HookError, RegionError) as error:
        report.add("functional run", False, "an answer to every command", str(error))
    finally:
        shutil.rmtree(str(slot), ignore_errors=True)
    report.functional = "passed" if len(report.failures) == before else "failed"


def _quota(request: VerifyRequest, card: str, core_limit_percent: int, memory_bytes: int | None = None) -> region.GpuQuota:
    limit = request.memory_mib << 20 if memory_bytes is None else memory_bytes
    # a context of the real driver takes more than this slice has: here the program's own bytes are judged
    return region.GpuQuota(card, limit, core_limit_percent, overhead="reserved")


def _change(request: VerifyRequest, slot: Path, quota: region.GpuQuota) -> None:
    region.write_config(slot, [quota], library=request.folder / page_writer.LIBRARY)


def _judge(request: VerifyRequest, report: Report, slot: Path, card: str, program: _Selftest) -> None:
    limit = request.memory_mib << 20
    if not report.equal("opening the card", 0, program.ask(f"open {card}")["result"]):
        return
    report.equal("entry points of another ABI", "none", " ".join(program.ask("routes")["wrong"]) or "none")
    _check_view(report, program, "fresh", limit, 0)
    _check_fill(report, program, limit)
    _check_view(report, program, "full", limit, limit)
    _check_live_memory(request, report, slot, card, program, limit)
    report.equal("giving everything back", 0, program.ask("drain")["result"])
    _check_view(report, program, "empty again", limit, 0)
    report.equal("allocating the whole slice after freeing it", 0, program.ask(f"alloc {limit}")["result"])
    program.ask("drain")
    _check_throttle(request, report, slot, card, program)


def _check_view(report: Report, program: _Selftest, when: str, total: int, used: int) -> None:
    view = program.ask("view")
    expected = {"total_bytes": total, "free_bytes": max(0, total - used), "device_total_bytes": total}
    if view["nvml_total_bytes"]:
        expected.update(nvml_total_bytes=total, nvml_used_bytes=min(used, total), nvml_free_bytes=max(0, total - used))
    for name, value in expected.items():
        report.equal(f"{name} ({when})", value, view[name])


def _check_fill(report: Report, program: _Selftest, limit: int) -> None:
    filled = program.ask(f"fill {STEP_BYTES} {MEMORY_BYTES_MAX}")
    report.equal("bytes allocated until the refusal", limit, filled["allocated_bytes"])
    report.equal("result of the allocation past the limit", OUT_OF_MEMORY, filled["result"])
    report.equal("result of 512 bytes more", OUT_OF_MEMORY, program.ask("alloc 512")["result"])


def _check_live_memory(request: VerifyRequest, report: Report, slot: Path, card: str, program: _Selftest, limit: int) -> None:
    cores = CORE_LIMITS_PERCENT[0]
    _change(request, slot, _quota(request, card, cores, limit // 2))
    _check_view(report, program, "shrunk below use", limit // 2, limit)
    report.equal("allocating above a shrunk limit", OUT_OF_MEMORY, program.ask("alloc 512")["result"])
    _change(request, slot, _quota(request, card, cores, limit + STEP_BYTES))
    report.equal("allocating under a grown limit", 0, program.ask(f"alloc {STEP_BYTES}")["result"])
    report.equal("allocating above a grown limit", OUT_OF_MEMORY, program.ask("alloc 512")["result"])
    _change(request, slot, _quota(request, card, cores))


def _share_percent(program: _Selftest, milliseconds: int) -> float:
    spun = program.ask(f"spin {KERNEL_US} {milliseconds}")
    if spun["result"] != 0:
        raise HookError(f"launching a kernel gave {spun['result']}")
    return float(100.0 * spun["gpu_us"] / max(1, spun["wall_us"]))


def _check_throttle(request: VerifyRequest, report: Report, slot: Path, card: str, program: _Selftest) -> None:
    for limit in CORE_LIMITS_PERCENT:
        _change(request, slot, _quota(request, card, limit))
        _share_percent(program, LEARN_MS)
        share = _share_percent(program, MEASURE_MS)
        # A busy host stops the program for tens of milliseconds, and the credit of that time is spent within the same window: the mean
        # holds, a single window need not. A hook that does not limit misses every window, and the card is then left alone.
        for _ in range(MEASURE_AGAIN):
            if abs(share - limit) <= CORE_TOLERANCE_POINTS:
                break
            share = _share_percent(program, MEASURE_MS)
        report.add(
            f"share of the card at a limit of {limit} %",
            abs(share - limit) <= CORE_TOLERANCE_POINTS,
            f"{limit} +- {CORE_TOLERANCE_POINTS:g} %",
            f"{share:.1f} %",
        )
        if abs(share - limit) > CORE_TOLERANCE_POINTS:
            return


def failure_message(folder: Path, failures: Iterable[Check]) -> str:
    return f"the hook in {str(folder)!r} failed its verification:\n" + "\n".join(f"  {check}" for check in failures)


def images_glibc(versions: Sequence[str]) -> tuple[str, ...]:
    """Checked and in order. Errors: HookError."""
    return tuple(sorted({version for version in versions if parse_glibc_version(version)}, key=parse_glibc_version))
