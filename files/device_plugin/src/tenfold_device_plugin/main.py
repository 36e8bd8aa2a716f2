"""The process: threads, the writer's round, start and end.

Owns who runs when. Five kinds of threads: two watches (pods, node), the kubelet's calls, metrics, the one that tells slots their GPU time
(it must not wait for the API server), and this one, which is the only writer of annotations and node status. A round is cheap when nothing
has changed; every failure of a step is said once and tried again next round.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import grpc

from . import log
from ._domain import wire
from ._domain.errors import RegionError
from .advertise import Advertiser
from .binding import Binder
from .bookings import Parts
from .catalogues import Catalogues, reachable
from .cdi import CdiFolder, NvidiaSpec
from .clock import Clock, SystemClock
from .cluster import Change, Cluster, KubernetesCluster
from .collect import Collector
from .errors import ClusterUnavailable, Conflict, LedgerError, Refused, SettingsError
from .gpu_times import ROUND_SECONDS as GPU_TIMES_SECONDS
from .gpu_times import GpuTimes
from .ledger import Ledger
from .metrics import MetricsServer, SliceCollector
from .neighbourhood import Neighbourhood
from .pages import Pages
from .podresources import KubeletPodResources, PodResources
from .processes import Processes
from .reports import Reporter
from .scan import CardSource, Inventory, open_source
from .serve import Endpoint, Service
from .settings import Settings
from .state import capacity, device_ids, register_records

__all__ = ["Plugin", "main"]

ROUND_SECONDS = 0.5  # also how soon a restarted kubelet is noticed
NEIGHBOURS_SECONDS = 1.0  # between two looks at who works: a page is written at most as often
API_PAUSE_SECONDS = 2.0
STALE_SECONDS = 60.0  # a round takes a few seconds at most; a main thread that needs longer hangs
DRAIN_STEP_SECONDS = 0.2
DRAIN_QUIET_SECONDS = 1.0  # a scheduler cycle that began before it saw count 0 may still bind a pod here
BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)


class Plugin:
    """Everything wired together. ``run`` returns after ``stop`` (SIGTERM) when no pod would fail by our going."""

    def __init__(self, settings: Settings, cluster: Cluster, source: CardSource, pod_resources: PodResources, clock: Clock) -> None:
        """Errors: LedgerError."""
        self.settings = settings
        self.clock = clock
        self.cluster = cluster
        self.inventory = Inventory(source)
        self.reporter = Reporter(cluster, clock, settings.node_name, settings.evict_after_refusals)
        ledger = Ledger.load(settings.state_dir)
        if ledger.recovered_from:
            log.say(logging.ERROR, f"the ledger was damaged, going on with the version before: {ledger.recovered_from}")
        self.binder = Binder(
            Parts(
                settings=settings,
                clock=clock,
                ledger=ledger,
                cluster=cluster,
                pod_resources=pod_resources,
                pages=Pages(settings.slots_dir, settings.hook_root, settings.hook_policy, settings.views),
                cdi_folder=CdiFolder(settings.cdi_dir),
                nvidia_spec=NvidiaSpec(settings.nvidia_cdi_candidates()),
                inventory=self.inventory,
                reporter=self.reporter,
            )
        )
        self.collector = Collector(self.binder)
        self.catalogues = Catalogues(cluster, settings.namespace, settings.catalogue_dir)
        self.advertiser = Advertiser(cluster, clock, settings.node_name, settings.heartbeat_seconds)
        self._wake = threading.Event()
        self.service = Service(self.binder, clock, self._wake.set)
        self.endpoint = Endpoint(settings.device_plugins_dir, self.service, clock)
        self.neighbourhood = Neighbourhood(self.binder.parts.pages, clock, source.use)
        self.gpu_times = GpuTimes(self.binder.parts.pages, clock, source, Processes())
        self.metrics = SliceCollector(self.binder, source, self.gpu_times.busy_seconds)
        self._stop = threading.Event()
        self._left = threading.Event()
        self._watches: list[threading.Thread] = []
        self._in_service = True
        self._due: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._api_is_away = False
        self._api_pause_until = 0.0
        self._last_round = clock.monotonic()

    @property
    def alive(self) -> bool:
        """Whether the writer's rounds go on; a process whose main thread hangs should be restarted."""
        return self.clock.monotonic() - self._last_round < STALE_SECONDS

    @property
    def ready(self) -> bool:
        """Registered with the kubelet that is there now, with a hook that this plugin can work with.

        A plugin that is brought before its hook is so not ready, which stops the DaemonSet's rollout at the first node.
        """
        return self.endpoint.registered and not self.binder.parts.pages.problem()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def run(self) -> None:
        """Work until ``stop``, then leave in order. Errors: whatever nobody foresaw."""
        self.begin()
        while not self._stop.is_set():
            self.round()
            self._wake.wait(ROUND_SECONDS)
            self._wake.clear()
        self.drain()

    def begin(self) -> None:
        """Look at the cards and start the watches."""
        self._scan()
        self._follow("pods", self.cluster.follow_pods, self._take_pod)
        self._follow("node", self.cluster.follow_node, self.advertiser.take)
        threading.Thread(target=self._tell_gpu_times_for_ever, name="gpu-times", daemon=True).start()

    # --- one round ------------------------------------------------------------------------------------------------------

    def round(self) -> None:
        """Everything that is due, in the order that is safe: know, book, write, advertise, register, clean up."""
        if self._is_due("scan", self.settings.scan_seconds):
            self._step("scan", self._scan)
        self._say_once("hook", self.binder.parts.pages.problem())
        self._step("departed", self.binder.settle_departed)
        if self._is_due("neighbours", NEIGHBOURS_SECONDS):
            self._step("neighbours", lambda: self.neighbourhood.tell(self._slot_names()))
        self._step("kubelet", self._register)  # before the API server, which may take its time to be away
        for name, action in (("tiers", self._read_tiers), ("annotations", self._repair_annotations), ("node", self._advertise)):
            self._api_step(name, action)
        self._step("kubelet", self._register)
        if self._is_due("collect", self.settings.collect_seconds):
            self._api_step("fetched", self.binder.verify_fetched)
            self._step("collect", self.collector.collect)
        self._api_step("events", self.reporter.flush)
        self._last_round = self.clock.monotonic()

    def _scan(self) -> None:
        before = self.inventory.cards
        after = list(self.inventory.refresh())
        if after != before:
            for card in after:
                words = "is in service" if card.healthy else f"is out of service: {card.fault}"
                log.say(logging.INFO if card.healthy else logging.WARNING, f"card {card.uuid} ({card.name}) {words}", card=card.uuid)
            self.binder.settle()

    def _read_tiers(self) -> None:
        revision = self.advertiser.revision
        if not revision or revision == self.binder.terms.revision or not self._is_due(f"tiers {revision}", BACKOFF_SECONDS[0]):
            return
        catalogue, problem = reachable(self.catalogues, revision)
        if catalogue is None:
            self._say_once("tiers", f"node {self.settings.node_name} goes on with its tiers: {problem}")
            return
        with self.binder.changed:
            self.binder.terms = replace(self.binder.terms, catalogue=catalogue)
            self.binder.settle()
        log.say(
            logging.INFO,
            f"node {self.settings.node_name} obeys catalogue {catalogue.hash8}",
            node=self.settings.node_name,
            revision=catalogue.hash8,
        )

    def _repair_annotations(self) -> None:
        for pod, patch in self.binder.annotation_repairs():
            metadata = pod["metadata"]
            try:
                answer = self.cluster.annotate_pod(metadata["namespace"], metadata["name"], metadata["uid"], patch)
            except Conflict:
                continue  # the pod is gone; the watch says so soon
            self.binder.put_pod(answer)
            if wire.POD_IDS_ANNOTATION in patch:
                self.reporter.repairs += 1
                log.say(
                    logging.WARNING,
                    f"pod {metadata['namespace']}/{metadata['name']}: wrote its assignment back: {patch[wire.POD_IDS_ANNOTATION]}",
                    namespace=metadata["namespace"],
                    pod=metadata["name"],
                    uid=metadata["uid"],
                )

    def _advertise(self) -> None:
        binder, cards = self.binder, self.inventory.cards
        if not binder.synced or not cards:
            return
        with binder.changed:
            records = register_records(cards, binder.terms, self._in_service)
            shown = capacity(binder.pods.values(), cards, binder.live_bookings(), binder.terms)
            all_booked = not binder.unbooked()
        self.advertiser.write(records, shown, all_booked)

    def _register(self) -> None:
        if not self.inventory.cards:
            self._say_once("cards", f"node {self.settings.node_name} has no card to register: NVML shows none")
            return
        self.service.publish(device_ids([card.uuid for card in self.inventory.cards], self.binder.terms.slices))
        # Running pods' containers must be able to restart while the API server is away: then what it last said of us has to do.
        restarts_only = self._api_is_away and self.advertiser.node is None and bool(self.binder.ledger.bookings)
        if self.advertiser.ready or restarts_only or self.endpoint.registered:
            self.endpoint.ensure()

    def _api_step(self, name: str, action: Callable[[], object]) -> None:
        """A step that asks the API server: left out for a while after it did not answer, so that the kubelet need not wait for it."""
        if self.clock.monotonic() >= self._api_pause_until:
            self._step(name, action)

    def _step(self, name: str, action: Callable[[], object]) -> None:
        """Run one step; a foreseen failure is said when it begins and when it is over, not every round."""
        try:
            action()
        except (ClusterUnavailable, LedgerError, OSError, Refused, RegionError, grpc.RpcError) as error:
            if isinstance(error, ClusterUnavailable):
                self._api_pause_until = self.clock.monotonic() + API_PAUSE_SECONDS
            words = str(error.details()) if isinstance(error, grpc.Call) else str(error)
            self._say_once(name, f"{name}: {words}; trying again")
            return
        if name != "tiers" and self._said.pop(name, ""):
            log.say(logging.INFO, f"{name}: works again", node=self.settings.node_name)

    def _say_once(self, topic: str, words: str) -> None:
        """Say what is new; empty words: nothing is wrong any more."""
        if self._said.get(topic, "") != words:
            self._said[topic] = words
            if words:
                log.say(logging.WARNING, words, node=self.settings.node_name)

    def _is_due(self, name: str, every_seconds: float) -> bool:
        now = self.clock.monotonic()
        if now < self._due.get(name, now):
            return False
        self._due[name] = now + every_seconds
        return True

    # --- the end --------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take the cards out, wait until the kubelet has ids for every bound pod, then stop serving."""
        self._in_service = False
        deadline = self.clock.monotonic() + self.settings.shutdown_wait_seconds
        log.say(logging.INFO, f"node {self.settings.node_name} is leaving: count 0 for every card", node=self.settings.node_name)
        quiet_since: float | None = None
        while self.clock.monotonic() < deadline:
            self.round()
            now = self.clock.monotonic()
            lacking = self.binder.lacking_allocate()
            if lacking:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = now
            elif now - quiet_since >= DRAIN_QUIET_SECONDS:
                break
            self._wake.wait(DRAIN_STEP_SECONDS)
            self._wake.clear()
        for pod in self.binder.lacking_allocate():
            metadata = pod["metadata"]
            words = f"pod {metadata['namespace']}/{metadata['name']} has no ids yet; it fails if the kubelet admits it before we return"
            log.say(logging.WARNING, words, namespace=metadata["namespace"], pod=metadata["name"])
        self._left.set()
        self.endpoint.stop()

    # --- GPU time -------------------------------------------------------------------------------------------------------

    def _tell_gpu_times_for_ever(self) -> None:
        """A round that is late makes a longer window and nothing worse; only a fault of ours ends it, and then the process."""
        while not self._left.is_set():
            began = self.clock.monotonic()
            try:
                self._step("GPU times", lambda: self.gpu_times.tell(self._slot_names()))
            except Exception as error:
                log.say(logging.CRITICAL, "telling GPU times ended by a fault of ours", error=error)
                os._exit(3)
            self._left.wait(max(0.0, GPU_TIMES_SECONDS - (self.clock.monotonic() - began)))

    def _slot_names(self) -> list[str]:
        return [slot.name for slot, _booking, _container in self.binder.owned_slots()]

    # --- watches --------------------------------------------------------------------------------------------------------

    def _take_pod(self, change: Change) -> None:
        self.binder.take(change)
        self._wake.set()

    def _follow(self, name: str, watch: Callable[[str, threading.Event], Iterator[Change]], take: Callable[[Change], None]) -> None:
        thread = threading.Thread(target=self._follow_for_ever, args=(name, watch, take), name=f"watch-{name}", daemon=True)
        self._watches.append(thread)
        thread.start()

    def _follow_for_ever(
        self, name: str, watch: Callable[[str, threading.Event], Iterator[Change]], take: Callable[[Change], None]
    ) -> None:
        """Keep one watch alive; only a fault of ours ends it, and then the process (its restart begins with the truth on disk)."""
        failures = 0
        while not self._left.is_set():
            try:
                for change in watch(self.settings.node_name, self._left):
                    take(change)
                    failures, self._api_is_away = 0, False
                    self._wake.set()
            except (ClusterUnavailable, Conflict, LedgerError) as error:
                self._api_is_away = self._api_is_away or isinstance(error, ClusterUnavailable)
                pause = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)]
                failures += 1
                log.say(logging.WARNING, f"the watch of {name} failed, again in {pause:g} s: {error}", node=self.settings.node_name)
                self._wake.set()
                self._left.wait(pause)
            except Exception as error:
                log.say(logging.CRITICAL, f"the watch of {name} ended by a fault of ours", error=error)
                os._exit(3)


