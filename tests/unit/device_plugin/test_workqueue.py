"""The queue's laws: one object's trouble is its own, and nothing is lost, hurried or repeated without measure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenfold_device_plugin.workqueue import Budget, Pauses, WorkQueue
from tests.unit.device_plugin.bench import ManualClock

BUDGETS = {"node": Budget(3, 10.0), "pod": Budget(2, 10.0)}
PAUSES = Pauses(1.0, 8.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> WorkQueue:
    return WorkQueue(clock, BUDGETS, jitter=lambda: 0.5)


class TestWhatIsDue:
    def test_is_taken_once_however_often_it_was_added(self, queue: WorkQueue) -> None:
        for _ in range(3):
            queue.add("pod/a")
        assert (queue.take(), queue.take()) == ("pod/a", None)

    def test_comes_by_urgency_then_by_age(self, queue: WorkQueue, clock: ManualClock) -> None:
        for key in ("pod/b", "pod/a", "node"):
            queue.add(key)
            clock.advance(1)
        assert [queue.take() for _ in range(3)] == ["node", "pod/b", "pod/a"]

    def test_is_worked_on_again_if_it_was_added_meanwhile(self, queue: WorkQueue) -> None:
        queue.add("pod/a")
        queue.take()
        queue.add("pod/a")
        queue.done("pod/a")
        assert queue.take() == "pod/a"

    def test_comes_back_when_it_asked_for_that(self, queue: WorkQueue, clock: ManualClock) -> None:
        queue.add("node")
        queue.take()
        queue.done("node", again_seconds=30)
        assert queue.take() is None
        clock.advance(30)
        assert queue.take() == "node"


class TestAFailure:
    def test_pauses_its_own_key_alone_and_longer_each_time(self, queue: WorkQueue, clock: ManualClock) -> None:
        queue.add("pod/bad")
        tried = []
        for second in range(40):
            queue.add("pod/good")
            while (key := queue.take()) is not None:
                if key == "pod/bad":
                    tried.append(second)
                    queue.failed(key, PAUSES)
                else:
                    queue.done(key)
                    assert key == "pod/good"
            clock.advance(1)
        assert tried == [0, 1, 3, 7, 15, 23, 31, 39]

    def test_is_not_hurried_by_news_of_its_object(self, queue: WorkQueue, clock: ManualClock) -> None:
        queue.add("pod/a")
        queue.failed(str(queue.take()), PAUSES)
        queue.add("pod/a")
        assert queue.take() is None
        clock.advance(1)
        assert queue.take() == "pod/a"

    def test_is_forgotten_when_its_object_is_another_one(self, queue: WorkQueue) -> None:
        queue.add("node")
        queue.failed(str(queue.take()), PAUSES)
        queue.forget("node")
        assert queue.take() == "node"

    @given(st.integers(1, 100), st.floats(0, 1))
    def test_pauses_within_bounds(self, failures: int, jitter: float) -> None:
        assert 0.5 <= PAUSES.after(failures, lambda: jitter) <= 12.0


class TestABudget:
    def test_bounds_what_a_key_that_always_succeeds_may_ask(self, queue: WorkQueue, clock: ManualClock) -> None:
        asked = 0
        for _ in range(1000):
            queue.add("pod/fought-over")
            while (key := queue.take()) is not None:
                queue.done(key, asked=True)
                asked += 1
            clock.advance(0.1)
        assert asked == 2 + 9  # a burst, then one every ten seconds

    def test_is_not_spent_by_looking(self, queue: WorkQueue) -> None:
        for _ in range(100):
            queue.add("pod/a")
            queue.done(str(queue.take()))

    def test_of_one_key_is_not_anothers(self, queue: WorkQueue) -> None:
        for number in range(100):
            queue.add(f"pod/{number}")
            queue.done(str(queue.take()), asked=True)


def test_keys_that_are_done_are_forgotten(queue: WorkQueue, clock: ManualClock) -> None:
    for number in range(100):
        queue.add(f"pod/{number}")
        queue.done(str(queue.take()), asked=True)
    clock.advance(3600)
    queue.wait(0)
    assert queue._works == {}
