"""Writes container images without a container engine or a registry: layers as tar files, archives in OCI layout.

Owns the format. What goes into which image is said by ``images``. Layers stay uncompressed: they travel from this disk to this disk,
and unpacking is then a copy. Source of the format: OCI image specification 1.0, image-layout.md, manifest.md and config.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# The same inputs give the same bytes, so that archives can be compared and cached: 2026-01-01T00:00:00Z.
EPOCH_SECONDS = 1767225600
CREATED = "2026-01-01T00:00:00Z"


@dataclass(frozen=True)
class File:
    """A regular file of a layer: ``path`` inside the image without a leading slash, content from a file or given."""

    path: str
    source: Path | bytes
    mode: int = 0o755


@dataclass(frozen=True)
class Link:
    """A symbolic link of a layer."""

    path: str
    target: str


@dataclass(frozen=True)
class Tree:
    """A whole folder as a layer's root; ``excluded`` lists subfolders left out."""

    source: Path
    excluded: Sequence[str] = ()


Entry = File | Link | Tree


@dataclass(frozen=True)
class Image:
    """name is complete ("registry/name:tag"); layers are tar files, lowest first."""

    name: str
    layers: Sequence[Path]
    entrypoint: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def write_layer(target: Path, entries: Iterable[Entry]) -> Path:
    """Write a layer's tar file; parents of files are made as folders, but a tree's own links (``bin`` -> ``usr/bin``) are kept."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        made: set[str] = set()
        for entry in entries:
            if isinstance(entry, Tree):
                _add_tree(archive, entry, made)
                continue
            _add_parents(archive, entry.path, made)
            info = tarfile.TarInfo(entry.path)
            info.mtime = EPOCH_SECONDS
            if isinstance(entry, Link):
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.target, 0o777
                archive.addfile(info)
            elif isinstance(entry.source, bytes):
                info.size, info.mode = len(entry.source), entry.mode
                archive.addfile(info, io.BytesIO(entry.source))
            else:
                info.size, info.mode = entry.source.stat().st_size, entry.mode
                with entry.source.open("rb") as data:
                    archive.addfile(info, data)
    return target


def _add_tree(archive: tarfile.TarFile, tree: Tree, made: set[str]) -> None:
    excluded = set(tree.excluded)
    for folder, folders, files in os.walk(tree.source):
        relative = Path(folder).relative_to(tree.source)
        folders[:] = sorted(name for name in folders if str(relative / name) not in excluded)
        linked = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in [*sorted(set(folders) - set(linked)), *sorted([*files, *linked])]:
            path = Path(folder) / name
            info = archive.gettarinfo(path, arcname=str(relative / name))
            info.mtime, info.uname, info.gname = EPOCH_SECONDS, "", ""
            if info.isdir():
                made.add(info.name)
            if info.isreg():
                with path.open("rb") as data:
                    archive.addfile(info, data)
            else:
                archive.addfile(info)


def _add_parents(archive: tarfile.TarFile, path: str, made: set[str]) -> None:
    for parent in reversed(Path(path).parents[:-1]):
        name = str(parent)
        if name not in made:
            made.add(name)
            info = tarfile.TarInfo(name)
            info.type, info.mtime = tarfile.DIRTYPE, EPOCH_SECONDS
            info.mode = 0o1777 if name == "tmp" else 0o755
            archive.addfile(info)


def write_archive(target: Path, image: Image) -> Path:
    """Write the image as an OCI layout in one tar file, whole or not at all; ``ctr images import`` and ``podman load`` read it.

    A docker ``manifest.json`` is added because ``docker load`` before version 25 reads nothing else.
    """
    layers = [_Blob.of_file(path) for path in image.layers]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", **image.environment}
    configuration = _Blob.of_json(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": CREATED,
            "config": {
                "Entrypoint": list(image.entrypoint),
                "Env": [f"{name}={value}" for name, value in environment.items()],
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        }
    )
    manifest = _Blob.of_json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": configuration.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": [layer.descriptor("application/vnd.oci.image.layer.v1.tar") for layer in layers],
        }
    )
    entry = {
        **manifest.descriptor("application/vnd.oci.image.manifest.v1+json"),
        "platform": {"architecture": "amd64", "os": "linux"},
        "annotations": {"io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": image.name.rpartition(":")[2]},
    }
    docker = [{"Config": configuration.member, "RepoTags": [image.name], "Layers": [layer.member for layer in layers]}]
    staging = target.with_name(f".{target.name}.partial")
    with tarfile.open(staging, "w", format=tarfile.PAX_FORMAT) as archive:
        _add_bytes(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add_bytes(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        _add_bytes(archive, "manifest.json", json.dumps(docker).encode())
        for blob in {blob.digest: blob for blob in (manifest, configuration, *layers)}.values():
            blob.add_to(archive)
    staging.rename(target)
    return target


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), 0o644, EPOCH_SECONDS
    archive.addfile(info, io.BytesIO(data))


@dataclass(frozen=True)
class _Blob:
    """Content addressed by its digest, from memory or from a file (layers are large)."""

    digest: str
    size_bytes: int
    source: Path | bytes

    @classmethod
    def of_json(cls, document: object) -> _Blob:
        data = json.dumps(document, sort_keys=True).encode()
        return cls("sha256:" + hashlib.sha256(data).hexdigest(), len(data), data)

    @classmethod
    def of_file(cls, path: Path) -> _Blob:
        with path.open("rb") as data:
            return cls("sha256:" + hashlib.file_digest(data, "sha256").hexdigest(), path.stat().st_size, path)

    @property
    def member(self) -> str:
        return "blobs/" + self.digest.replace(":", "/")

    def descriptor(self, media_type: str) -> dict[str, object]:
        return {"mediaType": media_type, "digest": self.digest, "size": self.size_bytes}

    def add_to(self, archive: tarfile.TarFile) -> None:
        if isinstance(self.source, bytes):
            _add_bytes(archive, self.member, self.source)
            return
        info = tarfile.TarInfo(self.member)
        info.size, info.mode, info.mtime = self.size_bytes, 0o644, EPOCH_SECONDS
        with self.source.open("rb") as data:
            archive.addfile(info, data)
