"""Debian packages that this machine needs, and the mirror that its own package manager uses.

Owns the one list of packages. No mirror is named here: a fresh machine already knows one that it may use.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from .console import Console
from .errors import FleetError

# program or file that shows the package is there -> package
PACKAGES = {
    "podman": "podman",
    "runc": "runc",
    "/usr/lib/podman/netavark": "netavark",
    "debootstrap": "debootstrap",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "gcc": "gcc",
    "make": "make",
    "/usr/include/string.h": "libc6-dev",
    "/usr/lib/x86_64-linux-gnu/libc.a": "libc6-dev",
}
# the same for what only tests use; a test that lacks one of these skips and says so
TEST_PACKAGES = {
    "clang": "clang",
    "gcc-11": "gcc-11",
    "/usr/lib/llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.asan-x86_64.a": "libclang-rt-14-dev",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "/usr/aarch64-linux-gnu/include/string.h": "libc6-dev-arm64-cross",
    "qemu-aarch64-static": "qemu-user-static",
    "musl-gcc": "musl-tools",
    "strace": "strace",
}
SUITE = "bookworm"
MIRROR_OVERRIDE = "TENFOLD_DEBIAN_MIRROR"
INSTALL_DEADLINE_SECONDS = 900


def missing_packages(wanted: Mapping[str, str]) -> list[str]:
    """Packages of a list (program or file -> package) that this machine lacks, in its order."""
    absent = []
    for probe, package in wanted.items():
        found = Path(probe).exists() if probe.startswith("/") else shutil.which(probe, path=_search_path()) is not None
        if not found and package not in absent:
            absent.append(package)
    return absent


def _search_path() -> str:
    # a login of a plain user lacks the sbin folders, where runc and debootstrap live
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def install_missing(console: Console, log: Path, with_tests: bool = False) -> None:
    """Install what is missing, without a question; with_tests: also what only tests use.

    Errors: FleetError that names the packages when this process is not root or there is no apt.
    """
    packages = missing_packages({**PACKAGES, **TEST_PACKAGES} if with_tests else PACKAGES)
    if not packages:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise FleetError(f"missing Debian packages: {' '.join(packages)}; as root: apt-get install {' '.join(packages)}")
    console.say(f"installing Debian packages: {' '.join(packages)}")
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    for argv in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *packages]):
        console.watch(" ".join(argv[:2]), argv, log=log, env=environment, deadline_seconds=INSTALL_DEADLINE_SECONDS)


def require_root(what: str) -> None:
    if os.geteuid() != 0:
        raise FleetError(f"cannot {what} as user id {os.geteuid()}: containers, mounts and network namespaces need root; use sudo")


def mirror() -> str:
    """Base address of the Debian mirror in this machine's apt sources that carries SUITE.

    Errors: FleetError when there is none; the environment variable TENFOLD_DEBIAN_MIRROR names one then.
    """
    if override := os.environ.get(MIRROR_OVERRIDE):
        return override
    folder = Path("/etc/apt")
    one_line = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*.list"))]
    deb822 = sorted(folder.glob("sources.list.d/*.sources"))
    found = mirror_in(
        (path.read_text(encoding="utf-8", errors="replace") for path in one_line if path.is_file()),
        (path.read_text(encoding="utf-8", errors="replace") for path in deb822),
    )
    if found is None:
        raise FleetError(f"no apt source of this machine carries Debian {SUITE!r}; set {MIRROR_OVERRIDE} to a mirror that does")
    return found


def mirror_in(one_line: Iterable[str], deb822: Iterable[str]) -> str | None:
    """First web address that serves SUITE's main component, from sources.list texts and from deb822 texts (see sources.list(5))."""
    for text in one_line:
        for line in text.splitlines():
            words = line.split("#")[0].split()
            if not words or words[0] != "deb":
                continue
            words = [word for word in words[1:] if not word.startswith("[") and not word.endswith("]") and "=" not in word]
            if len(words) >= 3 and words[0].startswith("http") and words[1] == SUITE and "main" in words[2:]:
                return words[0]
    for text in deb822:
        for stanza in text.split("\n\n"):
            fields = _deb822_fields(stanza)
            addresses = [word for word in fields.get("uris", []) if word.startswith("http")]
            wanted = (("types", "deb"), ("suites", SUITE), ("components", "main"))
            if addresses and all(word in fields.get(name, []) for name, word in wanted):
                return addresses[0]
    return None


def _deb822_fields(stanza: str) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    name = ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace():
            fields.setdefault(name, []).extend(line.split())
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.split()
    return fields
