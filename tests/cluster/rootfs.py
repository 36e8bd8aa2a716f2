"""Debian root file systems by debootstrap, kept unpacked in the cache and never written to again.

Owns package lists, slimming and masking. Machines mount the node's tree as the lower layer of an overlay (``machine``); images take
their files from the trees too (``images``).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import debian, fingerprint, lock
from .console import Console
from .paths import Paths

BOOTSTRAP_DEADLINE_SECONDS = 1200
# whoever holds the cache may be compiling Kubernetes
LOCK_DEADLINE_SECONDS = 3600

# What a node has before Tenfold; no compiler on purpose (the hook is compiled elsewhere).
NODE_PACKAGES = (
    "systemd-sysv",
    "dbus",
    "udev",
    "kmod",
    "mount",
    "procps",
    "iproute2",
    "iptables",
    "nftables",
    "conntrack",
    "runc",
    "containernetworking-plugins",
    "python3",
    "ca-certificates",
)
# What our images are made of: pip installs the device plugin's wheels, Volcano's admission job needs openssl.
BASE_PACKAGES = ("python3", "python3-pip", "ca-certificates", "openssl")

# Units that degrade or hang a machine which is a container: the host's terminals, devices and kernel modules, and a second network setup.
MASKED_UNITS = (
    "console-getty.service",
    "getty.target",
    "getty@tty1.service",
    "systemd-udevd.service",
    "systemd-udev-trigger.service",
    "systemd-udevd-kernel.socket",
    "systemd-udevd-control.socket",
    "systemd-networkd.service",
    "systemd-networkd.socket",
    "systemd-networkd-wait-online.service",
    "systemd-modules-load.service",
    # timers that would work against the clock of a test
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
)
# Left by the installation, read by nobody here.
SURPLUS = (
    "usr/share/doc",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
)
JOURNAL_SETTINGS = "[Journal]\nStorage=volatile\nRuntimeMaxUse=64M\nRateLimitIntervalSec=0\n"


@dataclass(frozen=True)
class Tree:
    """A root file system to make. key decides whether the cache has it."""

    name: str
    packages: Sequence[str]
    is_machine: bool
    suite: str = debian.SUITE

    @property
    def key(self) -> str:
        extras = (*MASKED_UNITS, JOURNAL_SETTINGS) if self.is_machine else ()
        return fingerprint.of(self.suite, *self.packages, *SURPLUS, *extras)


NODE = Tree("node", NODE_PACKAGES, is_machine=True)
BASE = Tree("base", BASE_PACKAGES, is_machine=False)
# The oldest userland that Debian's mirrors still serve (glibc 2.31: dlsym and threads in libraries of their own), with its oldest compiler.
OLD = Tree("old", ("python3-minimal", "gcc-9", "libc6-dev", "make"), is_machine=False, suite="bullseye")


def ensure(tree: Tree, paths: Paths, console: Console) -> Path:
    """The tree's folder, made if the cache lacks it (about a minute)."""
    folder = paths.rootfs / f"{tree.name}-{tree.key}"
    if folder.is_dir():
        return folder
    with lock.awaited(paths.build_lock, f"make the root file system {tree.name!r}", console, deadline_seconds=LOCK_DEADLINE_SECONDS):
        if folder.is_dir():
            return folder
        console.say(f"root file system {tree.name!r}: Debian {tree.suite} by debootstrap (about 1 min)")
        staging = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(staging, ignore_errors=True)
        packages = paths.cache / "debs"
        for needed in (staging, packages):
            needed.mkdir(parents=True, exist_ok=True)
        log = paths.logs / f"rootfs-{tree.name}.log"
        log.unlink(missing_ok=True)
        argv = ["debootstrap", "--variant=minbase", f"--cache-dir={packages}", f"--include={','.join(tree.packages)}"]
        argv += [tree.suite, str(staging), debian.mirror()]
        console.watch(f"root file system {tree.name!r}", argv, log=log, deadline_seconds=BOOTSTRAP_DEADLINE_SECONDS)
        _finish(staging, tree)
        staging.rename(folder)
    return folder


def _finish(root: Path, tree: Tree) -> None:
    for surplus in SURPLUS:
        shutil.rmtree(root / surplus, ignore_errors=True)
    for folder in ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    # each machine brings its own; names of the builder stay out of images
    for file in ("etc/machine-id", "var/lib/dbus/machine-id", "etc/hostname", "etc/resolv.conf", "etc/apt/sources.list"):
        (root / file).unlink(missing_ok=True)
    if not tree.is_machine:
        return
    (root / "etc/machine-id").touch()
    for unit in MASKED_UNITS:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    settings = root / "etc/systemd/journald.conf.d/fleet.conf"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(JOURNAL_SETTINGS, encoding="utf-8")
