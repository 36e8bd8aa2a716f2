"""A running pod's quota follows its annotation: grown, shrunk, refused, and killed at every step on the way."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenfold_device_plugin import quotas
from tenfold_device_plugin._domain import region, wire
from tenfold_device_plugin.errors import ClusterUnavailable
from tenfold_device_plugin.ledger import Ledger
from tenfold_device_plugin.pages import Pages
from tenfold_device_plugin.quotas import HOLD_SECONDS, PATIENCE_SECONDS
from tests.unit.device_plugin.bench import CARD_A, CARD_B, CARD_MIB, MIB, Bench, Created, pod

SMALL, MEDIUM, LARGE = (8192, 10), (16384, 30), (32768, 60)
STEP_SECONDS = 1.0


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def ask(bench: Bench, found: dict[str, Any], text: str = "", **request: Any) -> None:
    words = text or json.dumps({"uid": found["metadata"]["uid"], **request})
    bench.cluster.change(found, annotations={**bench.cluster.annotations(found), wire.QUOTA_ANNOTATION: words})


def go_on(bench: Bench, seconds: float) -> None:
    """Time goes by; the kubelet reports the node's status."""
    for _ in range(int(seconds / STEP_SECONDS) + 1):
        bench.settle()
        bench.cluster.kubelet_status_update()
        bench.clock.advance(STEP_SECONDS)
    bench.settle()


