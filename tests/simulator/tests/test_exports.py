"""What the libraries export, and what they ask of the system that loads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import bench
from .bench import NOT_SUPPORTED, Machine


def defined(library: Path) -> set[str]:
    return {line.split()[-1] for line in bench.run(["nm", "-D", "--defined-only", str(library)]).splitlines()}


def test_every_symbol_of_the_table_is_exported_and_nothing_else(driver: Path) -> None:
    assert defined(driver / bench.CUDA) == {symbol.exported for symbol in bench.symbols()}


def test_every_exported_symbol_has_an_address_of_its_own(driver: Path) -> None:
    lines = bench.run(["nm", "-D", "--defined-only", str(driver / bench.CUDA)]).splitlines()
    addresses = [line.split()[0] for line in lines]
    assert len(addresses) == len(set(addresses))


def test_nvml_exports_nvml_only(driver: Path) -> None:
    assert all(name.startswith("nvml") for name in defined(driver / bench.NVML))


def test_a_call_without_behaviour_says_so(machine: Machine) -> None:
    with machine.process().start() as process:
        for symbol in bench.symbols():
            if symbol.is_stub:
                assert process.cuda(symbol.exported)[0] == NOT_SUPPORTED, symbol


@pytest.mark.parametrize("name", [bench.CUDA, bench.NVML])
def test_libraries_need_nothing_newer_than_glibc_2_17(driver: Path, name: str) -> None:
    assert newest_glibc(driver / name) <= (2, 17)


@pytest.mark.parametrize("name", ["nvidia-smi", "tenfold-sim"])
def test_programs_need_nothing_newer_than_glibc_2_34(driver: Path, name: str) -> None:
    assert newest_glibc(driver / name) <= (2, 34)


def newest_glibc(path: Path) -> tuple[int, ...]:
    text = bench.run(["objdump", "-T", str(path)])
    return max(tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", text))


@pytest.mark.parametrize("name", [bench.CUDA, bench.NVML])
def test_libraries_have_their_soname_and_need_libc_and_its_threads_alone(driver: Path, name: str) -> None:
    text = bench.run(["readelf", "-d", str(driver / name)])
    assert re.findall(r"SONAME.*\[(.*)\]", text) == [name]
    assert set(re.findall(r"NEEDED.*\[(.*)\]", text)) <= {"libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}


def test_file_names_carry_the_driver_version(driver: Path) -> None:
    for name in (bench.CUDA, bench.NVML):
        assert re.fullmatch(re.escape(name[:-1]) + r"\d+\.\d+\.\d+", (driver / name).resolve().name)


def test_errors_have_names(machine: Machine) -> None:
    with machine.process() as process:
        assert process.must("cuGetErrorName", 2, bench.out("u64"))
        assert process.cuda("cuGetErrorName", 123456, bench.out("u64"))[0] == 1


def version_script(tmp_path: Path, driver_version: str) -> Path:
    """Made by the rule that the library is linked with."""
    script = tmp_path / "obj" / f"exports.driver.{driver_version}.map"
    words = [f"BUILD={tmp_path}", f"DRIVER={driver_version}", "EXPORTS=driver", str(script)]
    bench.run(["make", "-s", "-C", str(bench.SIMULATOR), *words])
    return script


def test_an_old_drivers_library_can_have_an_old_drivers_names(tmp_path: Path) -> None:
    names = set(re.findall(r"  (cu\w+);", version_script(tmp_path, "440.118.02").read_text()))
    assert names == {symbol.exported for symbol in bench.symbols() if symbol.version <= 10020}


def test_a_driver_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no driver branch 333"):
        version_script(tmp_path, "333.1")
