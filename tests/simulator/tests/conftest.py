"""Fixtures of the simulator's tests: the driver is built once, each test gets its own machine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Iterator

import pytest

from . import bench
from .bench import Machine


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: slow; make check leaves it out")
    config.addinivalue_line("markers", "toolkit: needs the NVIDIA toolkit, which the cluster's build compiles; make check leaves it out")


@pytest.fixture(scope="session")
def driver() -> Iterator[Path]:
    """The built driver, in a folder that every user may enter (pytest's own are root's alone); TENFOLD_SIM_BUILD names one that is kept."""
    kept = os.environ.get("TENFOLD_SIM_BUILD")
    if kept:
        yield bench.build(Path(kept))
        return
    with tempfile.TemporaryDirectory(prefix="tenfold-driver-") as folder:
        Path(folder).chmod(0o755)
        yield bench.build(Path(folder))


@pytest.fixture
def bare_machine(driver: Path, tmp_path: Path) -> Iterator[Machine]:
    """A machine that is not made yet."""
    machine = Machine(driver, tmp_path / "state")
    yield machine
    machine.close()


@pytest.fixture
def machine(bare_machine: Machine) -> Machine:
    """Two A800-80GB under driver 535, contexts weigh nothing, first in first out."""
    return bare_machine.init()
