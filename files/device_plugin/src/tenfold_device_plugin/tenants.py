"""Which slots have living processes, by the mounts that these have.

Owns the look through the node's processes and the doubt whether they are the node's: what a tenant says of itself, and a time that has
passed, prove nothing about a process that the driver holds on to. The rule which mounts name a slot is the domain's ``gpu_time``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import kubelet
from ._domain import gpu_time
from .processes import Processes

__all__ = ["Tenants"]


@dataclass(frozen=True)
class Tenants:
    processes: Processes
    slots_dir: Path
    kubelet_socket: Path

    def slots(self) -> frozenset[str] | None:
        """None: nobody can tell, because the processes that are seen are not the node's (no hostPID) or the kubelet is away."""
        mountinfo = self.processes.mountinfo("self")
        source = gpu_time.source_of(mountinfo, str(self.slots_dir.resolve())) if mountinfo else None
        if source is None or not kubelet.peer_pid(self.kubelet_socket):
            return None
        found = set()
        for pid in self.processes.pids():
            mountinfo = self.processes.mountinfo(pid)
            if mountinfo and f"{source.root}/" in mountinfo:  # most have none: not worth the parsing
                slot = gpu_time.slot_of(mountinfo, source)
                if slot:
                    found.add(slot)
        return frozenset(found)
