"""What templates need of the domain: a catalogue's canonical text and name, the limits of a tier.

Owns the filters' names; every answer is ``tenfold.tiers``'. Each filter takes the catalogue's variables as ``slice_tiers_validate``
does, or its canonical form.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

from ansible.errors import AnsibleFilterError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TenfoldError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.tiers import Catalogue


def _catalogue(variables: Mapping[str, Any]) -> Catalogue:
    try:
        return Catalogue.from_vars(variables)
    except TenfoldError as error:
        raise AnsibleFilterError(str(error)) from error


def catalogue_json(variables: Mapping[str, Any]) -> str:
    """Canonical JSON, the content of ``catalogue.json``."""
    return _catalogue(variables).as_json()


def catalogue_hash8(variables: Mapping[str, Any]) -> str:
    """The eight hex digits in the name of the catalogue's ConfigMap."""
    return _catalogue(variables).hash8


def tier_limits(variables: Mapping[str, Any], tier: str) -> dict[str, str]:
    """The resource limits of a container in that tier."""
    try:
        return _catalogue(variables).tier(tier).limits()
    except TenfoldError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "catalogue_hash8": catalogue_hash8,
            "catalogue_json": catalogue_json,
            "tier_limits": tier_limits,
        }
