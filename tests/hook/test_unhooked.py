"""Every function of the driver is hooked, or left alone for a reason that is written down."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from tests.hook.workshop import HOOK_SOURCE
from tests.simulator.tests import bench


def reasons() -> dict[str, str]:
    """pattern -> reason, in the order that counts"""
    lines = (HOOK_SOURCE / "unhooked.txt").read_text().splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    assert all(len(row) == 2 and all(row) for row in rows), "expected patterns, a tab, a reason"
    return {pattern: reason for patterns, reason in rows for pattern in patterns.split()}


def names_of(text: str, macro: str) -> set[str]:
    return set(re.findall(rf"^{macro}\((\w+),", text, re.MULTILINE))


def test_each_is_in_one_of_the_two_lists_and_no_line_is_idle() -> None:
    exported = {symbol.exported for symbol in bench.symbols()}
    hooked = names_of((HOOK_SOURCE / "src" / "abi" / "hooks.def").read_text(), "CUDA_HOOK")
    assert len(exported) > 600
    deciding = {name: next((pattern for pattern in reasons() if fnmatchcase(name, pattern)), None) for name in exported - hooked}
    undecided = sorted(name for name, pattern in deciding.items() if pattern is None)
    assert undecided == [], "hook these, or say in files/hook/unhooked.txt why not"
    assert set(reasons()) - set(deciding.values()) == set(), "patterns that match nothing which is not matched before"
