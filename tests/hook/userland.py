"""Root file systems for programs under the hook: other C libraries, and images that bring their own preload file.

A root is an existing tree (or nothing) with our files laid over it, in a mount namespace of its own: nothing is written to the tree, and
nothing is left behind. Inside, the hook lies where it lies in a container. Which trees there are is ``tests.cluster.rootfs``'s.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import hook_build

from tests.cluster import rootfs
from tests.cluster.console import Console
from tests.cluster.errors import FleetError
from tests.cluster.paths import Paths, keep_newest
from tests.hook import workshop
from tests.hook.workshop import Slot

HOOK_INSIDE = "/usr/local/tenfold/libtenfold.so"
DRIVER_INSIDE = "/usr/lib/tenfold-driver"
MACHINE_INSIDE = "/run/tenfold-machine"
# $1 scratch folder, $2 tree, $3 our files, then pairs of source and target, "--", and the command
ENTER = """
set -e
scratch=$1 tree=$2 files=$3; shift 3
mount --make-rprivate /
mount -t tmpfs -o size=64m tenfold-test "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
mount -t overlay -o "lowerdir=$files:$tree,upperdir=$scratch/upper,workdir=$scratch/work" tenfold-test "$scratch/root"
mkdir -p "$scratch/root/proc" "$scratch/root/dev" "$scratch/root/tmp"
mount --rbind /proc "$scratch/root/proc"
mount --rbind /dev "$scratch/root/dev"
while [ "$1" != -- ]; do
    inside=$scratch/root$2
    if [ -d "$1" ]; then mkdir -p "$inside"; else mkdir -p "${inside%/*}"; [ -e "$inside" ] || : >"$inside"; fi
    mount --bind "$1" "$inside"
    shift 2
done
shift
exec chroot "$scratch/root" "$@"
"""


def old_tree() -> Path:
    """A root of Debian's oldest suite that is still served, from the cache; made there if this machine can (about 40 s)."""
    if named := os.environ.get("TENFOLD_OLD_ROOT"):
        return Path(named)
    require_root()
    if not workshop.has("debootstrap"):
        pytest.skip("debootstrap is not installed (Debian: debootstrap, debian-archive-keyring)")
    paths = Paths.of_user()
    try:
        tree = rootfs.ensure(rootfs.OLD, paths, Console())
    except FleetError as error:
        pytest.skip(f"no root of Debian {rootfs.OLD.suite} can be made here: {str(error).splitlines()[0]}")
    os.utime(tree)  # in use, so not the one to go
    keep_newest(paths.rootfs, f"{rootfs.OLD.name}-*", 1)
    return tree


def require_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("a root file system of its own needs root")


@dataclass
class Root:
    """A root with a slot in it. files: what lies over the tree; binds: path inside -> what is mounted there, live."""

    tree: Path
    files: Path
    binds: dict[str, Path] = field(default_factory=dict)

    def write(self, inside: str, text: str, mode: int = 0o644) -> None:
        path = self.files / inside.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def copy(self, source: Path, inside: str) -> None:
        path = self.files / inside.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, path)

    def put_slot(self, slot: Slot) -> None:
        """What the container of a slice has: hook, preload file and slot where CDI mounts them, the driver where its users look."""
        self.binds[HOOK_INSIDE] = slot.hook / "libtenfold.so"
        preload = self.files.with_name(self.files.name + "-ld.so.preload")
        preload.write_text(hook_build.PRELOAD_LINE)
        self.binds["/etc/ld.so.preload"] = preload
        self.binds["/run/tenfold"] = slot.folder
        self.binds[MACHINE_INSIDE] = slot.machine.state
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            self.copy(slot.machine.simulator / name, f"{DRIVER_INSIDE}/{name}")
        self.copy(slot.hook / "tenfold-selftest", "/usr/local/tenfold/tenfold-selftest")
        self.copy(slot.hook / "vgpuctl", "/usr/local/tenfold/vgpuctl")

    def run(
        self, words: Sequence[str], *, stdin: str = "", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        variables = {
            "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LD_LIBRARY_PATH": DRIVER_INSIDE,
            "TENFOLD_SIM_STATE": MACHINE_INSIDE,
        }
        if environment:  # set inside, else the programs on the way would heed it
            words = ["/usr/bin/env", *(f"{name}={value}" for name, value in environment.items()), *words]
        binds = [word for inside, source in self.binds.items() for word in (str(source), inside)]
        with tempfile.TemporaryDirectory(prefix="tenfold-root-") as scratch:
            command = [
                "unshare",
                "--mount",
                "/bin/sh",
                "-c",
                ENTER,
                "enter",
                scratch,
                str(self.tree),
                str(self.files),
                *binds,
                "--",
                *words,
            ]
            return subprocess.run(command, env=variables, input=stdin, capture_output=True, text=True, timeout=60, check=False)

    def output(self, words: Sequence[str], *, stdin: str = "", environment: Mapping[str, str] | None = None) -> str:
        """What a program prints; it must end well, and nothing may speak up beside it."""
        done = self.run(words, stdin=stdin, environment=environment)
        assert (done.returncode, done.stderr) == (0, ""), f"{words}: exit {done.returncode}: {done.stderr}"
        return done.stdout
