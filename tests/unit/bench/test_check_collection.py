"""The collection's check says no: each fault is planted in a copy and found there. That the checkout has none is `make check`'s to say."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tools import check_collection

BIN = Path(sys.executable).parent
ACTIONS = sorted(path.stem for path in ROOT.glob("plugins/action/*.py") if "ARGUMENT_SPEC" in path.read_text())


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    return check_collection.copy_into(tmp_path)


@pytest.fixture
def bare_collection(tmp_path: Path) -> Path:
    """One with nothing in it, for tools that read all that is there."""
    folder = tmp_path / "ansible_collections" / "tenfold" / "vgpu"
    shutil.copytree(ROOT / "meta", folder / "meta")
    shutil.copy2(ROOT / "galaxy.yml", folder)
    return folder


class TestDocumentation:
    def test_a_module_without_any_and_an_option_without_are_found(self, collection: Path) -> None:
        modules = collection / "plugins" / "modules"
        (modules / "bare.py").write_text("#!/usr/bin/python\nfrom ansible.module_utils.basic import AnsibleModule\n")
        known = modules / "cluster_manifests.py"
        known.write_text(known.read_text().replace("ARGUMENT_SPEC = {", 'ARGUMENT_SPEC = {\n    "planted": {"type": "str"},'))
        paths = ("plugins/modules/bare.py", "plugins/modules/cluster_manifests.py", "plugins/modules/cluster_objects.py")
        found = check_collection.sanity_problems(collection, "--test=validate-modules", *paths)
        assert [line.split(":")[0] for line in found if "missing-documentation" in line] == ["plugins/modules/bare.py"]
        assert [line for line in found if "undocumented-parameter" in line and "'planted'" in line]
        assert not [line for line in found if "cluster_objects" in line]

    def test_a_filter_without_is_found(self, bare_collection: Path) -> None:
        (bare_collection / "plugins" / "filter").mkdir(parents=True)
        (bare_collection / "plugins" / "filter" / "many.py").write_text(
            "class FilterModule:\n    def filters(self):\n        return {'planted': str}\n"
        )
        assert [line for line in check_collection.docs_problems(bare_collection) if "tenfold.vgpu.planted" in line]

    @pytest.mark.parametrize("name", ACTIONS)
    def test_an_actions_options_are_those_that_its_module_documents(self, name: str) -> None:
        """ansible-test compares a module's documentation with its own code, and these have none."""
        shown = subprocess.run(
            [str(BIN / "ansible-doc"), "--json", f"tenfold.vgpu.{name}"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        documented = json.loads(shown)[f"tenfold.vgpu.{name}"]["doc"]["options"]
        action = importlib.import_module(f"ansible_collections.tenfold.vgpu.plugins.action.{name}")
        assert options_of(documented, "suboptions") == options_of(action.ARGUMENT_SPEC, "options")


def options_of(spec: dict[str, Any], inner: str) -> dict[str, Any]:
    """What a documentation and an argument spec say alike about each option."""
    return {
        name: {
            "type": option.get("type", "str"),
            **{key: option.get(key) for key in ("default", "choices", "elements")},
            "required": option.get("required", False),
            "options": options_of(option.get(inner) or {}, inner),
        }
        for name, option in spec.items()
    }


class TestHouse:
    def test_an_entry_point_that_ansible_would_not_validate_is_found(self, collection: Path) -> None:
        assert check_collection.house_problems(collection) == []
        playbook = collection / "playbooks" / "verify.yml"
        playbook.write_text(playbook.read_text().replace("tasks_from: probe", "tasks_from: probe.yml"))
        (problem,) = check_collection.house_problems(collection)
        assert problem.startswith("playbooks/verify.yml: tasks_from 'probe.yml' of role 'tenfold.vgpu.vgpu_device_plugin' has no entry")

    def test_what_does_not_say_since_when_it_is_there_is_found(self, collection: Path) -> None:
        for name in ("plugins/modules/slice_probe.py", "plugins/filter/tier_limits.yml", "roles/volcano/meta/argument_specs.yml"):
            path = collection / name
            path.write_text(re.sub(r" *version_added: 0.1.0\n", "", path.read_text()))
        found = check_collection.house_problems(collection)
        assert [line.split(" does not")[0] for line in found] == [
            "plugins/filter/tier_limits.yml",
            "plugins/modules/slice_probe.py",
            "roles/volcano: entry point 'main'",
        ]


class TestChangeLog:
    def test_a_fragment_that_changelog_md_does_not_show_is_found(self, collection: Path) -> None:
        (collection / "changelogs" / "fragments" / "planted.yml").write_text("---\nbugfixes:\n  - A card is counted once.\n")
        assert [line for line in check_collection.changelog_problems(collection) if "--write-changelog" in line]

    def test_a_fragment_for_a_version_that_is_out_is_refused(self, collection: Path) -> None:
        version = yaml.safe_load((collection / "galaxy.yml").read_text())["version"]
        (collection / "changelogs" / "changelog.yaml").write_text(yaml.safe_dump({"ancestor": None, "releases": {version: {}}}))
        (problem,) = check_collection.changelog_problems(collection)
        assert "raise the version in galaxy.yml" in problem


class TestExecutionEnvironment:
    def test_ansible_builder_finds_what_the_collection_needs(self, bare_collection: Path, tmp_path: Path) -> None:
        command = ["ansible-builder", "introspect", str(tmp_path), "--write-pip", "pip.txt", "--write-bindep", "bindep.txt"]
        done = check_collection.run(command, bare_collection)
        assert done.returncode == 0, done.stdout + done.stderr
        for asked, written in (("ee-requirements.txt", "pip.txt"), ("ee-bindep.txt", "bindep.txt")):
            wanted = [line for line in (ROOT / "meta" / asked).read_text().splitlines() if not line.startswith("#")]
            assert [line.split("  #")[0] for line in (bare_collection / written).read_text().splitlines()] == wanted

    def test_its_files_are_read_by_bindep_and_agree_with_versions_yml(self, bare_collection: Path) -> None:
        done = check_collection.run(["bindep", "--file", "meta/ee-bindep.txt", "--list_all", "newline"], bare_collection)
        assert done.returncode == 0, done.stdout + done.stderr
        ranges = yaml.safe_load((ROOT / "versions.yml").read_text())["python_dev"]
        wanted = [line for line in (ROOT / "meta" / "ee-requirements.txt").read_text().splitlines() if not line.startswith("#")]
        assert wanted
        assert set(wanted) <= set(ranges)
