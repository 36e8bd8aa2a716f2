"""cuGetProcAddress gives the symbol of exactly the ABI that was asked for, whatever driver is simulated.

The request lists are what NVIDIA's runtimes 11.8, 12.9 and 13.5 ask for (columns: name, version, flags, symbol)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from . import bench
from .bench import Machine

VECTORS = bench.SIMULATOR.parent / "hook" / "vectors"
DRIVERS = {"470": 11040, "510": 11060, "520": 11080, "525": 12000, "535": 12020, "550": 12040, "575": 12090, "580": 13000, "615": 13040}

REPLAY = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
names = {}
for line in open(sys.argv[1]):
    exported = line.strip()
    names[ctypes.cast(getattr(cuda, exported), ctypes.c_void_p).value] = exported
for line in open(sys.argv[2]):
    name, version, flags, _ = line.rstrip("\\n").split("\\t")
    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
    code = cuda.cuGetProcAddress_v2(name.encode(), ctypes.byref(pointer), int(version), ctypes.c_uint64(int(flags)), ctypes.byref(status))
    print(name, version, flags, names.get(pointer.value, "-") if code == 0 else "-", code, status.value)
"""


def test_the_table_is_sorted_as_the_search_needs_it() -> None:
    asked = [symbol.asked for symbol in bench.symbols() if symbol.asked]
    assert asked == sorted(asked)


def test_a_version_names_one_symbol() -> None:
    keys = [(symbol.asked, symbol.version, symbol.is_per_thread) for symbol in bench.symbols() if symbol.asked]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("driver_branch", DRIVERS)
@pytest.mark.parametrize("runtime", ["cudart11", "cudart12", "cudart13"])
def test_every_request_of_a_runtime_gets_its_abi(bare_machine: Machine, tmp_path: Path, runtime: str, driver_branch: str) -> None:
    machine = bare_machine.init(driver=driver_branch)
    introduced = {symbol.exported: symbol.version for symbol in bench.symbols()}
    (tmp_path / "names").write_text("\n".join(introduced))
    vectors = VECTORS / f"{runtime}_requests.tsv"
    done = subprocess.run(
        [sys.executable, "-S", "-c", REPLAY, str(tmp_path / "names"), str(vectors)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env=machine.environment,
    )
    wrong = []
    for line, answer in zip(vectors.read_text().splitlines(), done.stdout.splitlines()):
        name, version, flags, symbol = line.split("\t")
        expected = symbol if symbol != "-" and introduced[symbol] <= DRIVERS[driver_branch] else "-"
        if answer.split()[3] != expected:
            wrong.append((name, version, flags, expected, answer))
    assert not wrong
    assert len(done.stdout.splitlines()) == len(vectors.read_text().splitlines())


class TestRefusals:
    """The first ABI answers with an error, the second with success, a NULL pointer and a status."""

    def ask(self, machine: Machine, name: str, version: int, flags: int = 0) -> tuple[int, list[object]]:
        """Code of the first ABI; code, pointer and status of the second."""
        with machine.process() as process:
            first = process.cuda("cuGetProcAddress", name, bench.out("u64"), version, flags)
            second = process.cuda("cuGetProcAddress_v2", name, bench.out("u64"), version, flags, bench.out("i32"))
            return first[0], second

    def test_an_unknown_name_is_not_found(self, machine: Machine) -> None:
        assert self.ask(machine, "cuNoSuchCall", 12020) == (bench.NOT_FOUND, [0, 0, 1])

    def test_a_version_before_the_first_abi_is_not_sufficient(self, machine: Machine) -> None:
        assert self.ask(machine, "cuMemAllocAsync", 11000) == (bench.NOT_FOUND, [0, 0, 2])

    def test_a_version_above_the_drivers_is_invalid_and_gets_no_older_abi(self, machine: Machine) -> None:
        first, (second, pointer, _) = self.ask(machine, "cuStreamGetCaptureInfo", 12030)
        assert (first, second, pointer) == (bench.INVALID_VALUE, bench.INVALID_VALUE, 0)

    def test_bad_flags_are_invalid(self, machine: Machine) -> None:
        first, second = self.ask(machine, "cuInit", 12020, 7)
        assert (first, second[0]) == (bench.INVALID_VALUE, bench.INVALID_VALUE)

    def test_a_missing_status_output_is_allowed(self, machine: Machine) -> None:
        with machine.process() as process:
            assert process.must("cuGetProcAddress_v2", "cuInit", bench.out("u64"), 12020, 0, None)


def test_private_tables_do_not_exist(machine: Machine) -> None:
    with machine.process().start() as process:
        assert process.cuda("cuGetExportTable", bench.out("u64"), ["in", "00" * 16])[0] == bench.NOT_FOUND
