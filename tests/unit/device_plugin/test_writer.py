"""One object's trouble at the API server is its own: everything else of the node is written, registered and served meanwhile."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenfold_device_plugin._domain import wire
from tenfold_device_plugin.cluster import slim_pod
from tenfold_device_plugin.errors import ClusterUnavailable, LedgerError, Rejected
from tests.unit.device_plugin.bench import CARD_A, CARD_B, CARD_MIB, Bench, RunningClock, pod, until

WEBHOOK = 'the API server refuses PATCH pods/bad: 403 admission webhook "validate.example.com" denied the request'
TERMINATING = "the API server refuses POST events: 403 unable to create new content in namespace dying because it is being terminated"


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def limits(memory_mib: int, cores: int) -> dict[str, str]:
    return {wire.RESOURCE_NUMBER: "1", wire.RESOURCE_MEMORY: str(memory_mib), wire.RESOURCE_CORES: str(cores)}


def counts(bench: Bench) -> list[int]:
    return [record.count for record in wire.decode_register(bench.cluster.node_annotations()[wire.NODE_REGISTER_ANNOTATION])]


def refuse(bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Every PATCH of pods of this name is refused for good; the names of all pods that were tried."""
    tried: list[str] = []
    real = bench.cluster.annotate_pod

    def annotate(namespace: str, pod_name: str, uid: str, annotations: Any) -> Any:
        tried.append(pod_name)
        if pod_name == name:
            raise Rejected(WEBHOOK)
        return real(namespace, pod_name, uid, annotations)

    monkeypatch.setattr(bench.cluster, "annotate_pod", annotate)
    return tried


def pass_time(bench: Bench, seconds: float, step: float = 0.5) -> None:
    for _ in range(int(seconds / step)):
        bench.clock.advance(step)
        bench.round()


