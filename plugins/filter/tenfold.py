"""What templates need of the domain: a catalogue's canonical text and name, the limits of a tier.

Owns the filters' names; every answer is ``tenfold.tiers``'. Each filter takes the catalogue's variables as ``slice_tiers_validate``
does, or its canonical form.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping

import ansible.module_utils
from ansible.errors import AnsibleFilterError

# Ansible carries module_utils to nodes, but does not put them on the controller's own import path.
_MODULE_UTILS = str(Path(__file__).resolve().parents[1] / "module_utils")
if _MODULE_UTILS not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_MODULE_UTILS)

if TYPE_CHECKING:
    from tenfold.errors import TenfoldError
    from tenfold.tiers import Catalogue
else:
    from ansible.module_utils.tenfold.errors import TenfoldError
    from ansible.module_utils.tenfold.tiers import Catalogue


def _catalogue(variables: Mapping[str, Any]) -> Catalogue:
    try:
        return Catalogue.from_vars(variables)
    except TenfoldError as error:
        raise AnsibleFilterError(str(error)) from error


def tenfold_catalogue_json(variables: Mapping[str, Any]) -> str:
    """Canonical JSON, the content of ``catalogue.json``."""
    return _catalogue(variables).as_json()


def tenfold_catalogue_hash8(variables: Mapping[str, Any]) -> str:
    """The eight hex digits in the name of the catalogue's ConfigMap."""
    return _catalogue(variables).hash8


def tenfold_tier_limits(variables: Mapping[str, Any], tier: str) -> dict[str, str]:
    """The resource limits of a container in that tier."""
    try:
        return _catalogue(variables).tier(tier).limits()
    except TenfoldError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "tenfold_catalogue_hash8": tenfold_catalogue_hash8,
            "tenfold_catalogue_json": tenfold_catalogue_json,
            "tenfold_tier_limits": tenfold_tier_limits,
        }
