"""Tiers: names for slices of a card, and the catalogue that holds them.

Owns the schema of the tier file, its canonical form and hash, and which limit a slice gets. Whether mixes of tiers fit a card is
``mixes``' question, the whole verdict over a card ``verdict``'s. The article's own keys are translated by ``article``.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, Mapping

from . import article
from . import cards as card_models
from .errors import CardError, TierError
from .region import MODES

__all__ = ["Catalogue", "Problem", "Tier"]

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)  # Kubernetes: 1 to 63 characters
OVERCOMMIT_MAXIMUM = 4.0  # our choice: beyond it a number is a mistake for MiB far more often than a wish
SLICES_MAXIMUM = 128  # our choice: a slice of less than 1 percent of a card is not a unit of compute any more
MEMORY_MAXIMUM_MIB = 2**31 - 1  # the scheduler's int32
_DEFAULT_GRANULARITY_MIB = 256
_DEFAULT_SLICES = 10
DEFAULT_MODE = "hard"
_CATALOGUE_KEYS = (
    "card",
    "custom_allowed",
    "memory_granularity_mib",
    "memory_overcommit_ratio",
    "required_mixes",
    "slices_per_card",
    "tiers",
)
_TIER_KEYS = ("memory_mib", "reserved_cores", "limit_cores", "mode", "priority")
PRIORITY_MAXIMUM = 99  # our choice: more levels than anybody can tell apart


@dataclass(frozen=True)
class Problem:
    """One mistake in the tier file; ``path`` is the variable as the operator writes it, such as ``slice_tiers.large.limit_cores``."""

    path: str
    message: str

    def as_dict(self) -> dict[str, str]:
        return {"path": self.path, "message": self.message}

    def __str__(self) -> str:
        return f"{self.path} {self.message}"


def raise_problems(problems: list[Problem], subject: str = "the slice tiers") -> None:
    """Raise one TierError that holds every problem; nothing if there is none."""
    if not problems:
        return
    counted = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = "".join(f"\n  {problem}" for problem in problems)
    raise TierError(f"{subject} have {counted}:{lines}", problems=[problem.as_dict() for problem in problems])


@dataclass(frozen=True)
class Tier:
    """A named slice. Units: memory_mib of one card; percent of one card's compute.

    ``reserved_cores_percent`` is booked with the scheduler (100 books the card alone), ``limit_cores_percent`` is what the slice may
    use; it is at least the reserve. ``mode`` says when the limit holds (``region.MODES``; docs/enforcement.md), ``priority`` who yields to
    whom in the modes that look at neighbours: 0 is the highest.
    """

    name: str
    memory_mib: int
    reserved_cores_percent: int
    limit_cores_percent: int
    mode: str = DEFAULT_MODE
    priority: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Mode and priority only where they are not the default: a catalogue that does not use them keeps its hash."""
        value: dict[str, Any] = {
            "memory_mib": self.memory_mib,
            "reserved_cores": self.reserved_cores_percent,
            "limit_cores": self.limit_cores_percent,
        }
        if self.mode != DEFAULT_MODE:
            value["mode"] = self.mode
        if self.priority:
            value["priority"] = self.priority
        return value

    def limits(self) -> dict[str, str]:
        """The resource limits of a container in this tier, as the API takes them."""
        return {
            "volcano.sh/vgpu-number": "1",
            "volcano.sh/vgpu-memory": str(self.memory_mib),
            "volcano.sh/vgpu-cores": str(self.reserved_cores_percent),
        }


