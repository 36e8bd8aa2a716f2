"""Kubernetes quantities of integer resources."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import QuantityError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.quantities import parse_integer
from hypothesis import given
from hypothesis import strategies as st


class TestWholeNumbers:
    @pytest.mark.parametrize(
        ("text", "number"),
        [
            (8192, 8192),
            ("8192", 8192),
            ("3k", 3000),
            ("1.5k", 1500),
            ("2e3", 2000),
            ("2E3", 2000),
            ("8Gi", 8 * 2**30),
            ("1E", 10**18),
            ("2000m", 2),
            ("+5", 5),
            ("-5", -5),
            (".5k", 500),
            ("0", 0),
        ],
    )
    def test_every_notation_of_the_api_is_read(self, text: Any, number: int) -> None:
        assert parse_integer(text) == number

    @given(st.integers(-(2**63) + 1, 2**63 - 1))
    def test_a_plain_number_is_itself(self, number: int) -> None:
        assert parse_integer(str(number)) == parse_integer(number) == number

    @given(st.integers(0, 2**40), st.sampled_from(["k", "M", "Ki", "Mi"]))
    def test_a_suffix_multiplies(self, number: int, suffix: str) -> None:
        factor = {"k": 1000, "M": 10**6, "Ki": 1024, "Mi": 2**20}[suffix]
        assert parse_integer(f"{number}{suffix}") == number * factor


class TestRefusals:
    @pytest.mark.parametrize(
        "text", ["", " 8", "8 Gi", "8gi", "eight", "0x10", "1e9999", "1.5", "1500m", "9e18k", True, 1.0, None, "\u0668", "9" * 80]
    )
    def test_what_is_no_whole_number_is_refused_with_its_text(self, text: Any) -> None:
        with pytest.raises(QuantityError, match="quantity is"):
            parse_integer(text)

    @given(st.text(max_size=80))
    def test_no_text_breaks_the_parser(self, text: str) -> None:
        try:
            assert isinstance(parse_integer(text), int)
        except QuantityError as error:
            assert error.details
