"""What is shipped: generated messages in step with their sources, a build context that runs by itself, one list of versions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
import yaml

from tests import ROOT

PLUGIN = ROOT / "files" / "device_plugin"


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image") / "context"
    subprocess.run([sys.executable, str(PLUGIN / "build_context.py"), str(folder)], check=True, timeout=60)
    return folder


class TestMessages:
    def test_are_what_their_proto_files_say(self) -> None:
        done = subprocess.run(
            [sys.executable, str(PLUGIN / "generate_protos.py"), "--check"], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr

    def test_do_not_ask_for_the_protobuf_that_made_them(self) -> None:
        for path in (PLUGIN / "src" / "tenfold_device_plugin" / "protos").glob("*_pb2.py"):
            assert "runtime_version" not in path.read_text(encoding="utf-8")


class TestReference:
    def test_of_the_settings_is_what_the_code_says(self) -> None:
        done = subprocess.run(
            [sys.executable, str(PLUGIN / "generate_reference.py"), "--check"], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr

    def test_of_the_metrics_names_all_of_them_and_no_other(self) -> None:
        source = (PLUGIN / "src" / "tenfold_device_plugin" / "metrics.py").read_text(encoding="utf-8")
        gauges = set(re.findall(r'(?:GaugeMetricFamily|_gauge)\(\s*"(\w+)"', source))
        counters = {f"{name}_total" for name in re.findall(r'(?:CounterMetricFamily|_counter)\(\s*"(\w+)"', source)}
        section = (PLUGIN / "README.md").read_text(encoding="utf-8").partition("## Metrics")[2].partition("## ")[0]
        assert set(re.findall(r"`((?:volcano|tenfold)_\w+)`", section)) == gauges | counters

    def test_of_the_refusals_names_every_reason(self) -> None:
        package = PLUGIN / "src" / "tenfold_device_plugin"
        source = "".join(path.read_text(encoding="utf-8") for path in package.glob("*.py"))
        reasons = set(re.findall(r'(?:Refused|PermanentRefusal)\(\s*"(\w+)"', source)) - {"waiting"}
        section = (PLUGIN / "README.md").read_text(encoding="utf-8").partition("## Reasons")[2]
        assert set(re.findall(r"`(\w+)`", section.partition("|---|---|")[2])) - {"nodeName"} == reasons


class TestBuildContext:
    def test_runs_without_the_checkout(self, context: Path) -> None:
        code = "import tenfold_device_plugin.main, tenfold_device_plugin._domain.tiers as t; print(t.__file__)"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=context / "app",
            env={"PYTHONPATH": str(context / "app"), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.startswith(str(context))

    def test_has_everything_that_the_containerfile_copies(self, context: Path) -> None:
        copied = [
            word
            for line in (context / "Containerfile").read_text(encoding="utf-8").splitlines()
            if line.startswith("COPY")
            for word in line.split()[1:-1]
        ]
        assert copied and all((context / name).exists() for name in copied)

    def test_depends_on_the_sources_alone(self, context: Path, tmp_path: Path) -> None:
        def fingerprint(*arguments: str) -> str:
            return subprocess.run(
                [sys.executable, str(PLUGIN / "build_context.py"), *arguments, "--print-hash"],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            ).stdout.strip()

        assert fingerprint() == fingerprint(str(tmp_path / "other")) != ""
        assert not any(path.suffix == ".pyc" for path in context.rglob("*"))

    def test_refuses_a_folder_that_holds_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "precious").touch()
        done = subprocess.run(
            [sys.executable, str(PLUGIN / "build_context.py"), str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1 and "is not empty and no build context" in done.stderr
        assert (tmp_path / "precious").exists()

    def test_takes_wheels_along(self, tmp_path: Path) -> None:
        wheels = tmp_path / "wheels"
        wheels.mkdir()
        (wheels / "x-1-py3-none-any.whl").touch()
        (wheels / "notes.txt").touch()
        subprocess.run(
            [sys.executable, str(PLUGIN / "build_context.py"), str(tmp_path / "c"), "--wheels", str(wheels)], check=True, timeout=60
        )
        assert sorted(path.name for path in (tmp_path / "c" / "wheels").iterdir()) == ["README", "x-1-py3-none-any.whl"]


class TestDependencies:
    def test_are_named_in_the_package_and_versioned_in_one_place(self) -> None:
        package = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
        pinned = yaml.safe_load((ROOT / "versions.yml").read_text(encoding="utf-8"))["python_device_plugin"]
        assert sorted(package) == sorted(line.split(">")[0].split("=")[0] for line in pinned)

    def test_of_the_probe_are_the_standard_library_and_the_domain(self) -> None:
        tree = ast.parse((PLUGIN / "src" / "tenfold_device_plugin" / "probe.py").read_text(encoding="utf-8"))
        absolute = {name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        absolute |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
        assert absolute <= sys.stdlib_module_names
        relative = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level}
        assert relative == {"_domain", "_domain.errors"}
