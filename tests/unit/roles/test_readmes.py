"""A role's README says what its argument_specs say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import ROOT

ROLES = sorted(path.parent.parent for path in ROOT.glob("roles/*/meta/argument_specs.yml"))


def test_every_readme_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, "tools/role_readmes.py", "--verify"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_default_is_described_and_prefixed(role: Path) -> None:
    entries = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]
    specs = {name: spec for entry in entries.values() for name, spec in entry["options"].items()}
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
    assert sorted(set(defaults) - set(specs)) == []
    assert [name for name in {**specs, **defaults} if not name.startswith(role.name)] == []
