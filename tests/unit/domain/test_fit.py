"""The scheduler's rule: laws that hold for all nodes, and the corners that the source decides."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import fit
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import CardError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.fit import CardLedger, Fit, FitRefusal, PodFit, SliceRequest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.slices import Assignment
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.domain.strategies import empty_nodes, nodes, requests

POLICIES = st.sampled_from(["binpack", "spread", ""])


def card(uuid: str = "GPU-a", **changes: Any) -> CardLedger:
    return replace(CardLedger(uuid, 10, 81920, "NVIDIA-NVIDIA A800-SXM4-80GB"), **changes)


def refused_by(request: SliceRequest, ledger: CardLedger) -> str:
    answer = fit.fit(request, [ledger])
    assert isinstance(answer, FitRefusal)
    return answer.reasons[0].rule


class TestACardIsNeverOverbooked:
    """Whatever is asked, in whatever order, nothing above a card's slices, memory and cores is handed out."""

    @given(st.lists(requests, max_size=12), empty_nodes(), POLICIES)
    def test_no_sequence_of_pods_exceeds_a_card(self, asked: list[SliceRequest], cards: list[CardLedger], policy: str) -> None:
        for request in asked:
            answer = fit.fit_pod([request], cards, policy)
            if isinstance(answer, PodFit) and request.number > 0:
                cards = list(answer.cards)
        for ledger in cards:
            assert ledger.used_count <= ledger.count
            assert ledger.used_memory_mib <= ledger.memory_mib
            assert ledger.used_cores_percent <= 100

    @given(requests, nodes(), POLICIES)
    def test_cards_of_one_container_are_distinct_and_as_many_as_asked(
        self, request: SliceRequest, cards: list[CardLedger], policy: str
    ) -> None:
        answer = fit.fit(request, cards, policy)
        if isinstance(answer, FitRefusal):
            return
        assert len(set(answer.cards)) == len(answer.cards) == request.number

    @given(requests, nodes(), POLICIES)
    def test_the_ledgers_given_are_not_changed(self, request: SliceRequest, cards: list[CardLedger], policy: str) -> None:
        before = list(cards)
        fit.fit(request, cards, policy)
        assert cards == before

    @given(requests, nodes())
    def test_a_policy_chooses_cards_but_never_decides_whether_one_container_fits(
        self, request: SliceRequest, cards: list[CardLedger]
    ) -> None:
        kinds = {type(fit.fit(request, cards, policy)) for policy in ("binpack", "spread", "")}
        assert len(kinds) == 1

    @given(requests, nodes(), POLICIES)
    def test_a_refusal_names_every_card_once(self, request: SliceRequest, cards: list[CardLedger], policy: str) -> None:
        answer = fit.fit(request, cards, policy)
        if isinstance(answer, Fit) or request.number > len(cards):
            return
        assert sorted(reason.uuid for reason in answer.reasons) == sorted(ledger.uuid for ledger in cards)

    @given(requests, empty_nodes(), POLICIES)
    def test_booking_what_was_given_is_what_the_scheduler_counts(self, request: SliceRequest, cards: list[CardLedger], policy: str) -> None:
        answer = fit.fit_pod([request], cards, policy)
        if isinstance(answer, PodFit) and request.number > 0:
            assert fit.book(cards, answer.segments) == list(answer.cards)
            assert fit.book_as_volcano(cards, [("uid", answer.segments)]) == list(answer.cards)


