"""Version numbers of engines, drivers, toolkits and clusters. Their order is proved with the drivers'."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import VersionError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.versions import Version


@pytest.mark.parametrize(
    ("written", "text", "release"),
    [
        ("v1.31.4+k3s1", "1.31.4+k3s1", "1.31.4"),
        ("1.7.24~ds1", "1.7.24~ds1", "1.7.24"),
        ("1.16.0-alpha.1", "1.16.0-alpha.1", "1.16.0"),
        (" 440 ", "440", "440"),
    ],
)
def test_a_version_is_kept_as_it_was_written(written: str, text: str, release: str) -> None:
    version = Version.parse(written)
    assert (str(version), version.release) == (text, release)


@pytest.mark.parametrize("text", ["", "latest", "v", "1.", "1.2.x", "sha256:12", None])
def test_anything_else_is_refused(text: Any) -> None:
    with pytest.raises(VersionError, match="expected numbers and dots"):
        Version.parse(text)


def test_what_follows_the_numbers_does_not_count() -> None:
    assert Version.parse("v1.29.0-gke.100") == Version.parse("1.29") < Version.parse("1.29.1-rc.0")


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("containerd github.com/containerd/containerd v1.7.24 abc", "1.7.24"),
        ("containerd containerd.io 1.6.33~ds1-2 d2d58213", "1.6.33~ds1-2"),
        ("Docker version 26.1.5+dfsg1, build a72d7cd", "26.1.5+dfsg1"),
        ("NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80a9b9d0db00d9b1d73c0128c8962c55f4d", "1.17.8"),
        ("glibc 2.36", "2.36"),
    ],
)
def test_a_version_is_found_in_what_a_program_writes(output: str, text: str) -> None:
    assert str(Version.find(output)) == text


def test_output_without_one_has_none() -> None:
    assert Version.find("command not found") is None
