"""The fleet: which hosts are fit, which node of the cluster each of them is, how it limits slices, and what cards it holds.

Owns these decisions; playbooks and roles print them or pass them on. Whether tiers fit the cards is ``verdict``'s question, whether a
node can carry slices at all ``drivers``'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Mapping

from . import cards as card_models
from .cards import CardModel
from .errors import CardError, TierError
from .tiers import Catalogue, Problem, raise_problems

__all__ = ["DECLARED", "FOUND", "GROUPS", "Fleet", "FleetEntry", "Host", "read_fleet", "refusal_of_groups"]

# What is read of a host: its variables in the inventory, and what gpu_node_facts answered in this run.
DECLARED = ("gpu_node_name", "gpu_node_enforcement", "gpu_node_cards")
FOUND = "gpu_node_found"
# The inventory's groups that playbooks work on, and what belongs into them.
GROUPS = {"gpu_nodes": "the hosts with cards", "kube_control": "the host that reaches the cluster as its administrator, often localhost"}


def refusal_of_groups(groups: Mapping[str, Iterable[str]], required: Iterable[str], selected: Iterable[str]) -> str:
    """Why a playbook that works on the ``required`` groups would do nothing, or half; empty if it would not.

    ``selected`` are the hosts within `--limit`. Ansible itself skips a play without hosts and ends green.
    """
    required, within = list(required), set(selected)
    missing = [name for name in required if not list(groups.get(name) or ())]
    if missing:
        others = sorted(set(groups) - {"all", "ungrouped", *GROUPS})
        wanted = " and ".join(f"{name} ({GROUPS.get(name, name)})" for name in missing)
        return (
            f"the inventory has no host in {wanted}; its groups are {', '.join(others) or 'none'}: make these hosts, or groups of them, "
            f"children of {' and '.join(missing)}, as inventories/a800 does"
        )
    # A play on the cluster runs on the first host of its group, so that is the one that must be within.
    needed = {name: list(groups[name])[:1] if name == "kube_control" else list(groups[name]) for name in required}
    outside = [f"{name} ({needed[name][0]})" for name in required if not within & set(needed[name])]
    if outside:
        return (
            f"--limit leaves out {' and '.join(outside)}, so what runs there would be skipped without a word: add it to --limit, or choose "
            "a part that needs none (playbooks/nodes.yml, or --tags nodes)"
        )
    return ""


@dataclass(frozen=True)
class Host:
    """One host of the inventory.

    ``name`` is the inventory's, ``node`` Kubernetes' name for it. ``enforcement`` is how it limits slices: hook, driver, mig or timeslice.
    ``unfit`` says why it is left out, empty for a fit host. ``cards`` are entries as ``read_fleet`` takes them. ``machine_id`` and
    ``system_uuid`` are None where nobody has looked.
    """

    name: str
    node: str
    enforcement: str = "hook"
    unfit: str = ""
    cards: tuple[Mapping[str, Any], ...] = ()
    machine_id: str | None = None
    system_uuid: str | None = None

    @classmethod
    def from_variables(cls, name: str, variables: Mapping[str, Any]) -> Host:
        """From those of DECLARED and FOUND that the host has. Errors: TierError for cards that are no list of mappings."""
        found: Mapping[str, Any] = variables.get(FOUND) or {}
        look: Mapping[str, Any] = found.get("gpu_node") or {}
        unfit = ""
        if found.get("failed") or found.get("unreachable"):
            unfit = str(found.get("msg") or ("it cannot be reached" if found.get("unreachable") else "looking at it failed"))
        declared = _declared(name, variables.get("gpu_node_cards"))
        return cls(
            name=name,
            node=str(variables.get("gpu_node_name") or name),
            enforcement=str(variables.get("gpu_node_enforcement") or "hook"),
            unfit=unfit,
            cards=_found(name, look.get("cards") or (), declared) if look else declared,
            machine_id=look.get("machine_id"),
            system_uuid=look.get("system_uuid"),
        )


@dataclass(frozen=True)
class Fleet:
    """All hosts of the inventory's GPU nodes.

    A host whose look (``gpu_node_found``) failed, or that could not be reached, is unfit: its cards are not proved, no task of the cluster
    names its node, and what an earlier run did there stays. A host that nobody has looked at in this run is taken as the inventory
    declares it, so that the cluster's half alone works (``--tags cluster``). Every fit node obeys the inventory's one catalogue.
    """

    hosts: tuple[Host, ...]

    @classmethod
    def from_inventory(cls, hosts: Mapping[str, Mapping[str, Any]]) -> Fleet:
        """Host name -> its variables. Errors: TierError, naming the host."""
        return cls(tuple(Host.from_variables(name, variables) for name, variables in hosts.items()))

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Fleet:
        """From ``as_dict()``'s form."""
        return cls(tuple(Host(**{**host, "cards": tuple(host["cards"])}) for host in value["hosts"]))

    @property
    def fit(self) -> tuple[Host, ...]:
        return tuple(host for host in self.hosts if not host.unfit)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for playbooks: besides the hosts, of the fit ones ``nodes``, ``nodes_by_enforcement`` and ``cards``."""
        by_enforcement: dict[str, list[str]] = {}
        for host in self.fit:
            by_enforcement.setdefault(host.enforcement, []).append(host.node)
        return {
            "hosts": [{**vars(host), "cards": [dict(entry) for entry in host.cards]} for host in self.hosts],
            "nodes": [host.node for host in self.fit],
            "nodes_by_enforcement": by_enforcement,
            "cards": [dict(entry) for host in self.fit for entry in host.cards],
        }

    def strangers(self, nodes: Iterable[Mapping[str, Any]]) -> list[str]:
        """Fit hosts whose node (objects of the API, each with ``metadata`` and ``status``) is another machine, one sentence each.

        The kubelet reports /etc/machine-id and the machine's own UUID; either of them proves it. A host that nobody has looked at is
        believed.
        """
        seen = {host.node: host for host in self.fit if host.machine_id}
        strangers = []
        for node in nodes:
            host = seen.get(node["metadata"]["name"])
            if host is None:
                continue
            info = node["status"]["nodeInfo"]
            if info["machineID"] != host.machine_id and info["systemUUID"].lower() != host.system_uuid:
                strangers.append(f"host {host.name!r} has machine-id {host.machine_id}, but node {host.node!r} reports {info['machineID']}")
        return strangers


def _declared(host: str, entries: Any) -> tuple[Mapping[str, Any], ...]:
    """``gpu_node_cards``; without it one card of the catalogue's model."""
    if entries is None:
        entries = [{"count": 1}]
    if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, Mapping) for entry in entries):
        raise TierError(
            f"gpu_node_cards of host {host!r} is {entries!r}, expected a list such as [{{card: a800-80gb, count: 8, offers: [small]}}]",
            host=host,
        )
    return tuple({"node": host, **entry} for entry in entries)