class TestRulesInTheirOrder:
    def test_the_eleventh_small_slice_is_refused_for_the_count_before_memory_and_cores(self) -> None:
        full = card(used_count=10, used_memory_mib=81920, used_cores_percent=100)
        assert refused_by(SliceRequest(1, 8192, 10), full) == "slices"

    def test_a_card_out_of_service_has_count_zero(self) -> None:
        assert refused_by(SliceRequest(1, 1, 1), card(count=0)) == "slices"

    def test_memory_is_refused_before_cores_with_both_numbers(self) -> None:
        answer = fit.fit(SliceRequest(1, 32768, 60), [card(used_count=1, used_memory_mib=65536, used_cores_percent=80)])
        assert isinstance(answer, FitRefusal)
        assert answer.reasons[0].rule == "memory"
        assert "65536 + 32768 = 98304 > 81920 MiB" in answer.reasons[0].message

    def test_memory_that_fills_the_card_exactly_fits(self) -> None:
        assert isinstance(fit.fit(SliceRequest(1, 16384, 10), [card(used_count=1, used_memory_mib=65536)]), Fit)

    def test_cores_above_one_hundred_are_refused(self) -> None:
        assert refused_by(SliceRequest(1, 1, 41), card(used_count=1, used_cores_percent=60)) == "cores"

    def test_one_hundred_cores_want_the_card_alone_even_beside_a_slice_without_cores(self) -> None:
        assert refused_by(SliceRequest(1, 1, 100), card(used_count=1)) == "exclusive"

    def test_a_request_without_cores_is_refused_on_a_full_card_only(self) -> None:
        assert refused_by(SliceRequest(1, 1, 0), card(used_count=1, used_cores_percent=100)) == "full"
        assert isinstance(fit.fit(SliceRequest(1, 1, 0), [card(used_count=1, used_cores_percent=99)]), Fit)

    def test_a_type_without_nvidia_in_capitals_never_serves(self) -> None:
        assert refused_by(SliceRequest(1, 1, 1), replace(card(), type="nvidia A800")) == "type"

    def test_more_cards_than_the_node_has_are_refused_without_looking_at_cards(self) -> None:
        answer = fit.fit(SliceRequest(3, 1, 1), [card("GPU-a"), card("GPU-b")])
        assert isinstance(answer, FitRefusal)
        assert (answer.reasons, answer.message) == ((), "no enough gpu cards on node: 3 wanted, 2 present")

    def test_a_whole_card_takes_what_each_card_has(self) -> None:
        answer = fit.fit(SliceRequest(2), [card("GPU-a"), card("GPU-b", memory_mib=81251)])
        assert isinstance(answer, Fit)
        assert [each.memory_mib for each in answer.assignments] == [81920, 81251]

    @given(st.integers(1, 100), st.integers(1, 2**31 - 1))
    def test_a_percentage_is_rounded_down(self, percent: int, total: int) -> None:
        taken = SliceRequest(1, memory_percent=percent).memory_on(total)
        assert taken <= total * percent / 100 < taken + 1.001

    def test_a_refusal_reads_as_a_sentence(self) -> None:
        answer = fit.fit(SliceRequest(1, 8192, 50), [card(used_count=1, used_cores_percent=60)])
        assert str(answer) == "not enough gpu fitted on this node: card 'GPU-a': 60 + 50 = 110 > 100 percent of the cores"


class TestCardOrder:
    def test_binpack_takes_the_card_with_most_memory_booked_then_the_first(self) -> None:
        cards = [card("GPU-a"), card("GPU-b", used_memory_mib=8192), card("GPU-c", used_memory_mib=8192)]
        assert fit.card_order(cards, "binpack") == [1, 2, 0]

    def test_binpack_compares_amounts_not_shares(self) -> None:
        small_and_full = card("GPU-a", memory_mib=15360, used_memory_mib=15000)
        assert fit.card_order([small_and_full, card("GPU-b", used_memory_mib=16384)], "binpack") == [1, 0]

    def test_spread_takes_the_card_with_fewest_slices_then_the_first(self) -> None:
        assert fit.card_order([card("GPU-a", used_count=1), card("GPU-b"), card("GPU-c")], "spread") == [1, 2, 0]

    def test_without_a_policy_the_last_card_comes_first(self) -> None:
        assert fit.card_order([card("GPU-a"), card("GPU-b")], "") == [1, 0]

    def test_the_order_is_computed_again_for_the_second_container(self) -> None:
        answer = fit.fit_pod([SliceRequest(1, 8192, 10), SliceRequest(1, 8192, 10)], [card("GPU-a"), card("GPU-b")], "spread")
        assert isinstance(answer, PodFit)
        assert [segment[0].uuid for segment in answer.segments] == ["GPU-a", "GPU-b"]


