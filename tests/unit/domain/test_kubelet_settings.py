"""As much of YAML and JSON as a node's Python can read without a library, against the libraries that the controller has."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.kubelet_settings import scalars
from hypothesis import given
from hypothesis import strategies as st

MCO = (
    '{"kind":"KubeletConfiguration","authentication":{"anonymous":{"enabled":false}},"clusterDNS":["10.0.0.1"],"maxPods":500,'
    '"systemReserved":{"maxPods":"2"}}'
)
TEXTS = [
    "kind: KubeletConfiguration\nmaxPods: 250\n",
    "# maxPods: 1\n---\nmaxPods: 250 # pods\nnested:\n  maxPods: 3\n",
    "  maxPods: 250\n  nested: {maxPods: 3}\n",
    '"maxPods": 250\n\'podsPerCore\': "7"\n',
    "nested:\n- maxPods: 3\nmaxPods:   250\r\nclusterDNS:\n- 10.0.0.1\n",
    "maxpods: 3\nMaxPods: 4\nmaxPods: 250\n",
    MCO,
    json.dumps(json.loads(MCO), indent=2),
    "---\n{kind: KubeletConfiguration, containerRuntimeEndpoint: unix:///run/x.sock, clusterDNS: [a, b], maxPods: 250}\n",
    "maxPods: null\nother: ~\nempty:\n  x: 1\n",
    "maxPods: 250\n---\nmaxPods: 3\n",
    "text: |\n  maxPods: 3\nmaxPods: 250\n",
    "",
]


def wanted(document: dict[str, Any]) -> dict[str, str | None]:
    found = {key: value for key, value in document.items() if not isinstance(value, (dict, list, bool))}
    return {key: None if value is None else str(value) for key, value in found.items()}


@pytest.mark.parametrize("text", TEXTS)
def test_what_stands_at_the_top_is_read_as_yaml_has_it(text: str) -> None:
    document = next(iter([*yaml.safe_load_all(text), {}])) or {}
    expected = {key: value for key, value in wanted(document).items() if key not in ("text", "empty")}
    found = scalars(text)
    assert {key: found.get(key) for key in expected} == expected
    assert ("maxPods" in found) == ("maxPods" in expected)


def test_a_byte_order_mark_is_none_of_the_first_key() -> None:
    assert scalars("\ufeffmaxPods: 250\n") == {"maxPods": "250"}


VALUES = st.recursive(st.integers(0, 999) | st.text("ab{}[],:\\\"' #", max_size=6), lambda inner: st.lists(inner, max_size=2), max_leaves=4)


OTHERS = st.dictionaries(st.text("abc", min_size=1, max_size=3), VALUES, max_size=4)


@given(OTHERS, st.integers(1, 999), st.sampled_from([None, 1, 2]), st.sampled_from([None, (",", ":")]))
def test_a_number_among_any_other_values_of_json_is_found(
    others: dict[str, Any], number: int, indent: int | None, separators: tuple[str, str] | None
) -> None:
    text = json.dumps({**others, "maxPods": number, "z": {"maxPods": 0}}, indent=indent, separators=separators)
    assert scalars(text)["maxPods"] == str(number)
