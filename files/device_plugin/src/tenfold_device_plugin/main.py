"""The process: threads, start and end.

Owns who runs when. Threads: two watches (pods, node); the kubelet's calls; its registration, which waits for nobody else; the node's own
rounds; GPU times; metrics; and the main one, which is the only writer of annotations, node status and events (``writer``).
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from . import log
from ._domain import wire
from .advertise import Advertiser
from .binding import Binder, Parts
from .bookings import Bookings
from .catalogues import Catalogues
from .cdi import CdiFolder, NvidiaSpec
from .checkpoint import Checkpoint
from .clock import Clock, SystemClock
from .cluster import Change, Cluster, KubernetesCluster
from .collect import Collector
from .duties import Duties, Duty, end_process
from .errors import CardsUnavailable, ClusterUnavailable, LedgerError, SettingsError
from .gpu_times import ROUND_SECONDS as GPU_TIMES_SECONDS
from .gpu_times import GpuTimes
from .ledger import Ledger
from .metrics import MetricsServer, SliceCollector
from .neighbourhood import Neighbourhood
from .pages import Pages
from .podresources import KubeletPodResources, PodResources
from .processes import Processes
from .quotas import Quotas
from .reports import Reporter
from .scan import CardSource, Inventory, open_source
from .serve import Endpoint, Service
from .settings import Settings
from .state import Card
from .tenants import Tenants
from .workqueue import NODE, WorkQueue
from .writer import BUDGETS, IDLE_SECONDS, Writer

__all__ = ["Plugin", "main"]

STEP_SECONDS = 0.5  # between two looks at what is due on this node; also how soon a restarted kubelet is noticed
NEIGHBOURS_SECONDS = 1.0  # between two looks at who works: a page is written at most as often
STALE_SECONDS = 60.0  # one key or one round takes a few seconds at most; a thread that needs longer hangs
DRAIN_STEP_SECONDS = 0.2
DRAIN_QUIET_SECONDS = 1.0  # a scheduler cycle that began before it saw count 0 may still bind a pod here


class Plugin:
    """Everything wired together. ``run`` returns after ``stop`` (SIGTERM) when no pod would fail by our going."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        source: CardSource,
        pod_resources: PodResources,
        clock: Clock,
        processes: Processes,
    ) -> None:
        """Errors: LedgerError."""
        self.settings = settings
        self.clock = clock
        self.cluster = cluster
        self.queue = WorkQueue(clock, BUDGETS)
        self.inventory = Inventory(source)
        self.reporter = Reporter(cluster, clock, settings.node_name, settings.evict_after_refusals, self.queue.add)
        ledger = Ledger.load(settings.state_dir)
        if ledger.recovered_from:
            log.say(logging.ERROR, f"the ledger is not the last that was written, going on without: {ledger.recovered_from}")
        self.pages = Pages(settings.slots_dir, settings.hook_root, settings.hook_policy, settings.views)
        tenants = Tenants(processes, settings.slots_dir, settings.pod_resources_socket)
        self.bookings = Bookings(settings, clock, ledger, self.inventory, self.pages, tenants, self.reporter, self.queue.add)
        nvidia_spec = NvidiaSpec(settings.nvidia_cdi_candidates())
        checkpoint = Checkpoint(settings.device_plugins_dir, wire.RESOURCE_NUMBER)
        parts = Parts(cluster, pod_resources, checkpoint, self.pages, CdiFolder(settings.cdi_dir), nvidia_spec)
        self.binder = Binder(self.bookings, parts)
        self.collector = Collector(self.binder)
        self.advertiser = Advertiser(cluster, clock, settings.node_name, settings.heartbeat_seconds)
        catalogues = Catalogues(cluster, settings.namespace, settings.catalogue_dir)
        self.writer = Writer(self.queue, clock, cluster, self.bookings, Quotas(self.binder), self.advertiser, catalogues, self.reporter)
        self.neighbourhood = Neighbourhood(self.pages, clock, source.use)
        self.gpu_times = GpuTimes(self.pages, clock, source, processes)
        self.registration = Duties(clock, STEP_SECONDS, [Duty("registration", self._register)])
        self.service = Service(self.binder, clock, self.registration.wake)
        self.endpoint = Endpoint(settings.device_plugins_dir, self.service, clock)
        self.rounds = Duties(
            clock,
            STEP_SECONDS,
            [
                Duty("scan", self._scan, settings.scan_seconds),
                Duty("hook", self._check_hook),
                Duty("bookings", self.bookings.settle_due),
                Duty("slots", self.binder.recover_slots),
                Duty("neighbours", lambda: self.neighbourhood.tell(self._slot_names()), NEIGHBOURS_SECONDS, optional=True),
                Duty("collect", self.collector.collect, settings.collect_seconds),
            ],
        )
        self.telling = Duties(clock, GPU_TIMES_SECONDS, [Duty("GPU times", lambda: self.gpu_times.tell(self._slot_names()), optional=True)])
        self.metrics = SliceCollector(
            self.bookings, self.pages, source, self.gpu_times.busy_seconds, lambda: self.rounds.faults + self.telling.faults
        )
        self._stop = threading.Event()
        self._left = threading.Event()
        self._watches: list[threading.Thread] = []
        self._lost: dict[str, str] = {}

    @property
    def alive(self) -> bool:
        """Whether the threads that nobody can do without go on; a process in which one hangs should be restarted."""
        oldest = min(self.writer.beat, self.registration.beat, self.rounds.beat)
        return self.clock.monotonic() - oldest < STALE_SECONDS

    @property
    def ready(self) -> bool:
        return not self.unready

    @property
    def unready(self) -> str:
        """Why not ready, which is: a card answers, a hook that this plugin can work with, registered with the kubelet that is there now.

        A plugin that is brought before its hook is so not ready, which stops the DaemonSet's rollout at the first node.
        """
        return self.inventory.problem or self.pages.problem() or ("" if self.endpoint.registered else "not registered with the kubelet")

    def stop(self) -> None:
        self._stop.set()
        self.queue.wake()

    def run(self) -> None:
        """Work until ``stop``, then leave in order. Errors: whatever nobody foresaw."""
        self.begin()
        for name, duties in (("registration", self.registration), ("rounds", self.rounds), ("gpu-times", self.telling)):
            threading.Thread(target=duties.run, args=(self._left,), name=name, daemon=True).start()
        while not self._stop.is_set():
            if not self.writer.work():
                self.queue.wait(IDLE_SECONDS)
        self.drain()

    def begin(self) -> None:
        """Look at the cards and start the watches."""
        self._scan()
        self._follow("pods", self.cluster.follow_pods, self.bookings.take)
        self._follow("node", self.cluster.follow_node, self.writer.take_node)

    # --- the node's own rounds ------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        before, problem = self.inventory.cards, self.inventory.problem
        after = list(self.inventory.refresh(self.bookings.is_booked))
        if self.inventory.problem != problem:
            self._tell_problem()
        if after != before:
            for card in [card for card in after if card not in before]:
                self._tell_card(card, is_event=not self.inventory.problem and (bool(before) or not card.healthy))
            self.bookings.settle()

    def _tell_card(self, card: Card, is_event: bool) -> None:
        words = f"card {card.uuid} ({card.name}) " + ("is in service" if card.healthy else f"is out of service: {card.fault}")
        if is_event:
            self.reporter.forget(self.reporter.node["metadata"]["uid"])  # a state that comes again is news again
            self.reporter.tell(self.reporter.node, f"VgpuCard{'In' if card.healthy else 'OutOf'}Service", words, warning=not card.healthy)
        else:
            log.say(logging.INFO if card.healthy else logging.WARNING, words, card=card.uuid)

    def _tell_problem(self) -> None:
        node = self.reporter.node
        if self.inventory.problem:
            self.reporter.tell(node, "VgpuCardsUnavailable", f"no card answers: {self.inventory.problem}", warning=True)
        else:
            self.reporter.forget(node["metadata"]["uid"])
        self.queue.add(NODE)

    def _check_hook(self) -> None:
        """Errors: Refused."""
        self.pages.current_hook()

    def _register(self) -> None:
        """Errors: CardsUnavailable; OSError and grpc.RpcError by the kubelet."""
        if not self.inventory.cards:
            raise CardsUnavailable(f"there is no card to register: {self.inventory.problem}")
        self.service.publish(self.binder.device_ids())
        # Running pods' containers must be able to restart while the API server is away: then what it last said of us has to do.
        restarts_only = bool(self._lost) and self.advertiser.node is None and bool(self.bookings.ledger.bookings)
        if self.advertiser.ready or restarts_only or self.endpoint.registered:
            self.endpoint.ensure()

    def _slot_names(self) -> list[str]:
        return [slot.name for slot, _booking, _container in self.bookings.owned_slots()]

    # --- the end --------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take the cards out, wait until the kubelet has ids for every bound pod, then stop serving."""
        self.writer.leave_service()
        deadline = self.clock.monotonic() + self.settings.shutdown_wait_seconds
        log.say(logging.INFO, f"node {self.settings.node_name} is leaving: count 0 for every card", node=self.settings.node_name)
        quiet_since: float | None = None
        while self.clock.monotonic() < deadline:
            is_busy = self.writer.work()
            now = self.clock.monotonic()
            if self.binder.lacking_allocate():
                quiet_since = None
            elif quiet_since is None:
                quiet_since = now
            elif now - quiet_since >= DRAIN_QUIET_SECONDS:
                break
            if not is_busy:
                self.queue.wait(DRAIN_STEP_SECONDS)
        for pod in self.binder.lacking_allocate():
            metadata = pod["metadata"]
            words = "it has no ids yet and fails if the kubelet admits it before we return"
            log.of_pod(logging.WARNING, words, metadata["namespace"], metadata["name"], metadata["uid"])
        self._left.set()
        self.endpoint.stop()

    # --- watches --------------------------------------------------------------------------------------------------------

    def _follow(self, name: str, watch: Callable[[str, threading.Event], Iterator[Change]], take: Callable[[Change], None]) -> None:
        def follow() -> None:
            try:
                for change in watch(self.settings.node_name, self._left):
                    if change[0] == "LOST":
                        self._say_lost(name, change[1])
                        continue
                    if self._lost.pop(name, ""):
                        log.say(logging.INFO, f"the watch of {name} works again", node=self.settings.node_name)
                    take(change)
            except Exception as error:
                end_process(f"the watch of {name} ended by a fault of ours", error)

        thread = threading.Thread(target=follow, name=f"watch-{name}", daemon=True)
        self._watches.append(thread)
        thread.start()

    def _say_lost(self, name: str, words: str) -> None:
        if self._lost.get(name) != words:
            log.say(logging.WARNING, f"the watch of {name} failed, trying again: {words}", node=self.settings.node_name)
        self._lost[name] = words


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
        source = open_source(clock, settings.xid_hold_seconds, settings.state_dir / "xids.json")
        pod_resources = KubeletPodResources(settings.pod_resources_socket, wire.RESOURCE_NUMBER)
        plugin = Plugin(settings, cluster, source, pod_resources, clock, Processes())
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