class TestPods:
    def test_two_containers_may_share_a_card(self) -> None:
        answer = fit.fit_pod([SliceRequest(1, 8192, 10), SliceRequest(1, 16384, 30)], [card()])
        assert isinstance(answer, PodFit)
        assert answer.cards[0].used_memory_mib == 24576

    def test_one_container_that_does_not_fit_refuses_the_pod_and_says_which(self) -> None:
        answer = fit.fit_pod([SliceRequest(1, 8192, 60), SliceRequest(1, 8192, 60)], [card()])
        assert isinstance(answer, FitRefusal)
        assert answer.container == 1

    def test_a_request_for_no_card_is_served_with_none_yet_books_one_for_the_rest_of_the_pod(self) -> None:
        answer = fit.fit_pod([SliceRequest(0, 40960, 50)], [card()])
        assert isinstance(answer, PodFit)
        assert (answer.segments, answer.cards[0].used_count) == (((),), 1)

    def test_a_mode_that_the_node_does_not_have_is_refused(self) -> None:
        assert isinstance(fit.fit_pod([SliceRequest(1, 1, 1)], [card()], annotations={"volcano.sh/vgpu-mode": "mig"}), FitRefusal)

    def test_a_spreading_group_avoids_a_card_with_one_of_its_pods(self) -> None:
        one = [[Assignment("GPU-a", "NVIDIA", 8192, 10)]]
        booked = fit.book_as_volcano([card("GPU-a"), card("GPU-b")], [("uid", one)], {"uid": "ns/group"})
        answer = fit.fit_pod([SliceRequest(1, 8192, 10)], booked, spread_group="ns/group")
        assert isinstance(answer, PodFit)
        assert answer.segments[0][0].uuid == "GPU-b"

    @pytest.mark.parametrize(
        ("annotations", "fits"),
        [
            ({"nvidia.com/use-gputype": "a800"}, True),
            ({"nvidia.com/use-gputype": "H100,A800"}, True),
            ({"nvidia.com/use-gputype": "H100"}, False),
            ({"nvidia.com/nouse-gputype": "A800"}, False),
            ({"nvidia.com/nouse-gputype": "H100"}, True),
            ({"nvidia.com/use-gputype": "A800", "nvidia.com/nouse-gputype": "A800"}, True),
        ],
    )
    def test_wanted_and_refused_card_types(self, annotations: dict[str, str], fits: bool) -> None:
        assert isinstance(fit.fit(SliceRequest(1, 1, 1), [card()], annotations=annotations), Fit) is fits


class TestLedgers:
    """Two ledgers exist: what is promised, and what the scheduler remembers of it."""

    def test_the_scheduler_counts_a_pod_once_on_a_card_and_we_count_all_of_it(self) -> None:
        segments = [[Assignment("GPU-a", "NVIDIA", 8192, 10)], [Assignment("GPU-a", "NVIDIA", 16384, 30)]]
        assert fit.book_as_volcano([card()], [("uid", segments)])[0].used_memory_mib == 8192
        assert fit.book([card()], segments)[0].used_memory_mib == 24576

    def test_the_scheduler_passes_over_a_card_that_it_does_not_know_and_we_refuse_it(self) -> None:
        foreign = [[Assignment("GPU-z", "NVIDIA", 8192, 10)]]
        assert fit.book_as_volcano([card()], [("uid", foreign)]) == [card()]
        with pytest.raises(CardError, match="card 'GPU-z' is not on this node"):
            fit.book([card()], foreign)

    def test_the_scheduler_finds_the_card_of_a_mig_name(self) -> None:
        assert fit.book_as_volcano([card()], [("uid", [[Assignment("GPU-a[group2-3]", "NVIDIA", 9728, 0)]])])[0].used_memory_mib == 9728


class TestMixesOfTheRealScheduler:
    """Seen on Volcano 1.15.1 with two cards of 81,920 MiB and binpack (pods Running)."""

    SMALL, MEDIUM, LARGE = SliceRequest(1, 8192, 10), SliceRequest(1, 16384, 30), SliceRequest(1, 32768, 60)

    def place(self, asked: list[SliceRequest]) -> list[str]:
        cards = [card("GPU-0"), card("GPU-1")]
        chosen = []
        for request in asked:
            answer = fit.fit_pod([request], cards)
            assert isinstance(answer, PodFit)
            cards = list(answer.cards)
            chosen.append(answer.segments[0][0].uuid)
        return chosen

    def test_eleven_small_fill_the_first_card_and_start_the_second(self) -> None:
        assert self.place([self.SMALL] * 11) == ["GPU-0"] * 10 + ["GPU-1"]

    @pytest.mark.parametrize("asked", [[SMALL] * 8, [MEDIUM] * 2 + [SMALL] * 3, [LARGE, MEDIUM, SMALL]])
    def test_a_mix_shares_the_first_card(self, asked: list[SliceRequest]) -> None:
        assert set(self.place(asked)) == {"GPU-0"}

    def test_an_xlarge_that_reserves_eighty_shares_with_two_small_in_every_order(self) -> None:
        for order in itertools.permutations([SliceRequest(1, 65536, 80), self.SMALL, self.SMALL]):
            assert set(self.place(list(order))) == {"GPU-0"}

    def test_an_xlarge_that_reserves_one_hundred_never_shares(self) -> None:
        assert self.place([SliceRequest(1, 65536, 100), self.SMALL, self.SMALL]) == ["GPU-0", "GPU-1", "GPU-1"]
