"""Runs mypy in strict mode over each Python room in turn.

Rooms are checked apart, since files of the same name (an action plugin and its module, two conftest.py) would otherwise collide.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The collection as a package, so that an action plugin and its module, whose files have one name, are two.
ROOMS = (
    ("-p", "ansible_collections.tenfold.vgpu.plugins"),
    ("files/device_plugin/src",),
    ("tests",),
    ("tools",),
)


def main() -> int:
    """1 if a room has a type error."""
    failed = False
    for room in ROOMS:
        result = subprocess.run([sys.executable, "-m", "mypy", "--no-error-summary", *room], cwd=ROOT, check=False)
        print(f"mypy {room[-1]}: {'failed' if result.returncode else 'ok'}", flush=True)
        failed = failed or bool(result.returncode)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
