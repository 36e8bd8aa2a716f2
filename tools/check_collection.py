"""Checks the checkout as an Ansible collection: documentation, change log, and what ``ansible-test sanity`` asks of everybody's.

Works on a copy at a collection's path, since these tools take no other. ``ansible-test`` would make an environment for each of its tests
from the internet; here they run in this one, whose packages versions.yml lists. What it finds and we mean is in tests/sanity/ignore-*.txt.

``check_collection.py`` checks; ``check_collection.py --write-changelog`` writes CHANGELOG.md from changelogs/ instead.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
# Tests of ansible-test that stay out, with what looks at the same thing here.
SKIPPED_TESTS = {
    "compile": "ruff, whose target is Python 3.8",
    "import": "tools/check_layers.py, tests/unit/domain/test_portability.py",
    "pep8": "ruff",
    "pylint": "ruff, mypy",
    "pslint": "there is no PowerShell",
    "shellcheck": "needs a program that PyPI does not have",
}


def copy_into(folder: Path) -> Path:
    """The collection's files that a commit would hold, below *folder*; where they lie."""
    collection = folder / "ansible_collections" / "tenfold" / "vgpu"
    ignored = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["build_ignore"]
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listing.stdout.split("\0")):
        is_packed = not any(fnmatch.fnmatch(f"{name}/", f"{pattern}/*") for pattern in ignored)
        if (is_packed or name.startswith(("changelogs/", "tests/sanity/"))) and os.path.lexists(ROOT / name):
            (collection / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, collection / name, follow_symlinks=False)
    return collection


def run(command: list[str], collection: Path) -> subprocess.CompletedProcess[str]:
    """A command in the copy, which sees neither this checkout's settings nor the user's."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment = {**clean, "HOME": str(collection.parents[2]), "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=collection, env=environment, capture_output=True, text=True, check=False)


def problems_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a command found: its standard output, and its errors where they say more."""
    if not done.returncode:
        return []
    more = done.stderr.splitlines() if not done.stdout or "See stderr" in done.stdout else []
    return [*done.stdout.splitlines(), *more] or [f"{done.args} failed"]


def sanity_problems(collection: Path, *arguments: str) -> list[str]:
    """What ``ansible-test sanity`` finds; *arguments* choose tests and files."""
    return problems_of(run([sys.executable, __file__, "--ansible-test", "sanity", "--lint", "--color", "no", *arguments], collection))


def docs_problems(collection: Path) -> list[str]:
    """What antsibull-docs finds in modules, filters and roles."""
    options = ["--plugin-docs", "--validate-collection-refs=dependent", "--disallow-unknown-collection-refs"]
    return problems_of(run(["antsibull-docs", "lint-collection-docs", *options, "."], collection))


def changelog_of(collection: Path) -> str:
    """Text of CHANGELOG.md: the releases in changelogs/changelog.yaml, and the fragments as the release in galaxy.yml.

    Errors: ValueError when the change log can't be made.
    """
    version = yaml.safe_load((collection / "galaxy.yml").read_text(encoding="utf-8"))["version"]
    record = collection / "changelogs" / "changelog.yaml"
    releases = yaml.safe_load(record.read_text(encoding="utf-8"))["releases"] if record.exists() else {}
    if version in releases and list(collection.glob("changelogs/fragments/*.yml")):
        raise ValueError(f"changelogs/fragments has changes, but {version} is released; raise the version in galaxy.yml and versions.yml")
    # The record wants a date, CHANGELOG.md does not show it.
    step = ["generate"] if version in releases else ["release", "--date", "1970-01-01"]
    done = run(["antsibull-changelog", *step], collection)
    if done.returncode:
        raise ValueError(f"antsibull-changelog failed: {(done.stderr or done.stdout).strip()}")
    return (collection / "CHANGELOG.md").read_text(encoding="utf-8")


