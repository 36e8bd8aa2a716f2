"""nvidia-smi: what programs read of it, and what it says when there is nothing to say."""

from __future__ import annotations

import os
import subprocess

from .bench import BLOCK, MIB, Machine


def test_list(machine: Machine) -> None:
    lines = machine.smi("-L").stdout.splitlines()
    uuids = [card["uuid"] for card in machine.truth()["cards"]]
    assert lines == [f"GPU {index}: NVIDIA A800-SXM4-80GB (UUID: {uuid})" for index, uuid in enumerate(uuids)]


def test_query_without_header_and_units(machine: Machine) -> None:
    done = machine.smi("--query-gpu=index,driver_version,name,memory.total,compute_cap,mig.mode.current", "--format=csv,noheader,nounits")
    assert done.stdout.splitlines()[0] == "0, 535.161.08, NVIDIA A800-SXM4-80GB, 81920, 8.0, Disabled"
    assert len(done.stdout.splitlines()) == 2


def test_query_with_header_and_units(machine: Machine) -> None:
    assert machine.smi("--query-gpu=uuid, memory.free", "--format=csv", "-i", "1").stdout.splitlines() == [
        "uuid, memory.free [MiB]",
        f"{machine.truth()['cards'][1]['uuid']}, 81920 MiB",
    ]


def test_processes(machine: Machine) -> None:
    with machine.process().start() as process:
        process.alloc(100 * MIB + BLOCK)
        [row] = [line for line in machine.smi().stdout.partition("Processes:")[2].splitlines() if "MiB |" in line]
        assert row.split()[4] == str(process.child.pid)
        assert row.endswith(" 102MiB |")


def test_the_table_fits_its_frame(machine: Machine) -> None:
    with machine.process().start():
        lines = machine.smi().stdout.splitlines()
        assert {len(line) for line in lines if line[:1] in "+|" and line} == {89}
        assert "Driver Version: 535.161.08" in machine.smi().stdout
        assert "CUDA Version: 12.2" in machine.smi().stdout


def test_an_unknown_field_is_named(machine: Machine) -> None:
    done = machine.smi("--query-gpu=index,colour", "--format=csv")
    assert (done.returncode, done.stdout.strip()) == (2, 'Field "colour" is not a valid field to query.')


def test_old_drivers_do_not_know_new_fields(bare_machine: Machine) -> None:
    for driver, known in (("440", ()), ("470", ("mig.mode.current",)), ("510", ("mig.mode.current", "compute_cap", "memory.reserved"))):
        machine = bare_machine.init(driver=driver)
        for field in ("mig.mode.current", "compute_cap", "memory.reserved"):
            done = machine.smi(f"--query-gpu=index,{field}", "--format=csv,noheader")
            assert (done.returncode == 0) == (field in known), f"{field} under {driver}"


def test_modes_are_set_on_the_card_that_was_named(machine: Machine) -> None:
    uuid = machine.truth()["cards"][1]["uuid"]
    assert machine.smi("-i", uuid, "-c", "EXCLUSIVE_PROCESS").returncode == 0
    assert machine.smi("-i", "0", "-pm", "1").returncode == 0
    rows = machine.smi("--query-gpu=compute_mode,persistence_mode", "--format=csv,noheader").stdout.splitlines()
    assert rows == ["Default, Enabled", "Exclusive Process, Disabled"]
    machine.smi("-c", "DEFAULT")
    assert set(machine.smi("--query-gpu=compute_mode", "--format=csv,noheader").stdout.split()) == {"Default"}


def test_mig_mode_changes_only_on_an_idle_card(machine: Machine) -> None:
    with machine.process().start():
        assert machine.smi("-i", "0", "-mig", "1").returncode == 3
    assert machine.smi("-i", "0", "-mig", "1").returncode == 0
    assert machine.smi("--query-gpu=mig.mode.current", "--format=csv,noheader").stdout.split() == ["Enabled", "Disabled"]


def test_an_unknown_option_and_a_missing_format_are_refused(machine: Machine) -> None:
    assert machine.smi("--frobnicate").returncode == 2
    assert machine.smi("--query-gpu=index").returncode == 2


def test_an_unknown_card_is_not_found(machine: Machine) -> None:
    done = machine.smi("-L", "-i", "7")
    assert done.returncode == 6
    assert "No devices were found" in done.stdout


def test_without_a_driver(bare_machine: Machine) -> None:
    done = bare_machine.smi("-L")
    assert done.returncode == 9
    assert done.stdout.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


def test_without_the_library(machine: Machine) -> None:
    done = subprocess.run(
        [str(machine.driver / "nvidia-smi")], capture_output=True, text=True, timeout=20, check=False, env={"PATH": os.environ["PATH"]}
    )
    assert done.returncode == 12
    assert "couldn't find libnvidia-ml.so" in done.stdout
