"""Capacity, ids and preferences of the device plugin: laws first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenfold_device_plugin import state
from tenfold_device_plugin._domain import fit, wire
from tenfold_device_plugin.state import Booking, Card, ContainerShare, Share, Terms
from tests.unit.device_plugin.bench import CARD_A, CARD_B, CATALOGUE, pod

TERMS = Terms(CATALOGUE)
CARDS = [Card(0, CARD_A, "NVIDIA A800-SXM4-80GB", 81920), Card(1, CARD_B, "NVIDIA A800-SXM4-80GB", 81920)]
uuids = st.sampled_from([CARD_A, CARD_B])


def booking(name: str, *shares: tuple[str, int, int]) -> Booking:
    return Booking(
        f"uid-{name}",
        "default",
        name,
        "",
        "r",
        "annotation",
        tuple(ContainerShare(f"c{n}", (Share(uuid, memory, cores, cores),)) for n, (uuid, memory, cores) in enumerate(shares)),
    )


def requesting(memory_mib: int, cores: int, phase: str = "Running") -> dict[str, Any]:
    found = pod(
        "p", None, limits=[{wire.RESOURCE_NUMBER: "1", wire.RESOURCE_MEMORY: str(memory_mib), wire.RESOURCE_CORES: str(cores)}], card=None
    )
    found["status"]["phase"] = phase
    return found


pods = st.lists(
    st.builds(requesting, st.integers(0, 200_000), st.integers(0, 300), st.sampled_from(["Pending", "Running", "Failed", "Succeeded"])),
    max_size=6,
)
bookings = st.lists(st.builds(lambda u, m, c: booking("b", (u, m, c)), uuids, st.integers(0, 200_000), st.integers(0, 200)), max_size=6)
cards = st.lists(
    st.builds(
        Card,
        st.integers(0, 7),
        st.uuids().map(lambda u: f"GPU-{u}"),
        st.just("NVIDIA A800"),
        st.integers(1, 98304),
        st.sampled_from(["", "sick"]),
    ),
    max_size=4,
    unique_by=lambda card: card.uuid,
)


class TestCapacity:
    """capacity = max(1, sum of effective requests of bound, non-terminal pods + what healthy cards have left)."""

    @given(pods, cards, bookings)
    def test_is_never_below_what_bound_pods_request(self, pods: list[Any], cards: list[Card], bookings: list[Booking]) -> None:
        shown = state.capacity(pods, cards, bookings, TERMS)
        alive = [found for found in pods if found["status"]["phase"] in ("Pending", "Running")]
        assert shown.memory_mib >= sum(state.effective_request(found, wire.RESOURCE_MEMORY) for found in alive)
        assert shown.cores_percent >= sum(state.effective_request(found, wire.RESOURCE_CORES) for found in alive)

    @given(pods, cards, bookings)
    def test_is_always_above_zero(self, pods: list[Any], cards: list[Card], bookings: list[Booking]) -> None:
        shown = state.capacity(pods, cards, bookings, TERMS)
        assert shown.memory_mib > 0 and shown.cores_percent > 0

    @given(pods, bookings)
    def test_leaves_room_for_what_any_card_can_still_hold(self, pods: list[Any], bookings: list[Booking]) -> None:
        shown = state.capacity(pods, CARDS, bookings, TERMS)
        requested = sum(state.effective_request(found, wire.RESOURCE_MEMORY) for found in pods if not state.is_terminal(found))
        for ledger in state.card_ledgers(CARDS, bookings, TERMS):
            assert shown.memory_mib - requested >= ledger.free_memory_mib

    def test_of_an_empty_node_is_the_sum_of_its_cards(self) -> None:
        assert state.capacity([], CARDS, [], TERMS) == state.Capacity(2 * 81920, 200)

    def test_stays_the_same_when_a_pod_gets_what_it_requests(self) -> None:
        shown = state.capacity([requesting(8192, 10)], CARDS, [booking("p", (CARD_A, 8192, 10))], TERMS)
        assert shown == state.Capacity(2 * 81920, 200)

    def test_does_not_fall_under_the_requests_when_a_card_turns_sick(self) -> None:
        sick = [Card(0, CARD_A, "NVIDIA A800", 81920, "XID 79"), CARDS[1]]
        shown = state.capacity([requesting(65536, 80)], sick, [booking("p", (CARD_A, 65536, 80))], TERMS)
        assert shown == state.Capacity(65536 + 81920, 180)

    def test_counts_a_pod_with_two_cards_once_as_the_kubelet_does_and_both_cards_as_used(self) -> None:
        two = booking("p", (CARD_A, 8192, 10), (CARD_B, 8192, 10))
        assert state.capacity([requesting(8192, 10)], CARDS, [two], TERMS).memory_mib == 8192 + 2 * (81920 - 8192)

    def test_carries_the_difference_of_a_live_quota(self) -> None:
        grown = booking("p", (CARD_A, 40000, 10))
        assert state.capacity([requesting(60000, 10)], CARDS, [grown], TERMS).memory_mib == 60000 + (81920 - 40000) + 81920


class TestEffectiveRequest:
    """The kubelet's arithmetic: the running containers' sum or any init container's peak, whichever is more."""

    @pytest.mark.parametrize(
        ("init", "containers", "expected"),
        [
            ([], [3, 4], 7),
            ([(9, False)], [3, 4], 9),
            ([(2, False), (5, False)], [3], 5),
            ([(2, True)], [3, 4], 9),
            ([(2, True), (8, False)], [3], 10),
            ([(8, False), (2, True)], [3], 8),
        ],
    )
    def test_of_init_containers_and_sidecars(self, init: list[tuple[int, bool]], containers: list[int], expected: int) -> None:
        def container(amount: int, restart: bool = False) -> dict[str, Any]:
            made: dict[str, Any] = {"resources": {"requests": {wire.RESOURCE_MEMORY: str(amount)}}}
            return {**made, "restartPolicy": "Always"} if restart else made

        spec = {"initContainers": [container(*each) for each in init], "containers": [container(each) for each in containers]}
        assert state.effective_request({"spec": spec}, wire.RESOURCE_MEMORY) == expected

    def test_takes_the_limit_where_no_request_is_given_and_zero_for_nonsense(self) -> None:
        spec = {
            "containers": [{"resources": {"limits": {wire.RESOURCE_MEMORY: "3k"}}}, {"resources": {"limits": {wire.RESOURCE_MEMORY: "x"}}}]
        }
        assert state.effective_request({"spec": spec}, wire.RESOURCE_MEMORY) == 3000


