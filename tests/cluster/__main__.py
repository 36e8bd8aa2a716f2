"""Command line of the test fleet: ``python3 -m tests.cluster COMMAND`` from the root of the checkout.

Owns words and exit codes: 0 done, 1 failed or not healthy, 130 interrupted. Standard output carries what scripts read.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Callable
from types import FrameType

from . import debian, images, inputs, layout, podman
from . import plugin_image as plugin_images
from .console import Console
from .errors import FleetError
from .fleet import Fleet
from .paths import Paths

Command = Callable[[argparse.Namespace, Paths, Console], int]


def setup(arguments: argparse.Namespace, paths: Paths, console: Console) -> int:
    """install the Debian packages that the fleet needs on this machine"""
    debian.install_missing(console, paths.logs / "apt.log", with_tests=arguments.tests)
    return 0


def build(arguments: argparse.Namespace, paths: Paths, console: Console) -> int:
    """compile and bootstrap everything into the cache, without starting a fleet"""
    debian.require_root("build the fleet's parts")
    inputs.ensure(paths, console, with_driver=arguments.driver)
    return 0


def up(arguments: argparse.Namespace, paths: Paths, console: Console) -> int:
    """bring the fleet up, or see that it is up"""
    debian.require_root("bring the fleet up")
    Fleet(paths, console).up(with_driver=arguments.driver)
    return 0


def down(_: argparse.Namespace, paths: Paths, console: Console) -> int:
    """remove the fleet and nothing else; the cache stays"""
    debian.require_root("take the fleet down")
    Fleet(paths, console).down()
    return 0


def status(_: argparse.Namespace, paths: Paths, console: Console) -> int:
    """say how the fleet is; exit code 1 unless it is healthy"""
    healthy, lines = Fleet(paths, console).status()
    print("\n".join(lines))
    return 0 if healthy else 1


def logs(arguments: argparse.Namespace, paths: Paths, console: Console) -> int:
    """print the end of a machine's journal"""
    print(Fleet(paths, console).journal(arguments.machine, arguments.unit, arguments.lines))
    return 0


def env(_: argparse.Namespace, paths: Paths, __: Console) -> int:
    """print the shell lines that let podman, kubectl, helm and Ansible reach the fleet"""
    for name, value in podman.environment().items():
        print(f"export {name}={shlex.quote(value)}")
    print(f"export KUBECONFIG={shlex.quote(str(paths.kubeconfig))}")
    print(f"export PATH={shlex.quote(str(paths.current / 'bin'))}:$PATH")
    return 0


def image(_: argparse.Namespace, paths: Paths, console: Console) -> int:
    """put the images that molecule and image builds start from into podman's storage"""
    debian.require_root("import images")
    debian.install_missing(console, paths.logs / "apt.log")
    images.node_image(paths, console)
    images.base_image(paths, console)
    print(f"{images.NODE_IMAGE}\n{images.BASE_IMAGE}")
    return 0


def plugin_image(_: argparse.Namespace, paths: Paths, console: Console) -> int:
    """build the device plugin's image and print its archive"""
    debian.require_root("build images")
    print(plugin_images.ensure(paths, console).path)
    return 0


COMMANDS: tuple[Command, ...] = (setup, build, up, down, status, logs, env, image, plugin_image)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python3 -m tests.cluster", description="the simulated fleet of the test bench")
    commands = top.add_subparsers(dest="command", required=True)
    for one in COMMANDS:
        sub = commands.add_parser(one.__name__.replace("_", "-"), help=one.__doc__, description=one.__doc__)
        sub.set_defaults(run=one)
        if one is setup:
            sub.add_argument("--tests", action="store_true", help="also what only the hook's and the simulator's tests use")
        if one in (build, up):
            sub.add_argument("--without-driver", dest="driver", action="store_false", help="machines without the simulated NVIDIA driver")
        if one is logs:
            sub.add_argument("machine", choices=[machine.name for machine in layout.MACHINES])
            sub.add_argument("unit", nargs="?", help="one unit, such as kubelet.service; all warnings without it")
            sub.add_argument("--lines", type=int, default=200)
    return top


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    # a polite kill ends our children as Ctrl-C does
    signal.signal(signal.SIGTERM, _interrupt)
    arguments = parser().parse_args()
    run: Command = arguments.run
    try:
        return run(arguments, Paths.of_user(), Console())
    except FleetError as error:
        print(f"tests.cluster {arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"tests.cluster {arguments.command}: interrupted; the next run recovers", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
