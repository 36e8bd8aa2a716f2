"""What every unit test gets: the product's import paths, and a way to run a module's ``main()`` without a host.

``ansible.module_utils.tenfold`` is found in ``plugins/module_utils`` as on a node; modules, action and filter plugins are importable by
their file's name.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, Callable

import ansible.module_utils
import pytest
from hypothesis import HealthCheck, settings

from tests.hook import workshop

ROOT = Path(__file__).resolve().parents[2]
for _folder in ("modules", "action", "filter"):
    _path = str(ROOT / "plugins" / _folder)
    if _path not in sys.path:
        sys.path.append(_path)
_module_utils = str(ROOT / "plugins" / "module_utils")
if _module_utils not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_module_utils)

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
