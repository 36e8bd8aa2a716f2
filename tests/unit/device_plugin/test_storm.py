"""Random life of a node: pods come, start, restart, move, end by force or in order; the plugin is killed; the kubelet restarts; a webhook
refuses pods; processes outlive their pods; operators change quotas.

After every step: the pages of living processes never promise more of a card than it has (a sum of the test's own), nor does the ledger; no
slot has changed its owner; every container that starts gets what its pod's annotation says at that moment, unless that could not be
written; and the node never shows less than its pods request.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from typing import Any

import pytest

from tenfold_device_plugin import state
from tenfold_device_plugin._domain import region, wire
from tenfold_device_plugin.errors import Rejected
from tenfold_device_plugin.writer import REJECTED_PAUSES
from tests.unit.device_plugin.bench import CARD_A, CARD_B, CARD_MIB, MIB, Bench, Created, RunningClock, StartFailed, pod, until

STEPS = 150
ACTIONS = (
    *("bind",) * 6, *("start",) * 6, *("end",) * 3, *("restart",) * 2, *("collect",) * 2,
    *("reap",) * 2, "force", "vanish", "kill", "kubelet", "sick", "recover", "refuse", "take", *("haunt",) * 2, *("quota",) * 3,
)  # fmt: skip


class Storm:
    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.alive: list[dict[str, Any]] = []
        self.started: set[str] = set()
        self.owners: dict[str, str] = {}
        self.refused = 0
        self.number = 0
        self.living: dict[int, tuple[str, Created]] = {}  # pid -> pod UID and container
        self.pids: dict[str, int] = {}
        self.refusing = False
        self.annotate, bench.cluster.annotate_pod = bench.cluster.annotate_pod, self._annotate  # type: ignore[method-assign]

    def step(self) -> None:
        action = self.random.choice(ACTIONS)
        getattr(self, f"_{action}")()
        self.bench.clock.advance(1.0)  # as much as the node may need to be written again
        self.bench.settle()
        self.check()

    def _annotate(self, namespace: str, name: str, uid: str, annotations: Any) -> Any:
        if self.refusing:
            raise Rejected("403 admission webhook denied the request")
        return self.annotate(namespace, name, uid, annotations)

    # --- what happens ---------------------------------------------------------------------------------------------------

    def _bind(self) -> None:
        self.number += 1
        tier = self.random.choice(["small", "small", "medium", "large", "xlarge"])
        card = self.random.choice([CARD_A, CARD_B, None])
        found = pod(self.random.choice([f"p{self.number}", "web-0"]), tier, card=card)
        if any(each["metadata"]["name"] == found["metadata"]["name"] for each in self.alive):
            return
        self.alive.append(found)
        self.bench.bind(found)
        try:
            self.bench.kubelet.admit(found)
        except StartFailed:
            self.alive.remove(found)
            self.bench.cluster.delete(found)

    def _start(self) -> None:
        for found in self._some(lambda uid: uid not in self.started):
            self._try(found)

    def _restart(self) -> None:
        for found in self._some(lambda uid: uid in self.started):
            self._try(found)

    def _try(self, found: dict[str, Any]) -> None:
        try:
            created = self.bench.kubelet.start(found)
        except StartFailed as error:
            assert "no_room" in str(error), error
            self.refused += 1
            return
        self._lives(found, created)
        self.bench.settle()
        (gpu,) = created.gpus
        status = self.bench.cluster.annotations(found).get(wire.QUOTA_STATUS_ANNOTATION, "")
        if not self.refusing and '"changing"' not in status:
            ((assignment,),) = wire.decode_segments(self.bench.cluster.annotations(found)[wire.POD_IDS_ANNOTATION])
            assert (gpu.uuid, gpu.memory_limit_bytes) == (assignment.uuid, assignment.memory_mib * MIB)
        assert ("/dev/nvidia0" in created.devices, "/dev/nvidia1" in created.devices) == (gpu.uuid == CARD_A, gpu.uuid == CARD_B)
        self.started.add(found["metadata"]["uid"])
        if self.random.random() < 0.3:
            self.bench.spend(created.slot, MIB)  # a process that is killed with its pod leaves these numbers
        self.bench.cluster.change(found, phase="Running")

    def _lives(self, found: dict[str, Any], created: Created) -> None:
        uid = found["metadata"]["uid"]
        if uid not in self.pids:
            self.pids[uid] = 1000 + len(self.pids)
            self.bench.process(self.pids[uid], created.slot)
        self.living[self.pids[uid]] = (uid, created)

    def _dies(self, uid: str) -> None:
        pid = self.pids.get(uid, 0)
        if pid in self.living:
            del self.living[pid]
            self.bench.end_process(pid)

    def _end(self) -> None:
        for found in self._some():
            self.alive.remove(found)
            self._dies(found["metadata"]["uid"])
            self.bench.end(found)

    def _force(self) -> None:
        """The process may live on, until it is reaped."""
        for found in self._some():
            self.alive.remove(found)
            self.bench.cluster.delete(found)
            self.bench.kubelet.forget(found)

    def _haunt(self) -> None:
        """Deleted by force between Allocate and start, and created anew under its name: the kubelet still starts the first one."""
        for found in self._some(lambda uid: uid not in self.started):
            self.alive.remove(found)
            self.bench.cluster.delete(found)
            again = pod(found["metadata"]["name"], self.random.choice(["small", "large"]), card=self.random.choice([CARD_A, CARD_B]))
            self.bench.bind(again)
            with pytest.raises(StartFailed):
                self.bench.kubelet.start(found)
            self.bench.kubelet.forget(found)
            try:
                self.bench.kubelet.admit(again)
            except StartFailed:
                self.bench.cluster.delete(again)
            else:
                self.alive.append(again)

    def _reap(self) -> None:
        alive = {found["metadata"]["uid"] for found in self.alive}
        for uid in [uid for uid, _ in self.living.values() if uid not in alive]:
            self._dies(uid)

    def _refuse(self) -> None:
        self.refusing = True

    def _take(self) -> None:
        self.refusing = False
        self.bench.clock.advance(1.5 * REJECTED_PAUSES.most_seconds)

    def _quota(self) -> None:
        for found in self._some():
            request = {"uid": found["metadata"]["uid"], "tier": self.random.choice(["small", "medium", "large", "xlarge"])}
            annotations = {**self.bench.cluster.annotations(found), wire.QUOTA_ANNOTATION: json.dumps(request)}
            self.bench.cluster.change(found, annotations=annotations)

    def _vanish(self) -> None:
        for found in self._some(lambda uid: uid in self.bench.plugin.bookings.ledger.bookings):
            self.bench.cluster.change(found, annotations={})

    def _kill(self) -> None:
        self.bench.crash()
        self.bench.start()

    def _kubelet(self) -> None:
        self.bench.kubelet.restart()
        self.bench.round()
        until(lambda: self.bench.kubelet.ids, "the kubelet knows the ids again")

    def _collect(self) -> None:
        self.bench.clock.advance(self.random.choice([1.0, self.bench.settings.slot_grace_seconds]))
        self.bench.plugin.collector.collect()

    def _sick(self) -> None:
        self._set_fault(self.random.randrange(2), "critical XID 79")

    def _recover(self) -> None:
        for index in range(2):
            self._set_fault(index, "")

    def _set_fault(self, index: int, fault: str) -> None:
        cards = self.bench.cards.cards
        cards[index] = dataclasses.replace(cards[index], fault=fault)
        self.bench.clock.advance(self.bench.settings.scan_seconds)

    def _some(self, wanted: Any = None) -> list[dict[str, Any]]:
        fitting = [found for found in self.alive if wanted is None or wanted(found["metadata"]["uid"])]
        return [self.random.choice(fitting)] if fitting else []

    # --- what must hold -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        bookings = self.bench.plugin.bookings
        promised: Counter[str] = Counter()
        for _, created in self.living.values():
            gpus = region.read_config(self.bench.settings.slots_dir / created.slot).gpus
            promised.update({gpu.uuid: gpu.memory_limit_bytes // MIB for gpu in gpus})
        assert not [card for card, memory_mib in promised.items() if memory_mib > CARD_MIB], promised
        for ledger in state.card_ledgers(self.bench.cards.cards, bookings.ledger.bookings.values(), bookings.terms):
            assert ledger.used_memory_mib <= ledger.memory_mib
            assert ledger.used_cores_percent <= 100
        for slot in bookings.ledger.slots.values():
            if slot.owner_uid:
                assert self.owners.setdefault(slot.name, slot.owner_uid) == slot.owner_uid
        shown = self.bench.cluster.node_object["status"]
        requested = sum(
            state.effective_request(found, wire.RESOURCE_MEMORY)
            for found in self.bench.cluster.pods.values()
            if not state.is_terminal(found)
        )
        assert int(shown["capacity"][wire.RESOURCE_MEMORY]) >= max(1, requested)
        assert int(shown["allocatable"][wire.RESOURCE_MEMORY]) <= int(shown["capacity"][wire.RESOURCE_MEMORY])
        files = {path.name for path in self.bench.settings.cdi_dir.glob("tenfold-*.json")}
        assert files <= {f"tenfold-{name}.json" for name, slot in bookings.ledger.slots.items() if slot.owner_uid}


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_overbooked_swapped_or_forgotten(seed: int) -> None:
    bench = Bench(prestart_wait_seconds=0.02)
    bench.clock = RunningClock()
    try:
        bench.start()
        storm = Storm(bench, seed)
        for _ in range(STEPS):
            storm.step()
        assert len(storm.started) >= 4, "the storm was a breeze"
    finally:
        bench.close()