@dataclass(frozen=True)
class Catalogue:
    """One version of the cluster's tiers: immutable, hashed, the same on controller and node.

    ``tiers`` are sorted by size; ``required_mixes`` are kept in the operator's order; ``notes`` are remarks for the operator and no
    part of the catalogue's identity.
    """

    tiers: tuple[Tier, ...]
    slices_per_card: int = _DEFAULT_SLICES
    memory_granularity_mib: int = _DEFAULT_GRANULARITY_MIB
    memory_overcommit_ratio: float = 1.0
    custom_allowed: bool = False
    required_mixes: tuple[dict[str, int], ...] = ()
    card: str = "a800-80gb"
    notes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def from_vars(cls, variables: Mapping[str, Any]) -> Catalogue:
        """From an inventory's variables: card, memory_granularity_mib, slices_per_card, memory_overcommit_ratio, custom_allowed,
        tiers, required_mixes, and the article's keys.

        ``tiers`` maps a name to memory_mib, reserved_cores, limit_cores, mode and priority, or is a list of such mappings with a ``name``.
        An absent limit_cores is the reserve, an absent mode "hard", an absent priority 0. Errors: TierError with every problem and its
        key path.
        """
        if not isinstance(variables, Mapping):
            raise_problems([Problem("slice_tiers", f"is {_kind(variables)}, expected a mapping")])
        rest, notes, translated = article.translate(variables)
        reader = _Reader([Problem(key, message) for key, message in translated])
        catalogue = reader.catalogue(rest, tuple(notes))
        raise_problems(reader.problems)
        return catalogue

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Catalogue:
        """From ``as_dict()``'s form. Errors: TierError."""
        return cls.from_vars(value)

    @classmethod
    def from_json(cls, text: str) -> Catalogue:
        """From ``catalogue.json`` of a ConfigMap. Errors: TierError, also for text that is not JSON."""
        try:
            value = json.loads(text)
        except ValueError as error:
            raise TierError(f"catalogue is not JSON: {error}", problems=[]) from error
        return cls.from_vars(value)

    def as_dict(self) -> dict[str, Any]:
        return {
            "card": self.card,
            "custom_allowed": self.custom_allowed,
            "memory_granularity_mib": self.memory_granularity_mib,
            "memory_overcommit_ratio": self.memory_overcommit_ratio,
            "required_mixes": [dict(mix) for mix in self.required_mixes],
            "slices_per_card": self.slices_per_card,
            "tiers": {tier.name: tier.as_dict() for tier in self.tiers},
        }

    def as_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, ASCII. The same catalogue gives the same bytes on every machine."""
        return json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @property
    def hash8(self) -> str:
        """The first 8 hex digits of the canonical JSON's sha256; names the ConfigMap ``tenfold-tiers-<hash8>``."""
        return hashlib.sha256(self.as_json().encode("ascii")).hexdigest()[:8]

    def tier(self, name: str) -> Tier:
        """Errors: TierError listing the names that exist."""
        for tier in self.tiers:
            if tier.name == name:
                return tier
        names = ", ".join(repr(tier.name) for tier in self.tiers)
        raise TierError(f"tier is {name!r}, expected one of: {names}", tier=name)

    def published_memory_mib(self, card_memory_mib: int) -> int:
        """What a node publishes for a card with that real total: times the overcommit ratio, down to a multiple of the granularity."""
        return int(card_memory_mib * self.memory_overcommit_ratio) // self.memory_granularity_mib * self.memory_granularity_mib

    def quota_for(self, tier_label: str | None, memory_mib: int, cores_percent: int) -> int:
        """The core limit in percent (0 or 100 = unlimited) for a slice with these requests. Errors: as ``tier_for``."""
        return self.tier_for(tier_label, memory_mib, cores_percent).limit_cores_percent

    def tier_for(self, tier_label: str | None, memory_mib: int, cores_percent: int) -> Tier:
        """The tier that a slice with these requests is in.

        A label counts only if its tier's numbers are the request's. Without one, the tier with these numbers decides (of several the
        one with the lowest limit, then the lowest priority). Numbers of no tier pass where custom slices are allowed, as a tier without a
        name that is limited to what it reserves. Errors: TierError when they are not.
        """
        matching = [tier for tier in self.tiers if (tier.memory_mib, tier.reserved_cores_percent) == (memory_mib, cores_percent)]
        for tier in matching:
            if tier.name == tier_label:
                return tier
        if matching:
            return min(matching, key=lambda tier: (tier.limit_cores_percent, -tier.priority, tier.mode != DEFAULT_MODE))
        if self.custom_allowed:
            return Tier("", memory_mib, cores_percent, cores_percent)
        offered = ", ".join(f"{tier.name} {tier.memory_mib}/{tier.reserved_cores_percent}" for tier in self.tiers)
        raise TierError(
            f"{memory_mib} MiB with {cores_percent} percent of the cores fits no tier, expected one of: {offered}; "
            "or set slice_tiers_custom_allowed: true",
            memory_mib=memory_mib,
            cores_percent=cores_percent,
        )


