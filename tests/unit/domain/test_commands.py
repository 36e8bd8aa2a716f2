"""Programs that run, fail, hang, or are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import commands


def test_what_it_writes_comes_back_and_it_speaks_english() -> None:
    done = commands.run(["sh", "-c", "echo out $LC_ALL; echo err >&2; cat; exit 3"])
    assert done == (3, "out C\n", "err\n")
    assert (done.has_run, done.message) == (True, "err")


def test_the_standard_folders_come_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "sh").write_text("#!/bin/sh\necho first\n")
    (tmp_path / "sh").chmod(0o755)
    assert commands.run(["sh"]).out == "first\n"
    assert commands.run(["true"]).status == 0


def test_what_did_not_run_says_why(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("")
    assert commands.run([str(tmp_path / "none")]) == (commands.NOT_FOUND, "", "No such file or directory")
    assert commands.run([str(tmp_path / "text")]) == (commands.CANNOT_RUN, "", "Permission denied")
    done = commands.run(["sleep", "30"], timeout_seconds=0.1)
    assert (done.status, done.err, done.has_run) == (commands.NOT_ENDED, "sleep did not end within 0.1 seconds", False)


def test_a_program_that_must_work_fails_with_its_own_words() -> None:
    assert commands.must(["echo", "fine"], ValueError) == "fine\n"
    with pytest.raises(ValueError, match=r"^`ls /nowhere` failed with 2: .*No such file"):
        commands.must(["ls", "/nowhere"], ValueError)
