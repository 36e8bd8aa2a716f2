"""The numbers that pods may ask for, as the admission policies read them. Pure.

CEL has no JSON parser and sees one ConfigMap, so the union of all catalogues that nodes obey becomes one key a tier:
'<MiB>,<percent>', several separated by a space while two catalogues differ. Keys that start with '_' are settings: no tier is named so.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping

__all__ = ["admission_data"]


def admission_data(
    catalogues: Iterable[Mapping[str, Any]], schedulers: Iterable[str], writers: Iterable[str], operators: Iterable[str] = ()
) -> dict[str, str]:
    """Data of the ConfigMap 'tenfold-admission'; catalogues in the form of catalogue.json.

    schedulers: names in spec.schedulerName that book cards; writers: users who may write the scheduler's annotations;
    operators: users who may ask for another quota of a running pod.
    Numbers outside every tier are admitted only if all catalogues allow them: a pod may land on any of their nodes.
    """
    catalogues = list(catalogues)
    numbers: dict[str, set[tuple[int, int]]] = {}
    for catalogue in catalogues:
        for name, tier in catalogue["tiers"].items():
            numbers.setdefault(name, set()).add((tier["memory_mib"], tier["reserved_cores"]))
    data = {name: " ".join(f"{memory},{cores}" for memory, cores in sorted(pairs)) for name, pairs in numbers.items()}
    return {
        **dict(sorted(data.items())),
        "_custom": "allowed" if catalogues and all(one.get("custom_allowed") for one in catalogues) else "refused",
        "_schedulers": " ".join(sorted(schedulers)),
        "_writers": " ".join(sorted(writers)),
        "_operators": " ".join(sorted(operators)),
    }
