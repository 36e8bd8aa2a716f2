"""Life with a kubelet that restarts, drops streams and is not there; and an end that costs no pod."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tenfold_device_plugin import main
from tenfold_device_plugin._domain import wire
from tenfold_device_plugin.clock import SystemClock
from tenfold_device_plugin.errors import ClusterUnavailable
from tenfold_device_plugin.serve import STREAM_GAP_SECONDS, STREAM_PATIENCE_SECONDS
from tenfold_device_plugin.state import Card
from tests.unit.device_plugin.bench import CARD_A, CARD_B, CATALOGUE, Bench, StartFailed, pod, until


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def counts(bench: Bench) -> list[int]:
    return [record.count for record in wire.decode_register(bench.cluster.node_annotations()[wire.NODE_REGISTER_ANNOTATION])]


class TestRegistration:
    def test_says_what_the_kubelet_must_know(self, bench: Bench) -> None:
        bench.start()
        (request,) = bench.kubelet.registrations
        assert (request.version, request.resource_name) == ("v1beta1", "volcano.sh/vgpu-number")
        assert request.options.pre_start_required and request.options.get_preferred_allocation_available
        assert len(bench.kubelet.ids) == 2 * 2 * 10

    def test_comes_after_annotation_and_allocatable(self, bench: Bench) -> None:
        bench.start(register=False)
        bench.settle()
        assert wire.NODE_REGISTER_ANNOTATION in bench.cluster.node_annotations()
        assert bench.kubelet.registrations == []
        bench.cluster.kubelet_status_update()
        until(lambda: bench.plugin.advertiser.ready, "allocatable has been seen")
        bench.round()
        assert len(bench.kubelet.registrations) == 1
        until(lambda: bench.kubelet.ids, "the kubelet knows the ids")

    def test_is_not_repeated_without_need(self, bench: Bench) -> None:
        bench.start()
        for _ in range(5):
            bench.round()
        assert len(bench.kubelet.registrations) == 1

    def test_is_repeated_after_a_kubelet_restart_and_pods_keep_their_slots(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        first = bench.run(found)
        bench.kubelet.restart()
        bench.round()
        until(lambda: bench.kubelet.ids, "the kubelet knows the ids again")
        assert len(bench.kubelet.registrations) == 2
        assert bench.kubelet.start(found).slot == first.slot

    def test_is_repeated_when_the_kubelet_closes_the_stream(self, bench: Bench) -> None:
        bench.start()
        bench.kubelet.drop_stream()
        until(lambda: not bench.plugin.service.watched, "the plugin has noticed")
        bench.round()
        assert len(bench.kubelet.registrations) == 1  # a new stream may be on its way
        bench.clock.advance(2 * STREAM_GAP_SECONDS)
        assert not bench.plugin.ready
        bench.round()
        until(lambda: bench.kubelet.ids, "the kubelet knows the ids again")
        assert bench.plugin.ready

    def test_is_repeated_when_somebody_removes_our_socket(self, bench: Bench) -> None:
        bench.start()
        (socket,) = bench.settings.device_plugins_dir.glob("tenfold-*.sock")
        socket.unlink()
        bench.round()
        until(lambda: len(bench.kubelet.registrations) == 2 and bench.kubelet.ids, "a new socket is registered")

    def test_is_repeated_when_the_kubelet_never_comes_for_the_ids(self, bench: Bench) -> None:
        bench.start()
        bench.plugin.service._open_stream = 0  # as if it had never connected
        bench.clock.advance(STREAM_PATIENCE_SECONDS)
        bench.round()
        assert len(bench.kubelet.registrations) == 2
        until(lambda: bench.plugin.service.watched, "the kubelet reads the ids")

    def test_waits_for_a_kubelet_that_is_not_there(self, bench: Bench) -> None:
        bench.kubelet.stop_serving()
        (bench.settings.device_plugins_dir / "kubelet.sock").unlink(missing_ok=True)
        bench.start(register=False)
        bench.settle()
        bench.cluster.kubelet_status_update()
        until(lambda: bench.plugin.advertiser.ready, "allocatable has been seen")
        bench.round()
        assert not bench.plugin.ready
        bench.kubelet.start_serving()
        bench.round()
        assert bench.plugin.ready

    def test_many_reconnects_leave_workers_for_calls(self, bench: Bench) -> None:
        bench.start()
        for _ in range(40):
            bench.kubelet.drop_stream()
            until(lambda: not bench.plugin.service.watched, "the plugin has noticed")
            bench.clock.advance(2 * STREAM_GAP_SECONDS)
            bench.round()
            until(lambda: bench.plugin.service.watched, "the kubelet reads the ids")
        until(lambda: bench.kubelet.ids, "the kubelet knows the ids")
        bench.run(pod("one"))

    def test_removes_sockets_of_the_dead_and_leaves_those_of_the_living(self, bench: Bench) -> None:
        dead = bench.settings.device_plugins_dir / "tenfold-00000000.sock"
        dead.write_text("", encoding="utf-8")
        first = bench.start()
        (alive,) = bench.settings.device_plugins_dir.glob("tenfold-*.sock")
        assert not dead.exists()
        first._left.set()  # it does nothing any more, but its socket is there
        for thread in first._watches:
            thread.join(5)
        bench.start()
        assert alive.exists()
        first.endpoint.stop()
        bench.run(pod("one"))


class TestAnApiServerThatIsAway:
    def test_does_not_keep_a_restarted_kubelet_waiting(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start()
        asked: list[str] = []

        def slow(*_arguments: object) -> None:
            asked.append(f"after {len(bench.kubelet.registrations)} registrations")
            raise ClusterUnavailable("timed out")

        monkeypatch.setattr(bench.cluster, "annotate_node", slow)
        monkeypatch.setattr(bench.cluster, "create_event", slow)
        bench.clock.advance(bench.settings.heartbeat_seconds)
        bench.kubelet.restart()
        bench.round()
        assert asked == ["after 2 registrations"]
        bench.round()
        assert len(asked) == 1
        bench.clock.advance(2)
        bench.round()
        assert len(asked) == 2


class TestIds:
    def test_of_a_sick_card_stay_healthy(self, bench: Bench) -> None:
        bench.start()
        bench.cards.cards[1] = Card(1, CARD_B, "NVIDIA A800-SXM4-80GB", 81920, "critical XID 79")
        bench.clock.advance(bench.settings.scan_seconds)
        bench.round()
        assert counts(bench) == [10, 0]
        assert len(bench.kubelet.ids) == 40

    def test_of_a_silent_nvml_stay_and_every_card_is_out_of_service(self, bench: Bench) -> None:
        bench.start()
        bench.cards.silent = True
        bench.clock.advance(bench.settings.scan_seconds)
        bench.round()
        assert counts(bench) == [0, 0]
        assert len(bench.kubelet.ids) == 40
        bench.cards.silent = False
        bench.clock.advance(bench.settings.scan_seconds)
        bench.round()
        assert counts(bench) == [10, 10]

    def test_of_a_new_card_are_sent_at_once(self, bench: Bench) -> None:
        bench.start()
        bench.cards.cards.append(Card(2, "GPU-cccccccc-0000-4000-8000-000000000003", "NVIDIA A800-SXM4-80GB", 81920))
        bench.clock.advance(bench.settings.scan_seconds)
        bench.round()
        until(lambda: len(bench.kubelet.ids) == 60, "the kubelet knows the new ids")

    def test_that_containers_hold_stay_when_slices_become_fewer(self, bench: Bench) -> None:
        bench.start()
        for number in range(10):
            bench.run(pod(f"p{number}"))
        held = {device_id for admitted in bench.kubelet.admitted for device_id in admitted.ids}
        fewer = CATALOGUE.from_vars({**CATALOGUE.as_dict(), "slices_per_card": 2})
        bench.cluster.config_maps[("tenfold-system", f"tenfold-tiers-{fewer.hash8}")] = {"catalogue.json": fewer.as_json()}
        bench.cluster.set_node_annotation(wire.TIERS_REVISION_ANNOTATION, fewer.hash8)
        bench.until_revision(fewer.hash8)
        published = {f"{card}::{number}" for card in (CARD_A, CARD_B) for number in range(4)}
        until(lambda: set(bench.kubelet.ids) == published | held, "the kubelet knows fewer ids, and those that are held")

    def test_that_containers_hold_of_a_card_that_is_gone_stay_and_may_be_given_out_again(self, bench: Bench) -> None:
        bench.start()
        found = pod("one", card=CARD_B)
        bench.bind(found)
        bench.kubelet.admit(found)
        (admitted,) = bench.kubelet.admitted
        bench.crash()
        bench.cards.cards = bench.cards.cards[:1]
        bench.kubelet.ids = []
        bench.start()
        assert set(admitted.ids) <= set(bench.kubelet.ids) and len(bench.kubelet.ids) == 21
        assert len(bench.plugin.binder.allocate([admitted.ids])) == 1

    def test_that_are_unknown_are_not_allocated(self, bench: Bench) -> None:
        bench.start()
        with pytest.raises(Exception, match="ids that this node does not have: GPU-x::0"):
            bench.plugin.binder.allocate([["GPU-x::0"]])

    def test_are_not_allocated_when_the_slot_could_be_forgotten(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        bench.bind(found)
        bench.settings.state_dir.joinpath("ledger.json").unlink()
        bench.settings.state_dir.joinpath("ledger.json").mkdir()
        with pytest.raises(Exception, match="cannot write"):
            bench.kubelet.admit(found)
        assert bench.plugin.bookings.ledger.slots == {}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quiet second after the last Allocate, shortened."""
    monkeypatch.setattr(main, "DRAIN_QUIET_SECONDS", 0.1)
    monkeypatch.setattr(main, "DRAIN_STEP_SECONDS", 0.01)


