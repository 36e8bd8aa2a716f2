"""To whom the kubelet has given a slot, by its own record: pod UID and container, where pod-resources knows a pod by its name alone.

Owns reading ``kubelet_internal_checkpoint`` in the folder of the plugins' sockets. It is written after Allocate has been answered and holds
the answer, so that the slot's name is in it. An entry proves who was given a slot, not who still lives; entries of finished pods stay until
the next allocation. And it is the kubelet's private format: what is said here can refuse a start, never allow one.
Source: Kubernetes v1.35.4, pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cdi import slot_of_device
from .protos import device_plugin_pb2 as api

__all__ = ["Checkpoint", "Recipient"]

FILE_NAME = "kubelet_internal_checkpoint"


@dataclass(frozen=True)
class Recipient:
    """The container that a slot was allocated for."""

    uid: str
    container: str
    ids: tuple[str, ...]


class Checkpoint:
    """Read again when the file has changed. ``problem`` says why the last look told nothing; empty: it did."""

    def __init__(self, folder: Path, resource_name: str) -> None:
        self._path = folder / FILE_NAME
        self._resource_name = resource_name
        self._seen: tuple[int, int, int] | None = None
        self._recipients: dict[str, Recipient] = {}
        self.problem = ""

    def recipients(self) -> Mapping[str, Recipient]:
        """By slot name; empty with a ``problem`` where the file is absent or in a form that we do not know."""
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                document = json.loads(self._path.read_text(encoding="utf-8"))
                self._recipients, self.problem = dict(self._read(document)), ""
                self._seen = seen
        except OSError as error:
            self._forget(f"cannot read '{self._path}': {error.strerror}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._forget(f"'{self._path}' has a form that this plugin does not know ({type(error).__name__}: {error})")
        except Exception as error:  # protobuf's own type differs between its implementations
            self._forget(f"'{self._path}' holds an answer of ours that cannot be decoded: {error}")
        return self._recipients

    def _forget(self, problem: str) -> None:
        self._recipients, self._seen, self.problem = {}, None, problem

    def _read(self, document: Any) -> Iterator[tuple[str, Recipient]]:
        for entry in document["Data"]["PodDeviceEntries"] or []:
            if entry["ResourceName"] != self._resource_name:
                continue
            answer = api.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"], validate=True))
            ids = tuple(sorted(device_id for ids in entry["DeviceIDs"].values() for device_id in ids))
            for device in answer.cdi_devices:
                slot = slot_of_device(device.name)
                if slot:
                    yield slot, Recipient(str(entry["PodUID"]), str(entry["ContainerName"]), ids)
