"""Everything that a fleet is made of, brought into the cache: compiled programs, Debian, images, the simulated driver.

Owns the order and the stable names under ``current/``; how each thing is made is its own file's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import compile, debian, driver, fingerprint, images, plugin_image, rootfs
from .console import Console
from .driver import Driver
from .images import Archive
from .paths import Paths, point
from .versions import Versions

# programs that people and Ansible run on the host
HOST_PROGRAMS = (("kubernetes", "kubectl"), ("helm", "helm"), ("containerd", "ctr"), ("nvidia-container-toolkit", "nvidia-ctk"))


@dataclass(frozen=True)
class Inputs:
    """components: folder of each compiled component by name. node: Debian tree. driver: None for a fleet without cards' driver."""

    components: Mapping[str, Path]
    node: Path
    pause: Archive
    volcano: tuple[Archive, ...]
    chart: Path
    driver: Driver | None

    @property
    def key(self) -> str:
        """What was brought in; a fleet of other inputs is another fleet."""
        parts = [*sorted(folder.name for folder in self.components.values()), self.node.name]
        parts += [archive.path.name for archive in (self.pause, *self.volcano)]
        return fingerprint.of(*parts, self.driver.key if self.driver else "no driver")


def ensure(paths: Paths, console: Console, *, with_driver: bool = True) -> Inputs:
    """Make what the cache lacks, install what the machine lacks."""
    debian.install_missing(console, paths.logs / "apt.log")
    versions = Versions.from_file()
    components = compile.ensure(paths, versions, console)
    node = rootfs.ensure(rootfs.NODE, paths, console)
    base = rootfs.ensure(rootfs.BASE, paths, console)
    inputs = Inputs(
        components=components,
        node=node,
        pause=images.pause_archive(paths),
        volcano=tuple(images.volcano_archives(paths, versions, components, base)),
        chart=images.copy_chart(paths, versions),
        driver=driver.ensure(paths, console) if with_driver else None,
    )
    publish(inputs, paths)
    # not of the fleet's key: the product's roles import it, and a new one needs no new machines
    plugin_image.ensure(paths, console)
    return inputs


def publish(inputs: Inputs, paths: Paths) -> None:
    """Stable names for what changes its folder with its content: ``current/bin/kubectl``, ``current/images/vc-scheduler.tar`` ..."""
    for component, program in HOST_PROGRAMS:
        point(paths.current / "bin" / program, inputs.components[component] / program)
    point(paths.current / "volcano-chart", inputs.chart)
    for archive in (inputs.pause, *inputs.volcano):
        point(paths.current / "images" / f"{image_stem(archive.image)}.tar", archive.path)


def image_stem(image: str) -> str:
    """ "docker.io/volcanosh/vc-scheduler:v1.15.1" -> "vc-scheduler"."""
    return image.rpartition("/")[2].partition(":")[0]
