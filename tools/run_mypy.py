"""Runs mypy in strict mode over each Python room in turn.

Rooms are checked apart, since files of the same name (an action plugin and its module, two conftest.py) would otherwise collide.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("plugins/module_utils", "plugins/modules", "plugins/action", "plugins/filter", "files/device_plugin/src", "tests", "tools")


def main() -> int:
    """1 if a room has a type error."""
    failed = False
    for room in ROOMS:
        if not list((ROOT / room).rglob("*.py")):
            continue
        result = subprocess.run([sys.executable, "-m", "mypy", "--no-error-summary", room], cwd=ROOT, check=False)
        print(f"mypy {room}: {'failed' if result.returncode else 'ok'}", flush=True)
        failed = failed or bool(result.returncode)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
