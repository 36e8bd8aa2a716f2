"""Which slices share a card: every answer is a proof over all orders of arrival."""

from __future__ import annotations

import itertools

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import fit, mixes
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TierError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.fit import CardLedger, SliceRequest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.tiers import Catalogue
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.domain.strategies import TIERS, catalogues, default_variables

DEFAULT = Catalogue.from_vars(default_variables())
_ALONE = {"memory_mib": 65536, "reserved_cores": 100, "limit_cores": 100}
ARTICLE = Catalogue.from_vars(default_variables(tiers={**TIERS, "xlarge": _ALONE}))
# Seven maximal mixes of the article's tiers, found by exhaustive search outside this code (xlarge alone, 100 percent).
ARTICLE_MAXIMAL = [
    {"xlarge": 1},
    {"large": 1, "medium": 1, "small": 1},
    {"large": 1, "small": 4},
    {"medium": 3, "small": 1},
    {"medium": 2, "small": 4},
    {"medium": 1, "small": 7},
    {"small": 10},
]


def all_mixes(catalogue: Catalogue, most: int) -> list[dict[str, int]]:
    names = [tier.name for tier in catalogue.tiers]
    counts = itertools.product(*(range(most + 1) for _ in names))
    return [{name: count for name, count in zip(names, each) if count} for each in counts if any(each) and sum(each) <= most]


def placed_in_order(order: tuple[str, ...], catalogue: Catalogue, total: int) -> bool:
    card = CardLedger("GPU-a", catalogue.slices_per_card, catalogue.published_memory_mib(total), "NVIDIA")
    for name in order:
        tier = catalogue.tier(name)
        answer = fit.fit_pod([SliceRequest(1, tier.memory_mib, tier.reserved_cores_percent)], [card])
        if isinstance(answer, fit.FitRefusal):
            return False
        (card,) = answer.cards
    return True


class TestTheProofIsExact:
    @given(catalogues(max_tiers=3), st.sampled_from([15360, 81251, 81920]), st.data())
    def test_a_mix_fits_exactly_if_it_fits_in_every_order_of_arrival(self, catalogue: Catalogue, total: int, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from([tier.name for tier in catalogue.tiers]), min_size=1, max_size=4))
        mix = {name: names.count(name) for name in names}
        everywhere = all(placed_in_order(order, catalogue, total) for order in set(itertools.permutations(names)))
        assert mixes.fits_one_card(mix, catalogue, total) is everywhere

    @given(catalogues(max_tiers=3), st.data())
    def test_taking_a_slice_away_keeps_a_mix_fitting(self, catalogue: Catalogue, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from([tier.name for tier in catalogue.tiers]), min_size=2, max_size=6))
        mix = {name: names.count(name) for name in names}
        fewer = {name: names[1:].count(name) for name in names[1:]}
        assert mixes.fits_one_card(fewer, catalogue, 81920) or not mixes.fits_one_card(mix, catalogue, 81920)

    @given(catalogues(max_tiers=3))
    def test_maximal_mixes_cover_every_mix_that_fits_and_none_of_them_grows(self, catalogue: Catalogue) -> None:
        maximal = mixes.maximal_mixes(catalogue, 40960)
        for mix in all_mixes(catalogue, 4):
            covered = any(all(most.get(name, 0) >= count for name, count in mix.items()) for most in maximal)
            assert mixes.fits_one_card(mix, catalogue, 40960) is covered
        for most in maximal:
            assert mixes.fits_one_card(most, catalogue, 40960)
            for tier in catalogue.tiers:
                assert not mixes.fits_one_card({**most, tier.name: most.get(tier.name, 0) + 1}, catalogue, 40960)

    @given(catalogues(max_tiers=3), st.sampled_from([15360, 81920]))
    def test_the_capacity_of_a_tier_fits_and_one_more_does_not(self, catalogue: Catalogue, total: int) -> None:
        for tier in catalogue.tiers:
            count, stops = mixes.capacity(tier, catalogue, total)
            assert count == 0 or mixes.fits_one_card({tier.name: count}, catalogue, total)
            assert not mixes.fits_one_card({tier.name: count + 1}, catalogue, total)
            assert ">" in stops or "reserve" in stops


