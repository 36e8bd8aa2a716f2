"""The simulated driver on a machine: laid out as the real one's packages do, cards that stay the same over rebuilds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.driver import Driver
from tests.cluster.errors import FleetError
from tests.cluster.layout import GPU_NODES


@pytest.fixture()
def driver(tmp_path: Path) -> Driver:
    for name in ("libcuda.so.535.161.08", "libnvidia-ml.so.535.161.08", "nvidia-smi", "tenfold-sim"):
        (tmp_path / name).write_text("x")
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so.535.161.08")
    (tmp_path / "profiles/cards").mkdir(parents=True)
    (tmp_path / "profiles/cards/a800-80gb.conf").write_text("x")
    return Driver(tmp_path)


def test_libraries_keep_their_soname_links(driver: Driver) -> None:
    contents = {content.path: content.source for content in driver.contents()}
    assert contents["usr/lib/x86_64-linux-gnu/libcuda.so.1"] == "libcuda.so.535.161.08"
    assert contents["usr/lib/x86_64-linux-gnu/libcuda.so.535.161.08"] == driver.folder / "libcuda.so.535.161.08"


def test_programs_and_profiles_are_where_they_look_for_each_other(driver: Driver) -> None:
    paths = {content.path for content in driver.contents()}
    assert {"usr/bin/nvidia-smi", "usr/bin/tenfold-sim", "usr/share/tenfold-sim/profiles/cards/a800-80gb.conf"} <= paths


def test_machine_has_its_own_cards_of_the_built_version(driver: Driver) -> None:
    (first, unit), (second, _) = (driver.files(machine) for machine in GPU_NODES)
    assert "driver 535.161.08\n" in first.text
    assert "cards 2\n" in first.text
    assert first.text != second.text
    assert "tenfold-sim boot" in unit.text


def test_build_without_libraries_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"no libcuda\.so"):
        _ = Driver(tmp_path).version
