"""What playbooks and roles need of the fleet: the value itself, and the objects that say on each node what was decided.

Owns the filters' names and which variables of a host are read; every decision is ``tenfold.fleet``'s.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping

from ansible.errors import AnsibleFilterError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TenfoldError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.fleet import DECLARED, FOUND, Fleet
from ansible_collections.tenfold.vgpu.plugins.plugin_utils.plain import plain


def gpu_fleet(groups: Mapping[str, Iterable[str]], hostvars: Any) -> dict[str, Any]:
    """``Fleet.as_dict()`` of group gpu_nodes."""
    hosts = {}
    for name in groups.get("gpu_nodes") or ():
        variables = hostvars[name]
        hosts[str(name)] = {variable: plain(variables[variable]) for variable in DECLARED if variable in variables}
        # What a module answered is no template: to look for one in every answer takes two of three seconds for a thousand hosts.
        hosts[str(name)][FOUND] = plain(hostvars.raw_get(name).get(FOUND))
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
        return {"gpu_fleet": gpu_fleet, "node_objects": node_objects}
