"""Clean-up of slots: the dead go after the grace time, the living never."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenfold_device_plugin._domain import region, wire
from tenfold_device_plugin.collect import UNSTARTED_SECONDS
from tests.unit.device_plugin.bench import CARD_A, CARD_B, MIB, Bench, pod


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def files(bench: Bench, slot: str) -> list[Path]:
    places = [bench.settings.cdi_dir / f"tenfold-{slot}.json", bench.settings.slots_dir / slot]
    return [path for path in places if path.exists()]


def collect(bench: Bench, grace_seconds: float = 15.0) -> list[str]:
    """Two looks, one grace time apart."""
    bench.until_seen()
    bench.plugin.collector.collect()
    bench.clock.advance(grace_seconds)
    return bench.plugin.collector.collect()


class TestTheDead:
    def test_lose_their_files_and_their_record(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        created = bench.run(found)
        bench.end(found)
        assert collect(bench) == [created.slot]
        assert files(bench, created.slot) == [] and created.slot not in bench.plugin.bookings.ledger.slots

    def test_are_kept_for_the_grace_time(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        created = bench.run(found)
        bench.end(found)
        bench.until_seen()
        assert bench.plugin.collector.collect() == [] and len(files(bench, created.slot)) == 2

    def test_include_slots_that_were_allocated_and_never_started(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        bench.bind(found)
        bench.kubelet.admit(found)
        (slot,) = bench.plugin.bookings.ledger.slots
        assert collect(bench) == []
        bench.end(found)
        assert collect(bench) == []
        bench.clock.advance(UNSTARTED_SECONDS)
        assert bench.plugin.collector.collect() == [slot]

    def test_leave_nothing_behind_however_many_never_started(self, bench: Bench) -> None:
        bench.start()
        for number in range(60):
            found = pod(f"p{number}")
            bench.bind(found)
            bench.kubelet.admit(found)
            bench.end(found)
            bench.clock.advance(5)
            bench.settle()
            bench.plugin.collector.collect()
        assert len(bench.plugin.bookings.ledger.slots) <= 1 + UNSTARTED_SECONDS / 5

    def test_include_files_that_nobody_remembers(self, bench: Bench) -> None:
        bench.start()
        stray = "f" * 32
        bench.plugin.binder.parts.cdi_folder.write(stray, {})
        bench.plugin.collector.collect()
        assert files(bench, stray) == []

    def test_leave_files_of_others_in_the_cdi_folder(self, bench: Bench) -> None:
        bench.start()
        other = bench.settings.cdi_dir / "tenfold-site-extra.json"
        other.write_text('{"cdiVersion": "0.6.0", "kind": "example.com/x", "devices": []}', encoding="utf-8")
        leftover = bench.settings.cdi_dir / f".tenfold-{'0' * 32}.json.tmp"
        leftover.touch()
        for _ in range(3):
            bench.plugin.collector.collect()
            bench.clock.advance(60)
        assert other.exists() and not leftover.exists()

    def test_free_their_share_at_once(self, bench: Bench) -> None:
        bench.start()
        found = pod("one", "xlarge")
        bench.run(found)
        bench.end(found)
        bench.settle()
        assert bench.plugin.bookings.ledger.bookings == {}


class TestTheLiving:
    @pytest.mark.parametrize(("init", "app"), [(2, 1), (1, 2)])
    @pytest.mark.parametrize("known", [True, False], ids=["by the checkpoint", "by their ids"])
    def test_keep_their_slots_while_images_are_pulled_with_another_card_count_in_init(
        self, bench: Bench, init: int, app: int, known: bool
    ) -> None:
        def limits(number: int) -> dict[str, str]:
            return {wire.RESOURCE_NUMBER: str(number), wire.RESOURCE_MEMORY: "4096", wire.RESOURCE_CORES: "10"}

        bench.kubelet.writes_checkpoint = known
        bench.start()
        found = pod("p", None, limits=[limits(app)], card=[[CARD_A, CARD_B][:app]])
        found["spec"]["initContainers"] = [{"name": "setup", "resources": {"limits": limits(init)}}]
        bench.bind(found)
        bench.kubelet.admit(found)
        for _ in range(30):
            assert collect(bench) == []
        for name in ("setup", "c0"):
            assert len(bench.kubelet.start(found, name).gpus) == app

    def test_include_what_a_process_has_that_outlives_its_pod(self, bench: Bench) -> None:
        bench.start()
        found = pod("one", "xlarge")
        created = bench.run(found)
        bench.process(77, created.slot)
        bench.cluster.delete(found)
        bench.kubelet.forget(found)
        for _ in range(10):
            bench.settle()
            bench.clock.advance(60)
        assert len(files(bench, created.slot)) == 2
        assert bench.plugin.bookings.ledger.bookings[found["metadata"]["uid"]].cards == {CARD_A}
        bench.end_process(77)
        bench.settle()
        assert bench.plugin.bookings.ledger.bookings == {}
        assert collect(bench) == [created.slot]

    def test_are_never_touched(self, bench: Bench) -> None:
        bench.start()
        created = bench.run(pod("one"))
        waiting = pod("waiting", card=CARD_B)
        bench.bind(waiting)
        bench.kubelet.admit(waiting)
        for _ in range(3):
            assert collect(bench) == []
        assert len(files(bench, created.slot)) == 2 and len(bench.plugin.bookings.ledger.slots) == 2

    def test_survive_a_kubelet_that_does_not_answer(self, bench: Bench) -> None:
        bench.start()
        waiting = pod("waiting")
        bench.bind(waiting)
        bench.kubelet.admit(waiting)
        bench.kubelet.stop_serving()
        assert collect(bench) == []

    def test_survive_a_plugin_that_does_not_know_the_pods_yet(self, bench: Bench) -> None:
        bench.start()
        bench.run(pod("one"))
        bench.plugin.bookings.synced = False
        assert bench.plugin.collector.collect() == []

    def test_keep_files_that_a_damaged_ledger_has_forgotten(self, bench: Bench) -> None:
        bench.start()
        created = bench.run(pod("one"))
        bench.plugin.bookings.ledger.remove(slots=[created.slot])
        bench.plugin.bookings.ledger.recovered_from = "the ledger was damaged"
        assert collect(bench) == [] and len(files(bench, created.slot)) == 2

    def test_come_back_from_the_dead_list_when_the_watch_had_a_gap(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        created = bench.run(found)
        bench.settle()
        shown = bench.plugin.bookings.pods.pop(found["metadata"]["uid"])
        bench.plugin.collector.collect()
        bench.plugin.bookings.pods[found["metadata"]["uid"]] = shown
        assert collect(bench) == [] and len(files(bench, created.slot)) == 2


class TestAStateThatItsContainerLengthened:
    def test_is_cut_back_with_an_event_and_keeps_its_numbers(self, bench: Bench) -> None:
        bench.start()
        created = bench.run(pod("greedy"))
        bench.spend(created.slot, 5 * MIB)
        path = bench.settings.slots_dir / created.slot / "state"
        with open(path, "ab") as stream:
            stream.write(bytes(MIB))
        bench.plugin.collector.collect()
        assert path.stat().st_size == region.STATE_BYTES
        assert region.read_state(path.parent).gpus[0].used_bytes == 5 * MIB
        bench.plugin.writer.work_all()
        assert f"by {MIB} bytes; cut back" in bench.cluster.events[-1]["message"]

    def test_of_the_right_size_is_left_alone(self, bench: Bench) -> None:
        bench.start()
        bench.run(pod("one"))
        bench.plugin.collector.collect()
        bench.plugin.writer.work_all()
        assert bench.cluster.events == []
