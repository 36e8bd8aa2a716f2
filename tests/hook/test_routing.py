"""Who asks the driver for a function gets ours exactly where that very symbol is hooked, and never one of another ABI.

The requests are those of real CUDA runtimes 11.8, 12.9 and 13.5, recorded once (vectors/). The truth is what the same driver answers
without the hook.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import hook_verify, region

from tests.hook import workshop
from tests.hook.workshop import Machine, Slot

VECTORS = Path(__file__).parent / "vectors"
DRIVERS = ("470", "520", "535", "550", "570", "580", "615", "620")

Answers = dict[tuple[str, str, str], tuple[str, str]]


def replay(program: Path, requests: str, environment: dict[str, str]) -> Answers:
    done = subprocess.run([str(program)], input=requests, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {(name, version, flags): (library, symbol) for name, version, flags, library, symbol in rows}


def hooked_symbols() -> set[str]:
    return set(hook_verify.expected_symbols((workshop.HOOK_SOURCE / "src" / "abi" / "hooks.def").read_text()))


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_request_of_three_runtimes_gets_ours_iff_that_symbol_is_hooked(
    simulator: Path, hook: Path, tmp_path: Path, driver: str
) -> None:
    machine = Machine.make(simulator, tmp_path, driver=driver)
    slot = Slot(tmp_path / "slot", hook, machine, [region.GpuQuota(machine.uuids[0], 1 << 30, 10)]).create()
    program = workshop.compile_program("resolve")
    hooked = hooked_symbols()
    replaced = 0
    for vector in sorted(VECTORS.glob("*.tsv")):
        requests = "".join("\t".join(line.split("\t")[:3]) + "\n" for line in vector.read_text().splitlines())
        native = replay(program, requests, machine.environment)
        with_hook = replay(program, requests, slot.environment)
        assert native.keys() == with_hook.keys()
        for request, (library, symbol) in native.items():
            expected = ("libtenfold.so", symbol) if symbol in hooked else (library, symbol)
            assert with_hook[request] == expected, f"{vector.name}: {request} on driver {driver}"
            replaced += symbol in hooked
    assert replaced > 50
    assert slot.state().unknown_entry_points == 0


def test_a_driver_whose_answers_are_no_exports_is_served_by_the_version_table(hook: Path, tmp_path: Path, machine: Machine) -> None:
    """A stand-in driver hands out private trampolines; ours must come by name, version and flags, or not at all."""
    folder = tmp_path / "private"
    folder.mkdir()
    library = folder / "libcuda.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(workshop.PROGRAMS / "private_driver.c")],
        check=True,
        timeout=60,
    )
    slot = Slot(tmp_path / "slot", hook, machine, [region.GpuQuota(machine.uuids[0], 1 << 30, 10)]).create()
    asked = (
        "cuMemAlloc 3020 0",
        "cuMemAlloc 2000 0",
        "cuLaunchKernel 7000 2",
        "cuLaunchKernel 12000 0",
        "cuMemAllocPitch 12000 2",
        "cuCtxGetFlags 12000 0",
    )
    requests = "".join(request.replace(" ", "\t") + "\n" for request in asked)
    answers = replay(workshop.compile_program("resolve"), requests, {**slot.environment, "LD_LIBRARY_PATH": str(folder)})
    assert answers[("cuMemAlloc", "3020", "0")] == ("libtenfold.so", "cuMemAlloc_v2")
    assert answers[("cuLaunchKernel", "7000", "2")] == ("libtenfold.so", "cuLaunchKernel_ptsz")
    assert answers[("cuLaunchKernel", "12000", "0")] == ("libtenfold.so", "cuLaunchKernel")
    assert answers[("cuMemAlloc", "2000", "0")][0] != "libtenfold.so", "this driver exports no cuMemAlloc of CUDA 2"
    assert answers[("cuMemAllocPitch", "12000", "2")][0] != "libtenfold.so", "this driver exports no cuMemAllocPitch_v2"
    assert answers[("cuCtxGetFlags", "12000", "0")][0] != "libtenfold.so"
    assert slot.state().unknown_entry_points == 2
