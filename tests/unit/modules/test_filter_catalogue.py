"""The filters, as Ansible finds and calls them."""

from __future__ import annotations

import json
from typing import Any, Callable

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.tenfold.vgpu.plugins.filter import catalogue

from tests.unit.domain.strategies import default_variables


@pytest.fixture(scope="module")
def filters() -> dict[str, Callable[..., Any]]:
    return catalogue.FilterModule().filters()


class TestFilters:
    def test_the_catalogues_text_and_name(self, filters: dict[str, Callable[..., Any]]) -> None:
        text = filters["catalogue_json"](default_variables())
        assert json.loads(text)["slices_per_card"] == 10
        assert filters["catalogue_hash8"](default_variables()) == filters["catalogue_hash8"](json.loads(text)) == "e2c2d3fc"

    def test_a_tiers_limits(self, filters: dict[str, Callable[..., Any]]) -> None:
        limits = filters["tier_limits"](default_variables(), "xlarge")
        assert limits["volcano.sh/vgpu-cores"] == "80"

    def test_a_mistake_is_a_filter_error_with_the_domains_words(self, filters: dict[str, Callable[..., Any]]) -> None:
        with pytest.raises(AnsibleFilterError, match="expected one of: 'small'"):
            filters["tier_limits"](default_variables(), "tiny")
        with pytest.raises(AnsibleFilterError, match="slice_tiers_card names an unknown card"):
            filters["catalogue_hash8"](default_variables(card="x"))
