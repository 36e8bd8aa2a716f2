"""Fixtures of the simulator's tests: the driver is built once, each test gets its own machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

import pytest

from . import bench
from .bench import Machine


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built driver; TENFOLD_SIM_BUILD names a folder that is kept between runs."""
    kept = os.environ.get("TENFOLD_SIM_BUILD")
    return bench.build(Path(kept) if kept else tmp_path_factory.mktemp("driver"))


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