@pytest.mark.usefixtures("quick")
class TestTheEnd:
    def test_takes_the_cards_out_and_waits_for_bound_pods(self) -> None:
        bench = Bench()
        bench.clock = SystemClock()
        try:
            bench.start()
            found = pod("late")
            bench.bind(found)
            bench.plugin.stop()
            leaving = threading.Thread(target=bench.plugin.drain)
            leaving.start()
            until(lambda: counts(bench) == [0, 0], "the cards are out of service")
            assert leaving.is_alive()
            bench.kubelet.admit(found)
            leaving.join(5)
            assert not leaving.is_alive()
            with pytest.raises(StartFailed):
                bench.kubelet.start(found)
            bench.start()
            assert counts(bench) == [10, 10]
            bench.kubelet.start(found)
        finally:
            bench.close()

    def test_sees_pods_that_are_bound_after_the_signal(self) -> None:
        bench = Bench()
        bench.clock = SystemClock()
        try:
            bench.start()
            bench.plugin.stop()
            leaving = threading.Thread(target=bench.plugin.drain)
            leaving.start()
            until(lambda: counts(bench) == [0, 0], "the cards are out of service")
            found = pod("later")
            bench.cluster.put(found)
            until(lambda: found["metadata"]["uid"] in bench.plugin.bookings.pods, "the pod is seen")
            assert leaving.is_alive()
            leaving.join(0.2)
            assert leaving.is_alive()
            bench.kubelet.admit(found)
            leaving.join(5)
            assert not leaving.is_alive()
        finally:
            bench.close()

    def test_comes_after_the_deadline_even_if_a_pod_lacks_its_ids(self) -> None:
        bench = Bench(shutdown_wait_seconds=0.1)
        bench.clock = SystemClock()
        try:
            bench.start()
            bench.bind(pod("never"))
            bench.plugin.stop()
            leaving = threading.Thread(target=bench.plugin.drain)
            leaving.start()
            leaving.join(5)
            assert not leaving.is_alive()
        finally:
            bench.close()

    def test_comes_at_once_when_the_kubelet_is_gone(self) -> None:
        bench = Bench()
        bench.clock = SystemClock()
        try:
            bench.start()
            bench.bind(pod("one", card=CARD_A))
            bench.kubelet.stop_serving()
            bench.plugin.stop()
            leaving = threading.Thread(target=bench.plugin.drain)
            leaving.start()
            leaving.join(4)
            assert not leaving.is_alive()
        finally:
            bench.close()
