"""The gRPC side: the kubelet's five calls, our socket, and our registration.

Owns translation between messages and ``binding``, and the life of the socket. A new ListAndWatch ends the one before, so that streams of a
kubelet that reconnects never use up the workers. Which ids exist is told by ``publish``.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from . import cdi, kubelet, log
from ._domain import wire
from .binding import Binder
from .clock import Clock
from .errors import ClusterUnavailable, LedgerError, Refused
from .protos import device_plugin_pb2 as api

__all__ = ["Endpoint", "Service"]

# A waiting PreStart holds one for up to 25 s, and Allocate must not wait for it: more than a node has pods, each of which starts one
# container at a time. Threads come with the calls.
WORKERS = 512
STREAM_STEP_SECONDS = 5.0
REGISTER_SECONDS = 5.0
STREAM_PATIENCE_SECONDS = 10.0  # a kubelet that took our registration and does not come for the ids is asked again after this
STREAM_GAP_SECONDS = 0.3  # it closes the old stream and opens the new one in any order: not every end is a loss
STOP_SECONDS = 2.0
SOCKET_PREFIX = "tenfold-"


class Service:
    """Answers the kubelet. ``on_stream_end`` is called when the kubelet drops the newest ListAndWatch: we must register again."""

    def __init__(self, binder: Binder, clock: Clock, on_stream_end: Callable[[], None]) -> None:
        self._binder = binder
        self._clock = clock
        self._on_stream_end = on_stream_end
        self._news = threading.Condition()
        self._ids: tuple[str, ...] = ()
        self._version = 0
        self._newest_stream = 0
        self._open_stream = 0
        self._stopping = False
        self.unread_since = -math.inf

    @property
    def watched(self) -> bool:
        """Whether a kubelet is reading our ids now; if not, ``unread_since`` is when the last one stopped."""
        with self._news:
            return self._open_stream > 0

    def publish(self, ids: Sequence[str]) -> None:
        """Set the ids that exist; streams send them if they changed."""
        with self._news:
            if tuple(ids) != self._ids:
                self._ids = tuple(ids)
                self._version += 1
                self._news.notify_all()

    def stop(self) -> None:
        with self._news:
            self._stopping = True
            self._news.notify_all()

    # --- the kubelet's calls --------------------------------------------------------------------------------------------

    def options(self, _request: api.Empty, _context: grpc.ServicerContext) -> api.DevicePluginOptions:
        return api.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    def list_and_watch(self, _request: api.Empty, context: grpc.ServicerContext) -> Iterator[api.ListAndWatchResponse]:
        with self._news:
            self._newest_stream += 1
            stream = self._open_stream = self._newest_stream
            self._news.notify_all()
        # Not left to the loop below: gRPC drops a generator whose call has ended without a word.
        if not context.add_callback(lambda: self._stream_over(stream)):
            self._stream_over(stream)
        sent = -1
        while True:
            with self._news:
                if sent == self._version:
                    self._news.wait(STREAM_STEP_SECONDS)
                if self._stopping or stream != self._open_stream:
                    return
                version, ids = self._version, self._ids
            if version != sent:
                sent = version
                # Healthy whatever the card's state: an unhealthy id would fail pods between two starts of their containers.
                yield api.ListAndWatchResponse(devices=[api.Device(ID=device_id, health=kubelet.HEALTHY) for device_id in ids])

    def preferred_allocation(
        self, request: api.PreferredAllocationRequest, _context: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse:
        response = api.PreferredAllocationResponse()
        for wanted in request.container_requests:
            ids = self._binder.preferred(wanted.available_deviceIDs, wanted.must_include_deviceIDs, wanted.allocation_size)
            response.container_responses.add(deviceIDs=ids)
        return response

    def allocate(self, request: api.AllocateRequest, context: grpc.ServicerContext) -> api.AllocateResponse:
        try:
            slots = self._binder.allocate([list(wanted.devices_ids) for wanted in request.container_requests])
        except Refused as refusal:
            log.say(logging.ERROR, f"Allocate refused: {refusal}")
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refusal))
        except LedgerError as error:
            log.say(logging.ERROR, f"Allocate refused, the slot could be forgotten: {error}")
            context.abort(grpc.StatusCode.INTERNAL, str(error))
        response = api.AllocateResponse()
        for slot in slots:
            response.container_responses.add().cdi_devices.add(name=cdi.device_name(slot))
        return response

    def pre_start(self, request: api.PreStartContainerRequest, context: grpc.ServicerContext) -> api.PreStartContainerResponse:
        try:
            self._binder.prepare_start(list(request.devices_ids))
        except Refused as refusal:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{refusal.reason}: {refusal}")
        except (LedgerError, ClusterUnavailable) as error:
            log.say(logging.ERROR, f"a container was not started: {error}")
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return api.PreStartContainerResponse()

    def _stream_over(self, stream: int) -> None:
        """The call of a stream has ended; only the newest one's end is news."""
        with self._news:
            if stream != self._open_stream:
                return
            self._open_stream, self.unread_since = 0, self._clock.monotonic()
            self._news.notify_all()
            is_ours = self._stopping
        if not is_ours:
            self._on_stream_end()


