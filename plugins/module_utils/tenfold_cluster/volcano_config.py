"""What Tenfold needs in the configuration of Volcano's scheduler, merged into what its owner wrote, and taken out again. Pure.

Works on the parsed document (any mapping and list types, so that a loader which keeps comments can be used), changes it in place and
says what it changed. Parsing, comments and the ConfigMap are the action plugin volcano_scheduler_config's task.

Source of the keys and of their types: Volcano v1.15.1, pkg/scheduler/conf/scheduler_conf.go, pkg/scheduler/framework/arguments.go
(GetInt takes a YAML integer alone), pkg/scheduler/plugins/deviceshare/deviceshare.go (gpushare beside vgpu ends the scheduler).
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, MutableMapping

from .errors import ConfigMergeError

__all__ = ["Record", "Wishes", "is_vgpu_on", "merge", "unmerge"]

# What a merge did, so that it can be undone: {"added": [plugin...], "replaced": {argument: previous value, None where there was none}}.
Record = Dict[str, Any]
# The arguments of deviceshare that we set, with their values.
Wishes = Dict[str, Any]
Config = MutableMapping[str, Any]

DEVICESHARE = "deviceshare"
PREDICATES = "predicates"
BINPACK = "binpack"
# Switches that take away what a plugin is there for; unset means on (pkg/scheduler/plugins/defaults.go).
_NEEDED_SWITCHES = {DEVICESHARE: ("enablePredicate", "enableNodeOrder"), PREDICATES: ("enablePredicate",), BINPACK: ("enableNodeOrder",)}
_GPUSHARE = "volcano ends itself when gpushare and vgpu are both on; move pods that ask for {} to a Tenfold tier, then set it to false"
_CONFLICTS = {
    "deviceshare.GPUSharingEnable": _GPUSHARE.format("volcano.sh/gpu-memory"),
    "deviceshare.GPUNumberEnable": _GPUSHARE.format("volcano.sh/gpu-number"),
    "deviceshare.NodeLockEnable": "Tenfold binds late and never gives the lock back, so a node would take one pod in five minutes; "
    "set it to false",
}


def _plugins(config: Config) -> Iterator[tuple[list[Any], int, Config]]:
    """Every plugin with the list that holds it and its place there."""
    for tier in config["tiers"]:
        plugins = tier.get("plugins") or []
        for index, plugin in enumerate(plugins):
            yield plugins, index, plugin


def _find(config: Config, name: str) -> tuple[list[Any], int, Config] | None:
    found = [place for place in _plugins(config) if place[2].get("name") == name]
    if len(found) > 1:
        raise ConfigMergeError(f"plugin '{name}' is configured {len(found)} times, and the last one wins; keep one")
    return found[0] if found else None


def _is_on(value: Any) -> bool:
    """How Volcano reads a boolean argument: a YAML boolean, or a text that Go's strconv.ParseBool takes."""
    return value is True or (isinstance(value, str) and value in ("1", "t", "T", "TRUE", "true", "True"))


def _same(left: Any, right: Any) -> bool:
    """Equal in value and in YAML type: Volcano ignores `ScheduleWeight: "10"`, and 1 is not true."""
    kinds = (bool, int, float, str)
    return next((k for k in kinds if isinstance(left, k)), None) is next((k for k in kinds if isinstance(right, k)), None) and left == right


def _check_shape(config: Any) -> None:
    if not isinstance(config, MutableMapping):
        raise ConfigMergeError(f"the configuration is a {type(config).__name__}, expected a mapping with 'actions' and 'tiers'")
    actions = [word.strip() for word in str(config.get("actions") or "").split(",")]
    if "allocate" not in actions:
        raise ConfigMergeError(
            f"'actions' is '{config.get('actions') or ''}' and lacks 'allocate', without which nothing is scheduled; add it"
        )
    tiers = config.get("tiers")
    if not isinstance(tiers, list) or not tiers:
        raise ConfigMergeError("'tiers' is not a list with at least one tier; add the tiers that this cluster should use")
    for number, tier in enumerate(tiers, 1):
        plugins = tier.get("plugins") if isinstance(tier, MutableMapping) else None
        if not isinstance(plugins, list) or not all(isinstance(plugin, MutableMapping) and plugin.get("name") for plugin in plugins):
            raise ConfigMergeError(f"tier {number} has no list 'plugins' of entries with a 'name'")


