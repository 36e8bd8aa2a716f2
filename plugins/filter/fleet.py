"""What playbooks and roles need of the fleet: the value itself, and the objects that say on each node what was decided.

Owns the filters' names and which variables of a host are read; every decision is ``tenfold.fleet``'s.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping

from ansible.errors import AnsibleFilterError
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TenfoldError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.fleet import DECLARED, FOUND, Fleet, refusal_of_groups
from ansible_collections.tenfold.vgpu.plugins.plugin_utils.plain import plain


def within_limit(groups: Mapping[str, Iterable[str]], limit: str | None) -> list[str]:
    """The hosts that `--limit` leaves; without it all. Ansible's own reading of patterns and @files."""
    inventory = InventoryManager(DataLoader(), parse=False)
    for group, names in groups.items():
        inventory.add_group(group)
        for name in names:
            inventory.add_host(name, group=group)
    inventory.subset(limit or None)
    return [host.name for host in inventory.get_hosts("all")]


def fleet_refusal(groups: Mapping[str, Iterable[str]], required: Iterable[str], limit: str | None = None) -> str:
    """Why a playbook on these groups would do nothing, or half; empty if it would not."""
    return refusal_of_groups(groups, required, within_limit(groups, limit))


def gpu_fleet(groups: Mapping[str, Iterable[str]], hostvars: Any) -> dict[str, Any]:
    """``Fleet.as_dict()`` of group gpu_nodes, as far as `--limit` goes."""
    hosts = {}
    names = [str(name) for name in groups.get("gpu_nodes") or ()]
    limit = hostvars[names[0]].get("ansible_limit") if names else None
    if limit:
        within = set(within_limit(groups, limit))
        names = [name for name in names if name in within]
    for name in names:
        variables = hostvars[name]
        hosts[name] = {variable: plain(variables[variable]) for variable in DECLARED if variable in variables}
        # What a module answered is no template: to look for one in every answer takes two of three seconds for a thousand hosts.
        hosts[name][FOUND] = plain(hostvars.raw_get(name).get(FOUND))
    try:
        return Fleet.from_inventory(hosts).as_dict()
    except TenfoldError as error:
        raise AnsibleFilterError(str(error)) from error


def node_objects(nodes_by_value: Mapping[str, Iterable[str]], field: str, key: str) -> list[dict[str, Any]]:
    """Partial Node objects that say ``key: value`` in ``metadata``'s ``field`` (labels or annotations)."""
    return [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, field: {key: value}}}
        for value, names in nodes_by_value.items()
        for name in names
    ]


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"fleet_refusal": fleet_refusal, "gpu_fleet": gpu_fleet, "node_objects": node_objects}
