"""Ansible's own types become Python's, before the domain or a format library sees them."""

from __future__ import annotations

from typing import Any

from ansible_collections.tenfold.vgpu.plugins.plugin_utils.plain import plain


class Tagged(str):
    """Stands for the types with which ansible-core 2.19 and later replace str, int and float."""


class Counted(int):
    pass


class Lazy(dict[str, Any]):
    """Shows its values only to those who ask for them, as templated containers do."""

    def items(self) -> Any:
        return [(key, "looked at") for key in self]


def test_everything_inside_is_exactly_pythons_own() -> None:
    value = plain({Tagged("a"): [Tagged("b"), (Counted(1), True, None, 1.5)]})
    assert value == {"a": ["b", [1, True, None, 1.5]]}
    assert {type(each) for each in (*value, value["a"][0], value["a"][1][0], value["a"][1][1])} == {str, int, bool}


def test_what_is_templated_when_it_is_looked_at_is_looked_at() -> None:
    assert plain(Lazy(a="{{ b }}")) == {"a": "looked at"}


def test_an_object_that_no_format_knows_stays() -> None:
    """A failed module's result holds one; its message must reach the person."""
    cause = object()
    assert plain({"failed": True, "exception": cause})["exception"] is cause