def status(bench: Bench, found: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(bench.cluster.annotations(found).get(wire.QUOTA_STATUS_ANNOTATION, "{}"))
    return answer


def page(bench: Bench, created: Created) -> tuple[int, int]:
    (gpu,) = region.read_config(bench.settings.slots_dir / created.slot).gpus
    return gpu.memory_limit_bytes // MIB, gpu.core_limit_percent


def assigned(bench: Bench, found: dict[str, Any]) -> tuple[int, int]:
    ((assignment,),) = wire.decode_segments(bench.cluster.annotations(found)[wire.POD_IDS_ANNOTATION])
    return assignment.memory_mib, assignment.cores_percent


def shown_mib(bench: Bench) -> int:
    return int(bench.cluster.node_object["status"]["allocatable"][wire.RESOURCE_MEMORY])


def away(*_arguments: Any) -> Any:
    """Stands for a call of the API server that gets no answer."""
    raise ClusterUnavailable("connection refused")


class TestARequest:
    def test_grows_the_page_after_the_scheduler_and_the_node_have_been_told(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        created = bench.run(found)
        before_mib = shown_mib(bench)
        ask(bench, found, tier="medium")
        go_on(bench, 0)
        assert (page(bench, created), assigned(bench, found), status(bench, found)["phase"]) == (SMALL, MEDIUM, "changing")
        assert shown_mib(bench) == before_mib - (MEDIUM[0] - SMALL[0])
        go_on(bench, HOLD_SECONDS)
        assert (page(bench, created), assigned(bench, found)) == (MEDIUM, MEDIUM)
        answer = status(bench, found)
        assert (answer["phase"], answer["tier"], answer["containers"]["c0"][0]["memory_mib"]) == ("done", "medium", MEDIUM[0])
        assert "VgpuQuotaChanged" in [event["reason"] for event in bench.cluster.events]

    def test_shrinks_the_page_first_and_frees_what_is_over_for_others(self, bench: Bench) -> None:
        bench.start()
        found, waiting = pod("one", "large"), pod("two", "xlarge")
        created = bench.run(found)
        bench.run(pod("other", "large", card=CARD_B))
        bench.bind(waiting)
        assert waiting["metadata"]["uid"] not in bench.plugin.bookings.ledger.bookings
        ask(bench, found, memory_mib=8192, cores_percent=10)
        bench.settle()
        assert (page(bench, created), assigned(bench, found)) == (SMALL, LARGE)
        go_on(bench, 1)
        assert (page(bench, created), assigned(bench, found), status(bench, found)["phase"]) == (SMALL, SMALL, "done")
        assert waiting["metadata"]["uid"] in bench.plugin.bookings.ledger.bookings

    def test_of_more_memory_and_fewer_cores_promises_the_smaller_of_each_meanwhile(self, bench: Bench) -> None:
        bench.start()
        found = pod("one", "large")
        created = bench.run(found)
        ask(bench, found, memory_mib=40960, cores_percent=20)
        go_on(bench, 0)
        assert (page(bench, created), assigned(bench, found)) == ((32768, 20), (40960, 60))
        go_on(bench, HOLD_SECONDS)
        assert (page(bench, created), assigned(bench, found)) == ((40960, 20), (40960, 20))

    def test_that_the_card_cannot_hold_is_refused_with_the_arithmetic(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        created = bench.run(found)
        bench.run(pod("two", "large"))
        bench.run(pod("three", "medium"))
        ask(bench, found, tier="large")
        go_on(bench, HOLD_SECONDS)
        assert (page(bench, created), assigned(bench, found), status(bench, found)["phase"]) == (SMALL, SMALL, "refused")
        assert "has 90 percent booked, 60 claimed" in status(bench, found)["message"]
        assert "VgpuQuotaRefused" in [event["reason"] for event in bench.cluster.events]
        ask(bench, found, memory_mib=65536)
        go_on(bench, HOLD_SECONDS)
        assert "has 32768 of 81920 MiB free, 65536 claimed" in status(bench, found)["message"]

    def test_for_less_than_is_used_waits_and_is_taken_back(self, bench: Bench) -> None:
        bench.start()
        found = pod("one", "medium")
        created = bench.run(found)
        bench.spend(created.slot, 9000 * MIB)
        ask(bench, found, tier="small")
        go_on(bench, PATIENCE_SECONDS / 2)
        assert (page(bench, created), assigned(bench, found)) == (SMALL, MEDIUM)
        go_on(bench, PATIENCE_SECONDS / 2 + 1)
        assert (page(bench, created), assigned(bench, found), status(bench, found)["phase"]) == (MEDIUM, MEDIUM, "refused")
        assert f"uses 9000 MiB of card {CARD_A!r}, 8192 MiB are asked for" in status(bench, found)["message"]
        bench.spend(created.slot, 0)
        ask(bench, found, tier="small", revision="again")
        go_on(bench, 1)
        assert (page(bench, created), status(bench, found)["phase"]) == (SMALL, "done")

    def test_gives_way_to_a_pod_that_the_scheduler_bound_before_it_knew(self, bench: Bench) -> None:
        bench.start()
        found, late = pod("one"), pod("late", "xlarge")
        created = bench.run(found)
        bench.run(pod("full", "xlarge", card=CARD_B))
        ask(bench, found, tier="medium")
        go_on(bench, 0)
        bench.bind(late)
        go_on(bench, HOLD_SECONDS)
        assert (page(bench, created), assigned(bench, found), status(bench, found)["phase"]) == (SMALL, SMALL, "refused")
        assert "default/late" in status(bench, found)["message"]
        assert late["metadata"]["uid"] in bench.plugin.bookings.ledger.bookings

    def test_that_the_api_server_does_not_take_is_given_up(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start()
        found = pod("one")
        created = bench.run(found)

        monkeypatch.setattr(bench.cluster, "annotate_pod", away)
        ask(bench, found, tier="medium")
        go_on(bench, 2 * PATIENCE_SECONDS)
        monkeypatch.undo()
        go_on(bench, 2 * PATIENCE_SECONDS)
        assert (page(bench, created), assigned(bench, found), status(bench, found)["phase"]) == (SMALL, SMALL, "refused")
        assert "the API server has not taken" in status(bench, found)["message"]

    def test_waits_until_the_node_shows_no_more_than_is_free(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start()
        found = pod("one")
        created = bench.run(found)

        monkeypatch.setattr(bench.cluster, "set_node_resources", away)
        ask(bench, found, tier="medium")
        go_on(bench, PATIENCE_SECONDS + 1)
        assert (page(bench, created), assigned(bench, found), status(bench, found)["phase"]) == (SMALL, SMALL, "refused")
        assert "the node still shows more than is free" in status(bench, found)["message"]

    @pytest.mark.parametrize(
        ("request_", "words"),
        [
            ({"uid": "another", "tier": "medium"}, "is for the pod with UID 'another'"),
            ({"tier": "huge"}, "tier is 'huge', expected one of"),
            ({"tier": "medium", "memory_mib": 1}, "both a tier and numbers"),
            ({}, "or neither"),
            ({"memory_mib": True}, "memory_mib is True"),
            ({"memory_mib": 0}, "memory_mib is 0"),
            ({"cores_percent": 101}, "cores_percent is 101"),
            ({"tier": "medium", "container": "c9"}, "container 'c9' has no slice; those that have: c0"),
            ({"tier": ["medium"]}, "are strings"),
            ({"colour": "red"}, "colour"),
        ],
    )
    def test_that_is_none_is_refused_by_name(self, bench: Bench, request_: dict[str, Any], words: str) -> None:
        bench.start()
        found = pod("one")
        created = bench.run(found)
        ask(bench, found, **request_)
        go_on(bench, 1)
        assert status(bench, found)["phase"] == "refused" and words in status(bench, found)["message"]
        assert page(bench, created) == SMALL

    @pytest.mark.parametrize("text", ["medium", "[]", "{", '"x"', "[" * 2000, '{"uid": 1, "\\ud800": 2}', '{"uid": NaN, "a": 1e999}'])
    def test_in_no_form_is_refused(self, bench: Bench, text: str) -> None:
        bench.start()
        found = pod("one")
        bench.run(found)
        ask(bench, found, text)
        go_on(bench, 1)
        assert "is no request for a quota" in status(bench, found)["message"]

    def test_for_one_container_leaves_the_others(self, bench: Bench) -> None:
        bench.start()
        limits = {wire.RESOURCE_NUMBER: "1", wire.RESOURCE_MEMORY: "4096", wire.RESOURCE_CORES: "10"}
        found = pod("two", None, limits=[limits, limits])
        bench.bind(found)
        bench.kubelet.admit(found)
        first, second = bench.kubelet.start(found, "c0"), bench.kubelet.start(found, "c1")
        ask(bench, found, container="c1", memory_mib=6144)
        go_on(bench, HOLD_SECONDS)
        assert (page(bench, first), page(bench, second)) == ((4096, 10), (6144, 10))


class TestWhatIsInForce:
    def test_outlives_plugin_boot_and_container(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        bench.run(found)
        ask(bench, found, tier="medium")
        go_on(bench, HOLD_SECONDS)
        bench.crash()
        for folder in bench.settings.slots_dir.iterdir():
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        bench.start()
        go_on(bench, 1)
        assert page(bench, bench.kubelet.start(found)) == assigned(bench, found) == MEDIUM

    def test_is_booked_again_by_the_operators_request_when_the_ledger_is_lost(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        bench.run(found)
        ask(bench, found, tier="medium")
        go_on(bench, HOLD_SECONDS)
        bench.crash()
        for path in bench.settings.state_dir.glob("ledger*.json"):
            path.unlink()
        bench.start()
        go_on(bench, HOLD_SECONDS)
        assert assigned(bench, found) == MEDIUM
        assert bench.plugin.bookings.ledger.bookings[found["metadata"]["uid"]].segments()[0][0].memory_mib == MEDIUM[0]

    def test_is_what_a_container_moves_with(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        bench.bind(found)
        bench.kubelet.admit(found)
        ask(bench, found, tier="medium")
        go_on(bench, HOLD_SECONDS)
        bench.cards.cards = bench.cards.cards[1:]
        bench.clock.advance(bench.settings.scan_seconds)
        bench.settle()
        (gpu,) = bench.kubelet.start(found).gpus
        assert (gpu.uuid, gpu.memory_limit_bytes // MIB) == (CARD_B, MEDIUM[0])

    def test_a_start_in_the_middle_gets_the_smaller_numbers(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        created = bench.run(found)
        ask(bench, found, tier="medium")
        go_on(bench, 0)
        assert status(bench, found)["phase"] == "changing"
        assert page(bench, bench.kubelet.start(found)) == SMALL
        go_on(bench, HOLD_SECONDS)
        assert page(bench, created) == MEDIUM


class Killed(BaseException):
    """The process ends here."""


class Steps:
    """Ends the process at one of the moments at which something leaves it: a ledger, a page, an annotation, a capacity."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bench: Bench, check: Callable[[], None]) -> None:
        self.left: float = float("inf")
        self._check = check
        for owner, name in ((Ledger, "_write"), (Pages, "rewrite"), (bench.cluster, "annotate_pod"), (bench.cluster, "set_node_resources")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, action: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self._pass()
            answer = action(*arguments, **named)
            self._check()
            self._pass()
            return answer

        return counted

    def _pass(self) -> None:
        self.left -= 1
        if self.left < 0:
            self.left = float("inf")
            raise Killed


@pytest.mark.parametrize(
    ("before", "request_", "after", "used_mib"),
    [
        ("small", {"tier": "medium"}, MEDIUM, 0),
        ("medium", {"tier": "small"}, SMALL, 0),
        ("large", {"memory_mib": 40960, "cores_percent": 10}, (40960, 10), 0),
        ("medium", {"tier": "small"}, MEDIUM, 9000),
    ],
)
def test_killed_at_any_step_it_ends_in_the_old_or_the_new_quota(
    monkeypatch: pytest.MonkeyPatch, before: str, request_: dict[str, Any], after: tuple[int, int], used_mib: int
) -> None:
    if used_mib:
        monkeypatch.setattr(quotas, "PATIENCE_SECONDS", 4.0)
    for moment in itertools.count():
        bench = Bench()
        try:
            bench.start()
            found, other = pod("one", before), pod("two", "medium")
            created, others = bench.run(found), bench.run(other)
            bench.spend(created.slot, used_mib * MIB)
            go_on(bench, 0)

            def check(bench: Bench = bench, created: Created = created, others: Created = others) -> None:
                assert page(bench, created)[0] + page(bench, others)[0] <= CARD_MIB
                booked = [share for each in bench.plugin.bookings.ledger.bookings.values() for share in each.segments()[0]]
                assert sum(share.memory_mib for share in booked) <= CARD_MIB
                of_pod = bench.plugin.bookings.ledger.bookings[found["metadata"]["uid"]].segments()[0][0]  # noqa: B023
                assert page(bench, created)[0] <= of_pod.memory_mib

            with monkeypatch.context() as patched:
                steps = Steps(patched, bench, check)
                steps.left = moment
                ask(bench, found, **request_)
                try:
                    go_on(bench, HOLD_SECONDS + 3)
                except Killed:
                    bench.crash()
                    is_killed = True
                    bench.start()
                    go_on(bench, 3 * HOLD_SECONDS)
                else:
                    is_killed = False
            assert page(bench, created) == assigned(bench, found) == after
            assert status(bench, found)["phase"] == ("refused" if used_mib else "done")
            if not is_killed:
                assert moment > 8, "nothing was killed"
                return
        finally:
            bench.close()
