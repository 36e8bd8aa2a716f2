"""NVIDIA's own headers, to compare our declarations with: from PyPI into the user's cache, never into the tree.

``python -m tests.hook.nvidia_headers`` prints the folder with cuda.h and nvml.h, and fetches them first if they are not there (3 MB).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import yaml

from tests import ROOT
from tests.cluster.paths import Paths

HEADERS = ("cuda.h", "nvml.h")


class NoHeadersError(Exception):
    """They are not in the cache, and could not be fetched."""


def packages() -> list[str]:
    """Requirements by name and version, from versions.yml."""
    pinned: dict[str, str] = yaml.safe_load((ROOT / "versions.yml").read_text(encoding="utf-8"))["nvidia_headers"]
    return [f"{name}=={version}" for name, version in sorted(pinned.items())]


def ensure() -> Path:
    """The folder. Errors: NoHeadersError."""
    name = "-".join(["headers", *(package.partition("==")[2] for package in packages())])
    folder = Paths.of_user().cache / name
    if all((folder / header).is_file() for header in HEADERS):
        return folder
    with tempfile.TemporaryDirectory(prefix="tenfold-headers-") as wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", wheels, *packages()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise NoHeadersError(f"cannot fetch {' and '.join(packages())}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        folder.mkdir(parents=True, exist_ok=True)
        for wheel in Path(wheels).glob("*.whl"):
            unpack(wheel, folder)
    if not all((folder / header).is_file() for header in HEADERS):
        raise NoHeadersError(f"{' and '.join(packages())} hold no {' and '.join(HEADERS)}")
    return folder


def unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            header = Path(member).name
            if header not in HEADERS:
                continue
            staging = folder / f".{header}.partial"
            with archive.open(member) as source, staging.open("wb") as target:
                shutil.copyfileobj(source, target)
            staging.replace(folder / header)


if __name__ == "__main__":
    try:
        print(ensure())
    except NoHeadersError as error:
        print(error, file=sys.stderr)
