"""What every unit test gets: a way to run a module's ``main()`` without a host, and the library that writes pages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Callable

import pytest
from hypothesis import HealthCheck, settings

from tests.hook import workshop

# Time limits per example would judge how busy the machine is.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

RunModule = Callable[..., "dict[str, Any]"]


@pytest.fixture(scope="session")
def page_library() -> Path:
    """``libtenfold_page.so``, compiled once."""
    if not (shutil.which("gcc") and shutil.which("make")):
        pytest.skip("gcc or make is not installed")
    return workshop.build_page_library()


@pytest.fixture
def run_module(capsys: pytest.CaptureFixture[str]) -> RunModule:
    """``run_module(main, option=value, ...)`` calls a module's main() and gives its result; ``failed`` is in it if it failed."""
    from ansible.module_utils.testing import patch_module_args

    def run(main: Callable[[], None], **options: Any) -> dict[str, Any]:
        with patch_module_args(options), pytest.raises(SystemExit) as ended:
            main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert bool(result.get("failed")) == bool(ended.value.code)
        return result

    return run
