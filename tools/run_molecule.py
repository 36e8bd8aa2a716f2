"""Runs one molecule scenario with the environment that the test bench needs (container settings of tests/cluster, project paths).

Usage: run_molecule.py SCENARIO [molecule arguments]. Without arguments the whole test sequence runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def environment() -> dict[str, str]:
    """What molecule and the playbooks that it starts need to find the project and podman's settings."""
    return {
        **os.environ,
        "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
        "CONTAINERS_CONF": str(ROOT / "tests/cluster/containers.conf"),
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def main(arguments: list[str]) -> int:
    """molecule's exit code; 2 without a scenario."""
    if not arguments:
        print("run_molecule.py: name a scenario: " + ", ".join(sorted(p.parent.name for p in ROOT.glob("molecule/*/molecule.yml"))))
        return 2
    scenario, *rest = arguments
    command = ["molecule", *(rest or ["test"]), "-s", scenario]
    return subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
