"""The specification follows the toolkit, what was there before returns, and a toolkit that is missing, old or sick is named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import commands as programs
from ansible_collections.tenfold.vgpu.plugins.modules import nvidia_cdi_specification as subject

Run = Callable[..., "dict[str, Any]"]
SPECIFICATION = "cdiVersion: 0.7.0\nkind: nvidia.com/gpu\ndevices: [%s]\n"


class Toolkit:
    """A pretended nvidia-ctk; ``write`` says what it answers."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "nvidia-ctk"
        self.write()

    def write(self, output: str = SPECIFICATION % "a", version: str = "1.17.8", status: int = 0) -> None:
        text = output.replace("'", "")
        self.path.write_text(
            f"#!/bin/sh\n[ \"$1\" = --version ] && {{ echo 'NVIDIA Container Toolkit CLI version {version}'; exit 0; }}\n"
            f"echo noise >&2\n[ {status} = 0 ] || {{ echo 'failed to load NVML' >&2; exit {status}; }}\nprintf '%s' '{text}'\n"
        )
        self.path.chmod(0o755)


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toolkit:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return Toolkit(tmp_path / "bin")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cdi" / "nvidia.yaml"


@pytest.fixture(autouse=True)
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """systemctl is recorded and not run."""
    recorded: list[str] = []
    (tmp_path / "systemd").mkdir()
    monkeypatch.setattr(subject, "SYSTEMD_FOLDER", tmp_path / "systemd")
    monkeypatch.setattr(programs, "must", lambda argv, _error: recorded.append(" ".join(argv)))
    return recorded


@pytest.mark.usefixtures("toolkit")
def test_specification_is_generated_again_at_boot(run_module: Run, tmp_path: Path, path: Path, commands: list[str]) -> None:
    """Device numbers of nvidia-uvm are given out at boot."""
    run_module(subject.main, path=str(path), arguments=["--driver-root=/x"])
    text = (tmp_path / "systemd" / subject.UNIT_NAME).read_text()
    assert f"nvidia-ctk cdi generate --driver-root=/x --output={path}\n" in text
    assert commands == [f"systemctl enable {subject.UNIT_NAME}"]
    assert run_module(subject.main, path=str(path), arguments=["--driver-root=/x"])["changed"] is False
    assert run_module(subject.main, path=str(path), refresh_at_boot=False)["changed"] is True
    assert not list((tmp_path / "systemd").iterdir())


@pytest.mark.usefixtures("toolkit")
def test_specification_is_made_once(run_module: Run, path: Path) -> None:
    predicted = run_module(subject.main, path=str(path), _ansible_check_mode=True)
    assert predicted["changed"] is True
    assert not path.exists()
    done = run_module(subject.main, path=str(path))
    assert (done["changed"], done["diff"]) == (True, predicted["diff"])
    assert path.read_text() == SPECIFICATION % "a"
    assert run_module(subject.main, path=str(path))["changed"] is False


def test_new_card_changes_it(run_module: Run, toolkit: Toolkit, path: Path) -> None:
    run_module(subject.main, path=str(path))
    toolkit.write(SPECIFICATION % "a, b")
    assert run_module(subject.main, path=str(path))["changed"] is True
    assert path.read_text() == SPECIFICATION % "a, b"


@pytest.mark.usefixtures("toolkit")
@pytest.mark.parametrize("before", [None, "cdiVersion: 0.5.0\n"])
def test_absent_gives_back_what_was_there(run_module: Run, path: Path, before: str | None) -> None:
    path.parent.mkdir()
    if before is not None:
        path.write_text(before)
    run_module(subject.main, path=str(path))
    assert run_module(subject.main, path=str(path), state="absent")["changed"] is True
    assert (path.read_text() if path.exists() else None) == before
    assert list(path.parent.iterdir()) == ([path] if before else [])
    assert run_module(subject.main, path=str(path), state="absent")["changed"] is False


@pytest.mark.usefixtures("toolkit")
def test_no_cdi_reader_takes_our_record_for_a_specification(run_module: Run, path: Path) -> None:
    run_module(subject.main, path=str(path))
    assert [one.name for one in path.parent.iterdir() if one.suffix in {".json", ".yaml"}] == ["nvidia.yaml"]


def test_old_toolkit_is_refused_with_the_reason(run_module: Run, toolkit: Toolkit, path: Path) -> None:
    toolkit.write(version="1.17.7-rc.1")
    result = run_module(subject.main, path=str(path), minimum_version="1.17.8")
    assert "toolkit is 1.17.7, expected 1.17.8 or later" in result["msg"]
    assert "CVE-2025-23266" in result["msg"]
    assert not path.exists()


def test_versions_are_compared_as_numbers(run_module: Run, toolkit: Toolkit, path: Path) -> None:
    toolkit.write(version="1.20.0")
    assert run_module(subject.main, path=str(path), minimum_version="1.9.9")["toolkit_version"] == "1.20.0"


@pytest.mark.parametrize(("answer", "cause"), [({"status": 1}, "failed with 1: noise"), ({"output": "hello"}, "wrote no specification")])
def test_sick_toolkit_leaves_the_specification_alone(
    run_module: Run, toolkit: Toolkit, path: Path, answer: dict[str, Any], cause: str
) -> None:
    run_module(subject.main, path=str(path))
    toolkit.write(**answer)
    assert cause in run_module(subject.main, path=str(path))["msg"]
    assert path.read_text() == SPECIFICATION % "a"


def test_missing_toolkit_is_named_with_its_package(run_module: Run, path: Path) -> None:
    result = run_module(subject.main, path=str(path), executable="nvidia-ctk-absent")
    assert "'nvidia-ctk-absent' is not installed: install package nvidia-container-toolkit" in result["msg"]
