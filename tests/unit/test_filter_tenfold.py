"""The filters, as Ansible finds and calls them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any, Callable

import pytest
from ansible.errors import AnsibleFilterError

from tests.unit.strategies import default_variables

FILE = Path(__file__).resolve().parents[2] / "plugins" / "filter" / "tenfold.py"


@pytest.fixture(scope="module")
def filters() -> dict[str, Callable[..., Any]]:
    """Loaded by path: its file has the domain's name, so a plain import would find that."""
    spec = importlib.util.spec_from_file_location("tenfold_filter", FILE)
    assert spec is not None
    assert spec.loader is not None
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    found: dict[str, Callable[..., Any]] = plugin.FilterModule().filters()
    return found


class TestFilters:
    def test_the_catalogues_text_and_name(self, filters: dict[str, Callable[..., Any]]) -> None:
        text = filters["tenfold_catalogue_json"](default_variables())
        assert json.loads(text)["slices_per_card"] == 10
        assert filters["tenfold_catalogue_hash8"](default_variables()) == filters["tenfold_catalogue_hash8"](json.loads(text)) == "e2c2d3fc"

    def test_a_tiers_limits(self, filters: dict[str, Callable[..., Any]]) -> None:
        limits = filters["tenfold_tier_limits"](default_variables(), "xlarge")
        assert limits["volcano.sh/vgpu-cores"] == "80"

    def test_a_mistake_is_a_filter_error_with_the_domains_words(self, filters: dict[str, Callable[..., Any]]) -> None:
        with pytest.raises(AnsibleFilterError, match="expected one of: 'small'"):
            filters["tenfold_tier_limits"](default_variables(), "tiny")
        with pytest.raises(AnsibleFilterError, match="slice_tiers_card names an unknown card"):
            filters["tenfold_catalogue_hash8"](default_variables(card="x"))