def _check_switches(name: str, plugin: Config) -> None:
    for switch in _NEEDED_SWITCHES[name]:
        if plugin.get(switch) is False:
            raise ConfigMergeError(f"plugin '{name}' has '{switch}: false', which takes away what slices need of it; remove that line")


def is_vgpu_on(config: Any) -> bool:
    """Whether a scheduler that starts with *config* keeps account of cards. It decides that once in its life."""
    place = _find(config, DEVICESHARE) if isinstance(config, MutableMapping) and config.get("tiers") else None
    return place is not None and _is_on((place[2].get("arguments") or {}).get("deviceshare.VGPUEnable"))


def merge(config: Any, wishes: Wishes, binpack: bool = True) -> Record:
    """Puts deviceshare with *wishes*, predicates and (where *binpack*) binpack into *config*; what is there already stays as it is.

    deviceshare goes in front of predicates, which calls it (pkg/scheduler/plugins/predicates/predicates.go). The record is empty
    ({"added": [], "replaced": {}}) when nothing had to change.
    Errors: ConfigMergeError for a shape that Volcano does not take, and for arguments that contradict slices; *config* is untouched then.
    """
    _check_shape(config)
    places = {name: _find(config, name) for name in (DEVICESHARE, PREDICATES, BINPACK)}
    for name, place in places.items():
        if place is not None and (name != BINPACK or binpack):
            _check_switches(name, place[2])
    deviceshare = places[DEVICESHARE]
    if deviceshare is not None:
        arguments = deviceshare[2].get("arguments") or {}
        for argument, remedy in _CONFLICTS.items():
            if _is_on(arguments.get(argument)):
                raise ConfigMergeError(f"plugin 'deviceshare' has '{argument}: true': {remedy}")

    record: Record = {"added": [], "replaced": {}}
    if deviceshare is None:
        predicates = places[PREDICATES]
        plugins, index = (predicates[0], predicates[1]) if predicates else (config["tiers"][-1]["plugins"], 0)
        plugins.insert(index, {"name": DEVICESHARE, "arguments": dict(wishes)})
        record["added"].append(DEVICESHARE)
        deviceshare = (plugins, index, plugins[index])
    else:
        _set_arguments(deviceshare[2], wishes, record)
    if places[PREDICATES] is None:
        deviceshare[0].insert(deviceshare[1] + 1, {"name": PREDICATES})
        record["added"].append(PREDICATES)
    if binpack and places[BINPACK] is None:
        deviceshare[0].append({"name": BINPACK})
        record["added"].append(BINPACK)
    return record


def _set_arguments(plugin: Config, wishes: Wishes, record: Record) -> None:
    if not isinstance(plugin.get("arguments"), MutableMapping):
        plugin["arguments"] = {}
    arguments = plugin["arguments"]
    for name, value in wishes.items():
        if name not in arguments:
            record["replaced"][name] = None
        elif not _same(arguments[name], value):
            record["replaced"][name] = arguments[name]
        else:
            continue
        arguments[name] = value


def unmerge(config: Any, record: Record, wishes: Wishes) -> bool:
    """Takes out of *config* what *record* says we put in; True when something changed.

    What its owner changed since stays: an argument that no longer has our value, a plugin that has got arguments or switches of its own.
    """
    _check_shape(config)
    changed = False
    place = _find(config, DEVICESHARE)
    if place is not None:
        added = DEVICESHARE in record.get("added", [])
        previous = dict.fromkeys(wishes) if added else record.get("replaced", {})
        arguments = place[2].get("arguments") or {}
        for name, value in previous.items():
            if name in arguments and _same(arguments[name], wishes.get(name)):
                changed = True
                if value is None:
                    del arguments[name]
                else:
                    arguments[name] = value
        if "arguments" in place[2] and not arguments:
            del place[2]["arguments"]
    for name in record.get("added", []):
        place = _find(config, name)
        if place is not None and set(place[2]) == {"name"}:
            del place[0][place[1]]
            changed = True
    return changed
