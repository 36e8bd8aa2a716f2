"""Ansible's values as Python's own: ansible-core 2.19 and later tag each with its origin and template nested ones when they are looked at,
and neither the domain nor a library that writes files knows such types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["answer_of", "plain"]


def plain(value: Any) -> Any:
    """The same in dict, list, str, int, float, bool and None; what is none of these stays what it is."""
    if isinstance(value, Mapping):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value


def answer_of(result: Any, warnings: list[Any]) -> dict[str, Any]:
    """What a module answered, for an action that asks several and answers for all: its warnings go to the action's own."""
    answer: dict[str, Any] = plain(result)
    answer.pop("invocation", None)
    warnings += answer.pop("warnings", None) or []
    return answer
