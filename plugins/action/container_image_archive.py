"""Images without a registry: reads the archive's digest here, and carries the archive to a node only if the node needs it.

Owns reading the archive and the order of steps. Asking and importing on the node is the module of the same name.
Options and results: plugins/modules/container_image_archive.py.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any, Dict

from ansible.plugins.action import ActionBase

Values = Dict[str, Any]

# The two annotations by which an OCI layout names its images: containerd's full name first, the specification's second.
_NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_INDEX_LIMIT_BYTES = 4 << 20


class ArchiveError(Exception):
    """The archive is not there, is no OCI archive, or holds several images and none of that name."""


def digest_in(archive: Path, image: str) -> str:
    """The digest under which containerd will know *image* after importing *archive*.

    The one that bears the image's name; where none does, the only one. Errors: ArchiveError.
    """
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile("index.json")
            index = json.loads(member.read(_INDEX_LIMIT_BYTES)) if member else {}
        manifests = index["manifests"]
        named = {_name_of(one): one for one in manifests}
        chosen = named.get(image) or (manifests[0] if len(manifests) == 1 else None)
        if chosen is None:
            raise ArchiveError(f"image archive '{archive}' holds {', '.join(sorted(map(repr, named)))}, expected '{image}'")
        return str(chosen["digest"])
    except FileNotFoundError as error:
        raise ArchiveError(f"image archive '{archive}' does not exist; build it, or set vgpu_device_plugin_image_archive") from error
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArchiveError(
            f"'{archive}' is no OCI archive ({type(error).__name__}: {error}); write one with podman save --format oci-archive"
        ) from error


def _name_of(manifest: Values) -> str:
    annotations = manifest.get("annotations") or {}
    return next((annotations[key] for key in _NAME_ANNOTATIONS if annotations.get(key)), "")


class ActionModule(ActionBase):  # type: ignore[misc]
    """One call where the node has the image; else the archive travels, and a second call imports it."""

    _supports_check_mode = True
    _supports_diff = True
    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: Values | None = None) -> Values:
        result: Values = super().run(tmp, task_vars)
        options = {key: value for key, value in self._task.args.items() if value is not None}
        archive, image = str(options.get("archive") or ""), str(options.get("image") or "")
        try:
            if not archive or not image:
                raise ArchiveError("image and archive are both required")
            path = Path(archive).expanduser()
            options["digest"] = digest_in(path, image)
        except ArchiveError as error:
            return {**result, "failed": True, "msg": str(error)}
        answer = self._call(options, task_vars)
        if answer.get("changed") and not answer.get("failed") and not self._task.check_mode:
            # Ansible has made this folder because of TRANSFERS_FILES, and removes it after the task.
            remote = self._connection._shell.join_path(self._connection._shell.tmpdir, "image.tar")
            self._transfer_file(str(path), remote)
            answer = self._call({**options, "remote_archive": remote}, task_vars)
        result.update(answer)
        if result.get("changed"):
            texts = [f"{result[key]}\n" if result.get(key) else "" for key in ("previous_digest", "digest")]
            result["diff"] = {"before_header": image, "after_header": image, "before": texts[0], "after": texts[1]}
        return result

    def _call(self, options: Values, task_vars: Values | None) -> Values:
        answer: Values = self._execute_module(module_name="tenfold.vgpu.container_image_archive", module_args=options, task_vars=task_vars)
        return answer
