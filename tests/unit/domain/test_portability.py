"""The domain runs on a node's Python 3.8 with the standard library alone, and importing it does nothing."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

COLLECTIONS = ROOT / "collections"
DOMAIN = "ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold"
FILES = sorted((ROOT / "plugins" / "module_utils" / "tenfold").glob("*.py"))
NAMES = [f"{DOMAIN}.{path.stem}" for path in FILES if path.stem != "__init__"]


def python38() -> str | None:
    """A Python 3.8 that runs: named by TENFOLD_PYTHON38, installed by pyenv, or on PATH (where pyenv may have left an empty shim)."""
    installed = sorted((Path.home() / ".pyenv" / "versions").glob("3.8.*/bin/python"))
    candidates = [os.environ.get("TENFOLD_PYTHON38"), *map(str, installed), shutil.which("python3.8")]
    for candidate in filter(None, candidates):
        answer = subprocess.run([candidate, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True, check=False)
        if answer.stdout.strip() == "(3, 8)":
            return candidate
    return None


def run(python: str, program: str) -> str:
    environment = {"PYTHONPATH": str(COLLECTIONS), "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]}
    argv = [python, "-S", "-W", "error", "-c", program]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestPython38:
    def test_every_file_of_the_domain_can_be_imported_and_proves_a_mix(self) -> None:
        python = python38()
        if python is None:
            pytest.skip("no Python 3.8 on this machine (set TENFOLD_PYTHON38)")
        program = f"""
import importlib
for name in {NAMES!r}:
    importlib.import_module(name)
from {DOMAIN}.tiers import Catalogue
from {DOMAIN} import cards, fit, verdict, wire
tiers = {{"small": {{"memory_mib": 8192, "reserved_cores": 10}}}}
catalogue = Catalogue.from_vars({{"tiers": tiers, "required_mixes": [{{"small": 10}}]}})
print(verdict.judge(catalogue, cards.named("a800-80gb")).valid)
print(wire.encode_segments([fit.fit(fit.SliceRequest(1, 1, 1), [fit.CardLedger("a", 1, 1, "NVIDIA")]).assignments]))
"""
        assert run(python, program) == "True\na,NVIDIA,1,1:\n"


class TestImport:
    def test_importing_opens_no_file_starts_no_process_and_connects_nowhere(self) -> None:
        """Python's own audit events tell; only the interpreter reading modules may open files."""
        program = f"""
import sys
seen = []
def audit(event, arguments):
    if event == "open" and not str(arguments[0]).startswith(allowed):
        seen.append((event, arguments[0]))
    elif event.split(".")[0] in ("subprocess", "socket", "os.system", "os.posix_spawn", "ctypes"):
        seen.append((event, arguments))
import importlib
allowed = ({str(COLLECTIONS)!r}, sys.base_prefix)
sys.addaudithook(audit)
for name in {NAMES!r}:
    importlib.import_module(name)
print(seen)
"""
        assert run(sys.executable, program) == "[]\n"

    @pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
    def test_a_file_imports_the_standard_library_and_its_siblings_only(self, path: Path) -> None:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 1 or (node.level == 0 and node.module and node.module.split(".")[0] in sys.stdlib_module_names)
            elif isinstance(node, ast.Import):
                assert all(alias.name.split(".")[0] in sys.stdlib_module_names for alias in node.names)
