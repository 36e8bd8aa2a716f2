"""requirements.yml is satisfied by what versions.yml installs: nothing is fetched, and what the tree uses is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from tests import ROOT

FOLDERS = ("roles", "playbooks", "molecule", "inventories")


def test_collections_are_there_without_a_galaxy_server(tmp_path: Path) -> None:
    result = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-galaxy")), "collection", "install", "--offline", "-r", str(ROOT / "requirements.yml")],
        env={**os.environ, "ANSIBLE_HOME": str(tmp_path), "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Nothing to do" in result.stdout


def test_every_collection_that_the_tree_uses_is_named() -> None:
    named = {entry["name"] for entry in yaml.safe_load((ROOT / "requirements.yml").read_text())["collections"]}
    used = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.yml"):
            # a task's module and a connection; comments name other things
            words = re.findall(
                r"^\s*(?:- )?(?:ansible_connection: )?((?:containers|ansible|community|kubernetes)\.[a-z]+)\.[a-z_]+",
                path.read_text(),
                re.M,
            )
            used |= {word for word in words if word != "ansible.builtin"}
    assert used
    assert used <= named
