"""NVIDIA driver versions, what each makes possible, and whether a node carries slices.

Owns the one table of floors. Reading the version on a node is ``gpu_node_facts``' task; this file judges what was read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Mapping

from . import cards as card_models
from .cards import CardModel
from .errors import DriverError
from .hook_elf import GLIBC_FLOOR, parse_glibc_version
from .versions import Version

__all__ = ["FLOORS", "DriverVersion", "Floor", "NodeProblem", "capabilities", "check_node"]

_VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){0,3}", re.ASCII)


class DriverVersion(Version):
    """A driver version such as ``535.104.05``."""

    @classmethod
    def parse(cls, text: str) -> DriverVersion:
        """From ``535.104.05``, ``440`` or ``450.80.02``. Errors: DriverError for anything else."""
        stripped = text.strip() if isinstance(text, str) else ""
        if not _VERSION.fullmatch(stripped):
            raise DriverError(f'driver version is {text!r}, expected numbers and dots such as "535.104.05"', version=str(text))
        return super().parse(stripped)


@dataclass(frozen=True)
class Floor:
    """The oldest driver with a capability, who says so, and what is missing below it."""

    capability: str
    driver: str
    source: str
    without: str


# What a driver makes possible. "slices" is the product's own gate; a card model has a floor of its own on top of it (cards.py).
FLOORS = (
    Floor("slices", "440", "the product's gate", "no slices on this node"),
    Floor("mig", "450.80.02", "NVIDIA MIG user guide, deployment considerations: A100", "the card cannot be split in hardware"),
    Floor(
        "get_proc_address",
        "465",
        "CUDA 11.3 release notes: cuGetProcAddress",
        "the runtime asks dlsym for every name, which the hook serves too",
    ),
    Floor("cdi", "418.81.07", "NVIDIA container toolkit install guide, prerequisites", "no CDI specification of the cards"),
    Floor("minor_version_compatibility", "450.80.02", "CUDA compatibility guide", "images must match the driver's CUDA version"),
    Floor("driver_memory_limits", "615", "NVML change log r615: nvmlDeviceSetMemoryLimits", "memory limits come from the hook alone"),
)
_GATE = FLOORS[0]


def capabilities(driver: DriverVersion, card: CardModel | None) -> dict[str, bool]:
    """What that driver can do with that card: one entry for each row of FLOORS, plus ``card`` (this model at all).

    Without a known model the card's own floor and MIG are answered False.
    """
    able = {floor.capability: driver >= DriverVersion.parse(floor.driver) for floor in FLOORS}
    able["card"] = card is not None and driver >= DriverVersion.parse(card.driver_minimum)
    able["mig"] = able["mig"] and able["card"] and card is not None and card.mig_capable
    return able


@dataclass(frozen=True)
class NodeProblem:
    """What keeps a node from carrying slices, or only a warning. ``remedy`` says what to do; ``fatal`` is False for a warning."""

    rule: str
    message: str
    remedy: str
    fatal: bool = True

    def as_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "message": self.message, "remedy": self.remedy, "fatal": self.fatal}

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


def check_node(facts: Mapping[str, Any], card: CardModel | None = None, enforcement: str = "hook") -> list[NodeProblem]:
    """Judge one node from ``gpu_node_facts``' answer: what the hook and the device plugin stand on, driver floors, cards and their modes.

    Of ``facts`` this reads ``driver`` (text or None), ``cards`` (each with uuid, index, name, memory_mib, mig_mode, compute_mode),
    ``kubelet``, ``glibc_version`` and ``rival_device_plugins``.
    ``card`` is the model that the tiers are written for; other models are then warned about. ``enforcement`` is how this node limits
    its slices: hook, driver, mig or timeslice.
    """
    return _ground_problems(facts) + _driver_problems(facts, card, enforcement)


def _ground_problems(facts: Mapping[str, Any]) -> list[NodeProblem]:
    problems = []
    if not facts.get("kubelet"):
        problems.append(NodeProblem("kubelet_missing", "there is no kubelet on this node", "join it to the cluster first"))
    glibc = facts.get("glibc_version")
    if not glibc or parse_glibc_version(glibc) < parse_glibc_version(GLIBC_FLOOR):
        found = f"glibc is {glibc}" if glibc else "there is no glibc on this node"
        problems.append(NodeProblem("glibc_too_old", f"{found}, expected {GLIBC_FLOOR} or newer", "upgrade the node's system"))
    rivals = facts.get("rival_device_plugins")
    if rivals:
        message = f"another device plugin serves its NVIDIA cards ({', '.join(rivals)}), and one plugin serves a node"
        problems.append(NodeProblem("rival_device_plugin", message, "remove that one first"))
    return problems


def _driver_problems(facts: Mapping[str, Any], card: CardModel | None, enforcement: str) -> list[NodeProblem]:
    text = facts.get("driver")
    if not text:
        return [
            NodeProblem(
                "driver_missing",
                "no NVIDIA driver answers on this node (neither /proc/driver/nvidia/version nor nvidia-smi)",
                f"install a driver >= {_GATE.driver} or take the node out of group gpu_nodes",
            )
        ]
    try:
        driver = DriverVersion.parse(str(text))
    except DriverError as error:
        return [NodeProblem("driver_unreadable", str(error), "reinstall the driver; nvidia-smi should print its version")]
    if driver < DriverVersion.parse(_GATE.driver):
        return [
            NodeProblem(
                "driver_too_old",
                f"driver is {driver}, expected {_GATE.driver} or newer",
                "upgrade the NVIDIA driver on this node",
            )
        ]
    found = list(facts.get("cards") or [])
    if not found:
        return [
            NodeProblem(
                "no_cards",
                f"driver {driver} is loaded, but nvidia-smi lists no card" + _because(facts.get("nvidia_smi_error")),
                "run nvidia-smi on the node and look for Xid messages in the kernel log",
            )
        ]
    problems: list[NodeProblem] = []
    for entry in found:
        problems.extend(_card_problems(entry, driver, card, enforcement))
    return problems


def _because(reason: Any) -> str:
    return f" ({reason})" if reason else ""


def _card_problems(entry: Mapping[str, Any], driver: DriverVersion, wanted: CardModel | None, enforcement: str) -> list[NodeProblem]:
    place = f"card {entry.get('index')} ({entry.get('name')}, {entry.get('uuid')})"
    problems = []
    model = card_models.by_product_name(str(entry.get("name") or ""))
    if model is None:
        known = ", ".join(each.name for each in card_models.MODELS)
        problems.append(NodeProblem("card_unknown", f"{place} is none of the known models ({known})", "add a row to cards.py", fatal=False))
    elif driver < DriverVersion.parse(model.driver_minimum):
        problems.append(
            NodeProblem(
                "card_driver_too_old",
                f"{place} needs driver {model.driver_minimum} or newer, found {driver}",
                "upgrade the NVIDIA driver on this node",
            )
        )
    if model is not None and wanted is not None and model.name != wanted.name:
        problems.append(
            NodeProblem(
                "card_other",
                f"{place} is a {model.name}, the tiers are written for {wanted.name}",
                "check that the tiers fit it",
                fatal=False,
            )
        )
    mode = str(entry.get("compute_mode") or "")
    if mode not in ("", "Default"):
        problems.append(
            NodeProblem(
                "compute_mode",
                f"{place} has compute mode {mode!r}, which admits one process and cannot be shared, expected 'Default'",
                f"run nvidia-smi -i {entry.get('uuid')} -c DEFAULT (and remove what sets the mode at boot)",
            )
        )
    if entry.get("mig_mode") == "Enabled" and enforcement != "mig":
        problems.append(
            NodeProblem(
                "mig_enabled",
                f"{place} has MIG enabled: it is split in hardware and the whole card cannot be used, expected it off for '{enforcement}'",
                f"run nvidia-smi -i {entry.get('uuid')} -mig 0, or use enforcement 'mig' for this node",
            )
        )
    return problems
