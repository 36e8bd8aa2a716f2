"""Every image of the fleet, made here from what was compiled or bootstrapped, because there is no registry.

Owns their contents and cache keys; ``oci`` writes the format. Archives lie in the cache, podman's storage holds the two images that
builds and molecule start from.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import command, compile, fingerprint, gomodules, lock, oci, podman, rootfs
from .console import Console
from .errors import FleetError
from .paths import Paths
from .versions import Versions

PAUSE_IMAGE = "localhost/tenfold-pause:1"
BASE_IMAGE = "localhost/tenfold-base:bookworm"
NODE_IMAGE = "localhost/tenfold-debian-systemd:bookworm"
PAUSE_SOURCE = Path(__file__).parent / "pause.c"
KEY_LABEL = "dev.tenfold.key"
SCRIPT = "installer/dockerfile/webhook-manager/gen-admission-secret.sh"
IMPORT_DEADLINE_SECONDS = 300

# Volcano's admission job needs a shell, openssl and kubectl, not what else Debian's base brings.
WEBHOOK_SURPLUS = ("usr/lib/python3", "usr/lib/python3.11", "usr/share/python3", "usr/share/zoneinfo", "usr/lib/x86_64-linux-gnu/perl-base")


@dataclass(frozen=True)
class Archive:
    """An image archive of the cache: the file's name carries the content key."""

    image: str
    path: Path


def pause_archive(paths: Paths) -> Archive:
    source = PAUSE_SOURCE.read_bytes()
    target = paths.images / f"pause-{fingerprint.of(PAUSE_IMAGE, source)}.tar"

    def layers(folder: Path) -> list[Path]:
        program = folder / "pause"
        command.run(["gcc", "-std=c11", "-D_GNU_SOURCE", "-Os", "-static", "-s", "-o", program, PAUSE_SOURCE])
        return [oci.write_layer(folder / "layer.tar", [oci.File("pause", program)])]

    return _ensure(target, PAUSE_IMAGE, ["/pause"], layers)


def volcano_archives(paths: Paths, versions: Versions, components: Mapping[str, Path], base: Path) -> list[Archive]:
    """Volcano's three images under the names of its chart, so that the chart installs as it is.

    ``components`` are the folders of ``compile.ensure``, ``base`` the tree of ``rootfs.BASE``.
    """
    version = versions.of(gomodules.VOLCANO)
    made = []
    for name in ("vc-scheduler", "vc-controller-manager", "vc-webhook-manager"):
        program = components["volcano"] / name
        is_webhook = name == "vc-webhook-manager"
        parts = [components["volcano"].name, *([components["kubernetes"].name, base.name, *WEBHOOK_SURPLUS] if is_webhook else [])]
        image = f"docker.io/volcanosh/{name}:{version}"
        target = paths.images / f"{name}-{fingerprint.of(image, *parts)}.tar"

        def layers(folder: Path, program: Path = program, is_webhook: bool = is_webhook) -> list[Path]:
            if not is_webhook:
                return [oci.write_layer(folder / "own.tar", [oci.File(program.name, program), _passwd()])]
            script = compile.module_folder(gomodules.VOLCANO, version) / SCRIPT
            # the script says #!/bin/sh and uses bash's [[; upstream's image gets away with it by its busybox
            own: list[oci.Entry] = [
                oci.File(script.name, script),
                oci.Link("usr/bin/sh", "bash"),
                oci.File("usr/local/bin/kubectl", components["kubernetes"] / "hyperkube"),
                oci.File(program.name, program),
            ]
            bottom = oci.write_layer(folder / "base.tar", [oci.Tree(base, WEBHOOK_SURPLUS)])
            return [bottom, oci.write_layer(folder / "own.tar", own)]

        made.append(_ensure(target, image, [f"/{name}"], layers))
    return made


def _passwd() -> oci.File:
    return oci.File("etc/passwd", b"root:x:0:0:root:/:/nonexistent\nvolcano:x:1000:1000::/:/nonexistent\n", 0o644)


def _ensure(target: Path, image: str, entrypoint: Sequence[str], layers: Callable[[Path], list[Path]]) -> Archive:
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".layers-") as folder:
            oci.write_archive(target, oci.Image(image, layers(Path(folder)), entrypoint))
    return Archive(image, target)


def ensure_podman_image(image: str, tree: Path, changes: Sequence[str], paths: Paths, console: Console) -> None:
    """Put a root file system into podman's storage as ``image``; a label remembers the key, so that a second call does nothing.

    ``changes`` are Containerfile instructions for its configuration.
    """
    key = fingerprint.of(image, tree.name, *changes)
    if _podman_label(image) == key:
        return
    with lock.awaited(paths.build_lock, f"import the image {image!r}", console, deadline_seconds=rootfs.LOCK_DEADLINE_SECONDS):
        console.say(f"importing the image {image}")
        argv = ["podman", "import", "--quiet", *(f"--change={change}" for change in (*changes, f"LABEL {KEY_LABEL}={key}")), "-", image]
        with subprocess.Popen(["tar", "-C", str(tree), "--numeric-owner", "-c", "."], stdout=subprocess.PIPE) as tar:
            command.run(argv, stdin=tar.stdout, env=podman.environment(), deadline_seconds=IMPORT_DEADLINE_SECONDS)
            if tar.wait() != 0:
                raise FleetError(f"cannot pack {str(tree)!r}: tar ended with status {tar.returncode}")
        prune()


def prune() -> None:
    """Remove what our names meant before from podman's storage; images that a container uses stay."""
    argv = ["podman", "image", "prune", "--force", "--filter", f"label={KEY_LABEL}"]
    command.run(argv, env=podman.environment(), allowed=(0, 1, 2, 125))


def _podman_label(image: str) -> str:
    argv = ["podman", "image", "inspect", "--format", f'{{{{index .Labels "{KEY_LABEL}"}}}}', image]
    return command.run(argv, env=podman.environment(), allowed=(0, 125)).stdout.strip()


def node_image(paths: Paths, console: Console) -> None:
    """``localhost/tenfold-debian-systemd:bookworm``: a plain Debian machine for molecule's ``default`` scenario."""
    ensure_podman_image(NODE_IMAGE, rootfs.ensure(rootfs.NODE, paths, console), ['CMD ["/sbin/init"]'], paths, console)


def base_image(paths: Paths, console: Console) -> None:
    """``localhost/tenfold-base:bookworm``: what images of Python programs start from."""
    # the system's Python is the only one there, and nobody will upgrade it under the packages of an image
    changes = ['CMD ["/usr/bin/python3"]', "ENV PIP_BREAK_SYSTEM_PACKAGES=1"]
    ensure_podman_image(BASE_IMAGE, rootfs.ensure(rootfs.BASE, paths, console), changes, paths, console)


def copy_chart(paths: Paths, versions: Versions) -> Path:
    """Volcano's chart out of its module, in the cache (Go may clean its module cache)."""
    version = versions.of(gomodules.VOLCANO)
    target = paths.cache / "charts" / f"volcano-{version}"
    if not target.is_dir():
        staging = target.with_name(f".{target.name}.partial")
        shutil.rmtree(staging, ignore_errors=True)
        shutil.copytree(compile.module_folder(gomodules.VOLCANO, version) / "installer/helm/chart/volcano", staging)
        for path in (staging, *staging.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
        staging.rename(target)
    return target
