"""Where the harness keeps things on this machine: one cache that outlives clones, one folder of the running fleet.

Owns folder names; what is inside belongs to the part that writes it.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paths:
    """Folders under ``${XDG_CACHE_HOME:-~/.cache}/tenfold``.

    cache:   by content, shared by clones, safe to delete when no fleet runs.
    current: symbolic links to what the newest build made (bin/, images/, volcano-chart), stable names for inventories and people.
    sim:     the running fleet; ``down`` empties it.
    """

    cache: Path

    @classmethod
    def of_user(cls) -> Paths:
        home = os.environ.get("XDG_CACHE_HOME")
        return cls((Path(home) if home else Path.home() / ".cache") / "tenfold")

    @property
    def bin(self) -> Path:
        return self.cache / "bin"

    @property
    def rootfs(self) -> Path:
        return self.cache / "rootfs"

    @property
    def images(self) -> Path:
        return self.cache / "images"

    @property
    def logs(self) -> Path:
        return self.cache / "logs"

    @property
    def current(self) -> Path:
        return self.cache / "current"

    @property
    def build_lock(self) -> Path:
        """Held by whoever fills the cache."""
        return self.cache / "build.lock"

    @property
    def sim(self) -> Path:
        return self.cache / "sim"

    @property
    def fleet_lock(self) -> Path:
        # beside the folder, not in it: ``down`` removes the folder while it holds the lock
        return self.cache / "sim.lock"

    @property
    def kubeconfig(self) -> Path:
        return self.sim / "admin.conf"


def keep_newest(folder: Path, pattern: str, count: int) -> None:
    """Remove all but the ``count`` youngest files or folders that match; only for things that a running fleet does not need."""
    found = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in found[count:]:
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()


def point(link: Path, target: Path) -> None:
    """Make or turn a symbolic link at once, so that no reader ever finds it missing."""
    link.parent.mkdir(parents=True, exist_ok=True)
    staging = link.with_name(f".{link.name}.partial")
    staging.unlink(missing_ok=True)
    staging.symlink_to(target)
    staging.replace(link)
