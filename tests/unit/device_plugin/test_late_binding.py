"""A pod's way to its slice over real sockets: whatever the order, each container gets what the scheduler annotated, and nobody else's."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tenfold_device_plugin import binding
from tenfold_device_plugin._domain import region, wire
from tenfold_device_plugin.bookings import STUCK_SECONDS
from tenfold_device_plugin.errors import Refused
from tenfold_device_plugin.main import NEIGHBOURS_SECONDS
from tenfold_device_plugin.podresources import Holder
from tenfold_device_plugin.state import Card
from tests.unit.device_plugin.bench import (
    CARD_A,
    CARD_B,
    CARD_MIB,
    CATALOGUE,
    MIB,
    NODE,
    Bench,
    Created,
    StartFailed,
    assign,
    pod,
)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def limits(memory_mib: int, cores: int, number: int = 1) -> dict[str, str]:
    return {wire.RESOURCE_NUMBER: str(number), wire.RESOURCE_MEMORY: str(memory_mib), wire.RESOURCE_CORES: str(cores)}


def slices(created: Created) -> list[tuple[str, int, int]]:
    return [(gpu.uuid, gpu.memory_limit_bytes // MIB, gpu.core_limit_percent) for gpu in created.gpus]


def reasons(bench: Bench) -> list[str]:
    bench.plugin.writer.work_all()
    return [event["reason"] for event in bench.cluster.events]


class TestTheChain:
    def test_a_small_pod_gets_its_card_its_memory_and_its_cores(self, bench: Bench) -> None:
        bench.start()
        created = bench.run(pod("one", "small", card=CARD_B))
        assert slices(created) == [(CARD_B, 8192, 10)]
        assert created.devices == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"]
        assert "NVIDIA_VISIBLE_DEVICES=void" in created.edits["env"]

    def test_a_tier_with_a_higher_limit_than_reserve_is_limited_by_the_limit(self, bench: Bench) -> None:
        bench.start()
        assert slices(bench.run(pod("one", "xlarge"))) == [(CARD_A, 65536, 100)]

    def test_the_bind_phase_is_success_before_any_container_starts(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        bench.bind(found)
        assert bench.cluster.annotations(found)[wire.POD_BIND_PHASE_ANNOTATION] == wire.BIND_PHASE_SUCCESS

    def test_ids_are_steered_to_the_annotated_card(self, bench: Bench) -> None:
        bench.start()
        for number in range(6):
            found = pod(f"p{number}", card=CARD_B if number % 2 else CARD_A)
            bench.bind(found)
            bench.kubelet.admit(found)
            (admitted,) = [entry for entry in bench.kubelet.admitted if entry.pod == f"p{number}"]
            assert [device_id.partition("::")[0] for device_id in admitted.ids] == [CARD_B if number % 2 else CARD_A]

    def test_two_containers_get_their_own_segments_and_a_third_none(self, bench: Bench) -> None:
        bench.start()
        found = pod("two", None, limits=[None, limits(4096, 10), limits(2048, 20)], card=[[CARD_A], [CARD_B]])
        bench.bind(found)
        bench.kubelet.admit(found)
        assert slices(bench.kubelet.start(found, "c2")) == [(CARD_B, 2048, 20)]
        assert slices(bench.kubelet.start(found, "c1")) == [(CARD_A, 4096, 10)]

    def test_a_container_with_two_cards_has_both_in_its_page_and_devices(self, bench: Bench) -> None:
        bench.start()
        created = bench.run(pod("multi", None, limits=[limits(4096, 10, number=2)], card=[[CARD_B, CARD_A]]))
        assert slices(created) == [(CARD_B, 4096, 10), (CARD_A, 4096, 10)]
        assert {"/dev/nvidia0", "/dev/nvidia1"} <= set(created.devices)

    def test_a_whole_card_is_limited_to_the_card_and_its_cores_are_not(self, bench: Bench) -> None:
        bench.start()
        created = bench.run(pod("whole", None, limits=[{wire.RESOURCE_NUMBER: "1"}]))
        assert slices(created) == [(CARD_A, CARD_MIB, 0)]

    def test_init_and_app_container_share_ids_and_both_get_the_slice(self, bench: Bench) -> None:
        bench.start()
        found = pod("init")
        found["spec"]["initContainers"] = [{"name": "setup", "resources": {"limits": limits(8192, 10)}}]
        bench.bind(found)
        bench.kubelet.admit(found)
        setup, app = bench.kubelet.admitted
        assert setup.ids == app.ids and setup.cdi_names != app.cdi_names
        assert slices(bench.kubelet.start(found, "setup")) == [(CARD_A, 8192, 10)]
        assert slices(bench.kubelet.start(found, "c0")) == [(CARD_A, 8192, 10)]

    def test_a_hook_upgrade_is_for_new_containers_only(self, bench: Bench) -> None:
        bench.start()
        before = bench.run(pod("before"))
        bench.install_hook("0.2.0-22222222")
        after = bench.run(pod("after"))

        def library(created: Created) -> str:
            return str(next(m["hostPath"] for m in created.edits["mounts"] if m["containerPath"] == "/usr/local/tenfold/libtenfold.so"))

        assert "0.1.0-11111111" in library(before)
        assert "0.2.0-22222222" in library(after)


def start_all(bench: Bench, found: Sequence[dict[str, Any]]) -> tuple[dict[str, Created], dict[str, str]]:
    """Start every pod at once; what each got, and who failed with which words."""
    created: dict[str, Created] = {}
    failed: dict[str, str] = {}
    barrier = threading.Barrier(len(found))

    def start(each: dict[str, Any]) -> None:
        barrier.wait(5)
        try:
            created[each["metadata"]["name"]] = bench.kubelet.start(each)
        except StartFailed as error:
            failed[each["metadata"]["name"]] = str(error)

    threads = [threading.Thread(target=start, args=(each,)) for each in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return created, failed


def eleven(bench: Bench) -> tuple[dict[str, Any], list[str]]:
    """Eleven pods of different sizes on two cards, admitted in another order than created; who got another slice than annotated."""
    shapes = {f"p{n}": (CARD_A if n % 3 else CARD_B, 1024 * (n + 1), n + 1) for n in range(11)}
    found = [pod(name, None, limits=[limits(memory, cores)], card=card) for name, (card, memory, cores) in shapes.items()]
    bench.bind(*found)
    order = random.Random(7)
    order.shuffle(found)
    for each in found:
        bench.kubelet.admit(each)
    order.shuffle(found)
    created, failed = start_all(bench, found)
    wrong = [name for name, got in created.items() if slices(got) != [shapes[name]]]
    slots = [got.slot for got in created.values()]
    assert len(set(slots)) == len(slots)
    return failed, wrong


class TestManyAtOnce:
    def test_eleven_concurrent_starts_in_any_order_each_get_their_own_slice(self, bench: Bench) -> None:
        bench.start()
        assert eleven(bench) == ({}, [])

    def test_ten_small_pods_fill_a_card(self, bench: Bench) -> None:
        bench.start()
        found = [pod(f"s{n}") for n in range(10)]
        bench.bind(*found)
        for each in found:
            bench.kubelet.admit(each)
        created, failed = start_all(bench, found)
        assert not failed
        assert {slices(got)[0] for got in created.values()} == {(CARD_A, 8192, 10)}


class TestAPluginThatGuesses:
    """Mutations: these plugins answer like those of other projects, and the tests above must catch them."""

    @pytest.mark.parametrize("guess", ["oldest pending pod", "owner of the first id's card"])
    def test_is_caught_by_the_eleven_pods(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, guess: str) -> None:
        plugin = bench.start()

        def oldest_pending(_ids: Sequence[str], holders: Sequence[Holder]) -> Holder:
            booked = list(plugin.bookings.ledger.bookings.values())
            started = {slot.owner_uid for slot in plugin.bookings.ledger.slots.values()}
            booking = next((each for each in booked if each.uid not in started), booked[0])
            return next(holder for holder in holders if holder.pod == booking.name)

        def by_card(ids: Sequence[str], holders: Sequence[Holder]) -> Holder:
            card = ids[0].partition("::")[0]
            return next(holder for holder in holders if any(device_id.startswith(card) for device_id in holder.ids))

        mutant: Callable[..., Holder] = oldest_pending if guess == "oldest pending pod" else by_card
        monkeypatch.setattr(binding, "owner_of", mutant)
        failed, wrong = eleven(bench)
        assert failed or wrong


class TestRestarts:
    def test_a_container_restarts_with_the_same_slot_and_a_fresh_state(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        first = bench.run(found)
        again = bench.kubelet.start(found)
        assert (again.slot, slices(again)) == (first.slot, slices(first))

    def test_a_recorded_owner_restarts_without_the_api_server(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        first = bench.run(found)
        bench.cluster.away = True
        assert bench.kubelet.start(found).slot == first.slot

    def test_a_new_container_does_not_start_without_the_api_server(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        bench.bind(found)
        bench.kubelet.admit(found)
        bench.cluster.away = True
        with pytest.raises(StartFailed, match="api_unavailable: cannot ask whose pod default/one is"):
            bench.kubelet.start(found)
        bench.cluster.away = False
        assert slices(bench.kubelet.start(found)) == [(CARD_A, 8192, 10)]

    def test_a_plugin_that_was_restarted_knows_every_slot(self, bench: Bench) -> None:
        bench.start()
        running, waiting = pod("running"), pod("waiting", card=CARD_B)
        first = bench.run(running)
        bench.bind(waiting)
        bench.kubelet.admit(waiting)
        bench.crash()
        bench.start()
        assert bench.kubelet.start(running).slot == first.slot
        assert slices(bench.kubelet.start(waiting)) == [(CARD_B, 8192, 10)]

    @pytest.mark.parametrize("damage", ["{half", '{"format": 2}'], ids=["torn", "newer"])
    def test_slots_that_the_ledger_has_lost_come_from_the_kubelets_record(self, bench: Bench, damage: str) -> None:
        bench.start()
        found = [pod("first", card=CARD_B), pod("second", card=CARD_A)]
        created = [bench.run(each) for each in found]
        before = bench.plugin.bookings.ledger
        bench.settle()
        bench.crash()
        (bench.settings.state_dir / "ledger.json").write_text(damage, encoding="utf-8")
        if damage != "{half":
            (bench.settings.state_dir / "ledger.previous.json").write_text(damage, encoding="utf-8")
        bench.kubelet.ids = []
        bench.start()
        after = bench.plugin.bookings.ledger
        assert after.slots == before.slots
        assert {uid: booking.cards for uid, booking in after.bookings.items()} == {
            uid: booking.cards for uid, booking in before.bookings.items()
        }
        assert [bench.kubelet.start(each).slot for each in found] == [each.slot for each in created]

    def test_after_a_reboot_the_old_slot_names_work_again(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        first = bench.run(found)
        bench.crash()
        for path in bench.settings.cdi_dir.glob("tenfold-*.json"):  # /run is empty after a boot
            path.unlink()
        for path in bench.settings.slots_dir.rglob("*"):
            if path.is_file():
                path.unlink()
        with pytest.raises(StartFailed, match="unresolvable CDI devices"):
            bench.kubelet.create(bench.kubelet.admitted[0])
        bench.kubelet.restart()
        bench.start()
        assert bench.kubelet.start(found).slot == first.slot

    def test_while_the_api_server_is_away_a_new_plugin_still_serves_restarts(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        bench.run(found)
        bench.crash()
        bench.cluster.away = True
        bench.kubelet.registrations.clear()
        plugin = bench.start_blind()
        assert len(bench.kubelet.registrations) == 1
        assert slices(bench.kubelet.start(found)) == [(CARD_A, 8192, 10)]
        assert plugin.advertiser.node is None


class TestASlotNeverChangesHands:
    def test_a_namesake_with_another_uid_does_not_get_the_slot_of_the_first(self, bench: Bench) -> None:
        bench.start()
        first = pod("web-0", card=CARD_A)
        old = bench.run(first)
        bench.end(first)
        second = pod("web-0", card=CARD_A)
        new = bench.run(second)
        assert new.slot != old.slot
        assert bench.plugin.bookings.ledger.slots[old.slot].owner_uid == first["metadata"]["uid"]

    def test_a_start_of_the_first_is_refused_once_the_api_shows_the_second(self, bench: Bench) -> None:
        bench.start()
        first = pod("web-0")
        bench.run(first)
        bench.cluster.delete(first)  # by force: the kubelet still has the first
        bench.cluster.put(pod("web-0"))
        bench.settle()
        with pytest.raises(StartFailed, match="foreign_slot: every slot of these ids belongs to another pod"):
            bench.kubelet.start(first)

    def test_a_namesake_between_allocate_and_start_keeps_its_slice_to_itself(self, bench: Bench) -> None:
        """UID 1's container must not run on UID 2's booking, beside UID 2's own."""
        bench.start()
        first, second = pod("web-0", "small", card=CARD_A), pod("web-0", "large", card=CARD_B)
        bench.bind(first)
        bench.kubelet.admit(first)
        bench.cluster.delete(first)  # by force: the kubelet is about to start its container
        bench.bind(second)
        with pytest.raises(StartFailed, match=f"foreign_slot: .* {first['metadata']['uid']}, container 'c0'"):
            bench.kubelet.start(first)
        bench.kubelet.admit(second)
        with pytest.raises(StartFailed, match="foreign_slot"):
            bench.kubelet.start(first)
        assert slices(bench.kubelet.start(second)) == [(CARD_B, 32768, 60)]
        assert {slot.owner_uid for slot in bench.plugin.bookings.ledger.slots.values()} == {"", second["metadata"]["uid"]}

    @pytest.mark.parametrize("form", ["absent", "unknown", "other answers"])
    def test_where_the_kubelets_record_cannot_be_read_a_start_goes_on_and_it_is_said(
        self, bench: Bench, caplog: pytest.LogCaptureFixture, form: str
    ) -> None:
        bench.start()
        found = pod("one")
        bench.bind(found)
        bench.kubelet.writes_checkpoint = False
        bench.kubelet.admit(found)
        entry = {"PodUID": "x", "ContainerName": "c", "ResourceName": wire.RESOURCE_NUMBER, "DeviceIDs": {}, "AllocResp": "####"}
        texts = {"unknown": '{"Version": 3}', "other answers": json.dumps({"Data": {"PodDeviceEntries": [entry]}})}
        if form in texts:
            (bench.settings.device_plugins_dir / "kubelet_internal_checkpoint").write_text(texts[form], encoding="utf-8")
        with caplog.at_level("WARNING"):
            for _ in range(2):
                assert slices(bench.kubelet.start(found)) == [(CARD_A, 8192, 10)]
        assert caplog.text.count("a namesake's start is not told apart by the kubelet's record: ") == 1

    def test_without_the_api_server_a_mixed_record_is_not_trusted(self, bench: Bench) -> None:
        bench.start()
        first = pod("web-0")
        bench.run(first)
        (admitted,) = bench.kubelet.admitted
        bench.end(first)
        bench.plugin.binder.allocate([admitted.ids])  # a namesake's Allocate with the same ids, not started yet
        bench.kubelet.admitted.append(admitted)
        bench.cluster.away = True
        with pytest.raises(StartFailed, match="api_unavailable"):
            bench.kubelet.start(first)


