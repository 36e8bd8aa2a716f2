"""The settings table: precedence, wrong values, and that every row is reachable by flag and environment."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tenfold_device_plugin import log, main
from tenfold_device_plugin.errors import SettingsError
from tenfold_device_plugin.settings import Settings

NAME = {"TENFOLD_NODE_NAME": "n"}
ROWS = dataclasses.fields(Settings)
SAMPLES: dict[str, Any] = {
    "log_level": "debug",
    "hook_policy": "open",
    "hook_view": "clocks",
    "prestart_wait_seconds": "1.5",
    "api_timeout_seconds": "2",
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.name))
class TestEveryRow:
    def sample(self, row: Any) -> str:
        if row.name in SAMPLES:
            return str(SAMPLES[row.name])
        return {str: "x", int: "7", float: "3.5"}.get(type(row.default), "/x")

    def test_is_set_by_environment_and_by_flag_which_wins(self, row: Any) -> None:
        text = self.sample(row)
        by_environment = Settings.from_sources([], {**NAME, f"TENFOLD_{row.name.upper()}": text})
        flag = f"--{row.name.replace('_', '-')}"
        by_flag = Settings.from_sources([flag, text], {**NAME, f"TENFOLD_{row.name.upper()}": str(row.default)})
        expected = type(row.default)(text)
        assert getattr(by_environment, row.name) == getattr(by_flag, row.name) == expected

    def test_says_what_it_means(self, row: Any) -> None:
        assert len(row.metadata["meaning"]) > 10


class TestWrongValues:
    def test_are_reported_together_by_name_with_what_was_expected(self) -> None:
        with pytest.raises(SettingsError) as error:
            Settings.from_sources(
                ["--scan-seconds", "soon"], {"TENFOLD_SLICES_PER_CARD": "ten", "TENFOLD_LOG_LEVEL": "loud", "TENFOLD_RUN_DIR": "run"}
            )
        for words in (
            "--scan-seconds is 'soon', expected a number",
            "TENFOLD_SLICES_PER_CARD is 'ten', expected a whole number",
            "log_level is 'loud', expected one of debug",
            "run_dir is 'run', expected an absolute path",
            "set TENFOLD_NODE_NAME",
        ):
            assert words in str(error.value)

    @pytest.mark.parametrize("wait", ["21", "30"])
    def test_a_wait_that_the_kubelet_would_break_off_is_refused(self, wait: str) -> None:
        with pytest.raises(SettingsError, match="sum up to more than 25; the kubelet breaks a PreStart off after 30"):
            Settings.from_sources(["--prestart-wait-seconds", wait], NAME)

    def test_a_negative_time_is_refused(self) -> None:
        with pytest.raises(SettingsError, match="heartbeat_seconds is -1, expected 0 or more"):
            Settings.from_sources(["--heartbeat-seconds=-1"], NAME)

    def test_end_the_process_with_2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        said: list[str] = []
        monkeypatch.setattr(log, "configure", lambda _level: None)
        monkeypatch.setattr(log, "say", lambda _level, message, **_identity: said.append(message))
        monkeypatch.delenv("TENFOLD_NODE_NAME", raising=False)
        assert main.main([]) == 2
        assert said == ["wrong settings: node_name is empty, expected the name of this Node object; set TENFOLD_NODE_NAME"]

    @pytest.mark.parametrize(
        ("name", "words"),
        [("hook_policy", "hook_policy is 'x', expected one of closed, open"), ("hook_view", "hook_view has 'x', expected some of clocks")],
    )
    def test_what_a_page_cannot_say_is_refused(self, name: str, words: str) -> None:
        with pytest.raises(SettingsError, match=words):
            Settings.from_sources([], {**NAME, f"TENFOLD_{name.upper()}": "x"})


class TestPaths:
    def test_the_nvidia_specification_is_looked_for_where_the_toolkit_writes_it(self) -> None:
        candidates = Settings.from_sources([], NAME).nvidia_cdi_candidates()
        assert candidates[:2] == [Path("/var/run/cdi/nvidia.yaml"), Path("/var/run/cdi/nvidia.json")]
        assert Path("/etc/cdi/nvidia.yaml") in candidates

    def test_several_schedulers_may_book(self) -> None:
        assert Settings.from_sources(["--scheduler-names", "volcano, volcano-2"], NAME).schedulers == {"volcano", "volcano-2"}
