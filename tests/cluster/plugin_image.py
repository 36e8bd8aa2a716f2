"""The device plugin's image: built as its own Containerfile says, from wheels fetched beforehand, saved for import without a registry.

Owns wheels, build and archive. What goes into the image is decided by ``files/device_plugin/build_context.py``, which this runs as
any user would.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests import ROOT

from . import command, debian, fingerprint, images, lock, podman, rootfs
from .console import Console
from .images import Archive
from .paths import Paths, keep_newest, point
from .versions import Versions

IMAGE = "localhost/tenfold-device-plugin"
CONTEXT_SCRIPT = ROOT / "files" / "device_plugin" / "build_context.py"
# of the base image (Debian bookworm), which need not be the Python that runs this
PYTHON_VERSION = "3.11"
# newest tag that the base's pip understands, then older ones and pure Python
PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
DOWNLOAD_DEADLINE_SECONDS = 600
BUILD_DEADLINE_SECONDS = 600
# 100 MB each, one for every change of the sources
ARCHIVES_KEPT = 3


def ensure(paths: Paths, console: Console) -> Archive:
    """The image's archive in the cache, built when sources, wheels or base changed; the tag is the product's version."""
    versions = Versions.from_file()
    debian.install_missing(console, paths.logs / "apt.log")
    images.base_image(paths, console)
    wheels = _ensure_wheels(paths, versions, console)
    with tempfile.TemporaryDirectory(prefix="tenfold-plugin-image-") as scratch:
        context = Path(scratch) / "context"
        command.run([sys.executable, CONTEXT_SCRIPT, context, "--wheels", wheels])
        sources = fingerprint.of_files(context, (path for path in context.rglob("*") if path.is_file()))
        key = fingerprint.of(sources, rootfs.BASE.key)
        archive = Archive(f"{IMAGE}:{versions.tenfold}", paths.images / f"tenfold-device-plugin-{key}.tar")
        if not archive.path.is_file():
            with lock.awaited(paths.build_lock, "build the device plugin's image", console, deadline_seconds=rootfs.LOCK_DEADLINE_SECONDS):
                _build(archive, context, paths, console)
            keep_newest(paths.images, "tenfold-device-plugin-*.tar", ARCHIVES_KEPT)
    point(paths.current / "images" / "tenfold-device-plugin.tar", archive.path)
    return archive


def _ensure_wheels(paths: Paths, versions: Versions, console: Console) -> Path:
    """Wheels for the base image's Python, fetched once per list of ranges."""
    ranges = versions.python_device_plugin
    folder = paths.cache / "wheels" / fingerprint.of(PYTHON_VERSION, *PLATFORMS, *ranges)
    if not folder.is_dir():
        staging = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        console.say("device plugin: fetching Python packages")
        argv = [sys.executable, "-m", "pip", "download", "--dest", str(staging), "--only-binary=:all:", "--implementation=cp"]
        argv += [f"--python-version={PYTHON_VERSION}", *(f"--platform={platform}" for platform in PLATFORMS), *ranges]
        log = paths.logs / "wheels.log"
        log.unlink(missing_ok=True)
        console.watch("device plugin, Python packages", argv, log=log, deadline_seconds=DOWNLOAD_DEADLINE_SECONDS)
        staging.rename(folder)
    return folder


def _build(archive: Archive, context: Path, paths: Paths, console: Console) -> None:
    console.say(f"device plugin: building the image {archive.image}")
    log = paths.logs / "plugin-image.log"
    log.unlink(missing_ok=True)
    # chroot: a build step needs no container of its own, and this way none of podman's networks
    argv = ["podman", "build", "--isolation=chroot", "--pull-never", f"--build-arg=BASE_IMAGE={images.BASE_IMAGE}"]
    argv += [f"--tag={archive.image}", str(context)]
    console.watch("device plugin, image", argv, log=log, env=podman.environment(), deadline_seconds=BUILD_DEADLINE_SECONDS)
    staging = archive.path.with_name(f".{archive.path.name}.partial")
    staging.unlink(missing_ok=True)
    argv = ["podman", "save", "--quiet", "--format=oci-archive", f"--output={staging}", archive.image]
    command.run(argv, env=podman.environment(), deadline_seconds=BUILD_DEADLINE_SECONDS)
    staging.rename(archive.path)
    images.prune()