class TestAWatchThatLagsBehind:
    def test_a_pod_that_only_prestart_has_seen_is_booked_and_kept(self, bench: Bench) -> None:
        bench.start()
        found = pod("early", card=CARD_B)
        found["metadata"]["annotations"][wire.POD_BIND_PHASE_ANNOTATION] = wire.BIND_PHASE_SUCCESS  # our write would show it to the watch
        bench.cluster.put_unseen(found)
        bench.kubelet.admit(found)
        assert slices(bench.kubelet.start(found)) == [(CARD_B, 8192, 10)]
        bench.run(pod("other"))
        assert found["metadata"]["uid"] in bench.plugin.bookings.ledger.bookings
        bench.clock.advance(60)
        bench.round()
        assert found["metadata"]["uid"] in bench.plugin.bookings.ledger.bookings

    def test_a_pod_that_was_deleted_meanwhile_does_not_stay_for_ever(self, bench: Bench) -> None:
        bench.start()
        found = pod("ghost", card=CARD_B)
        bench.cluster.put_unseen(found)
        bench.kubelet.admit(found)
        bench.kubelet.start(found)
        bench.cluster.pods.clear()  # its DELETED event came before PreStart had read the answer
        bench.clock.advance(60)
        for _ in range(2):  # the writer asks, the node's own round looks for processes
            bench.round()
        assert bench.plugin.bookings.ledger.bookings == {} and bench.plugin.bookings.pods == {}


