"""Whose GPU time a reading of NVML is: the host's word for every slice with a core limit.

Owns the rule, and nothing else: which slot a process belongs to, by the mounts that it has, and what a reading of NVML's process
utilisation says of each slot. The device plugin reads both and tells the pages (``gpu_times`` there); ``region`` writes them.

A slot's two files are bind mounts of the node's own tmpfs, made by the container runtime. Their root in that file system names the slot,
and no container can bring about a mount of another slot's files, because it sees no other slot. So a tenant cannot pass its time off as
another's. What it can do, with privileges of its own, is to hide: to leave its mounts behind (another root, a mount namespace without
them) or to end before it is looked at. Time of such processes counts for every slot of the card: whoever hides gains nothing, and its
neighbours get at worst what they would get if nobody told them anything, never more than their limits. Processes of the node itself (the
mount namespace of pid 1) count for nobody; who can become one of them owns the node anyway.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Iterable, Mapping

__all__ = ["NODE", "Reading", "Sample", "Source", "read", "slot_of", "source_of"]

NODE = ""  # the owner of a process of the node itself
CUT_OFF_PERCENT = 0.5  # NVML gives whole percents, cut off: so much is added to what is not 0, as the hook does (compute/neighbours.c)

_SLOT_FILE = re.compile(r"/(?P<slot>[0-9a-f]{32})/(config|state)(//deleted)?")
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Sample:
    """One line of NVML's process utilisation.

    Units: at_us of CLOCK_REALTIME, the sample's end; percent of the card since the last reading.
    """

    pid: int
    at_us: int
    percent: int


@dataclass(frozen=True)
class Source:
    """A folder as a mount table names it: major:minor of its file system, and the path in it."""

    device: str
    root: str


@dataclass(frozen=True)
class Reading:
    """What was said of one card. ``percent`` by slot; ``unknown_percent`` is nobody's, and so everybody's."""

    newest_us: int
    percent: dict[str, float] = field(default_factory=dict)
    unknown_percent: float = 0.0

    @property
    def is_blind(self) -> bool:
        """Somebody works, and of nobody is it known who."""
        return self.unknown_percent > 0 and not self.percent

    @property
    def is_empty(self) -> bool:
        """Nobody at all was seen to work. A slot that believed it, from a card that tells so for ever, would have no limit."""
        return not self.percent and not self.unknown_percent

    def busy_ns(self, slot: str, length_ns: int) -> int:
        """GPU time of a slot in a window of this length: its own, and what may be its own."""
        return int(min(100.0, self.percent.get(slot, 0.0) + self.unknown_percent) / 100 * length_ns)


def read(samples: Iterable[Sample], owners: Mapping[int, str | None]) -> Reading:
    """``owners``: a slot, ``NODE``, or None where it is not known, by pid; pids that are not in it are not known."""
    newest_us, unknown = 0, 0.0
    percent: dict[str, float] = {}
    for sample in samples:
        newest_us = max(newest_us, sample.at_us)
        if sample.percent <= 0:
            continue
        owner = owners.get(sample.pid)
        if owner is None:
            unknown += sample.percent + CUT_OFF_PERCENT
        else:
            percent[owner] = percent.get(owner, 0.0) + sample.percent + CUT_OFF_PERCENT
    return Reading(newest_us, percent, unknown)


def source_of(mountinfo: str, path: str) -> Source | None:
    """What lies behind an absolute path without links, by the mount table of a process that sees it. None: nothing is mounted there."""
    found: Source | None = None
    longest = -1
    for device, root, point in _mounts(mountinfo):
        prefix = "" if point == "/" else point
        if (path == point or path.startswith(prefix + "/")) and len(
            prefix
        ) >= longest:  # of two at one place the later one covers the other
            longest = len(prefix)
            found = Source(device, ("" if root == "/" else root) + path[len(prefix) :] or "/")
    return found


def slot_of(mountinfo: str, slots: Source) -> str | None:
    """The slot whose files a process has mounted, wherever. None: it has none, or of more than one.

    ``slots`` is the node's folder of slots: the path alone proves nothing, since a tenant with privileges makes file systems of its own.
    """
    found = set()
    for device, root, _point in _mounts(mountinfo):
        if device != slots.device or not root.startswith(slots.root + "/"):
            continue
        match = _SLOT_FILE.fullmatch(root[len(slots.root) :])
        if match:
            found.add(match["slot"])
    return found.pop() if len(found) == 1 else None


def _mounts(mountinfo: str) -> Iterable[tuple[str, str, str]]:
    """Device, root and mount point of each line of /proc/<pid>/mountinfo (proc_pid_mountinfo(5))."""
    for line in mountinfo.splitlines():
        words = line.split(" ", 5)
        if len(words) == 6:
            yield words[2], _unescaped(words[3]), _unescaped(words[4])


def _unescaped(word: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), word) if "\\" in word else word
