"""A machine's root file system: an overlay of cached layers, so that making one takes no copy and cannot harm the cache.

Layers, lowest first: Debian (``rootfs``), the compiled programs (hard links into the cache), the machine's own files. The kubelet's
and containerd's folders are on the host's file system, because an overlay cannot be the upper layer of another.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import command
from .errors import FleetError
from .layout import Machine
from .machine import MachineFile

OWN_FOLDERS = ("/var/lib/containerd", "/var/lib/kubelet")


@dataclass(frozen=True)
class Content:
    """Something of the middle layer: ``path`` in the machine without a leading slash; a file of the cache, or a link's target."""

    path: str
    source: Path | str


@dataclass(frozen=True)
class Disk:
    """Folders of one machine under the fleet's folder."""

    machine: Machine
    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def volumes(self) -> list[tuple[Path, str]]:
        """(folder on the host, path in the machine) of what is not in the overlay."""
        return [(self.folder / path.replace("/", "-").strip("-"), path) for path in OWN_FOLDERS]

    def create(self, debian: Path, contents: Iterable[Content]) -> None:
        """Lay the layers out and mount them."""
        layer = self.folder / "programs"
        _make_folder(layer)
        for content in contents:
            target = layer / content.path
            _make_folder(target.parent)
            if isinstance(content.source, Path):
                os.link(content.source.resolve(), target)
            else:
                target.symlink_to(content.source)
        for needed in (self.root, self.folder / "upper", self.folder / "work", *(source for source, _ in self.volumes)):
            _make_folder(needed)
        options = f"lowerdir={layer}:{debian},upperdir={self.folder / 'upper'},workdir={self.folder / 'work'}"
        command.run(["mount", "-t", "overlay", f"overlay-{self.machine.name}", "-o", options, self.root])

    def path(self, path: str) -> Path:
        """Where the machine's absolute ``path`` lies on the host, before it boots."""
        for source, mounted in self.volumes:
            if path == mounted or path.startswith(mounted + "/"):
                return source / path[len(mounted) :].lstrip("/")
        return self.root / path.lstrip("/")

    def write(self, files: Iterable[MachineFile]) -> None:
        for file in files:
            target = self.path(file.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(file.text, encoding="utf-8")
            target.chmod(file.mode)

    def enable(self, units: Mapping[str, str]) -> None:
        """Start units at boot: name -> target, as ``systemctl enable`` would."""
        for name, target in units.items():
            link = self.root / f"etc/systemd/system/{target}.wants/{name}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"/etc/systemd/system/{name}")


def _make_folder(folder: Path) -> None:
    """With its parents, each open to read: a layer's folder hides the mode of the same folder below it."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir()
        missing.chmod(0o755)


def mounts_under(folder: Path, mountinfo: str) -> list[str]:
    """Mount points at or below ``folder``, deepest last mounted first; ``mountinfo`` is the text of /proc/self/mountinfo."""
    points = [_unescape(line.split()[4]) for line in mountinfo.splitlines()]
    return [point for point in reversed(points) if point == str(folder) or point.startswith(f"{folder}/")]


def _unescape(text: str) -> str:
    # the kernel writes blanks and backslashes of paths in octal, see proc_pid_mountinfo(5)
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def remove(folder: Path) -> None:
    """Unmount everything below ``folder`` and remove it.

    Errors: FleetError when something is still mounted afterwards: better a leftover than deleting through a mount.
    """
    for point in mounts_under(folder, Path("/proc/self/mountinfo").read_text(encoding="utf-8")):
        command.run(["umount", "--lazy", point])
    left = mounts_under(folder, Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    if left:
        raise FleetError(f"cannot remove {str(folder)!r}: {left[0]!r} is still mounted; unmount it")
    if folder.exists():
        shutil.rmtree(folder)
