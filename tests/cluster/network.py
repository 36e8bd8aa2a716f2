"""The fleet's network as lists of commands: one bridge, one network namespace and veth pair a machine, pod routes between them.

Pure. Pods of different nodes meet over the bridge without any forwarding on the host; there is no way out to the world and no DNS,
because nothing in the fleet needs either.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import layout
from .layout import Machine

Argv = list[str]


def bridge_up() -> list[Argv]:
    return [
        ["ip", "link", "add", layout.BRIDGE, "type", "bridge"],
        ["ip", "address", "add", f"{layout.HOST_ADDRESS}/{layout.NODE_PREFIX_BITS}", "dev", layout.BRIDGE],
        ["ip", "link", "set", layout.BRIDGE, "up"],
    ]


def machine_up(machine: Machine, machines: Sequence[Machine]) -> list[Argv]:
    """The namespace must exist before the container, which joins it by name and so keeps its addresses over a reboot."""
    inside = ["ip", "-n", machine.name]
    commands = [
        ["ip", "netns", "add", machine.name],
        ["ip", "link", "add", machine.veth, "type", "veth", "peer", "name", "eth0", "netns", machine.name],
        ["ip", "link", "set", machine.veth, "master", layout.BRIDGE, "up"],
        [*inside, "link", "set", "lo", "up"],
        [*inside, "address", "add", f"{machine.address}/{layout.NODE_PREFIX_BITS}", "dev", "eth0"],
        [*inside, "link", "set", "eth0", "up"],
        [*inside, "route", "add", "default", "via", layout.HOST_ADDRESS],
        ["ip", "route", "replace", machine.pod_range, "via", machine.address, "dev", layout.BRIDGE],
    ]
    for other in machines:
        if other != machine:
            commands.append([*inside, "route", "add", other.pod_range, "via", other.address])
    return commands


def cni_configuration(machine: Machine) -> str:
    """A pod's interface: a veth of its own with a route (plugin ptp).

    Not a bridge: two pods of one node would answer each other past the node's address translation, and a service address would
    never reply, unless the kernel filters bridged frames.
    """
    return (
        '{\n  "cniVersion": "1.0.0",\n  "name": "fleet",\n  "plugins": [\n'
        '    {"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam",\n'
        f'      "ranges": [[{{"subnet": "{machine.pod_range}"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}}},\n'
        '    {"type": "portmap", "capabilities": {"portMappings": true}}\n  ]\n}\n'
    )
