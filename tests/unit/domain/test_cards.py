"""The table of card models."""

from __future__ import annotations

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import cards, drivers
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import CardError


class TestTheTable:
    def test_names_and_product_names_are_unique(self) -> None:
        names = [model.name for model in cards.MODELS]
        products = [product.casefold() for model in cards.MODELS for product in model.product_names]
        assert len(set(names)) == len(names)
        assert len(set(products)) == len(products)

    @pytest.mark.parametrize("model", cards.MODELS, ids=lambda model: model.name)
    def test_every_model_is_found_by_each_of_its_names(self, model: cards.CardModel) -> None:
        assert cards.named(model.name) is model
        assert all(cards.by_product_name(f" {product.upper()} ") is model for product in model.product_names)

    @pytest.mark.parametrize("model", cards.MODELS, ids=lambda model: model.name)
    def test_every_floor_is_a_driver_at_or_above_the_products_gate(self, model: cards.CardModel) -> None:
        assert drivers.DriverVersion.parse(model.driver_minimum) >= drivers.DriverVersion.parse("440")

    def test_an_a800_has_eighty_gib(self) -> None:
        assert cards.named("a800-80gb").memory_mib == 80 * 1024

    def test_an_unknown_name_is_answered_with_the_known_ones(self) -> None:
        with pytest.raises(CardError, match=r"card model is 'rtx-9090', expected one of: .*a800-80gb"):
            cards.named("rtx-9090")

    def test_an_unknown_product_is_none(self) -> None:
        assert cards.by_product_name("NVIDIA GeForce GTX 1080") is None
