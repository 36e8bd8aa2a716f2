"""Which mirror is taken from this machine's apt sources, and what a missing package says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import debian
from tests.cluster.console import Console
from tests.cluster.errors import FleetError

DEB822 = """\
Types: deb
# a comment
URIs: http://mirror.example/other
Suites: trixie
Components: main

Types: deb deb-src
URIs:
 file:/srv/debian
 http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
"""


class TestMirror:
    def test_one_line_source_is_read(self) -> None:
        assert debian.mirror_in(["deb http://mirror.example/debian bookworm main contrib\n"], []) == "http://mirror.example/debian"

    def test_options_in_brackets_are_skipped(self) -> None:
        line = "deb [arch=amd64 signed-by=/k.gpg] https://mirror.example/debian bookworm main"
        assert debian.mirror_in([line], []) == "https://mirror.example/debian"

    @pytest.mark.parametrize(
        "line",
        [
            "deb http://mirror.example/debian-security bookworm-security main",
            "deb http://mirror.example/vendor cloud-sdk-bookworm main",
            "deb http://mirror.example/debian bookworm contrib",
            "deb-src http://mirror.example/debian bookworm main",
            "# deb http://mirror.example/debian bookworm main",
        ],
    )
    def test_source_that_cannot_serve_the_release_is_not_taken(self, line: str) -> None:
        assert debian.mirror_in([line], []) is None

    def test_deb822_stanza_of_the_release_is_taken(self) -> None:
        assert debian.mirror_in([], [DEB822]) == "http://mirror.example/debian"

    def test_environment_goes_before_the_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(debian.MIRROR_OVERRIDE, "http://mine.example")
        assert debian.mirror() == "http://mine.example"


class TestPackages:
    def test_missing_program_names_its_package_once(self) -> None:
        assert debian.missing_packages({"tenfold-no-such-program": "one", "/no/such/file": "one", "sh": "dash"}) == ["one"]

    def test_what_only_tests_use_is_asked_for_by_tests_alone(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(debian, "PACKAGES", {"sh": "dash"})
        monkeypatch.setattr(debian, "TEST_PACKAGES", {"tenfold-no-such-program": "strace"})
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        debian.install_missing(Console(quiet=True), tmp_path / "log")
        with pytest.raises(FleetError, match="missing Debian packages: strace"):
            debian.install_missing(Console(quiet=True), tmp_path / "log", with_tests=True)

    def test_plain_user_is_told_what_to_install(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(debian, "PACKAGES", {"tenfold-no-such-program": "podman"})
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        with pytest.raises(FleetError, match="missing Debian packages: podman; as root: apt-get install podman"):
            debian.install_missing(Console(quiet=True), tmp_path / "log")

    def test_work_that_needs_root_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        with pytest.raises(FleetError, match="cannot bring the fleet up as user id 1000"):
            debian.require_root("bring the fleet up")