def main(arguments: list[str] | None = None) -> int:
    """0 after SIGTERM, 1 when the start fails, 2 for wrong settings, 3 for a fault of ours."""
    log.configure("info")
    try:
        settings = Settings.from_sources(sys.argv[1:] if arguments is None else arguments, os.environ)
    except SettingsError as error:
        log.say(logging.CRITICAL, f"wrong settings: {error}")
        return 2
    log.configure(settings.log_level)
    clock = SystemClock()
    try:
        state_lock = hold_state(settings.state_dir)
        cluster = KubernetesCluster(settings.kubeconfig, settings.api_timeout_seconds)
        source = open_source(clock, settings.xid_hold_seconds)
        plugin = Plugin(settings, cluster, source, KubeletPodResources(settings.pod_resources_socket, wire.RESOURCE_NUMBER), clock)
        server = MetricsServer(settings.metrics_address, plugin.metrics, plugin) if settings.metrics_address else None
    except (ClusterUnavailable, LedgerError, OSError, ValueError) as error:
        log.say(logging.CRITICAL, f"cannot start: {error}")
        return 1
    if server is not None:
        server.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: plugin.stop())
    try:
        plugin.run()
    except Exception as error:
        log.say(logging.CRITICAL, "the device plugin ends by a fault of ours", error=error)
        return 3
    if server is not None:
        server.stop()
    state_lock.close()
    log.say(logging.INFO, f"node {settings.node_name}: the device plugin has left", node=settings.node_name)
    return 0


def hold_state(folder: Path) -> IO[str]:
    """Lock the state folder until the process ends: two plugins with one ledger would forget each other's slots.

    Errors: LedgerError when another process has it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stream = open(folder / "lock", "w", encoding="utf-8")  # noqa: SIM115 (open until the process ends)
    except OSError as error:
        raise LedgerError(f"cannot open the state folder '{folder}': {error.strerror}") from error
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        stream.close()
        raise LedgerError(f"the state folder '{folder}' is in use by another device plugin; wait until it has left") from error
    return stream