def two_on_one_card(uid: str, memory_mib: int, cores: int) -> state.Booking:
    share = state.Share(CARD_A, memory_mib, cores, cores)
    containers = (state.ContainerShare("c0", (share,)), state.ContainerShare("c1", (share,)))
    return state.Booking(uid, "default", uid, "", "", "annotation", containers)


class TestWhatTheSchedulerOverlooks:
    """It counts a pod once on a card, however many of its containers are there."""

    def scheduler_sees(self, *bookings: state.Booking) -> list[fit.CardLedger]:
        records = state.register_records(CARDS, TERMS, in_service=True, bookings=bookings)
        cards = [fit.CardLedger(record.uuid, record.count, record.memory_mib, record.type) for record in records]
        return fit.book_as_volcano(cards, [(booking.uid, booking.segments()) for booking in bookings])

    def test_is_taken_off_what_the_card_offers(self) -> None:
        believed, free = self.scheduler_sees(two_on_one_card("two", 32768, 40))
        assert believed.free_memory_mib == 81920 - 65536 and believed.count - believed.used_count == 8
        assert (free.memory_mib, free.count) == (81920, 10)
        assert isinstance(fit.fit(fit.SliceRequest(1, 40960, 10), [believed]), fit.FitRefusal)

    def test_makes_a_card_full_when_all_its_cores_are_booked(self) -> None:
        believed, _ = self.scheduler_sees(two_on_one_card("two", 1024, 50))
        assert isinstance(fit.fit(fit.SliceRequest(1, 1024, 10), [believed]), fit.FitRefusal)

    @given(st.lists(st.tuples(st.integers(0, 20000), st.integers(0, 25)), max_size=3))
    def test_never_lets_it_promise_memory_or_slices_that_are_not_there(self, sizes: list[tuple[int, int]]) -> None:
        bookings = [two_on_one_card(f"uid-{number}", *size) for number, size in enumerate(sizes)]
        true = state.card_ledgers(CARDS, bookings, TERMS)
        for seen, used in zip(self.scheduler_sees(*bookings), true):
            assert seen.free_memory_mib <= max(0, used.free_memory_mib)
            assert seen.count - seen.used_count <= max(0, used.count - used.used_count)