class Endpoint:
    """Our socket in the kubelet's folder, one file name a start, so that no two instances ever remove each other's."""

    def __init__(self, folder: Path, service: Service, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._registered_at = 0.0
        self._service = service
        self._server: grpc.Server | None = None
        self._socket: Path | None = None
        self._registered_with: tuple[int, int, int] | None = None

    @property
    def registered(self) -> bool:
        """A kubelet has taken us and reads our ids, or may still come for them."""
        if self._registered_with is None or self._service.watched:
            return self._registered_with is not None
        lost_at = self._service.unread_since
        patience = STREAM_GAP_SECONDS if lost_at >= self._registered_at else STREAM_PATIENCE_SECONDS
        return self._clock.monotonic() - max(lost_at, self._registered_at) < patience

    def ensure(self) -> bool:
        """Serve and be registered with the kubelet that is there now; whether something was done.

        A kubelet that restarts removes every socket of the folder and makes its own anew, so both are looked at by identity.
        Errors: OSError when the kubelet's socket is missing, grpc.RpcError when it does not take us.
        """
        identity = _identity(self._kubelet_socket)
        if self.registered and identity == self._registered_with and self._socket is not None and self._socket.exists():
            return False
        if self._socket is None or not self._socket.exists():
            self._serve()
        assert self._socket is not None
        kubelet.register(self._kubelet_socket, self._socket.name, wire.RESOURCE_NUMBER, REGISTER_SECONDS)
        self._registered_with, self._registered_at = identity, self._clock.monotonic()
        log.say(logging.INFO, f"registered {wire.RESOURCE_NUMBER} with the kubelet as '{self._socket.name}'")
        return True

    def stop(self) -> None:
        """Finish the calls that run, at most two seconds, and go. The ids turn unhealthy in the kubelet; pods keep running."""
        self._service.stop()
        if self._server is not None:
            self._server.stop(STOP_SECONDS).wait()
        self._server = None
        self._registered_with = None

    def _serve(self) -> None:
        if self._server is not None:
            self._server.stop(0)
        self._remove_dead_sockets()
        self._socket = self._folder / f"{SOCKET_PREFIX}{secrets.token_hex(4)}.sock"
        server = grpc.server(ThreadPoolExecutor(WORKERS, thread_name_prefix="kubelet-call"))
        server.add_generic_rpc_handlers((kubelet.device_plugin_handlers(self._service),))
        server.add_insecure_port(f"unix://{self._socket}")
        server.start()
        self._server = server

    def _remove_dead_sockets(self) -> None:
        """Of our former lives: those whose process is gone."""
        for path in self._folder.glob(f"{SOCKET_PREFIX}*.sock"):
            if not _answers(path):
                with contextlib.suppress(OSError):
                    path.unlink()

    @property
    def _kubelet_socket(self) -> Path:
        return self._folder / "kubelet.sock"


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(0.5)
        try:
            connection.connect(str(path))
        except OSError:
            return False
        return True