class TestPodsThatBypassTheScheduler:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda p: p["spec"].update(schedulerName="default-scheduler"), "schedulerName is 'default-scheduler', expected volcano"),
            (lambda p: p["metadata"]["annotations"].update({"kubernetes.io/config.mirror": "x"}), "static pods get no slice"),
            (lambda p: p["status"].update(conditions=[]), "spec.nodeName was set by hand"),
        ],
    )
    def test_are_refused_at_start_with_an_event(self, bench: Bench, change: Callable[[Any], None], words: str) -> None:
        bench.start()
        found = pod("sneaky")
        change(found)
        bench.bind(found)
        bench.kubelet.admit(found)
        with pytest.raises(StartFailed, match=words):
            bench.kubelet.start(found)
        assert "VgpuStartRefused" in reasons(bench)
        assert wire.POD_BIND_PHASE_ANNOTATION not in {key for kind, patch in bench.cluster.writes if kind == "pod" for key in patch}

    def test_stay_refused_when_the_kubelet_reports_them_as_scheduled(self, bench: Bench) -> None:
        bench.start()
        found = pod("sneaky")
        found["status"]["conditions"] = []
        bench.bind(found)
        found["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        bench.bind(found)
        bench.kubelet.admit(found)
        with pytest.raises(StartFailed, match="bypass"):
            bench.kubelet.start(found)

    def test_a_forged_annotation_gives_nothing(self, bench: Bench) -> None:
        bench.start()
        found = pod("forger", "small")
        ids = found["metadata"]["annotations"][wire.POD_IDS_ANNOTATION].replace("8192", "81920")
        found["metadata"]["annotations"][wire.POD_IDS_ANNOTATION] = ids
        bench.bind(found)
        bench.kubelet.admit(found)
        with pytest.raises(StartFailed, match=r"81920 MiB and 10 percent of card .* by annotation, 8192 MiB and 10 percent by its limits"):
            bench.kubelet.start(found)

    def test_memory_without_a_number_is_told_by_name_and_nothing_is_booked(self, bench: Bench) -> None:
        """The kubelet starts such a container without asking us."""
        bench.start()
        found = pod("bare", None, limits=[{wire.RESOURCE_MEMORY: "8192", wire.RESOURCE_CORES: "10"}])
        bench.bind(found)
        [event] = bench.cluster.events
        assert event["reason"] == "VgpuNotBooked" and "container 'c0' asks for memory or cores of a card without" in event["message"]
        assert bench.plugin.bookings.ledger.bookings == {}
        assert bench.cluster.annotations(found)[wire.POD_BIND_PHASE_ANNOTATION] == wire.BIND_PHASE_ALLOCATING

    def test_a_sidecar_that_requests_a_slice_is_refused(self, bench: Bench) -> None:
        bench.start()
        found = pod("sidecar")
        found["spec"]["initContainers"] = [{"name": "mesh", "restartPolicy": "Always", "resources": {"limits": limits(1024, 1)}}]
        bench.bind(found)
        bench.kubelet.admit(found)
        with pytest.raises(StartFailed, match="sidecar: restartable init container 'mesh' requests a slice"):
            bench.kubelet.start(found)


class TestATakenCard:
    def test_a_pod_whose_card_is_full_moves_and_its_annotation_says_so(self, bench: Bench) -> None:
        bench.start()
        bench.run(pod("first", "xlarge"))
        second = pod("second", "large", card=CARD_A)
        assert slices(bench.run(second)) == [(CARD_B, 32768, 60)]
        annotations = bench.cluster.annotations(second)
        assert annotations[wire.POD_IDS_ANNOTATION] == f"{CARD_B},NVIDIA,32768,60:"
        assert annotations[wire.POD_DEVICES_TO_ALLOCATE_ANNOTATION] == annotations[wire.POD_IDS_ANNOTATION]
        assert "VgpuMoved" in reasons(bench)

    def test_a_pod_waits_for_a_terminating_one_and_takes_its_place(self, bench: Bench) -> None:
        bench.start()
        first, second = pod("first", "xlarge"), pod("second", "large")
        bench.run(first)
        bench.cluster.change(first, deleting=True)
        bench.bind(second)
        assert bench.cluster.annotations(second)[wire.POD_BIND_PHASE_ANNOTATION] == wire.BIND_PHASE_ALLOCATING
        bench.kubelet.admit(second)
        ending = threading.Timer(0.05, bench.end, args=(first,))
        ending.start()
        assert slices(bench.kubelet.start(second)) == [(CARD_A, 32768, 60)]
        ending.join()

    def test_a_terminating_pod_that_stays_too_long_makes_the_next_one_move(self, bench: Bench) -> None:
        bench.clock.advance(0)
        bench.start()
        first, second = pod("first", "xlarge"), pod("second", "large")
        bench.run(first)
        bench.cluster.change(first, deleting=True)
        bench.bind(second)
        bench.kubelet.admit(second)
        passing = threading.Timer(0.05, bench.clock.advance, args=(1.0,))
        passing.start()
        assert slices(bench.kubelet.start(second)) == [(CARD_B, 32768, 60)]
        passing.join()

    def test_waiting_does_not_hold_the_lock(self, bench: Bench) -> None:
        bench.start()
        first, second, third = pod("first", "xlarge"), pod("second", "large"), pod("third", card=CARD_B)
        bench.run(first)
        bench.cluster.change(first, deleting=True)
        bench.bind(second, third)
        bench.kubelet.admit(second)
        bench.kubelet.admit(third)
        waiting = threading.Thread(target=bench.kubelet.start, args=(second,))
        waiting.start()
        assert slices(bench.kubelet.start(third)) == [(CARD_B, 8192, 10)]
        assert waiting.is_alive()
        bench.end(first)
        waiting.join(5)
        assert not waiting.is_alive()

    def test_without_room_anywhere_the_start_is_refused_with_the_arithmetic(self, bench: Bench) -> None:
        bench.start()
        bench.run(pod("first", "xlarge", card=CARD_A))
        bench.run(pod("second", "xlarge", card=CARD_B))
        third = pod("third", "large", card=CARD_A)
        bench.bind(third)
        bench.kubelet.admit(third)
        with pytest.raises(StartFailed, match=r"no_room: .*65536 \+ 32768 = 98304 > 81920 MiB"):
            bench.kubelet.start(third)
        assert bench.plugin.reporter.refusals["no_room"] >= 1

    def test_a_force_deleted_pod_keeps_its_share_as_long_as_a_process_of_it_lives(self, bench: Bench) -> None:
        """Whatever its state says (the tenant writes it) and however long the driver holds on to it."""
        bench.start()
        first, second = pod("first", "xlarge"), pod("second", "large", card=CARD_A)
        created = bench.run(first)
        bench.process(77, created.slot)
        bench.spend(created.slot, 0)
        bench.cluster.delete(first)
        bench.bind(second)
        bench.clock.advance(3600)
        bench.settle()
        assert second["metadata"]["uid"] not in bench.plugin.bookings.ledger.bookings
        bench.end_process(77)
        bench.clock.advance(STUCK_SECONDS)
        bench.spend(created.slot, 5 * MIB)  # what a killed process leaves behind
        bench.settle()
        assert bench.plugin.bookings.ledger.bookings[second["metadata"]["uid"]].cards == {CARD_A}

    def test_where_processes_cannot_be_seen_a_force_deleted_pod_keeps_its_share_for_a_while_if_it_shows_memory(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench.start()
        monkeypatch.setattr("tenfold_device_plugin.kubelet.peer_pid", lambda _socket: 0)
        first, second = pod("first", "xlarge"), pod("second", "large")
        bench.spend(bench.run(first).slot, 5 * MIB)
        bench.cluster.delete(first)
        bench.bind(second)
        assert second["metadata"]["uid"] not in bench.plugin.bookings.ledger.bookings
        bench.clock.advance(bench.settings.forced_grace_seconds)
        bench.settle()
        assert bench.plugin.bookings.ledger.bookings[second["metadata"]["uid"]].cards == {CARD_A}

    @pytest.mark.parametrize("seen", [True, False])
    def test_a_force_deleted_pod_without_process_or_memory_frees_its_share_at_once(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, seen: bool
    ) -> None:
        bench.start()
        if not seen:
            monkeypatch.setattr("tenfold_device_plugin.kubelet.peer_pid", lambda _socket: 0)
        first, second = pod("first", "xlarge"), pod("second", "large")
        bench.spend(bench.run(first).slot, 0)
        bench.cluster.delete(first)
        bench.bind(second)
        assert bench.plugin.bookings.ledger.bookings[second["metadata"]["uid"]].cards == {CARD_A}

    def test_a_start_waits_for_a_force_deleted_pods_processes(self, bench: Bench) -> None:
        bench.start()
        first, second = pod("first", "xlarge"), pod("second", "large")
        bench.process(77, bench.run(first).slot)
        bench.cluster.delete(first)
        bench.bind(second)
        bench.kubelet.admit(second)

        def end() -> None:
            bench.end_process(77)
            bench.plugin.rounds.run_due()

        ending = threading.Timer(0.05, end)
        ending.start()
        assert slices(bench.kubelet.start(second)) == [(CARD_A, 32768, 60)]
        ending.join()

    def test_the_capacity_does_not_count_what_is_about_to_fall_free(self, bench: Bench) -> None:
        bench.start()
        first = pod("first", "xlarge")
        bench.process(77, bench.run(first).slot)
        bench.cluster.delete(first)
        bench.settle()
        assert first["metadata"]["uid"] in bench.plugin.bookings.ledger.bookings
        assert bench.cluster.node_object["status"]["capacity"][wire.RESOURCE_MEMORY] == str(2 * CARD_MIB)

    def test_a_card_that_was_pulled_is_left_for_another(self, bench: Bench) -> None:
        bench.start()
        found = pod("one", card=CARD_B)
        bench.bind(found)
        bench.kubelet.admit(found)
        bench.plugin.inventory.cards = [card for card in bench.plugin.inventory.cards if card.uuid == CARD_A]
        assert slices(bench.kubelet.start(found)) == [(CARD_A, 8192, 10)]


CARD_C = "GPU-cccccccc-0000-4000-8000-000000000003"


class TestACardThatFails:
    @pytest.fixture
    def three(self, bench: Bench) -> Bench:
        """A third card."""
        bench.cards.cards.append(Card(2, CARD_C, "NVIDIA A800-SXM4-80GB", CARD_MIB))
        path = bench.settings.cdi_dir / "nvidia.yaml"
        extra = f"  - name: {CARD_C}\n    containerEdits:\n      deviceNodes:\n        - path: /dev/nvidia2\n"
        path.write_text(path.read_text(encoding="utf-8") + extra, encoding="utf-8")
        bench.start()
        return bench

    def pull(self, bench: Bench, *uuids: str) -> None:
        """The cards are gone, and the plugin begins anew."""
        bench.crash()
        bench.cards.cards = [card for card in bench.cards.cards if card.uuid not in uuids]
        bench.start()

    def break_card(self, bench: Bench, index: int, fault: str) -> None:
        bench.cards.cards[index] = dataclasses.replace(bench.cards.cards[index], fault=fault)
        bench.clock.advance(bench.settings.scan_seconds)
        bench.round()

    def test_moves_the_container_that_starts_and_never_a_running_sibling(self, three: Bench) -> None:
        three.run(pod("filler", None, limits=[limits(40000, 20)], card=CARD_C))
        found = pod("two", None, limits=[limits(30000, 10), limits(4096, 10)], card=[[CARD_A], [CARD_B]])
        three.bind(found)
        three.kubelet.admit(found)
        first = three.kubelet.start(found, "c0")
        three.kubelet.start(found, "c1")
        three.cluster.change(found, phase="Running")
        three.until_seen()
        self.pull(three, CARD_B)
        assert slices(three.kubelet.start(found, "c1")) == [(CARD_C, 4096, 10)]
        assert region.read_config(three.settings.slots_dir / first.slot).gpus[0].uuid == CARD_A
        three.settle()
        assert three.cluster.annotations(found)[wire.POD_IDS_ANNOTATION] == f"{CARD_A},NVIDIA,30000,10:;{CARD_C},NVIDIA,4096,10:"

    def test_does_not_keep_a_sibling_on_another_card_from_restarting(self, bench: Bench) -> None:
        bench.start()
        found = pod("two", None, limits=[limits(4096, 10), limits(4096, 10)], card=[[CARD_A], [CARD_B]])
        bench.bind(found)
        bench.kubelet.admit(found)
        for name in ("c0", "c1"):
            bench.kubelet.start(found, name)
        bench.cluster.change(found, phase="Running")
        bench.until_seen()
        self.pull(bench, CARD_B)
        bench.run(pod("other", None, limits=[limits(77000, 80)]))
        assert slices(bench.kubelet.start(found, "c0")) == [(CARD_A, 4096, 10)]
        with pytest.raises(StartFailed, match=f"no_room: card '{CARD_B}', which it was booked on, is gone; no card of this node has room"):
            bench.kubelet.start(found, "c1")

    def test_before_the_first_start_makes_the_container_move(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        bench.bind(found)
        bench.kubelet.admit(found)
        self.break_card(bench, 0, "critical XID 79")
        assert slices(bench.kubelet.start(found)) == [(CARD_B, 8192, 10)]
        bench.settle()
        assert bench.cluster.annotations(found)[wire.POD_IDS_ANNOTATION] == f"{CARD_B},NVIDIA,8192,10:"

    def test_before_the_first_start_makes_the_container_wait_where_no_other_has_room(self, bench: Bench) -> None:
        bench.start()
        bench.run(pod("big", "xlarge", card=CARD_B))
        found = pod("one", "large", card=CARD_A)
        bench.bind(found)
        bench.kubelet.admit(found)
        self.break_card(bench, 0, "critical XID 79")
        with pytest.raises(StartFailed, match=r"no_room: card .* is out of service: critical XID 79; no card of this node has room"):
            bench.kubelet.start(found)
        self.break_card(bench, 0, "")
        assert slices(bench.kubelet.start(found)) == [(CARD_A, 32768, 60)]

    def test_after_the_first_start_is_the_containers_to_return_to(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        bench.run(found)
        self.break_card(bench, 0, "critical XID 79")
        assert slices(bench.kubelet.start(found)) == [(CARD_A, 8192, 10)]


class TestLostAnnotations:
    def test_of_a_booked_pod_are_written_back(self, bench: Bench) -> None:
        bench.start()
        found = pod("one", card=CARD_B)
        bench.run(found)
        bench.settle()
        before = bench.cluster.annotations(found)
        bench.cluster.change(found, annotations={})
        bench.settle()
        after = bench.cluster.annotations(found)
        for key in (wire.POD_IDS_ANNOTATION, wire.POD_NODE_ANNOTATION, wire.POD_BIND_PHASE_ANNOTATION):
            assert after[key] == before[key]

    def test_before_booking_the_limits_decide(self, bench: Bench) -> None:
        bench.start()
        bench.run(pod("first", "medium", card=CARD_B))
        found = pod("one", card=None)
        assert slices(bench.run(found)) == [(CARD_B, 8192, 10)]
        assert bench.cluster.annotations(found)[wire.POD_IDS_ANNOTATION] == f"{CARD_B},NVIDIA,8192,10:"
        assert bench.cluster.annotations(found)[wire.POD_NODE_ANNOTATION] == NODE

    def test_of_another_node_count_as_lost(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        found["metadata"]["annotations"][wire.POD_NODE_ANNOTATION] = "gpu-2"
        bench.run(found)
        assert bench.plugin.bookings.ledger.bookings[found["metadata"]["uid"]].source == "limits"
        assert bench.cluster.annotations(found)[wire.POD_NODE_ANNOTATION] == NODE

    def test_changed_ones_of_a_running_pod_are_put_right(self, bench: Bench) -> None:
        bench.start()
        found = pod("one", card=CARD_A)
        bench.run(found)
        bench.settle()
        changed = dict(bench.cluster.annotations(found))
        changed[wire.POD_IDS_ANNOTATION] = f"{CARD_A},NVIDIA,1,1:"
        bench.cluster.change(found, annotations=changed)
        bench.settle()
        assert bench.cluster.annotations(found)[wire.POD_IDS_ANNOTATION] == f"{CARD_A},NVIDIA,8192,10:"


class TestRefusalsThatPass:
    def test_without_a_hook_the_container_waits_for_one(self, bench: Bench) -> None:
        bench.start()
        (bench.settings.hook_root / "current").unlink()
        found = pod("one")
        bench.bind(found)
        bench.kubelet.admit(found)
        with pytest.raises(StartFailed, match=r"no_hook: no hook in force: .* run the role cuda_hook"):
            bench.kubelet.start(found)
        bench.install_hook("0.3.0-33333333")
        assert slices(bench.kubelet.start(found)) == [(CARD_A, 8192, 10)]

    def test_with_a_hook_older_than_the_plugin_nothing_is_written_and_the_plugin_is_not_ready(self, bench: Bench) -> None:
        """It stops the rollout of the plugin at this node; what runs goes on with its page."""
        bench.start()
        old = pod("running")
        running = bench.run(old)
        page = bench.settings.slots_dir / running.slot / "config"
        before = page.read_bytes()
        bench.install_hook("0.0.9-99999999")
        (bench.settings.hook_root / "0.0.9-99999999" / "libtenfold_page.so").unlink()
        found = pod("new")
        bench.bind(found)
        bench.kubelet.admit(found)
        with pytest.raises(StartFailed, match=r"no_hook: the hook in '.*-99999999' has no 'libtenfold_page\.so': it is older .* cuda_hook"):
            bench.kubelet.start(found)
        with pytest.raises(Refused, match="it is older than this device plugin"):
            bench.plugin.binder.rewrite_pages(old["metadata"]["uid"])
        assert not bench.plugin.ready
        assert page.read_bytes() == before
        bench.install_hook("0.3.0-33333333")
        assert bench.plugin.ready
        assert slices(bench.kubelet.start(found)) == [(CARD_A, 8192, 10)]

    def test_without_the_cards_cdi_device_the_container_waits_for_it(self, bench: Bench) -> None:
        bench.start()
        spec = bench.settings.cdi_dir / "nvidia.yaml"
        text = spec.read_text(encoding="utf-8")
        spec.write_text(text.replace(f"name: {CARD_A}", "name: GPU-other"), encoding="utf-8")
        found = pod("one")
        bench.bind(found)
        bench.kubelet.admit(found)
        with pytest.raises(StartFailed, match=f"cdi: the NVIDIA CDI specification has no device '{CARD_A}'"):
            bench.kubelet.start(found)
        spec.write_text(text, encoding="utf-8")
        assert slices(bench.kubelet.start(found)) == [(CARD_A, 8192, 10)]

    def test_ids_that_nobody_holds_are_refused(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        bench.bind(found)
        bench.kubelet.admit(found)
        (admitted,) = bench.kubelet.admitted
        bench.kubelet.admitted = []
        bench.plugin.binder.parts.pod_resources.holders()
        with pytest.raises(Exception, match="the kubelet names no container that holds the ids"):
            bench.plugin.binder.prepare_start(admitted.ids)

    def test_ids_without_a_slot_are_refused_with_the_way_out(self, bench: Bench) -> None:
        bench.start()
        with pytest.raises(Exception, match=r"no slot is recorded for .*; delete the pod"):
            bench.plugin.binder.prepare_start([f"{CARD_A}::0"])

    def test_numbers_of_no_tier_pass_once_a_catalogue_allows_them(self, bench: Bench) -> None:
        strict = dataclasses.replace(CATALOGUE, custom_allowed=False)
        bench.cluster.config_maps[("tenfold-system", f"tenfold-tiers-{strict.hash8}")] = {"catalogue.json": strict.as_json()}
        bench.cluster.set_node_annotation(wire.TIERS_REVISION_ANNOTATION, strict.hash8)
        bench.start()
        found = pod("odd", None, limits=[limits(512, 20)])
        bench.bind(found)
        bench.kubelet.admit(found)
        with pytest.raises(StartFailed, match=r"tier: catalogue .*: 512 MiB with 20 percent of the cores fits no tier"):
            bench.kubelet.start(found)
        bench.cluster.set_node_annotation(wire.TIERS_REVISION_ANNOTATION, CATALOGUE.hash8)
        bench.clock.advance(2)
        bench.until_revision(CATALOGUE.hash8)
        assert slices(bench.kubelet.start(found)) == [(CARD_A, 512, 20)]


class TestEviction:
    def test_a_controllers_pod_is_evicted_after_so_many_refusals(self) -> None:
        bench = Bench(evict_after_refusals=2)
        try:
            bench.start()
            (bench.settings.hook_root / "current").unlink()
            found = pod("one")
            found["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "r", "controller": True}]
            bench.bind(found)
            bench.kubelet.admit(found)
            for _ in range(3):
                with pytest.raises(StartFailed, match="no_hook"):
                    bench.kubelet.start(found)
            bench.plugin.writer.work_all()
            assert bench.cluster.evicted == [f"default/one/{found['metadata']['uid']}"]
        finally:
            bench.close()


class TestPodsThatCameTooEarly:
    def test_are_counted(self, bench: Bench) -> None:
        bench.start()
        found = pod("early")
        found["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
        bench.bind(found, pod("other", None, card=None))
        assert bench.plugin.bookings.failed_at_admission() == 1


class TestThePage:
    def test_carries_policy_and_view_as_set(self) -> None:
        bench = Bench(hook_policy="open", hook_view="clocks, compute_mode")
        try:
            bench.start()
            created = bench.run(pod("one"))
            page = region.read_config(bench.settings.slots_dir / created.slot)
            assert (page.policy, page.view) == ("open", ("clocks", "compute_mode"))
        finally:
            bench.close()


class TestNeighbours:
    """Mode and priority come from the tier; who else is there and works, from the plugin's round."""

    @pytest.fixture
    def shared(self, bench: Bench) -> Bench:
        tiers = CATALOGUE.as_dict()["tiers"]
        tiers["small"].update(mode="priority", priority=5)
        tiers["medium"].update(mode="elastic")
        catalogue = CATALOGUE.from_vars({**CATALOGUE.as_dict(), "tiers": tiers})
        bench.cluster.config_maps[("tenfold-system", f"tenfold-tiers-{catalogue.hash8}")] = {"catalogue.json": catalogue.as_json()}
        bench.cluster.set_node_annotation(wire.TIERS_REVISION_ANNOTATION, catalogue.hash8)
        bench.start()
        return bench

    def quota(self, bench: Bench, created: Created) -> region.GpuQuota:
        [quota] = region.read_config(bench.settings.slots_dir / created.slot).gpus
        return quota

    def run_beside_work(self, bench: Bench, idle: dict[str, Any], busy: dict[str, Any]) -> tuple[Created, Created]:
        """Both run, and the plugin has seen that the second one works."""
        idle_slot, busy_slot = bench.run(idle), bench.run(busy)
        for gpu_time_us in (0, 400_000):
            bench.clock.advance(NEIGHBOURS_SECONDS)
            bench.spend(busy_slot.slot, 0, gpu_time_us)
            bench.round()
        return idle_slot, busy_slot

    def test_a_page_begins_with_the_tiers_mode_and_priority_and_the_number_of_others(self, shared: Bench) -> None:
        first = shared.run(pod("first", "small"))
        second = shared.run(pod("second", "medium"))
        assert (first.gpus[0].mode, first.gpus[0].priority, first.gpus[0].neighbours) == ("priority", 5, 0)
        assert (second.gpus[0].mode, second.gpus[0].priority, second.gpus[0].neighbours) == ("elastic", 0, 1)

    def test_rounds_tell_each_who_is_there_and_works(self, shared: Bench) -> None:
        low, high = pod("low", "small"), pod("high", "medium")
        low_slot, high_slot = self.run_beside_work(shared, low, high)
        assert (self.quota(shared, low_slot).neighbours, self.quota(shared, low_slot).pressure) == (1, "higher")
        assert self.quota(shared, high_slot).pressure == "none"
        shared.round()
        assert region.read_generation(shared.settings.slots_dir / low_slot.slot) == 3
        shared.end(high)
        shared.settle()
        shared.clock.advance(NEIGHBOURS_SECONDS)
        shared.round()
        assert (self.quota(shared, low_slot).neighbours, self.quota(shared, low_slot).pressure) == (0, "none")

    def test_a_changed_quota_keeps_what_the_page_tells(self, shared: Bench) -> None:
        low = pod("low", "small")
        low_slot, _ = self.run_beside_work(shared, low, pod("high", "medium"))
        before = self.quota(shared, low_slot)
        region.change_config(
            shared.settings.slots_dir / low_slot.slot,
            lambda page: dataclasses.replace(page, gpus=[dataclasses.replace(page.gpus[0], memory_limit_bytes=MIB)]),
            library=shared.settings.hook_root / "current" / "libtenfold_page.so",
        )
        shared.plugin.binder.rewrite_pages(low["metadata"]["uid"])
        assert self.quota(shared, low_slot) == before

    def test_a_restarted_container_is_not_its_own_neighbour(self, shared: Bench) -> None:
        found = pod("one", "small")
        shared.run(found)
        assert shared.kubelet.start(found).gpus[0].neighbours == 0


class TestALiveQuota:
    def test_a_running_slots_page_follows_the_ledger(self, bench: Bench) -> None:
        bench.start()
        found = pod("one")
        created = bench.run(found)
        binder = bench.plugin.binder
        booking = binder.bookings.ledger.bookings[found["metadata"]["uid"]]
        (container,) = booking.containers
        grown = dataclasses.replace(container.shares[0], memory_mib=10240, limit_cores_percent=25)
        binder.bookings.ledger.put_booking(dataclasses.replace(booking, containers=(dataclasses.replace(container, shares=(grown,)),)))
        assert binder.rewrite_pages(booking.uid) == 1
        page = region.read_config(bench.settings.slots_dir / created.slot)
        assert [(gpu.memory_limit_bytes // MIB, gpu.core_limit_percent) for gpu in page.gpus] == [(10240, 25)]


def test_assign_writes_what_the_scheduler_writes() -> None:
    found = pod("x", card=None)
    assign(found, CARD_B)
    assert found["metadata"]["annotations"][wire.POD_IDS_ANNOTATION] == f"{CARD_B},NVIDIA,8192,10:"
