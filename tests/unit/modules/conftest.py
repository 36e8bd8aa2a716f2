"""What every test of a module gets: a way to run its ``main()`` without a host."""

from __future__ import annotations

import json
from typing import Any, Callable

import pytest

RunModule = Callable[..., "dict[str, Any]"]


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