def _found(host: str, cards: Iterable[Mapping[str, Any]], declared: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    """What the driver reports, with what the pool offers on it; cards that are alike are counted.

    Cards are dealt to the declared entries of their model (or of none) in the order of their index; one beyond the declared counts offers
    what the last such entry does, one of a model that nobody declared offers every tier.
    """
    dealt = [0] * len(declared)
    entries: list[dict[str, Any]] = []
    for card in cards:
        model = str(card.get("model") or card.get("name"))
        entry: dict[str, Any] = {"node": host, "card": model, "count": 1}
        if card.get("memory_mib") is not None:
            entry["memory_mib"] = card["memory_mib"]
        takers = [at for at, each in enumerate(declared) if _model(each.get("card") or model) == _model(model)]
        if takers:
            at = next((at for at in takers if dealt[at] < _count(declared[at])), takers[-1])
            dealt[at] += 1
            if declared[at].get("offers") is not None:
                entry["offers"] = declared[at]["offers"]
        alike = next((each for each in entries if {**each, "count": 1} == entry), None)
        if alike is None:
            entries.append(entry)
        else:
            alike["count"] += 1
    return tuple(entries)


def _model(name: str) -> str:
    """A model by any of its names; what the table lacks is itself."""
    model = card_models.by_product_name(str(name))
    return model.name if model else str(name)


def _count(entry: Mapping[str, Any]) -> int:
    """A count that is wrong is ``read_fleet``'s to tell."""
    text = str(entry.get("count", 1))
    return int(text) if text.isdecimal() else 1


@dataclass(frozen=True)
class FleetEntry:
    """Cards of one kind on one node. ``memory_mib`` None means that nobody has read it yet; ``offers`` None means all tiers."""

    node: str
    card: CardModel
    count: int
    memory_mib: int | None = None
    offers: tuple[str, ...] | None = None


def read_fleet(entries: Any, catalogue: Catalogue) -> list[FleetEntry]:
    """The fleet from an inventory: a list of ``{node, card, count, memory_mib, offers}``; ``card`` defaults to the catalogue's.

    ``card`` may be a model's name or what nvidia-smi prints; one that the table lacks needs its memory_mib.
    Errors: TierError with every problem and its place.
    """
    problems: list[Problem] = []
    fleet = []
    for position, entry in enumerate(entries or []):
        path = f"fleet[{position}]"
        if not isinstance(entry, Mapping) or not entry.get("node"):
            problems.append(Problem(path, f"is {entry!r}, expected at least a node's name and a count of cards"))
            continue
        path = f"fleet[{position}] ({entry['node']})"
        found = _fleet_entry(entry, path, catalogue, problems)
        if found is not None:
            fleet.append(found)
    raise_problems(problems, "the fleet's cards")
    return fleet


def _unlisted(name: str, memory_mib: int) -> CardModel:
    """A model that the table lacks, of which the driver told the memory; slices need no more. The rest is not looked at here."""
    return CardModel(name, (name,), memory_mib, multiprocessors=0, compute_capability=(0, 0), mig_capable=False, driver_minimum="440")


def _fleet_entry(entry: Mapping[str, Any], path: str, catalogue: Catalogue, problems: list[Problem]) -> FleetEntry | None:
    before = len(problems)
    name = str(entry.get("card") or catalogue.card)
    memory = entry.get("memory_mib")
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int) or memory < 1):
        problems.append(Problem(f"{path}.memory_mib", f"is {memory!r}, expected the card's real total in MiB"))
    card = card_models.by_product_name(name)
    try:
        card = card or card_models.named(name)
    except CardError as error:
        if isinstance(memory, int):
            card = _unlisted(name, memory)
        else:
            problems.append(Problem(f"{path}.card", f"is unknown: {error}; or give its memory_mib"))
    count = entry.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        problems.append(Problem(f"{path}.count", f"is {count!r}, expected how many cards, 1 or more"))
    known = {tier.name for tier in catalogue.tiers}
    offers = entry.get("offers")
    if offers is not None and (not isinstance(offers, (list, tuple)) or not offers or not set(offers) <= known):
        problems.append(Problem(f"{path}.offers", f"is {offers!r}, expected some of: {', '.join(sorted(known))}"))
    if len(problems) > before or card is None:
        return None
    return FleetEntry(str(entry["node"]), card, int(count), memory, None if offers is None else tuple(offers))