class _Reader:
    """Reads variables and collects what is wrong, so that an operator sees every mistake at once."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def catalogue(self, variables: Mapping[str, Any], notes: tuple[str, ...]) -> Catalogue:
        for key in variables:
            if key not in _CATALOGUE_KEYS:
                self._add(f"slice_tiers_{key}", f"is not known, expected one of: {', '.join(_CATALOGUE_KEYS)}")
        granularity = self._number(variables, "memory_granularity_mib", 1, 65536, "MiB", default=_DEFAULT_GRANULARITY_MIB)
        slices = self._number(variables, "slices_per_card", 1, SLICES_MAXIMUM, "slices", default=_DEFAULT_SLICES)
        ratio = self._ratio(variables.get("memory_overcommit_ratio", 1.0))
        custom = self._boolean("slice_tiers_custom_allowed", variables.get("custom_allowed", False))
        card = self._card(variables.get("card", "a800-80gb"))
        entries = self._tier_entries(variables.get("tiers"))
        tiers = self._tiers(entries, granularity)
        # A mix may name a tier whose numbers are wrong: one mistake is told once.
        mixes = self._mixes(variables.get("required_mixes"), {str(name) for _path, name, _body in entries})
        return Catalogue(
            tiers=tuple(sorted(tiers, key=_size)),
            slices_per_card=slices,
            memory_granularity_mib=granularity,
            memory_overcommit_ratio=ratio,
            custom_allowed=custom,
            required_mixes=mixes,
            card=card,
            notes=notes,
        )

    def _add(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))

    def _number(
        self, source: Mapping[str, Any], key: str, low: int, high: int, unit: str, default: int, prefix: str = "slice_tiers_"
    ) -> int:
        value = source.get(key, default)
        number = _whole(value)
        if number is None:
            hint = _quantity_hint(value) if unit == "MiB" else ""
            self._add(f"{prefix}{key}", f"is {value!r}, expected a whole number of {unit}{hint}")
            return default
        if not low <= number <= high:
            self._add(f"{prefix}{key}", f"is {number}, expected {low} to {high} {unit}")
            return default
        return number

    def _ratio(self, value: Any) -> float:
        path = "slice_tiers_memory_overcommit_ratio"
        try:
            ratio = float("nan") if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            ratio = float("nan")
        if ratio != ratio:  # not a number
            self._add(path, f"is {value!r}, expected a number from 1.0 to {OVERCOMMIT_MAXIMUM}")
        elif not 1.0 <= ratio <= OVERCOMMIT_MAXIMUM:
            if ratio < 1.0:
                why = "to keep memory back, make the tiers smaller"
            else:
                why = f"it would promise {ratio:g} x 81920 = {ratio * 81920:.0f} MiB of a card of 81920 MiB"
            self._add(path, f"is {ratio:g}, expected 1.0 to {OVERCOMMIT_MAXIMUM}; {why}")
        else:
            return ratio
        return 1.0

    def _boolean(self, path: str, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false", "yes", "no"):
            return value.lower() in ("true", "yes")
        self._add(path, f"is {value!r}, expected true or false")
        return False

    def _card(self, value: Any) -> str:
        try:
            return card_models.named(value).name
        except CardError as error:
            self._add("slice_tiers_card", f"names an unknown card: {error}")
            return str(value)

    def _tiers(self, entries: list[tuple[str, Any, Any]], granularity_mib: int) -> list[Tier]:
        tiers: list[Tier] = []
        seen: set[str] = set()
        for path, name, body in entries:
            if self._name_is_good(path, name) and name in seen:
                self._add(path, f"names the tier {name!r} a second time")
            seen.add(str(name))
            tier = self._tier(path, str(name), body, granularity_mib)
            if tier is not None:
                tiers.append(tier)
        return tiers

    def _tier_entries(self, value: Any) -> list[tuple[str, Any, Any]]:
        """``(path, name, body)`` for each tier of either form."""
        if isinstance(value, Mapping) and value:
            return [(f"slice_tiers.{name}", name, body) for name, body in value.items()]
        if isinstance(value, list) and value:
            entries = []
            for position, body in enumerate(value):
                if isinstance(body, Mapping) and "name" in body:
                    rest = {key: item for key, item in body.items() if key != "name"}
                    entries.append((f"slice_tiers[{position}]", body["name"], rest))
                else:
                    self._add(f"slice_tiers[{position}]", "has no name")
            return entries
        shown = "is not set" if value is None else ("is empty" if isinstance(value, (list, Mapping)) else f"is {_kind(value)}")
        self._add(
            "slice_tiers", f"{shown}, expected at least one tier such as small: {{memory_mib: 8192, reserved_cores: 10, limit_cores: 10}}"
        )
        return []

    def _name_is_good(self, path: str, name: Any) -> bool:
        if isinstance(name, str) and LABEL_VALUE.fullmatch(name):
            return True
        self._add(
            path,
            f"has the name {name!r}, expected a label value: 1 to 63 letters, digits, '-', '_' or '.', "
            "first and last a letter or digit" + ("" if isinstance(name, str) else " (quote it in YAML)"),
        )
        return False

    def _tier(self, path: str, name: str, body: Any, granularity_mib: int) -> Tier | None:
        if not isinstance(body, Mapping):
            self._add(path, f"is {_kind(body)}, expected a mapping with {', '.join(_TIER_KEYS)}")
            return None
        before = len(self.problems)
        for key in body:
            if key not in _TIER_KEYS:
                self._add(f"{path}.{key}", f"is not known, expected one of: {', '.join(_TIER_KEYS)}")
        for key in ("memory_mib", "reserved_cores"):
            if key not in body:
                self._add(f"{path}.{key}", "is missing")
        if len(self.problems) > before:
            return None
        prefix = f"{path}."
        memory = self._number(body, "memory_mib", 1, MEMORY_MAXIMUM_MIB, "MiB", 0, prefix)
        reserved = self._number(body, "reserved_cores", 0, 100, "percent", 0, prefix)
        limit = self._number(body, "limit_cores", 1, 100, "percent", max(reserved, 1), prefix)
        mode = self._mode(body.get("mode", DEFAULT_MODE), limit, prefix)
        priority = self._number(body, "priority", 0, PRIORITY_MAXIMUM, "levels (0: the highest)", 0, prefix)
        if len(self.problems) > before:
            return None
        if limit < reserved:
            self._add(
                f"{prefix}limit_cores",
                f"is {limit}, below reserved_cores {reserved}: a slice may use what it books, so expected {reserved} to 100",
            )
        if memory % granularity_mib:
            low = memory // granularity_mib * granularity_mib
            near = f"{low + granularity_mib}" if not low else f"{low} or {low + granularity_mib}"
            self._add(
                f"{prefix}memory_mib",
                f"is {memory}, not a multiple of slice_tiers_memory_granularity_mib {granularity_mib} "
                f"({memory} = {memory // granularity_mib} x {granularity_mib} + {memory % granularity_mib}); the nearest are {near}",
            )
        return Tier(name, memory, reserved, limit, mode, priority)

    def _mode(self, value: Any, limit: int, prefix: str) -> str:
        if value is False:
            value = "off"  # YAML 1.1 reads the bare word so
        if value not in MODES:
            self._add(f"{prefix}mode", f"is {value!r}, expected one of: {', '.join(MODES)}")
        elif value in ("elastic", "priority") and limit == 100:
            self._add(f"{prefix}mode", f"is {value!r}, which lifts a limit at times, but limit_cores is 100, no limit; expected 1 to 99")
        else:
            return str(value)
        return DEFAULT_MODE

    def _mixes(self, value: Any, names: set[str]) -> tuple[dict[str, int], ...]:
        if value is None:
            return ()
        if not isinstance(value, (list, tuple)):
            self._add("slice_tiers_required_mixes", f"is {_kind(value)}, expected a list such as [{{small: 10}}]")
            return ()
        return tuple(self._mix(f"slice_tiers_required_mixes[{position}]", mix, names) for position, mix in enumerate(value))

    def _mix(self, path: str, mix: Any, names: set[str]) -> dict[str, int]:
        if not isinstance(mix, Mapping) or not mix:
            self._add(path, f"is {mix!r}, expected tiers and how many of each on one card, such as {{medium: 2, small: 3}}")
            return {}
        counts = {}
        for name, count in mix.items():
            number = _whole(count)
            if name not in names:
                self._add(f"{path}.{name}", f"names no tier, expected one of: {', '.join(sorted(names)) or 'none is valid'}")
            elif number is None or number < 1:
                self._add(f"{path}.{name}", f"is {count!r}, expected how many slices, 1 or more")
            else:
                counts[str(name)] = number
        return counts


def _size(tier: Tier) -> tuple[int, int, int, str]:
    return (tier.memory_mib, tier.reserved_cores_percent, tier.limit_cores_percent, tier.name)


def _whole(value: Any) -> int | None:
    """A whole number from YAML, or from ``-e`` on the command line, which makes text of it."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,12}\s*", value, re.ASCII):
        return int(value)
    return None


def _quantity_hint(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    match = re.fullmatch(r"\s*(\d{1,6})\s*(Gi|GiB|G|GB|Mi|MiB|M|MB)\s*", value, re.IGNORECASE | re.ASCII)
    if match is None:
        return ""
    factor = 1024 if match.group(2)[0] in "Gg" else 1
    return f", here {int(match.group(1)) * factor}"


def _kind(value: Any) -> str:
    return "not set" if value is None else f"a {type(value).__name__} ({value!r})"
