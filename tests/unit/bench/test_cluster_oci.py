"""Image archives: valid by their own digests, the same bytes every time, folders and links as a root file system needs them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import oci


def members(path: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(path) as archive:
        return {member.name: member for member in archive.getmembers()}


def content(path: Path, name: str) -> bytes:
    with tarfile.open(path) as archive:
        file = archive.extractfile(name)
        assert file is not None
        return file.read()


def document(path: Path, name: str) -> Any:
    return json.loads(content(path, name))


@pytest.fixture()
def archive(tmp_path: Path) -> Path:
    layer = oci.write_layer(tmp_path / "layer.tar", [oci.File("bin/tool", b"#!/bin/sh\n")])
    image = oci.Image("registry.example/team/tool:v1", [layer], ["/bin/tool"], {"LANG": "C"})
    return oci.write_archive(tmp_path / "image.tar", image)


class TestArchive:
    def test_every_blob_is_named_by_its_digest(self, archive: Path) -> None:
        blobs = [name for name in members(archive) if name.startswith("blobs/sha256/")]
        assert len(blobs) == 3
        for name in blobs:
            assert hashlib.sha256(content(archive, name)).hexdigest() == name.rpartition("/")[2]

    def test_index_leads_to_manifest_configuration_and_layers_of_the_stated_size(self, archive: Path) -> None:
        (entry,) = document(archive, "index.json")["manifests"]
        manifest = document(archive, "blobs/" + entry["digest"].replace(":", "/"))
        for descriptor in (entry, manifest["config"], *manifest["layers"]):
            assert members(archive)["blobs/" + descriptor["digest"].replace(":", "/")].size == descriptor["size"]

    def test_name_is_found_by_containerd_and_by_docker(self, archive: Path) -> None:
        (entry,) = document(archive, "index.json")["manifests"]
        assert entry["annotations"]["io.containerd.image.name"] == "registry.example/team/tool:v1"
        (docker,) = document(archive, "manifest.json")
        assert docker["RepoTags"] == ["registry.example/team/tool:v1"]
        assert set(docker["Layers"]) <= set(members(archive))

    def test_configuration_carries_entry_point_and_environment(self, archive: Path) -> None:
        (docker,) = document(archive, "manifest.json")
        configuration = document(archive, docker["Config"])["config"]
        assert configuration["Entrypoint"] == ["/bin/tool"]
        assert "LANG=C" in configuration["Env"]

    def test_same_content_gives_the_same_bytes(self, tmp_path: Path, archive: Path) -> None:
        again = tmp_path / "again"
        again.mkdir()
        layer = oci.write_layer(again / "layer.tar", [oci.File("bin/tool", b"#!/bin/sh\n")])
        image = oci.Image("registry.example/team/tool:v1", [layer], ["/bin/tool"], {"LANG": "C"})
        assert oci.write_archive(again / "image.tar", image).read_bytes() == archive.read_bytes()

    def test_unfinished_archive_is_not_left_under_its_name(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            oci.write_archive(tmp_path / "image.tar", oci.Image("x:1", [tmp_path / "absent.tar"], []))
        assert not (tmp_path / "image.tar").exists()


class TestLayer:
    def test_parents_are_folders_and_tmp_is_open_to_all(self, tmp_path: Path) -> None:
        found = members(oci.write_layer(tmp_path / "l.tar", [oci.File("tmp/a/b", b""), oci.File("tmp/a/c", b"")]))
        assert found["tmp"].isdir() and found["tmp"].mode == 0o1777
        assert found["tmp/a"].mode == 0o755
        assert list(found) == ["tmp", "tmp/a", "tmp/a/b", "tmp/a/c"]

    def test_link_and_file_modes_are_kept(self, tmp_path: Path) -> None:
        found = members(oci.write_layer(tmp_path / "l.tar", [oci.Link("sh", "bash"), oci.File("etc/passwd", b"x", 0o644)]))
        assert found["sh"].issym() and found["sh"].linkname == "bash"
        assert found["etc/passwd"].mode == 0o644

    def test_tree_keeps_links_to_folders_and_leaves_out_the_excluded(self, tmp_path: Path) -> None:
        tree = tmp_path / "tree"
        (tree / "usr/bin").mkdir(parents=True)
        (tree / "usr/share/doc").mkdir(parents=True)
        (tree / "usr/share/doc/readme").write_text("long")
        (tree / "usr/bin/tool").write_text("x")
        (tree / "bin").symlink_to("usr/bin")
        found = members(oci.write_layer(tmp_path / "l.tar", [oci.Tree(tree, ["usr/share/doc"])]))
        assert found["bin"].issym() and found["bin"].linkname == "usr/bin"
        assert "usr/bin/tool" in found
        assert "usr/share" in found and "usr/share/doc" not in found

    def test_large_file_is_taken_from_disk(self, tmp_path: Path) -> None:
        source = tmp_path / "program"
        source.write_bytes(b"\0" * 100_000)
        layer = oci.write_layer(tmp_path / "l.tar", [oci.File("program", source)])
        with tarfile.open(fileobj=io.BytesIO(layer.read_bytes())) as archive:
            assert archive.getmember("program").size == 100_000
