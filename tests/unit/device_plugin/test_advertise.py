"""The node's annotations and resources: the order that is safe, and repair of what others change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenfold_device_plugin._domain import wire
from tenfold_device_plugin.advertise import ALLOCATABLE_PATIENCE_SECONDS, resource_patch
from tests.unit.device_plugin.bench import CARD_A, CARD_B, CATALOGUE, Bench, pod, until

MEMORY, CORES = wire.RESOURCE_MEMORY, wire.RESOURCE_CORES
amounts = st.dictionaries(st.sampled_from([MEMORY, CORES]), st.integers(0, 10**6).map(str))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def resources(bench: Bench, kind: str) -> tuple[int, int]:
    shown = bench.cluster.node_object["status"][kind]
    return int(shown.get(MEMORY, 0)), int(shown.get(CORES, 0))


def condition(bench: Bench) -> dict[str, str]:
    [found] = [each for each in bench.cluster.node_object["status"]["conditions"] if each["type"] == "TenfoldCards"]
    return {key: found[key] for key in ("status", "reason", "message")}


class TestResourcePatch:
    """Capacity decreases patch capacity and allocatable, increases patch capacity."""

    @given(amounts, amounts, st.integers(1, 10**6), st.booleans())
    def test_shows_what_is_wanted_and_never_allows_more(
        self, capacity: dict[str, str], allocatable: dict[str, str], wanted: int, late: bool
    ) -> None:
        patch = resource_patch({"capacity": capacity, "allocatable": allocatable}, {MEMORY: wanted}, late)
        assert patch.capacity.get(MEMORY, int(capacity.get(MEMORY, 0))) == wanted
        assert patch.allocatable.get(MEMORY, int(allocatable.get(MEMORY, 0))) <= wanted

    @given(amounts, amounts, st.integers(1, 10**6))
    def test_does_not_raise_allocatable_before_the_kubelet_does(
        self, capacity: dict[str, str], allocatable: dict[str, str], wanted: int
    ) -> None:
        patch = resource_patch({"capacity": capacity, "allocatable": allocatable}, {MEMORY: wanted})
        assert patch.allocatable.get(MEMORY, 0) <= int(allocatable.get(MEMORY, 0))

    def test_is_empty_when_the_node_says_it_already(self) -> None:
        assert not resource_patch({"capacity": {MEMORY: "5"}, "allocatable": {MEMORY: "5"}}, {MEMORY: 5})

    def test_reads_quantities_as_the_api_server_writes_them(self) -> None:
        assert not resource_patch({"capacity": {MEMORY: "164k"}, "allocatable": {MEMORY: "164k"}}, {MEMORY: 164_000})


class TestTheNode:
    def test_is_annotated_before_its_resources_are_shown(self, bench: Bench) -> None:
        bench.start()
        kinds = [kind for kind, _ in bench.cluster.writes]
        assert kinds.index("node") < kinds.index("resources")

    def test_publishes_six_fields_a_card_with_the_handshake_beside(self, bench: Bench) -> None:
        bench.start()
        annotations = bench.cluster.node_annotations()
        name = "NVIDIA-NVIDIA A800-SXM4-80GB"
        assert annotations[wire.NODE_REGISTER_ANNOTATION] == (
            f"{CARD_A},10,81920,{name},true,hami-core:{CARD_B},10,81920,{name},true,hami-core:"
        )
        assert annotations[wire.NODE_HANDSHAKE_ANNOTATION].startswith("Reported 20")

    def test_shows_the_sum_of_its_cards(self, bench: Bench) -> None:
        bench.start()
        assert resources(bench, "capacity") == (2 * 81920, 200)

    def test_beats_its_heart_and_else_writes_nothing(self, bench: Bench) -> None:
        bench.start()
        bench.round()
        written = len(bench.cluster.writes)
        bench.clock.advance(1)
        bench.round()
        assert len(bench.cluster.writes) == written
        bench.clock.advance(bench.settings.heartbeat_seconds)
        bench.round()
        assert bench.cluster.writes[written:] == [
            ("node", {wire.NODE_HANDSHAKE_ANNOTATION: bench.cluster.node_annotations()[wire.NODE_HANDSHAKE_ANNOTATION]})
        ]

    def test_is_repaired_when_its_resources_are_zeroed(self, bench: Bench) -> None:
        bench.start()
        bench.cluster.node_object["status"]["capacity"].update({MEMORY: "0", CORES: "0"})
        bench.cluster.kubelet_status_update()
        until(lambda: not bench.plugin.advertiser.ready, "the watch shows it")
        bench.round()
        assert resources(bench, "capacity") == (2 * 81920, 200)

    def test_is_repaired_when_its_annotation_is_changed(self, bench: Bench) -> None:
        bench.start()
        before = bench.cluster.node_annotations()[wire.NODE_REGISTER_ANNOTATION]
        bench.cluster.set_node_annotation(wire.NODE_REGISTER_ANNOTATION, "nonsense")
        until(
            lambda: (bench.plugin.advertiser.node or {})["metadata"]["annotations"][wire.NODE_REGISTER_ANNOTATION] == "nonsense",
            "the watch shows it",
        )
        bench.round()
        assert bench.cluster.node_annotations()[wire.NODE_REGISTER_ANNOTATION] == before

    def test_raises_allocatable_itself_when_the_kubelet_is_late(self, bench: Bench) -> None:
        bench.start(register=False)
        bench.settle()
        assert resources(bench, "allocatable") == (0, 0)
        bench.round()
        bench.clock.advance(ALLOCATABLE_PATIENCE_SECONDS)
        bench.round()
        assert resources(bench, "allocatable") == (2 * 81920, 200)

    def test_opens_the_schedulers_node_lock_when_every_pod_is_booked(self, bench: Bench) -> None:
        bench.start()
        bench.cluster.set_node_annotation("hamivgpu", "2026-11-30T10:00:00Z")
        until(lambda: "hamivgpu" in (bench.plugin.advertiser.node or {})["metadata"]["annotations"], "the watch shows it")
        bench.round()
        assert "hamivgpu" not in bench.cluster.node_annotations()

    def test_without_a_card_says_why_and_offers_nothing(self, bench: Bench) -> None:
        bench.cards.cards = []
        bench.start(register=False)
        bench.round()
        assert [(kind, said["message"]) for kind, said in bench.cluster.writes] == [("condition", "NVML shows no card")]
        assert bench.kubelet.registrations == []

    def test_says_in_nvmls_words_why_no_card_answers_and_when_one_does_again(self, bench: Bench) -> None:
        bench.cards.silent = True
        bench.start(register=False)
        words = "NVML does not answer: Driver Not Loaded"
        for _ in range(30):
            bench.clock.advance(1)
            bench.round()
        assert not bench.plugin.ready and bench.plugin.unready == words
        assert condition(bench) == {"status": "False", "reason": "NoCardAnswers", "message": words}
        [event] = bench.cluster.events
        assert event["involvedObject"]["kind"] == "Node" and event["message"] == f"no card answers: {words}"
        [family] = [each for each in bench.plugin.metrics.collect() if each.name == "tenfold_cards_unavailable"]
        assert [sample.labels for sample in family.samples] == [{"reason": words}]
        bench.cards.silent = False
        bench.clock.advance(bench.settings.scan_seconds)
        bench.round()
        assert condition(bench) == {"status": "True", "reason": "CardsAnswer", "message": ""}
        assert len([kind for kind, _ in bench.cluster.writes if kind == "condition"]) == 2
        bench.cards.silent = True
        bench.clock.advance(bench.settings.scan_seconds)
        bench.round()
        assert len(bench.cluster.events) == 2

    def test_says_by_event_which_card_goes_and_which_comes_back(self, bench: Bench) -> None:
        bench.start()
        assert bench.cluster.events == []
        for fault in ("critical XID 79", "", "critical XID 79"):
            bench.cards.cards[1] = dataclasses.replace(bench.cards.cards[1], fault=fault)
            bench.clock.advance(bench.settings.scan_seconds)
            bench.round()
        assert [event["reason"] for event in bench.cluster.events] == [
            "VgpuCardOutOfService",
            "VgpuCardInService",
            "VgpuCardOutOfService",
        ]
        assert bench.cluster.events[0]["message"] == f"card {CARD_B} (NVIDIA A800-SXM4-80GB) is out of service: critical XID 79"

    def test_has_no_condition_of_ours_while_all_is_well(self, bench: Bench) -> None:
        bench.start()
        assert "conditions" not in bench.cluster.node_object["status"]

    def test_no_longer_names_a_card_that_is_gone_once_its_pods_are(self, bench: Bench) -> None:
        bench.start()
        found = pod("one", card=CARD_B)
        bench.run(found)
        bench.cards.cards = bench.cards.cards[:1]
        for expected in ([10, 0], [10]):
            bench.clock.advance(bench.settings.scan_seconds)
            bench.settle()
            records = wire.decode_register(bench.cluster.node_annotations()[wire.NODE_REGISTER_ANNOTATION])
            assert [record.count for record in records] == expected
            if len(expected) == 2:
                bench.end(found)
                bench.settle()

    def test_is_left_alone_until_the_pods_are_known(self, bench: Bench) -> None:
        bench.start(register=False)
        bench.plugin.bookings.synced = False
        bench.round()
        assert bench.cluster.writes == []


class TestCapacityFollowsPods:
    def test_stays_above_the_requests_when_a_card_dies_and_comes_down_when_its_pod_ends(self, bench: Bench) -> None:
        bench.start()
        found = pod("big", "xlarge", card=CARD_B)
        bench.run(found)
        bench.cards.cards[1] = bench.cards.cards[1].__class__(1, CARD_B, "NVIDIA A800-SXM4-80GB", 81920, "XID 79")
        bench.clock.advance(bench.settings.scan_seconds)
        bench.settle()
        assert resources(bench, "capacity") == (81920 + 65536, 180)
        bench.end(found)
        bench.settle()
        assert resources(bench, "capacity") == (81920, 100)
        assert resources(bench, "allocatable") == (81920, 100)


class TestTiers:
    def test_of_an_unknown_revision_leave_the_node_out_of_service(self, bench: Bench) -> None:
        bench.cluster.set_node_annotation(wire.TIERS_REVISION_ANNOTATION, "deadbeef")
        bench.start()
        records = wire.decode_register(bench.cluster.node_annotations()[wire.NODE_REGISTER_ANNOTATION])
        assert [record.count for record in records] == [0, 0]

    def test_that_were_changed_by_hand_are_not_believed(self, bench: Bench) -> None:
        key = ("tenfold-system", f"tenfold-tiers-{CATALOGUE.hash8}")
        bench.cluster.config_maps[key] = {"catalogue.json": CATALOGUE.as_json().replace("8192", "8448")}
        bench.start()
        assert bench.plugin.bookings.terms.catalogue is None

    def test_are_known_from_the_cache_after_a_restart(self, bench: Bench) -> None:
        bench.start()
        bench.crash()
        bench.cluster.config_maps.clear()
        bench.start()
        assert bench.plugin.bookings.terms.revision == CATALOGUE.hash8

    def test_of_the_old_revision_stay_in_force_while_the_new_one_is_unreadable(self, bench: Bench) -> None:
        bench.start()
        bench.cluster.set_node_annotation(wire.TIERS_REVISION_ANNOTATION, "deadbeef")
        bench.until_revision("deadbeef")
        assert bench.plugin.bookings.terms.revision == CATALOGUE.hash8

    def test_take_their_number_of_slices_with_them(self, bench: Bench) -> None:
        fine: Any = CATALOGUE.__class__.from_vars({**CATALOGUE.as_dict(), "slices_per_card": 20})
        bench.cluster.config_maps[("tenfold-system", f"tenfold-tiers-{fine.hash8}")] = {"catalogue.json": fine.as_json()}
        bench.start()
        bench.cluster.set_node_annotation(wire.TIERS_REVISION_ANNOTATION, f"tenfold-tiers-{fine.hash8}")
        bench.until_revision(f"tenfold-tiers-{fine.hash8}")
        records = wire.decode_register(bench.cluster.node_annotations()[wire.NODE_REGISTER_ANNOTATION])
        assert [record.count for record in records] == [20, 20]
        until(lambda: len(bench.kubelet.ids) == 80, "the kubelet knows the new ids")
