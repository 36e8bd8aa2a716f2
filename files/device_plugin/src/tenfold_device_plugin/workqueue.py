"""Work by key: what is due, in which order, and how often one object may cost a request.

Owns the rules of a level-triggered queue: a key says which object to look at, never what happened to it; a key that is added while it is
worked on is worked on again; a failure pauses its own key and nobody else's, each time twice as long, with jitter; and what succeeds over
and over, because somebody else undoes it, runs into its budget. What a key means is ``writer``'s. Models: client-go's util/workqueue, kopf.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .clock import Clock

__all__ = ["EVENT", "NODE", "POD", "TIERS", "Budget", "Pauses", "WorkQueue", "event_key", "pod_key"]

NODE, TIERS, POD, EVENT = "node", "tiers", "pod", "event"  # kinds of keys; those of the last two go on with "/<uid>"


@dataclass(frozen=True)
class Pauses:
    """How long a failure pauses: the first time, and at most; in between it doubles. Each is spread from half to one and a half."""

    first_seconds: float
    most_seconds: float

    def after(self, failures: int, jitter: Callable[[], float] = random.random) -> float:
        """``failures`` counts from 1; ``jitter`` gives numbers from 0 to 1."""
        doubled = self.first_seconds * 2.0 ** min(failures - 1, 32)
        return float(min(doubled, self.most_seconds) * (0.5 + jitter()))


@dataclass(frozen=True)
class Budget:
    """So many passes that ask the API server one key may make at once, and one more after each refill."""

    burst: int
    refill_seconds: float


@dataclass
class _Work:
    wanted_at: float = math.inf
    failures: int = 0
    paused_until: float = -math.inf
    spent_until: float = -math.inf  # each pass that asked moves it a refill ahead (a leaky bucket)

    def due_at(self, budget: Budget) -> float:
        return max(self.wanted_at, self.paused_until, self.spent_until - (budget.burst - 1) * budget.refill_seconds)


class WorkQueue:
    """Many threads add, one works: ``take``, then ``done`` or ``failed``."""

    def __init__(self, clock: Clock, budgets: Mapping[str, Budget], jitter: Callable[[], float] = random.random) -> None:
        """``budgets`` by kind of key, which is what stands before its "/"; the kind that comes first goes first."""
        self._clock = clock
        self._budgets = budgets
        self._ranks = {kind: rank for rank, kind in enumerate(budgets)}
        self._jitter = jitter
        self._news = threading.Condition()
        self._works: dict[str, _Work] = {}

    def add(self, key: str, after_seconds: float = 0.0) -> None:
        """Look at this object, now or then; a pause that a failure has set stays."""
        with self._news:
            work = self._works.setdefault(key, _Work())
            work.wanted_at = min(work.wanted_at, self._clock.monotonic() + after_seconds)
            self._news.notify_all()

    def take(self) -> str | None:
        """The most urgent key that is due; None: none is."""
        with self._news:
            now = self._clock.monotonic()
            due = [key for key, work in self._works.items() if work.due_at(self._budget(key)) <= now]
            if not due:
                return None
            key = min(due, key=lambda each: (self._ranks[_kind(each)], self._works[each].wanted_at))
            self._works[key].wanted_at = math.inf
            return key

    def done(self, key: str, asked: bool = False, again_seconds: float | None = None) -> None:
        """Its object is as it should be; ``asked`` if that took a request. Look again then, or when it is added."""
        with self._news:
            now = self._clock.monotonic()
            work = self._works.setdefault(key, _Work())
            work.failures, work.paused_until = 0, -math.inf
            if asked:
                work.spent_until = max(work.spent_until, now) + self._budget(key).refill_seconds
            if again_seconds is not None:
                work.wanted_at = min(work.wanted_at, now + again_seconds)
            if work.wanted_at == math.inf and work.spent_until <= now:
                del self._works[key]

    def failed(self, key: str, pauses: Pauses) -> float:
        """Try again after a pause; how long it is, in seconds."""
        with self._news:
            now = self._clock.monotonic()
            work = self._works.setdefault(key, _Work())
            work.failures += 1
            seconds = pauses.after(work.failures, self._jitter)
            work.paused_until, work.wanted_at = now + seconds, min(work.wanted_at, now)
            return seconds

    def forget(self, key: str) -> None:
        """Its object is another one now: what failed before says nothing."""
        with self._news:
            if key in self._works:
                self._works[key].failures, self._works[key].paused_until = 0, -math.inf

    def wait(self, seconds: float) -> None:
        """Until a key is due, or something is added, or so long."""
        with self._news:
            self._drop_idle()
            earliest = min((work.due_at(self._budget(key)) for key, work in self._works.items()), default=math.inf)
            self._news.wait(max(0.0, min(seconds, earliest - self._clock.monotonic())))

    def wake(self) -> None:
        with self._news:
            self._news.notify_all()

    def _drop_idle(self) -> None:
        now = self._clock.monotonic()
        self._works = {key: work for key, work in self._works.items() if work.wanted_at < math.inf or work.spent_until > now}

    def _budget(self, key: str) -> Budget:
        return self._budgets[_kind(key)]


def pod_key(uid: str) -> str:
    return f"{POD}/{uid}"


def event_key(uid: str) -> str:
    return f"{EVENT}/{uid}"


def _kind(key: str) -> str:
    return key.partition("/")[0]
