"""The calls of the kubelet's two APIs, typed, without generated stubs (those tie us to one version of grpcio).

Owns paths and serialisation of the calls, and registration. What a call does is ``serve``'s; what pod-resources means, ``podresources``'.
Source: k8s.io/kubelet v0.35.4, pkg/apis/deviceplugin/v1beta1/api.proto and constants.go; pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import grpc

from .protos import device_plugin_pb2 as api
from .protos import pod_resources_pb2 as pods_api

__all__ = ["HEALTHY", "DevicePluginCalls", "device_plugin_handlers", "list_pod_resources", "peer_pid", "register"]

API_VERSION = "v1beta1"
HEALTHY = "Healthy"
_DEVICE_PLUGIN = "v1beta1.DevicePlugin"
_REGISTER = "/v1beta1.Registration/Register"
_LIST = "/v1.PodResourcesLister/List"
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_POD_RESOURCES_BYTES_MAXIMUM = 16 * 2**20  # the kubelet's own limit for this socket (pkg/kubelet/apis/podresources/constants.go)


class DevicePluginCalls(Protocol):
    """What the kubelet may ask of us."""

    def options(self, request: api.Empty, context: grpc.ServicerContext) -> api.DevicePluginOptions: ...

    def list_and_watch(self, request: api.Empty, context: grpc.ServicerContext) -> Iterator[api.ListAndWatchResponse]: ...

    def preferred_allocation(
        self, request: api.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse: ...

    def allocate(self, request: api.AllocateRequest, context: grpc.ServicerContext) -> api.AllocateResponse: ...

    def pre_start(self, request: api.PreStartContainerRequest, context: grpc.ServicerContext) -> api.PreStartContainerResponse: ...


def device_plugin_handlers(calls: DevicePluginCalls) -> grpc.GenericRpcHandler:
    """The service v1beta1.DevicePlugin, answered by ``calls``."""

    def unary(behaviour: Any, request: Any) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_unary_rpc_method_handler(behaviour, request.FromString, _serialised)

    return grpc.method_handlers_generic_handler(
        _DEVICE_PLUGIN,
        {
            "GetDevicePluginOptions": unary(calls.options, api.Empty),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(calls.list_and_watch, api.Empty.FromString, _serialised),
            "GetPreferredAllocation": unary(calls.preferred_allocation, api.PreferredAllocationRequest),
            "Allocate": unary(calls.allocate, api.AllocateRequest),
            "PreStartContainer": unary(calls.pre_start, api.PreStartContainerRequest),
        },
    )


def register(kubelet_socket: Path, endpoint: str, resource_name: str, timeout_seconds: float) -> None:
    """Announce our socket ``endpoint`` (a name in the kubelet's folder). Errors: grpc.RpcError."""
    request = api.RegisterRequest(
        version=API_VERSION,
        endpoint=endpoint,
        resource_name=resource_name,
        options=api.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True),
    )
    with grpc.insecure_channel(f"unix://{kubelet_socket}") as channel:
        channel.unary_unary(_REGISTER, _serialised, api.Empty.FromString)(request, timeout=timeout_seconds)


def list_pod_resources(socket: Path, timeout_seconds: float) -> pods_api.ListPodResourcesResponse:
    """Which container of which pod holds which devices, as the kubelet knows it now. Errors: grpc.RpcError."""
    with grpc.insecure_channel(f"unix://{socket}", options=[("grpc.max_receive_message_length", _POD_RESOURCES_BYTES_MAXIMUM)]) as channel:
        call = channel.unary_unary(_LIST, _serialised, pods_api.ListPodResourcesResponse.FromString)
        response: pods_api.ListPodResourcesResponse = call(pods_api.ListPodResourcesRequest(), timeout=timeout_seconds)
        return response


def peer_pid(socket_path: Path) -> int:
    """The process that serves a socket, by its number among the processes that we see; 0: none serves it, or not one of these."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(0.5)
        try:
            connection.connect(str(socket_path))
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return 0
    return int(_CREDENTIALS.unpack(credentials)[0])


def _serialised(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
