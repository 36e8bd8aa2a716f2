"""Fixtures of the hook's tests: one built simulator and hook per run, a fresh machine and slot per test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region

from tests.hook import workshop
from tests.hook.workshop import MIB, Machine, Slot


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: slow or needs more than a compiler; left out of tests/hook/run.py --quick")
    config.addinivalue_line("markers", "timing: judges shares of time; tests/hook/run.py runs such tests beside nothing but each other")


@pytest.fixture(scope="session")
def simulator() -> Path:
    return workshop.build_simulator()


@pytest.fixture(scope="session")
def hook() -> Path:
    return workshop.build_hook()


@pytest.fixture
def machine(simulator: Path, tmp_path: Path) -> Machine:
    return Machine.make(simulator, tmp_path)


@pytest.fixture
def make_slot(hook: Path, machine: Machine, tmp_path: Path) -> Callable[..., Slot]:
    """make_slot(memory_mib=64, cores=100, cards=(0,), ...) -> Slot"""
    numbers = iter(range(1000))

    def make(memory_mib: float = 64, cores: int = 100, cards: tuple[int, ...] = (0,), policy: str = "closed", **quota: object) -> Slot:
        gpus = [region.GpuQuota(machine.uuids[card], int(memory_mib * MIB), cores, **quota) for card in cards]  # type: ignore[arg-type]
        return Slot(tmp_path / f"slot-{next(numbers)}", hook, machine, gpus, policy).create()

    return make


@pytest.fixture
def slot(make_slot: Callable[..., Slot]) -> Slot:
    return make_slot()
