"""What every unit test gets: time for its examples, and the library that writes pages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.hook import workshop

# Time limits per example would judge how busy the machine is.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


@pytest.fixture(scope="session")
def page_library() -> Path:
    """``libtenfold_page.so``, compiled once."""
    if not (shutil.which("gcc") and shutil.which("make")):
        pytest.skip("gcc or make is not installed")
    return workshop.build_page_library()