class TestAPodWhoseWriteIsRefused:
    def test_does_not_keep_the_node_from_taking_a_sick_card_out(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start()
        tried = refuse(bench, monkeypatch, "bad")
        good = pod("good", card=CARD_B)
        bench.bind(pod("bad"), good)
        bench.cards.cards[0] = dataclasses.replace(bench.cards.cards[0], fault="critical XID 79")
        pass_time(bench, 600)
        assert counts(bench) == [0, 10]
        assert bench.cluster.annotations(good)[wire.POD_BIND_PHASE_ANNOTATION] == wire.BIND_PHASE_SUCCESS
        assert tried.count("bad") < 12

    def test_does_not_keep_a_fresh_node_from_registering(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        refuse(bench, monkeypatch, "bad")
        bench.cluster.put(pod("bad"))
        bench.start()
        assert bench.plugin.ready and counts(bench) == [10, 10]

    def test_is_told_once_by_event_and_counted(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start()
        refuse(bench, monkeypatch, "bad")
        bench.bind(pod("bad"))
        pass_time(bench, 600, step=5)
        [event] = [each for each in bench.cluster.events if each["reason"] == "VgpuWriteRejected"]
        assert WEBHOOK in event["message"] and event["involvedObject"]["name"] == "bad"
        assert bench.plugin.reporter.rejections["pod"] > 1

    def test_is_written_once_the_server_takes_it(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start()
        refuse(bench, monkeypatch, "bad")
        bad = pod("bad")
        bench.bind(bad)
        monkeypatch.undo()
        pass_time(bench, 20)
        assert bench.cluster.annotations(bad)[wire.POD_BIND_PHASE_ANNOTATION] == wire.BIND_PHASE_SUCCESS

    def test_counts_as_refused_if_a_webhook_takes_our_key_away(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start()
        found, tried = pod("one"), []

        def strip(namespace: str, name: str, _uid: str, annotations: Any) -> Any:
            tried.append(annotations)
            return slim_pod(bench.cluster.pods[(namespace, name)])

        monkeypatch.setattr(bench.cluster, "annotate_pod", strip)
        bench.bind(found)
        pass_time(bench, 60)
        assert len(tried) <= 4
        assert "VgpuWriteRejected" in [event["reason"] for event in bench.cluster.events]

    def test_that_somebody_undoes_each_time_runs_into_its_budget(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        bench.bind(found)
        bench.cluster.writes.clear()
        for _ in range(200):
            undone = {**bench.cluster.annotations(found), wire.POD_BIND_PHASE_ANNOTATION: wire.BIND_PHASE_ALLOCATING}
            bench.cluster.change(found, annotations=undone)
            bench.until_seen()
            bench.round()
            bench.clock.advance(0.3)
        assert len([kind for kind, _ in bench.cluster.writes if kind == "pod"]) <= 5 + 4


class TestANodeWhoseWriteIsRefused:
    def test_is_told_at_the_node_and_pods_are_written(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start()

        def refused(*_arguments: object) -> Any:
            raise Rejected("the API server refuses PATCH nodes/gpu-1: 403 a policy forbids it")

        monkeypatch.setattr(bench.cluster, "annotate_node", refused)
        bench.clock.advance(bench.settings.heartbeat_seconds)
        found = pod("one")
        bench.bind(found)
        assert bench.cluster.annotations(found)[wire.POD_BIND_PHASE_ANNOTATION] == wire.BIND_PHASE_SUCCESS
        [event] = bench.cluster.events
        assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("Node", "gpu-1")
        assert bench.plugin.reporter.rejections == {"node": 1}


class TestEvents:
    def test_that_a_dying_namespace_refuses_hold_up_no_other(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start()
        asked, real = [], bench.cluster.create_event

        def create(event: dict[str, Any]) -> None:
            asked.append(event["metadata"]["namespace"])
            if asked[-1] == "dying":
                raise Rejected(TERMINATING)
            real(event)

        monkeypatch.setattr(bench.cluster, "create_event", create)
        for name, namespace in (("first", "dying"), ("second", "default")):
            forged = pod(name, namespace=namespace)
            annotations = forged["metadata"]["annotations"]
            annotations[wire.POD_IDS_ANNOTATION] = annotations[wire.POD_IDS_ANNOTATION].replace("8192", "8193")
            bench.bind(forged)
        pass_time(bench, 60)
        assert sorted(asked) == ["default", "dying"]
        assert [event["involvedObject"]["name"] for event in bench.cluster.events] == ["second"]
        assert bench.plugin.reporter.rejections["event"] == 1

    def test_wait_for_a_server_that_is_away(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start()

        def away(_event: dict[str, Any]) -> None:
            raise ClusterUnavailable("connection refused")

        monkeypatch.setattr(bench.cluster, "create_event", away)
        bench.plugin.reporter.tell(pod("one"), "VgpuMoved", "words")
        bench.round()
        monkeypatch.undo()
        bench.clock.advance(2)
        bench.round()
        assert [event["message"] for event in bench.cluster.events] == ["words"]


class TestAServerThatIsSlow:
    @pytest.fixture
    def crowd(self) -> Iterator[Bench]:
        made = Bench(slices_per_card=60)
        yield made
        made.close()

    def bind_eighty(self, bench: Bench, before_each: Callable[[], None]) -> None:
        """Each PATCH takes a second."""
        real = bench.cluster.annotate_pod

        def slow(*arguments: Any) -> Any:
            before_each()
            bench.clock.advance(1.0)
            return real(*arguments)

        bench.cluster.annotate_pod = slow  # type: ignore[assignment,method-assign]
        for number in range(80):
            bench.cluster.put(pod(f"p{number}", None, limits=[limits(1024, 1)], card=CARD_A if number % 2 else CARD_B))
        bench.until_seen()

    def test_does_not_make_the_plugin_look_dead(self, crowd: Bench) -> None:
        crowd.start()
        alive: list[bool] = []

        def look() -> None:
            for duties_of_a_thread in (crowd.plugin.rounds, crowd.plugin.registration):  # threads of their own
                duties_of_a_thread.run_due()
            alive.append(crowd.plugin.alive)

        self.bind_eighty(crowd, look)
        crowd.plugin.writer.work_all()
        assert alive == [True] * 80

    def test_lets_a_sick_card_pass_before_the_pods_that_wait(self, crowd: Bench) -> None:
        crowd.start()
        shown: list[list[int]] = []

        def look() -> None:
            shown.append(counts(crowd))
            if len(shown) == 5:
                crowd.cards.cards[0] = dataclasses.replace(crowd.cards.cards[0], fault="critical XID 79")
                crowd.clock.advance(crowd.settings.scan_seconds)
                crowd.plugin.rounds.run_due()

        self.bind_eighty(crowd, look)
        crowd.plugin.writer.work_all()
        assert shown[7] == [0, 60]

    def test_does_not_keep_a_restarted_kubelet_waiting(self, crowd: Bench) -> None:
        """The writer hangs in a request; registration is another thread's."""
        crowd.start()
        entered, go_on = threading.Event(), threading.Event()

        def hang() -> None:
            entered.set()
            go_on.wait(10)

        self.bind_eighty(crowd, hang)
        writing = threading.Thread(target=crowd.plugin.writer.work_all)
        writing.start()
        assert entered.wait(5)
        crowd.kubelet.restart()
        crowd.plugin.registration.run_due()
        until(lambda: crowd.kubelet.ids, "the kubelet knows the ids again")
        go_on.set()
        writing.join(10)


class TestOurPictureOfAPod:
    def test_is_the_watchs_if_that_was_faster_than_the_answer_to_our_write(self, bench: Bench) -> None:
        bench.start()
        found, real = pod("one"), bench.cluster.annotate_pod

        def annotate(*arguments: Any) -> Any:
            answer = real(*arguments)
            bench.cluster.change(found, deleting=True)
            until(lambda: "deletionTimestamp" in bench.plugin.bookings.pods[found["metadata"]["uid"]]["metadata"], "the watch shows it")
            return answer

        bench.cluster.annotate_pod = annotate  # type: ignore[assignment,method-assign]
        bench.cluster.put(found)
        bench.until_seen()
        bench.round()
        assert "deletionTimestamp" in bench.plugin.bookings.pods[found["metadata"]["uid"]]["metadata"]


class TestAPodThatWaitsForRoom:
    def test_is_counted_once_however_often_others_change(self, bench: Bench) -> None:
        bench.start()
        bench.run(pod("first", "xlarge", card=CARD_A))
        bench.run(pod("second", "xlarge", card=CARD_B))
        bench.bind(pod("late", "large", card=CARD_A))
        other = pod("other", None, card=None)
        bench.cluster.put(other)
        for number in range(50):
            bench.cluster.change(other, annotations={"seen": str(number)})
        bench.settle()
        assert bench.plugin.reporter.refusals == {"no_room": 1}


class TestADiskThatIsFull:
    def test_is_tried_again_and_the_watch_goes_on(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start()

        def full(_text: str) -> None:
            raise LedgerError("cannot write 'ledger.json': No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(bench.plugin.bookings.ledger, "_write", full)
            found = pod("one")
            bench.cluster.put(found)
            bench.until_seen()
            bench.round()
            assert bench.plugin.bookings.ledger.bookings == {}
        bench.clock.advance(1)
        bench.settle()
        assert bench.cluster.annotations(found)[wire.POD_BIND_PHASE_ANNOTATION] == wire.BIND_PHASE_SUCCESS


class TestStartsThatWait:
    def test_leave_the_kubelets_other_calls_alone(self) -> None:
        bench = Bench(slices_per_card=60, prestart_wait_seconds=20.0)
        try:
            bench.start()
            first = pod("first", None, limits=[limits(CARD_MIB, 100)])
            bench.run(first)
            bench.cluster.change(first, deleting=True)
            waiting = [pod(f"p{number}", None, limits=[limits(1024, 1)]) for number in range(40)]
            late = pod("late", card=CARD_B)
            bench.bind(*waiting, late)
            asked: list[str] = []
            real = bench.cluster.pod
            bench.cluster.pod = lambda namespace, name: asked.append(name) or real(namespace, name)  # type: ignore[func-returns-value,method-assign]
            for each in waiting:
                bench.kubelet.admit(each)
            threads = [threading.Thread(target=bench.kubelet.start, args=(each,)) for each in waiting]
            for thread in threads:
                thread.start()
            until(lambda: len(asked) == 40, "all of them are under way")
            bench.kubelet.admit(late)
            bench.kubelet.start(late)
            assert all(thread.is_alive() for thread in threads)
            bench.end(first)
            for thread in threads:
                thread.join(10)
            assert not any(thread.is_alive() for thread in threads)
        finally:
            bench.close()


class TestAFaultOfOurs:
    def test_in_the_telling_of_gpu_time_is_said_and_survived(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start()
        tried: list[object] = []

        def broken(_slots: object) -> None:
            tried.append(None)
            raise AttributeError("pynvml has no such field")

        def ended(*_arguments: object) -> None:
            raise AssertionError("the process has ended")

        monkeypatch.setattr("tenfold_device_plugin.duties.os._exit", ended)
        monkeypatch.setattr(bench.plugin.gpu_times, "tell", broken)
        for _ in range(60):
            bench.plugin.telling.run_due()
            bench.clock.advance(0.5)
        assert 1 < len(tried) < 6
        assert bench.plugin.telling.faults == {"GPU times": len(tried)}

    def test_in_the_scan_ends_the_process(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start()
        statuses: list[int] = []
        monkeypatch.setattr("tenfold_device_plugin.duties.os._exit", statuses.append)
        monkeypatch.setattr(bench.cards, "scan", lambda: 1 / 0)
        bench.clock.advance(bench.settings.scan_seconds)
        bench.plugin.rounds.run_due()
        assert statuses == [3]


def test_the_threads_together_bind_a_pod() -> None:
    """``run`` as it is, with real time."""
    bench = Bench()
    bench.clock = RunningClock()
    try:
        bench.start()
        running = threading.Thread(target=bench.plugin.run)
        bench.plugin.begin = lambda: None  # type: ignore[method-assign]
        running.start()
        found = pod("one")
        bench.cluster.put(found)
        until(lambda: bench.cluster.annotations(found)[wire.POD_BIND_PHASE_ANNOTATION] == wire.BIND_PHASE_SUCCESS, "the writer has written")
        bench.kubelet.restart()
        until(lambda: bench.kubelet.ids, "it has registered again")
        bench.kubelet.admit(found)
        bench.plugin.stop()
        running.join(10)
        assert not running.is_alive() and counts(bench) == [0, 0]
    finally:
        bench.close()
