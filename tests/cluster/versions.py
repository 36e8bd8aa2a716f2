"""Reads the pinned versions from ``versions.yml``, the one place that has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests import ROOT

from .errors import FleetError


@dataclass(frozen=True)
class Versions:
    """Go modules to compile (module path -> version with its "v"), pip ranges of the device plugin's image, our own version."""

    go_modules: Mapping[str, str]
    python_device_plugin: tuple[str, ...]
    tenfold: str

    @classmethod
    def from_file(cls, path: Path = ROOT / "versions.yml") -> Versions:
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
            return cls(dict(document["go_modules"]), tuple(document["python_device_plugin"]), document["product"]["tenfold"])
        except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
            raise FleetError(f"cannot read the pinned versions from {str(path)!r}: {error!r}") from error

    def of(self, module: str) -> str:
        try:
            return self.go_modules[module]
        except KeyError:
            raise FleetError(f"versions.yml has no go_modules entry {module!r}, expected one of its compiled modules") from None
