"""Checks what must never be in a commit: machine paths, registry hosts, credentials, built binaries, large files, C lines too wide to read.

Looks at tracked and untracked files that git does not ignore. The names of this machine's registries are asked of its own clients,
so that none stands here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_BYTES = 1 << 20
C_COLUMNS = 160  # Python's width is ruff's to check
SECRET = re.compile(rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bghp_[A-Za-z0-9]{36}\b")
HOST = re.compile(r"https?://(?:[^@/\s]*@)?([A-Za-z0-9.-]+\.[a-z]{2,})")


def tracked_files() -> list[Path]:
    """Files that a commit would hold."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    return [ROOT / name for name in listing.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def registry_hosts() -> set[str]:
    """Hosts that this machine's package clients are set up with."""
    commands = (
        ["go", "env", "GOPROXY", "GOSUMDB"],
        ["npm", "config", "get", "registry"],
        [sys.executable, "-m", "pip", "config", "list"],
        ["sh", "-c", "cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null"],
    )
    hosts: set[str] = set()
    for command in commands:
        try:
            output = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30).stdout
        except OSError:
            continue
        hosts |= set(HOST.findall(output))
    return hosts


def problems_of(path: Path, machine_paths: list[str], hosts: set[str]) -> list[str]:
    """What is wrong with one file, a line each."""
    name = path.relative_to(ROOT)
    if path.is_symlink():
        return []
    data = path.read_bytes()
    found = []
    if len(data) > LIMIT_BYTES:
        found.append(f"{name}: {len(data) >> 10} KiB; generate it or make it smaller than {LIMIT_BYTES >> 10} KiB")
    if data[:4] == b"\x7fELF":
        found.append(f"{name}: a built binary; build it where it is used")
    if SECRET.search(data):
        found.append(f"{name}: looks like a private key or token")
    if b"\0" not in data:
        text = data.decode("utf-8", "replace")
        if path.suffix in (".c", ".h"):
            found += [
                f"{name}:{number}: {len(line)} columns, {C_COLUMNS} at most"
                for number, line in enumerate(text.splitlines(), 1)
                if len(line) > C_COLUMNS
            ]
        found += [f"{name}: names the machine path '{path_}'" for path_ in machine_paths if path_ in text]
        found += [f"{name}: names the registry host '{host}'; use the machine's own client settings" for host in hosts if host in text]
    return found


def main() -> int:
    """Prints what is wrong; 1 if anything is."""
    home = str(Path.home())
    machine_paths = [str(ROOT), *(f"{home}/{part}" for part in (".cache/", ".pyenv/", ".local/"))]
    hosts = registry_hosts()
    found = [problem for path in tracked_files() for problem in problems_of(path, machine_paths, hosts)]
    print("\n".join(found) or "tree: ok")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
