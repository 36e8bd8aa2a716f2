"""What Prometheus reads, and the two health pages beside it.

Owns names and labels (docs/architecture.md, design 3.11) and bounds: one series set per container that has a slot and per card, built anew
at each scrape, so that a container's series end with it. Usage comes from the slot's state (the tenant's claim), from NVML, and from
what the node has seen of each slot (``gpu_times``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ._domain.errors import RegionError
from ._domain.region import GpuState, SlotState
from .bookings import Bookings
from .pages import MIB, Pages
from .scan import CardSource
from .state import Booking, Share, Slot

__all__ = ["MetricsServer", "SliceCollector"]

CONTAINER_LABELS = ["node_name", "device_uuid", "device_index", "namespace", "pod", "container", "tier"]
CARD_LABELS = ["node_name", "device_uuid", "device_index"]
MICROSECONDS = 1_000_000
STOP_POLL_SECONDS = 0.1


class SliceCollector:
    """Reads the bookings and the slots at scrape time; remembers GPU time of the scrape before to compute a rate."""

    def __init__(
        self,
        bookings: Bookings,
        pages: Pages,
        source: CardSource,
        busy_seconds: Callable[[], Mapping[tuple[str, str], float]],
        faults: Callable[[], Mapping[str, int]],
    ) -> None:
        """``busy_seconds`` is the GPU time that the node has seen, by slot and card; ``faults`` our own in optional parts."""
        self._bookings = bookings
        self._pages = pages
        self._faults = faults
        self._source = source
        self._busy_seconds = busy_seconds
        self._lock = threading.Lock()
        self._before: dict[tuple[str, str], tuple[int, float]] = {}

    def describe(self) -> list[Any]:
        return []  # keeps registration from running a scrape

    def collect(self) -> Iterator[Any]:
        with self._lock:
            yield from self._containers()
            yield from self._cards()
            yield from self._plugin()

    def _containers(self) -> Iterator[Any]:
        used = GaugeMetricFamily("volcano_vgpu_memory_usage_bytes", "Device memory in use by a container.", labels=CONTAINER_LABELS)
        limit = GaugeMetricFamily("volcano_vgpu_memory_limit_bytes", "Device memory that a container may use.", labels=CONTAINER_LABELS)
        busy = GaugeMetricFamily("volcano_vgpu_cores_usage_percent", "GPU time used since the last scrape.", labels=CONTAINER_LABELS)
        cores = GaugeMetricFamily("volcano_vgpu_cores_limit_percent", "GPU time that a container may use.", labels=CONTAINER_LABELS)
        refused = CounterMetricFamily(
            "tenfold_refused_allocations", "Allocations that the hook refused at the limit.", labels=CONTAINER_LABELS
        )
        seen_busy = CounterMetricFamily(
            "tenfold_gpu_busy_seconds", "GPU time of a container as the node sees it, by NVML.", labels=CONTAINER_LABELS
        )
        busy_seconds = self._busy_seconds()
        unhooked = 0
        seen: dict[tuple[str, str], tuple[int, float]] = {}
        now = self._bookings.clock.monotonic()
        for slot, booking, container in self._bookings.owned_slots():
            state = self._state(slot)
            if state is None or not state.processes:
                unhooked += 1
            states = {gpu.uuid: gpu for gpu in state.gpus} if state else {}
            for share in container.shares:
                labels = self._labels(slot, booking, share)
                limit.add_metric(labels, share.memory_mib * MIB)
                cores.add_metric(labels, share.limit_cores_percent or 100)
                if (slot.name, share.uuid) in busy_seconds:
                    seen_busy.add_metric(labels, busy_seconds[slot.name, share.uuid])
                gpu = states.get(share.uuid)
                if gpu is None:
                    continue
                used.add_metric(labels, gpu.used_bytes)
                refused.add_metric(labels, gpu.refusals)
                percent = self._busy_percent((slot.name, share.uuid), gpu, now, seen)
                if percent is not None:
                    busy.add_metric(labels, percent)
        self._before = seen
        yield from (used, limit, busy, cores, seen_busy, refused)
        yield _gauge("tenfold_containers_without_hook", "Containers with a slot in which no process has registered.", unhooked)

    def _state(self, slot: Slot) -> SlotState | None:
        try:
            return self._pages.state(slot.name)
        except RegionError:
            return None  # damaged by its tenant, or just removed: no numbers are better than wrong ones

    def _busy_percent(
        self, key: tuple[str, str], gpu: GpuState, now: float, seen: dict[tuple[str, str], tuple[int, float]]
    ) -> float | None:
        """Percent of wall time since the last scrape; None at the first and when the tenant's counter went back."""
        seen[key] = (gpu.gpu_time_us, now)
        if key not in self._before:
            return None
        before_us, at = self._before[key]
        if now <= at or gpu.gpu_time_us < before_us:
            return None
        return round(min(100.0, (gpu.gpu_time_us - before_us) / ((now - at) * MICROSECONDS) * 100.0), 2)

    def _labels(self, slot: Slot, booking: Booking, share: Share) -> list[str]:
        settings, cards = self._bookings.settings, self._bookings.inventory.cards
        index = next((str(card.index) for card in cards if card.uuid == share.uuid), "")
        return [settings.node_name, share.uuid, index, booking.namespace, booking.name, slot.owner_container, booking.tier]

    def _cards(self) -> Iterator[Any]:
        node_name = self._bookings.settings.node_name
        used = GaugeMetricFamily("tenfold_card_memory_used_bytes", "Memory in use on a card by everybody, by NVML.", labels=CARD_LABELS)
        total = GaugeMetricFamily("tenfold_card_memory_total_bytes", "Memory of a card, by NVML.", labels=CARD_LABELS)
        busy = GaugeMetricFamily("tenfold_card_busy_percent", "NVML's utilisation of a card.", labels=CARD_LABELS)
        healthy = GaugeMetricFamily("tenfold_card_healthy", "1 while a card takes new slices.", labels=CARD_LABELS)
        booked = GaugeMetricFamily("tenfold_card_booked_bytes", "Memory of a card that is booked by pods.", labels=CARD_LABELS)
        uses = self._source.use()
        with self._bookings.changed:
            cards = list(self._bookings.inventory.cards)
            bookings = list(self._bookings.ledger.bookings.values())
        for card in cards:
            labels = [node_name, card.uuid, str(card.index)]
            healthy.add_metric(labels, int(card.healthy))
            shares = [share for booking in bookings for container in booking.containers for share in container.shares]
            booked.add_metric(labels, sum(share.memory_mib for share in shares if share.uuid == card.uuid) * MIB)
            use = uses.get(card.uuid)
            if use is not None:
                used.add_metric(labels, use.used_bytes)
                total.add_metric(labels, use.total_bytes)
                if use.busy_percent is not None:
                    busy.add_metric(labels, use.busy_percent)
        unavailable = GaugeMetricFamily("tenfold_cards_unavailable", "1 while no card answers, with NVML's words.", labels=["reason"])
        if self._bookings.inventory.problem:
            unavailable.add_metric([self._bookings.inventory.problem], 1)
        yield from (used, total, busy, healthy, booked, unavailable)

    def _plugin(self) -> Iterator[Any]:
        bookings, reporter = self._bookings, self._bookings.reporter
        refusals = CounterMetricFamily("tenfold_refusals", "Bookings and container starts that were refused.", labels=["reason"])
        for reason, count in sorted(reporter.refusals.items()):
            refusals.add_metric([reason], count)
        revision = GaugeMetricFamily("tenfold_tiers_revision_info", "The tier catalogue in force.", labels=["revision"])
        revision.add_metric([bookings.terms.revision or "none"], 1)
        rejections = CounterMetricFamily("tenfold_rejected_writes", "Writes that the API server refused for good.", labels=["object"])
        for kind, count in sorted(reporter.rejections.items()):
            rejections.add_metric([kind], count)
        faults = CounterMetricFamily("tenfold_faults", "Faults of the plugin's own in optional parts.", labels=["part"])
        for part, count in sorted(self._faults().items()):
            faults.add_metric([part], count)
        yield from (refusals, revision, rejections, faults)
        yield _gauge("tenfold_slots", "Slot names that were given out and not collected.", len(bookings.ledger.slots))
        yield _gauge("tenfold_bookings", "Pods that have cards of this node.", len(bookings.ledger.bookings))
        yield _gauge("tenfold_pods_failed_at_admission", "Pods of this node that the kubelet turned away.", bookings.failed_at_admission())
        yield _counter("tenfold_moves", "Pods that were moved to another card because the scheduler's choice was taken.", reporter.moves)
        yield _counter("tenfold_annotation_repairs", "Assignments of pods that were written back.", reporter.repairs)


