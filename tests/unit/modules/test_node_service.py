"""What the module tells systemd, with a pretended systemctl that writes down what it was asked."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.modules import node_service

from tests.unit.modules.conftest import RunModule

SYSTEMCTL = """#!/bin/sh
cd {folder}
[ "$1" = show ] && exec cat show
echo "$@" >> asked
[ "$1" = "$(cat refuses)" ] && { echo "Job failed." >&2; exit 1; }
[ -e after ] && cp after show
exit 0
"""
SHOW = "Id=containerd.service\nLoadState=loaded\nActiveState={state}\nNeedDaemonReload={reload}\nExecMainStartTimestampMonotonic={us:.0f}\n"


class Host:
    def __init__(self, folder: Path, run_module: RunModule) -> None:
        self.folder, self.run_module = folder, run_module
        (folder / "systemctl").write_text(SYSTEMCTL.replace("{folder}", str(folder)))
        (folder / "systemctl").chmod(0o755)
        (folder / "refuses").write_text("nothing")
        self.file = folder / "config"
        self.file.write_text("x")
        os.utime(self.file, (time.time() - 60,) * 2)

    def service(self, seconds: float, state: str = "active", reload: str = "no", file: str = "show") -> None:
        us = (time.clock_gettime(time.CLOCK_MONOTONIC) - seconds) * 1e6
        (self.folder / file).write_text(SHOW.format(state=state, reload=reload, us=us))

    def run(self, **options: Any) -> dict[str, Any]:
        return self.run_module(node_service.main, **{"name": "containerd", "files": [str(self.file)], **options})

    @property
    def asked(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def host(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Host(tmp_path, run_module)


def test_a_service_younger_than_its_file_is_left_alone(host: Host) -> None:
    host.service(30)
    assert host.run()["changed"] is False
    assert host.asked == []


def test_an_older_one_is_restarted_and_check_mode_says_so(host: Host) -> None:
    host.service(90)
    predicted = host.run(_ansible_check_mode=True)
    assert host.asked == []
    done = host.run()
    assert predicted["changed"] is done["changed"] is True
    assert "is 30 s newer than the running service" in done["reason"]
    assert host.asked == ["restart containerd.service"]


@pytest.mark.parametrize(("word", "reloaded"), [("yes", True), ("no", False), ("", True)])
def test_systemd_reads_its_units_first_only_where_they_changed(host: Host, word: str, reloaded: bool) -> None:
    host.service(90, reload=word)
    assert host.run()["daemon_reloaded"] is reloaded
    assert host.asked == [*(["daemon-reload"] if reloaded else []), "restart containerd.service"]


def test_a_changed_unit_alone_is_no_reason(host: Host) -> None:
    host.service(30, reload="yes")
    assert host.run()["changed"] is False
    assert host.asked == []


def test_a_file_that_is_gone_is_as_old_as_its_folder(host: Host) -> None:
    folder = host.folder / "conf.d"
    folder.mkdir()
    host.service(90)
    assert host.run(files=[str(folder / "gone.conf")])["changed"] is True
    os.utime(folder, (time.time() - 600,) * 2)
    assert host.run(files=[str(folder / "gone.conf")])["changed"] is False
    assert host.run(files=["/nowhere/at/all"])["changed"] is False


def test_a_reload_is_asked_for_where_that_suffices(host: Host) -> None:
    host.service(90)
    host.run(how="reload")
    assert host.asked == ["reload containerd.service"]


def test_one_that_failed_is_started_even_where_a_reload_would_do(host: Host) -> None:
    host.service(90, state="failed")
    host.service(0, file="after")
    host.run(how="reload")
    assert host.asked == ["reset-failed containerd.service", "restart containerd.service"]


def test_a_refused_restart_is_a_failure_in_systemds_words(host: Host) -> None:
    host.service(90)
    (host.folder / "refuses").write_text("restart")
    assert host.run()["msg"] == "`systemctl restart containerd.service` failed with 1: Job failed."


def test_one_that_dies_at_once_is_a_failure_that_says_where_to_look(host: Host) -> None:
    host.service(90)
    host.service(0, state="failed", file="after")
    assert "service 'containerd' is failed after its restart; look at `journalctl -u containerd`" in host.run()["msg"]


def test_a_service_that_systemd_lacks_is_named(host: Host) -> None:
    (host.folder / "show").write_text("Id=containerd.service\nLoadState=not-found\nActiveState=inactive\n")
    assert "systemd has no service 'containerd'" in host.run()["msg"]
