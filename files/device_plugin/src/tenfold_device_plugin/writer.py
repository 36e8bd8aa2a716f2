"""The only writer of this node's pods, node object and events: one key at a time, most urgent first.

Owns what each key means and what an answer of the API server does to it. Keys: ``node`` (annotations, resources), ``tiers`` (the catalogue
that the node is told to obey), ``pod/<uid>`` (assignment and quota of a booked pod), ``event/<uid>`` (news of a pod). Each compares what is
with what should be and writes the difference, so that a lost change, a restart and a second look are the same. Three things go wrong: the
object is another one (Conflict: look again), the server is away (ClusterUnavailable: later), the server refuses this write for good
(Rejected: told by event, metric and log, the same news once, and tried again at long intervals). When a key is due is ``workqueue``'s;
nothing here waits for the kubelet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from . import log
from ._domain import wire
from .advertise import Advertiser
from .bookings import Bookings
from .catalogues import Catalogues
from .clock import Clock
from .cluster import Change, Cluster
from .duties import FORESEEN, words_of_error
from .errors import Conflict, Rejected
from .quotas import Quotas
from .reports import Reporter
from .state import Capacity, capacity, register_records
from .workqueue import EVENT, NODE, POD, TIERS, Budget, Pauses, WorkQueue

__all__ = ["BUDGETS", "Writer"]

# In the order of their urgency. The node's capacity follows its pods, and must not stay below what they request. A pod is written once or
# twice in its life: more often only against somebody who undoes it. Events: as client-go v0.35, tools/record/events_cache.go,
# defaultSpamBurst and defaultSpamQPS.
BUDGETS = {
    NODE: Budget(20, 0.5),
    TIERS: Budget(5, 10.0),
    POD: Budget(5, 15.0),
    EVENT: Budget(25, 300.0),
}
AWAY_PAUSES = Pauses(1.0, 30.0)
REJECTED_PAUSES = Pauses(10.0, 300.0)
IDLE_SECONDS = 1.0  # the writer looks up at least so often, which /healthz sees


@dataclass(frozen=True)
class Done:
    """``asked``: it took a request. Look again after so many seconds even if nobody says that something has changed."""

    asked: bool = False
    again_seconds: float | None = None


class Writer:
    """For one thread, except ``take_node``, which the node watch calls."""

    def __init__(
        self,
        queue: WorkQueue,
        clock: Clock,
        cluster: Cluster,
        bookings: Bookings,
        quotas: Quotas,
        advertiser: Advertiser,
        catalogues: Catalogues,
        reporter: Reporter,
    ) -> None:
        self._queue = queue
        self._clock = clock
        self._cluster = cluster
        self._bookings = bookings
        self._quotas = quotas
        self._advertiser = advertiser
        self._catalogues = catalogues
        self._reporter = reporter
        self._said = log.Once()
        self._kinds: dict[str, Callable[[str], Done]] = {
            NODE: self._node,
            TIERS: self._tiers,
            POD: self._pod,
            EVENT: lambda uid: Done(asked=reporter.send(uid)),
        }
        self.in_service = True
        self.beat = clock.monotonic()

    def take_node(self, change: Change) -> None:
        """One step of the node watch."""
        revision = self._advertiser.revision
        self._advertiser.take(change)
        if self._advertiser.revision != revision:
            self._queue.forget(TIERS)
            self._queue.add(TIERS)
        self._queue.add(NODE)

    def leave_service(self) -> None:
        """From now on this node publishes count 0 for every card."""
        self.in_service = False
        self._queue.forget(NODE)
        self._queue.add(NODE)

    def work_all(self) -> None:
        """Everything that is due now."""
        while self.work():
            pass

    def work(self) -> bool:
        """One key, if one is due."""
        self.beat = self._clock.monotonic()
        key = self._queue.take()
        if key is None:
            return False
        kind, _, uid = key.partition("/")
        try:
            done = self._kinds[kind](uid)
        except Rejected as error:
            self._queue.failed(key, REJECTED_PAUSES)
            about = self._bookings.pods.get(uid) if kind == POD else self._reporter.node
            self._reporter.rejected(kind, f"{error}; trying again from time to time", about)
        except (Conflict, *FORESEEN) as error:
            self._queue.failed(key, AWAY_PAUSES)
            self._said.fails(key, f"{key}: {words_of_error(error)}; trying again")
        else:
            self._queue.done(key, done.asked, done.again_seconds)
            self._said.works(key)
        return True

    # --- what each key means --------------------------------------------------------------------------------------------------

    def _node(self, _uid: str) -> Done:
        bookings = self._bookings
        cards = bookings.inventory.cards
        told = self._advertiser.write_condition(bookings.inventory.problem)
        if not bookings.synced or not cards:
            return Done(told)
        with bookings.changed:
            records = register_records(cards, bookings.terms, self.in_service, bookings.counted_bookings())
            shown = self._capacity()
            all_booked = not bookings.unbooked()
        asked = self._advertiser.write(records, shown, all_booked)
        return Done(asked or told, self._advertiser.look_again_seconds())

    def _tiers(self, _uid: str) -> Done:
        revision, bookings = self._advertiser.revision, self._bookings
        if not revision or revision == bookings.terms.revision:
            return Done()
        catalogue = self._catalogues.get(revision)
        if catalogue.hash8 != bookings.terms.revision:
            with bookings.changed:
                bookings.terms = replace(bookings.terms, catalogue=catalogue)
                bookings.settle()
            log.say(logging.INFO, f"this node obeys catalogue {catalogue.hash8}", revision=catalogue.hash8)
        return Done(asked=True)

    def _pod(self, uid: str) -> Done:
        in_doubt_seconds = self._bookings.in_doubt_seconds(uid)
        pod = self._bookings.pods.get(uid)
        asked = pod is not None and in_doubt_seconds == 0
        if pod is not None and asked:
            self._bookings.confirm(uid, self._cluster.pod(pod["metadata"]["namespace"], pod["metadata"]["name"]))
        quota_seconds = self._quotas.step(uid, lambda: self._advertiser.shows_at_most(self._capacity()))
        asked = self._write_assignment(uid) or asked
        return Done(asked, min((each for each in (self._bookings.in_doubt_seconds(uid), quota_seconds) if each is not None), default=None))

    def _capacity(self) -> Capacity:
        bookings = self._bookings
        with bookings.changed:
            return capacity(bookings.pods.values(), bookings.inventory.cards, bookings.live_bookings(), bookings.terms)

    def _write_assignment(self, uid: str) -> bool:
        repair = self._bookings.annotation_repair(uid)
        if repair is None:
            return False
        pod, patch = repair
        metadata = pod["metadata"]
        answer = self._cluster.annotate_pod(metadata["namespace"], metadata["name"], uid, patch)
        self._bookings.put_pod(answer, instead_of=pod)
        missing = sorted(key for key, value in patch.items() if (answer["metadata"].get("annotations") or {}).get(key) != value)
        if missing:
            raise Rejected(f"the API server took the annotations and answers without {', '.join(missing)}: a webhook takes them away")
        if wire.POD_IDS_ANNOTATION in patch and wire.QUOTA_STATUS_ANNOTATION not in patch:
            self._reporter.repairs += 1
            words = f"wrote its assignment back: {patch[wire.POD_IDS_ANNOTATION]}"
            log.of_pod(logging.WARNING, words, metadata["namespace"], metadata["name"], uid)
        return True