def _gauge(name: str, text: str, value: float) -> Any:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family


def _counter(name: str, text: str, value: float) -> Any:
    family = CounterMetricFamily(name, text)
    family.add_metric([], value)
    return family


class Health(Protocol):
    @property
    def alive(self) -> bool: ...

    @property
    def unready(self) -> str:
        """Why not ready; empty: ready."""


class MetricsServer:
    """``/metrics``, ``/healthz`` (the threads work) and ``/readyz`` (or why not), on one small HTTP server."""

    def __init__(self, address: str, collector: SliceCollector, health: Health) -> None:
        """``address`` is host:port; port 0 takes any. Errors: OSError when it is in use."""
        registry = CollectorRegistry()
        registry.register(collector)
        host, _, port = address.rpartition(":")

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds; a client that says nothing must not keep a thread

            def do_GET(self) -> None:
                if self.path.partition("?")[0] == "/metrics":
                    self._answer(200, generate_latest(registry), "text/plain; version=0.0.4; charset=utf-8")
                elif self.path == "/healthz":
                    self._answer(*((200, b"ok\n") if health.alive else (503, b"a thread of the plugin hangs\n")))
                elif self.path == "/readyz":
                    words = health.unready
                    self._answer(503 if words else 200, f"{words or 'ok'}\n".encode())
                else:
                    self._answer(404, b"/metrics, /healthz or /readyz\n")

            def _answer(self, status: int, body: bytes, kind: str = "text/plain") -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: Any) -> None:
                """Scrapes are no news."""

        self._server = ThreadingHTTPServer((host, int(port)), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(STOP_POLL_SECONDS,), name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