class TestRegisterRecords:
    def test_a_sick_card_and_a_leaving_node_are_published_with_count_zero(self) -> None:
        sick = [CARDS[0], Card(1, CARD_B, "NVIDIA A800", 81920, "XID 79")]
        assert [record.count for record in state.register_records(sick, TERMS, in_service=True, bookings=())] == [10, 0]
        assert [record.count for record in state.register_records(CARDS, TERMS, in_service=False, bookings=())] == [0, 0]

    def test_without_a_catalogue_nothing_is_offered(self) -> None:
        assert {record.count for record in state.register_records(CARDS, Terms(), in_service=True, bookings=())} == {0}

    @given(st.text(max_size=40))
    def test_any_product_name_survives_the_annotation(self, name: str) -> None:
        records = state.register_records([Card(0, CARD_A, name, 81920)], TERMS, in_service=True, bookings=())
        assert wire.decode_register(wire.encode_register(records))[0].uuid == CARD_A

    def test_memory_is_published_in_whole_steps_of_the_catalogue(self) -> None:
        (record,) = state.register_records([Card(0, CARD_A, "NVIDIA A800", 81251)], TERMS, in_service=True, bookings=())
        assert record.memory_mib == 81251 // 256 * 256


class TestIds:
    def test_fit_the_kubelets_63_characters_and_are_twice_the_slices(self) -> None:
        ids = state.device_ids([CARD_A, CARD_B], 128, [])
        assert len(ids) == len(set(ids)) == 2 * 2 * 128
        assert max(map(len, ids)) <= 63
        assert {state.card_of_id(device_id) for device_id in ids} == {CARD_A, CARD_B}

    @given(st.lists(uuids, max_size=2, unique=True), st.integers(1, 4), st.integers(0, 4), st.randoms(use_true_random=False))
    def test_preferred_ids_are_what_was_asked_for_and_hold_what_must_be_included(
        self, wanted: list[str], size: int, must: int, order: Any
    ) -> None:
        available = state.device_ids([CARD_A, CARD_B], 2, [])
        order.shuffle(available)
        must_include = available[: min(must, size)]
        chosen = state.preferred_ids(wanted, available, must_include, size)
        assert len(chosen) == size == len(set(chosen))
        assert set(must_include) <= set(chosen) <= set(available)

    def test_one_id_of_each_wanted_card_is_preferred(self) -> None:
        chosen = state.preferred_ids([CARD_B, CARD_A], state.device_ids([CARD_A, CARD_B], 2, []), [], 2)
        assert [state.card_of_id(device_id) for device_id in chosen] == [CARD_B, CARD_A]

    def test_fewer_ids_than_asked_for_are_all_that_there_are(self) -> None:
        assert state.preferred_ids([CARD_A], [f"{CARD_B}::1"], [], 3) == [f"{CARD_B}::1"]
