"""Fixtures of the simulator's tests: the driver is built once, each test gets its own machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Iterator

import pytest

from . import bench
from .bench import Machine

BUILD = "TENFOLD_SIM_BUILD"  # names the folder


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: slow; make check leaves it out")
    config.addinivalue_line("markers", "toolkit: needs the NVIDIA toolkit, which the cluster's build compiles; make check leaves it out")
    if BUILD not in os.environ:  # else this is one of several workers, or somebody wants to keep what is built
        folder = tempfile.mkdtemp(prefix="tenfold-driver-")
        Path(folder).chmod(0o755)
        os.environ[BUILD] = folder
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(BUILD)))


@pytest.fixture(scope="session")
def driver() -> Path:
    """The built driver, in a folder that every user may enter (pytest's own are root's alone)."""
    return bench.build(Path(os.environ[BUILD]))


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