def changelog_problems(collection: Path) -> list[str]:
    """Whether CHANGELOG.md is what the fragments give. Overwrites the copy's change log."""
    path = collection / "CHANGELOG.md"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    try:
        is_same = changelog_of(collection) == before
    except ValueError as error:
        return [str(error)]
    return [] if is_same else ["CHANGELOG.md is out of date; run: python tools/check_collection.py --write-changelog"]


def entry_points(node: Any) -> list[tuple[str, str]]:
    """Role and ``tasks_from`` of every inclusion in a playbook or a list of tasks, however deep."""
    found: list[tuple[str, str]] = []
    if isinstance(node, dict):
        found += [(str(node.get("name") or node.get("role")), str(node["tasks_from"]))] if "tasks_from" in node else []
        found += [one for value in node.values() for one in entry_points(value)]
    elif isinstance(node, list):
        found += [one for value in node for one in entry_points(value)]
    return found


def house_problems(root: Path) -> list[str]:
    """What none of the tools asks: entry points that Ansible would not validate, and what does not say since when it is there."""
    found, undated = [], []
    specs = {
        path.parents[1].name: yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
        for path in sorted(root.glob("roles/*/meta/argument_specs.yml"))
    }
    for pattern in ("playbooks/**/*.yml", "molecule/**/*.yml", "roles/*/tasks/*.yml"):
        for path in sorted(root.glob(pattern)):
            # Ansible looks for tasks_from as it is written: with an extension it finds no specification, and says nothing.
            found += [
                f"{path.relative_to(root)}: tasks_from '{entry}' of role '{role}' has no entry of that very name in meta/argument_specs.yml"
                for role, entry in entry_points(yaml.safe_load(path.read_text(encoding="utf-8")))
                if entry not in specs.get(role.split(".")[-1], {})
            ]
    for pattern in ("plugins/filter/*.yml", "plugins/modules/*.py"):
        undated += [
            str(path.relative_to(root))
            for path in sorted(root.glob(pattern))
            if not re.search(r"^ *version_added: ", path.read_text(encoding="utf-8"), re.MULTILINE)
        ]
    for role, entries in specs.items():
        undated += [f"roles/{role}: entry point '{entry}'" for entry, spec in entries.items() if "version_added" not in spec]
    return found + [f"{what} does not say since when it is there; add version_added" for what in undated]


def ansible_test(arguments: list[str]) -> None:
    """``ansible-test`` in this environment: its own way to make one for each test is replaced, nothing else."""
    from ansible_test._internal import main as cli  # type: ignore[import-untyped]
    from ansible_test._internal.commands import sanity  # type: ignore[import-untyped]
    from ansible_test._internal.host_configs import VirtualPythonConfig  # type: ignore[import-untyped]

    def this_environment(_arguments: Any, python: Any, *_name: Any, **_options: Any) -> Any:
        return VirtualPythonConfig(version=python.version, path=sys.executable)

    sanity.create_sanity_virtualenv = this_environment
    sanity.check_sanity_virtualenv_yaml = lambda _python: True
    cli(["ansible-test", *arguments])


def main(arguments: list[str]) -> int:
    """Prints what is wrong; 1 if anything is."""
    if arguments[:1] == ["--ansible-test"]:
        ansible_test(arguments[1:])
        return 0
    with tempfile.TemporaryDirectory(prefix="tenfold-collection-") as folder:
        collection = copy_into(Path(folder) / "checked")
        if arguments == ["--write-changelog"]:
            (ROOT / "CHANGELOG.md").write_text(changelog_of(collection), encoding="utf-8")
            return 0
        changing = copy_into(Path(folder) / "released")
        with ThreadPoolExecutor() as pool:
            checks = (
                pool.submit(sanity_problems, collection, *(f"--skip-test={name}" for name in SKIPPED_TESTS)),
                pool.submit(docs_problems, collection),
                pool.submit(changelog_problems, changing),
                pool.submit(house_problems, ROOT),
            )
            found = [problem for check in checks for problem in check.result()]
    print("\n".join(found) or "collection: ok")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
