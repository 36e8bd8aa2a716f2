"""Names and addresses of the fleet: unique, within the kernel's limits, and routed both ways."""

from __future__ import annotations

import ipaddress

from tests.cluster import layout, network
from tests.cluster.layout import MACHINES

INTERFACE_NAME_LIMIT = 15


def test_every_name_of_the_fleet_carries_the_prefix() -> None:
    names = [layout.BRIDGE, layout.CGROUP_PARENT, *(one.name for one in MACHINES), *(one.veth for one in MACHINES)]
    assert all(name.startswith("tenfold-") for name in names)
    assert len(set(names)) == len(names)


def test_interface_names_fit_the_kernel() -> None:
    assert all(len(name) <= INTERFACE_NAME_LIMIT for name in (layout.BRIDGE, *(one.veth for one in MACHINES)))


def test_ranges_of_nodes_pods_and_services_do_not_overlap() -> None:
    nodes = ipaddress.IPv4Network(f"{layout.HOST_ADDRESS}/{layout.NODE_PREFIX_BITS}", strict=False)
    pods = [ipaddress.IPv4Network(one.pod_range) for one in MACHINES]
    ranges = [nodes, ipaddress.IPv4Network(layout.SERVICE_RANGE), *pods]
    assert not [(a, b) for i, a in enumerate(ranges) for b in ranges[i + 1 :] if a.overlaps(b)]
    assert all(ipaddress.ip_address(one.address) in nodes for one in MACHINES)
    assert all(pod.subnet_of(ipaddress.IPv4Network(layout.POD_RANGE)) for pod in pods)


def test_machine_reaches_the_pods_of_every_other_machine() -> None:
    one = MACHINES[1]
    routes = [argv for argv in network.machine_up(one, MACHINES) if argv[:5] == ["ip", "-n", one.name, "route", "add"]]
    targets = {argv[5]: argv[7] for argv in routes}
    assert targets == {"default": layout.HOST_ADDRESS, **{other.pod_range: other.address for other in MACHINES if other != one}}