class TestTheArticlesTiers:
    def test_thirty_three_mixes_fit_a_card_and_seven_are_maximal(self) -> None:
        feasible = [mix for mix in all_mixes(ARTICLE, 10) if mixes.fits_one_card(mix, ARTICLE, 81920)]
        assert len(feasible) == 33
        assert mixes.maximal_mixes(ARTICLE, 81920) == ARTICLE_MAXIMAL

    def test_a_card_of_81251_mib_has_one_mix_less_and_nine_small(self) -> None:
        feasible = [mix for mix in all_mixes(ARTICLE, 10) if mixes.fits_one_card(mix, ARTICLE, 81251)]
        assert len(feasible) == 32
        assert mixes.maximal_mixes(ARTICLE, 81251) == [*ARTICLE_MAXIMAL[:-1], {"small": 9}]

    @pytest.mark.parametrize(("slices", "count"), [(8, 31), (6, 27)])
    def test_fewer_slices_on_a_card_cost_mixes(self, slices: int, count: int) -> None:
        catalogue = Catalogue.from_vars({**ARTICLE.as_dict(), "slices_per_card": slices})
        assert sum(mixes.fits_one_card(mix, catalogue, 81920) for mix in all_mixes(catalogue, 10)) == count

    def test_its_xlarge_never_shares_and_the_reason_says_what_to_do(self) -> None:
        proof = mixes.prove({"xlarge": 1, "small": 2}, ARTICLE, 81920)
        assert not proof.fits
        assert proof.reason == (
            "reserved cores 100 + 2 x 10 = 120 > 100 percent; "
            "xlarge reserves 100 percent, which the scheduler gives only an empty card; reserve less (80) and limit at 100"
        )


class TestOurTiers:
    def test_every_required_mix_fits_a_full_a800(self) -> None:
        assert all(mixes.fits_one_card(mix, DEFAULT, 81920) for mix in DEFAULT.required_mixes)

    def test_an_xlarge_that_reserves_eighty_takes_two_small_along(self) -> None:
        assert mixes.maximal_mixes(DEFAULT, 81920) == [{"xlarge": 1, "small": 2}, *ARTICLE_MAXIMAL[1:]]

    def test_nine_small_fit_an_older_drivers_card_and_the_sum_says_why(self) -> None:
        assert mixes.capacity(DEFAULT.tier("small"), DEFAULT, 81251) == (9, "memory 10 x 8192 = 81920 > 81152 MiB")

    def test_a_mix_that_fits_is_proved_by_its_sums(self) -> None:
        proof = mixes.prove({"medium": 2, "small": 3}, DEFAULT, 81920)
        assert proof.fits
        assert proof.reason == (
            "memory 2 x 16384 + 3 x 8192 = 57344 <= 81920 MiB; reserved cores 2 x 30 + 3 x 10 = 90 <= 100 percent; slices 5 <= 10"
        )

    def test_every_broken_bound_is_named(self) -> None:
        reason = mixes.prove({"small": 11}, DEFAULT, 81920).reason
        assert reason == "slices 11 > 10 on a card; memory 11 x 8192 = 90112 > 81920 MiB; reserved cores 11 x 10 = 110 > 100 percent"

    def test_a_slice_without_cores_is_no_part_of_a_mix_that_books_all_cores(self) -> None:
        tiers = {"idle": {"memory_mib": 256, "reserved_cores": 0, "limit_cores": 10}, "half": {"memory_mib": 256, "reserved_cores": 50}}
        catalogue = Catalogue.from_vars(default_variables(tiers=tiers, required_mixes=[]))
        proof = mixes.prove({"half": 2, "idle": 1}, catalogue, 81920)
        assert (proof.fits, proof.reason) == (False, "a slice without reserved cores is refused once all cores are booked")

    def test_a_mix_of_an_unknown_tier_is_an_error(self) -> None:
        with pytest.raises(TierError, match="tier is 'tiny', expected one of: 'small'"):
            mixes.prove({"tiny": 1}, DEFAULT, 81920)

    def test_too_many_mixes_are_refused_not_listed_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mixes, "MIX_LIMIT", 300)
        tiers = {f"t{index}": {"memory_mib": 256, "reserved_cores": 0, "limit_cores": 1 + index} for index in range(9)}
        catalogue = Catalogue.from_vars(default_variables(tiers=tiers, required_mixes=[], slices_per_card=64))
        with pytest.raises(TierError, match="too many to list"):
            mixes.maximal_mixes(catalogue, 81920)
