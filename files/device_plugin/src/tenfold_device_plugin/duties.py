"""What a thread does over and over on this node: scan the cards, register with the kubelet, tell slots about GPU time.

Owns when a duty is due and what its failure means: a foreseen one is said when it begins, when its words change and when it is over; a
fault of ours ends the process, whose restart begins with the truth on disk, unless the duty is one that containers can do without.
Nothing here waits for the API server; that is ``writer``'s.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from . import log
from ._domain.errors import RegionError
from .clock import Clock
from .errors import CardsUnavailable, ClusterUnavailable, LedgerError, Refused
from .workqueue import Pauses

__all__ = ["FORESEEN", "Duties", "Duty", "end_process", "words_of_error"]

FORESEEN = (CardsUnavailable, ClusterUnavailable, LedgerError, OSError, Refused, RegionError, grpc.RpcError)
FAULT_PAUSES = Pauses(5.0, 300.0)  # an optional duty with a fault of ours is tried again, in case it was the moment's
FAULT_STATUS = 3


@dataclass(frozen=True)
class Duty:
    """``every_seconds`` 0: each time the thread comes round."""

    name: str
    action: Callable[[], object]
    every_seconds: float = 0.0
    optional: bool = False


class Duties:
    """One thread's. ``faults`` counts what nobody foresaw in its optional ones, by name."""

    def __init__(self, clock: Clock, step_seconds: float, duties: Sequence[Duty]) -> None:
        self._clock = clock
        self._step_seconds = step_seconds
        self._duties = duties
        self._due: dict[str, float] = {}
        self._said = log.Once()
        self._wake = threading.Event()
        self.faults: Counter[str] = Counter()
        self.beat = clock.monotonic()

    def wake(self) -> None:
        self._wake.set()

    def run(self, left: threading.Event) -> None:
        """Until ``left``. A step begins when the one before is over: a late one makes nothing worse."""
        while not left.is_set():
            began = self._clock.monotonic()
            self.run_due()
            self._wake.wait(max(0.0, self._step_seconds - (self._clock.monotonic() - began)))
            self._wake.clear()

    def run_due(self) -> None:
        for duty in self._duties:
            now = self._clock.monotonic()
            if now >= self._due.get(duty.name, now):
                self._due[duty.name] = now + duty.every_seconds
                self._run(duty)
        self.beat = self._clock.monotonic()

    def _run(self, duty: Duty) -> None:
        try:
            duty.action()
        except FORESEEN as error:
            self._said.fails(duty.name, f"{duty.name}: {words_of_error(error)}; trying again")
        except Exception as error:
            if not duty.optional:
                end_process(f"{duty.name} ended by a fault of ours", error)
            self.faults[duty.name] += 1
            pause = FAULT_PAUSES.after(self.faults[duty.name])
            self._due[duty.name] = self._clock.monotonic() + pause
            log.say(logging.ERROR, f"{duty.name}: a fault of ours, going on without, again in {pause:.0f} s", error=error)
        else:
            self._said.works(duty.name)


def words_of_error(error: BaseException) -> str:
    return str(error.details()) if isinstance(error, grpc.Call) else str(error)


def end_process(words: str, error: BaseException) -> None:
    """From any thread, at once: nothing that is not on the disk is true."""
    log.say(logging.CRITICAL, words, error=error)
    os._exit(FAULT_STATUS)
