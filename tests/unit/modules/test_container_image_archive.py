"""Images without a registry: the digest in an archive, what the node has, and an import that proves itself."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.action import container_image_archive as action
from ansible_collections.tenfold.vgpu.plugins.modules import container_image_archive as module

RunModule = Callable[..., "dict[str, Any]"]
IMAGE = "localhost/plugin:1"
DIGEST = "sha256:" + "1" * 64
OTHER = "sha256:" + "2" * 64


def archive(path: Path, *manifests: dict[str, Any], name: str = "index.json") -> Path:
    data = json.dumps({"schemaVersion": 2, "manifests": list(manifests)}).encode()
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return path


def manifest(digest: str, **annotations: str) -> dict[str, Any]:
    return {"digest": digest, "annotations": {key.replace("_", "."): value for key, value in annotations.items()}}


class TestTheDigestInAnArchive:
    def test_of_several_the_one_that_bears_the_name(self, tmp_path: Path) -> None:
        made = archive(
            tmp_path / "a.tar",
            manifest(OTHER, io_containerd_image_name="else:1"),
            manifest(DIGEST, org_opencontainers_image_ref_name=IMAGE),
        )
        assert action.digest_in(made, IMAGE) == DIGEST

    def test_the_only_one_whatever_its_name(self, tmp_path: Path) -> None:
        assert action.digest_in(archive(tmp_path / "a.tar", manifest(DIGEST)), IMAGE) == DIGEST

    def test_several_and_none_of_that_name_is_refused_with_the_names(self, tmp_path: Path) -> None:
        made = archive(
            tmp_path / "a.tar", manifest(OTHER, io_containerd_image_name="a:1"), manifest(DIGEST, io_containerd_image_name="b:1")
        )
        with pytest.raises(action.ArchiveError, match=r"holds 'a:1', 'b:1', expected 'localhost/plugin:1'"):
            action.digest_in(made, IMAGE)

    def test_what_is_no_oci_archive_is_refused_with_the_command_that_writes_one(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("hello", encoding="utf-8")
        docker = archive(tmp_path / "docker.tar", name="manifest.json")
        for path in (tmp_path / "text", docker):
            with pytest.raises(action.ArchiveError, match="podman save --format oci-archive"):
                action.digest_in(path, IMAGE)

    def test_an_archive_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(action.ArchiveError, match=r"none\.tar' does not exist"):
            action.digest_in(tmp_path / "none.tar", IMAGE)


FAKE_CTR = """#!/bin/sh
# Keeps its images in a folder: one file a name, which holds the digest.
store=$(dirname "$0")/images; mkdir -p "$store"; echo "$*" >> "$store.log"
shift 5
case "$1" in
ls) echo "REF TYPE DIGEST SIZE PLATFORMS LABELS"
    for f in "$store"/*; do [ -f "$f" ] && echo "$(basename "$f" | tr _ /) type $(cat "$f") 1 MiB x -"; done; true;;
import) cat "$2" > "$store/$(cat "$2.name")";;
tag) cp "$store/$(echo "$3" | tr / _)" "$store/$(echo "$4" | tr / _)";;
esac
"""


@pytest.fixture
def ctr(tmp_path: Path) -> Path:
    path = tmp_path / "ctr"
    path.write_text(FAKE_CTR, encoding="utf-8")
    path.chmod(0o755)
    return path


def prepared(folder: Path, name: str) -> Path:
    """What the fake takes for an archive of one image."""
    path = folder / "image.tar"
    path.write_text(DIGEST, encoding="utf-8")
    (folder / "image.tar.name").write_text(name.replace("/", "_"), encoding="utf-8")
    return path


class TestTheNode:
    def options(self, ctr: Path, **changes: Any) -> dict[str, Any]:
        return {"image": IMAGE, "archive": "unused", "digest": DIGEST, "ctr_binary": str(ctr), **changes}

    def test_check_then_import_then_nothing(self, ctr: Path, tmp_path: Path, run_module: RunModule) -> None:
        remote = str(prepared(tmp_path, IMAGE))
        assert run_module(module.main, **self.options(ctr, remote_archive=remote), _ansible_check_mode=True)["changed"]
        assert not list((tmp_path / "images").iterdir())
        assert run_module(module.main, **self.options(ctr, remote_archive=remote))["changed"]
        again = run_module(module.main, **self.options(ctr))
        assert not again["changed"] and again["previous_digest"] == DIGEST

    def test_another_image_of_that_name_is_replaced(self, ctr: Path, tmp_path: Path, run_module: RunModule) -> None:
        (tmp_path / "images").mkdir()
        (tmp_path / "images" / IMAGE.replace("/", "_")).write_text(OTHER, encoding="utf-8")
        result = run_module(module.main, **self.options(ctr, remote_archive=str(prepared(tmp_path, IMAGE))))
        assert result["changed"] and result["previous_digest"] == OTHER

    def test_an_image_that_the_archive_names_otherwise_gets_our_name(self, ctr: Path, tmp_path: Path, run_module: RunModule) -> None:
        run_module(module.main, **self.options(ctr, remote_archive=str(prepared(tmp_path, "else:1"))))
        assert not run_module(module.main, **self.options(ctr))["changed"]

    def test_a_node_without_ctr_says_what_to_set(self, tmp_path: Path, run_module: RunModule) -> None:
        result = run_module(module.main, **self.options(tmp_path / "none"))
        assert result["failed"] and "vgpu_device_plugin_ctr_binary" in result["msg"]

    def test_a_ctr_that_refuses_is_quoted(self, tmp_path: Path, run_module: RunModule) -> None:
        path = tmp_path / "ctr"
        path.write_text("#!/bin/sh\necho 'permission denied' >&2; exit 1\n", encoding="utf-8")
        path.chmod(0o755)
        assert "failed: permission denied" in run_module(module.main, **self.options(path))["msg"]
