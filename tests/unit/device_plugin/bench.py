"""A kubelet on real sockets, an API server in memory and folders on disk: the device plugin's surroundings for its unit tests.

Owns the fakes' behaviour, which is the real parts' as measured: ids are chosen at random unless a preference is given, pod-resources
lists a container once its pod's Allocates are done, init containers never, an init container's ids go on to an app container, PreStart
comes before every start, and a container's CDI name is resolved when it is created. A restarted kubelet removes every socket.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
import os
import queue
import random
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import grpc

from tenfold_device_plugin._domain import fit, page_writer, region, wire
from tenfold_device_plugin._domain.gpu_time import Sample
from tenfold_device_plugin._domain.tiers import Catalogue
from tenfold_device_plugin.cluster import slim_node, slim_pod
from tenfold_device_plugin.errors import CardsUnavailable, ClusterUnavailable, Conflict
from tenfold_device_plugin.main import Plugin
from tenfold_device_plugin.podresources import KubeletPodResources
from tenfold_device_plugin.processes import Processes
from tenfold_device_plugin.protos import device_plugin_pb2 as api
from tenfold_device_plugin.protos import pod_resources_pb2 as pods_api
from tenfold_device_plugin.scan import CardUse
from tenfold_device_plugin.settings import Settings
from tenfold_device_plugin.state import Card
from tests.hook import workshop

NODE = "gpu-1"
MIB = 2**20
CARD_A = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
CARD_B = "GPU-bbbbbbbb-0000-4000-8000-000000000002"
CARD_MIB = 81920
RUN_DEVICE = "0:57"  # of the made-up tmpfs under the run folder

_UIDS = itertools.count(1)

CATALOGUE = Catalogue.from_vars(
    {
        "tiers": {
            "small": {"memory_mib": 8192, "reserved_cores": 10, "limit_cores": 10},
            "medium": {"memory_mib": 16384, "reserved_cores": 30, "limit_cores": 30},
            "large": {"memory_mib": 32768, "reserved_cores": 60, "limit_cores": 60},
            "xlarge": {"memory_mib": 65536, "reserved_cores": 80, "limit_cores": 100},
        },
        "custom_allowed": True,
    }
)

NVIDIA_SPEC = f"""\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  env:
    - NVIDIA_VISIBLE_DEVICES=void
    - NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu
  deviceNodes:
    - path: /dev/nvidiactl
    - path: /dev/nvidia-uvm
    - path: /dev/nvidia-modeset
  hooks:
    - hookName: createContainer
      path: /usr/bin/nvidia-cdi-hook
      args: [nvidia-cdi-hook, create-symlinks, --link, libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so,
             --link, libglxserver_nvidia.so.535.1::/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so]
    - hookName: createContainer
      path: /usr/bin/nvidia-cdi-hook
      args: [nvidia-cdi-hook, update-ldcache, --folder, /usr/lib/x86_64-linux-gnu]
    - hookName: createContainer
      path: /usr/bin/nvidia-cdi-hook
      args: [nvidia-cdi-hook, update-application-profile]
  mounts:
    - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.1
      containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.1
      options: [ro, nosuid, nodev, bind]
    - hostPath: /usr/lib/x86_64-linux-gnu/libEGL_nvidia.so.535.1
      containerPath: /usr/lib/x86_64-linux-gnu/libEGL_nvidia.so.535.1
      options: [ro, nosuid, nodev, bind]
    - hostPath: /etc/vulkan/icd.d/nvidia_icd.json
      containerPath: /etc/vulkan/icd.d/nvidia_icd.json
      options: [ro, nosuid, nodev, bind]
devices:
  - name: "0"
    containerEdits: &a
      deviceNodes:
        - path: /dev/nvidia0
        - path: /dev/dri/card1
        - path: /dev/dri/renderD128
      hooks:
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
          args: [nvidia-cdi-hook, create-symlinks, --link, ../card1::/dev/dri/by-path/pci-0000:07:00.0-card]
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
          args: [nvidia-cdi-hook, chmod, --mode, "755", --path, /dev/dri]
  - name: {CARD_A}
    containerEdits: *a
  - name: {CARD_B}
    containerEdits:
      deviceNodes:
        - path: /dev/nvidia1
"""


def until(condition: Callable[[], Any], what: str, seconds: float = 5.0) -> Any:
    """Poll for a condition; its truthy value. Fails with ``what`` after the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"not within {seconds:g} s: {what}")


class ManualClock:
    """A clock that stands still until told otherwise."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(1_790_000_000 + self.seconds, timezone.utc)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


class RunningClock(ManualClock):
    """Runs with real time and can be put forward."""

    def __init__(self) -> None:
        super().__init__()
        self._start = time.monotonic()

    def monotonic(self) -> float:
        return self.seconds + time.monotonic() - self._start


class FakeCards:
    """Two A800 by default; ``silent`` makes NVML fail."""

    def __init__(self, cards: Sequence[Card] | None = None) -> None:
        self.cards = list(cards or (Card(0, CARD_A, "NVIDIA A800-SXM4-80GB", CARD_MIB), Card(1, CARD_B, "NVIDIA A800-SXM4-80GB", CARD_MIB)))
        self.silent = False

    def scan(self) -> list[Card]:
        if self.silent:
            raise CardsUnavailable("NVML does not answer: Driver Not Loaded")
        return list(self.cards)

    def use(self) -> dict[str, CardUse]:
        return {card.uuid: CardUse(1024 * MIB, card.memory_mib * MIB, 50) for card in self.cards}

    def samples(self, _uuid: str, _since_us: int) -> list[Sample] | None:
        return None


def pod(
    name: str,
    tier: str | None = "small",
    *,
    card: str | Sequence[Sequence[str]] | None = CARD_A,
    limits: Sequence[Mapping[str, Any] | None] | None = None,
    uid: str = "",
    **changes: Any,
) -> dict[str, Any]:
    """A bound pod as the scheduler leaves it. ``limits``: one mapping (or None) a container; ``card``: for all, or one list a segment."""
    named = CATALOGUE.tier(tier) if tier and limits is None else None
    limits = limits if limits is not None else [named.limits() if named else {}]
    found: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": changes.get("namespace", "default"),
            "uid": uid or f"uid-{name}-{next(_UIDS)}",
            "creationTimestamp": "2026-11-30T09:00:00Z",
            "annotations": {},
            "labels": {wire.TIER_LABEL: tier} if tier else {},
        },
        "spec": {
            "nodeName": NODE,
            "schedulerName": "volcano",
            "containers": [
                {"name": f"c{index}", "resources": {"limits": dict(limit), "requests": dict(limit)} if limit else {}}
                for index, limit in enumerate(limits)
            ],
        },
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    }
    if card is not None:
        assign(found, card)
    return found


def assign(found: dict[str, Any], card: str | Sequence[Sequence[str]]) -> None:
    """Write the scheduler's annotations for these cards."""
    requests = wire.requesting_containers(found)
    cards = [[card]] * len(requests) if isinstance(card, str) else card
    segments = [
        [wire.Assignment(uuid, fit.DEVICE_TYPE, container.request.memory_on(CARD_MIB), container.request.cores_percent) for uuid in chosen]
        for chosen, container in zip(cards, requests)
    ]
    ids = wire.encode_segments(segments)
    found["metadata"]["annotations"].update(
        {
            wire.POD_NODE_ANNOTATION: NODE,
            wire.POD_IDS_ANNOTATION: ids,
            wire.POD_DEVICES_TO_ALLOCATE_ANNOTATION: ids,
            wire.POD_TIME_ANNOTATION: "1790000000",
            wire.POD_BIND_TIME_ANNOTATION: "1790000000",
            wire.POD_BIND_PHASE_ANNOTATION: wire.BIND_PHASE_ALLOCATING,
        }
    )


class FakeCluster:
    """The API server behind ``cluster.Cluster``: objects by name, watches that see every change, and a switch to make it go away."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.away = False
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.node_object: dict[str, Any] = {
            "metadata": {"name": NODE, "uid": "uid-node", "annotations": {wire.TIERS_REVISION_ANNOTATION: CATALOGUE.hash8}},
            "status": {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8"}},
        }
        self.config_maps = {("tenfold-system", f"tenfold-tiers-{CATALOGUE.hash8}"): {"catalogue.json": CATALOGUE.as_json()}}
        self.events: list[dict[str, Any]] = []
        self.evicted: list[str] = []
        self.writes: list[tuple[str, Any]] = []
        self._followers: list[tuple[str, queue.Queue[tuple[str, Any]]]] = []

    # --- what a test does -----------------------------------------------------------------------------------------------

    def put(self, found: dict[str, Any]) -> dict[str, Any]:
        """Create or replace a pod."""
        with self.lock:
            key = (found["metadata"]["namespace"], found["metadata"]["name"])
            kind = "MODIFIED" if key in self.pods else "ADDED"
            self.pods[key] = copy.deepcopy(found)
            self._tell("pods", kind, self.pods[key])
        return found

    def put_unseen(self, found: dict[str, Any]) -> None:
        """Create a pod that no watch is told of."""
        with self.lock:
            self.pods[(found["metadata"]["namespace"], found["metadata"]["name"])] = copy.deepcopy(found)

    def change(self, found: dict[str, Any], **status: Any) -> None:
        """Set phase, deletionTimestamp or annotations of a pod."""
        with self.lock:
            stored = self.pods[(found["metadata"]["namespace"], found["metadata"]["name"])]
            if "phase" in status:
                stored["status"]["phase"] = status["phase"]
            if "deleting" in status:
                stored["metadata"]["deletionTimestamp"] = "2026-11-30T10:00:00Z"
            if "annotations" in status:
                stored["metadata"]["annotations"] = status["annotations"]
            self._tell("pods", "MODIFIED", stored)

    def delete(self, found: dict[str, Any]) -> None:
        with self.lock:
            stored = self.pods.pop((found["metadata"]["namespace"], found["metadata"]["name"]))
            self._tell("pods", "DELETED", stored)

    def kubelet_status_update(self) -> None:
        """What the kubelet does every ten seconds: allocatable follows capacity."""
        with self.lock:
            status = self.node_object["status"]
            status["allocatable"] = dict(status["capacity"])
            self._tell("node", "MODIFIED", self.node_object)

    def annotations(self, found: dict[str, Any]) -> dict[str, str]:
        with self.lock:
            return dict(self.pods[(found["metadata"]["namespace"], found["metadata"]["name"])]["metadata"]["annotations"])

    def node_annotations(self) -> dict[str, str]:
        with self.lock:
            return dict(self.node_object["metadata"]["annotations"])

    def set_node_annotation(self, name: str, value: str) -> None:
        with self.lock:
            self.node_object["metadata"]["annotations"][name] = value
            self._tell("node", "MODIFIED", self.node_object)

    # --- cluster.Cluster ------------------------------------------------------------------------------------------------

    def follow_pods(self, node_name: str, stop: threading.Event) -> Iterator[tuple[str, Any]]:
        def listed() -> list[Any]:
            return [slim_pod(copy.deepcopy(found)) for found in self.pods.values() if found["spec"].get("nodeName") == node_name]

        return self._followed("pods", listed, stop, lambda found: found["spec"].get("nodeName") == node_name)

    def follow_node(self, node_name: str, stop: threading.Event) -> Iterator[tuple[str, Any]]:
        def listed() -> list[Any]:
            return [slim_node(copy.deepcopy(self.node_object))]

        return self._followed("node", listed, stop, lambda found: found["metadata"]["name"] == node_name)

    def _followed(
        self, kind: str, listed: Callable[[], list[Any]], stop: threading.Event, wanted: Callable[[Any], bool]
    ) -> Iterator[tuple[str, Any]]:
        while not stop.is_set():
            with self.lock:
                found = None if self.away else listed()
                changes = self._follow(kind)
            if found is None:
                yield "LOST", "connection refused"
                stop.wait(0.02)
                continue
            yield "SYNCED", found
            yield from self._changes(changes, stop, wanted)

    def pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        with self.lock:
            self._check()
            found = self.pods.get((namespace, name))
            return slim_pod(copy.deepcopy(found)) if found else None

    def node(self, name: str) -> dict[str, Any] | None:
        with self.lock:
            self._check()
            return slim_node(copy.deepcopy(self.node_object)) if name == NODE else None

    def config_map(self, namespace: str, name: str) -> Mapping[str, str] | None:
        self._check()
        return self.config_maps.get((namespace, name))

    def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str | None]) -> dict[str, Any]:
        with self.lock:
            self._check()
            stored = self.pods.get((namespace, name))
            if stored is None or stored["metadata"]["uid"] != uid:
                raise Conflict("409 the UID in the precondition does not match")
            _merge(stored["metadata"]["annotations"], annotations)
            self.writes.append(("pod", dict(annotations)))
            self._tell("pods", "MODIFIED", stored)
            return slim_pod(copy.deepcopy(stored))

    def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> dict[str, Any]:
        assert name == NODE
        with self.lock:
            self._check()
            _merge(self.node_object["metadata"]["annotations"], annotations)
            self.writes.append(("node", dict(annotations)))
            self._tell("node", "MODIFIED", self.node_object)
            return slim_node(copy.deepcopy(self.node_object))

    def set_node_resources(self, name: str, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> dict[str, Any]:
        assert name == NODE
        with self.lock:
            self._check()
            status = self.node_object["status"]
            status["capacity"].update({resource: str(amount) for resource, amount in capacity.items()})
            status["allocatable"].update({resource: str(amount) for resource, amount in allocatable.items()})
            self.writes.append(("resources", (dict(capacity), dict(allocatable))))
            self._tell("node", "MODIFIED", self.node_object)
            return slim_node(copy.deepcopy(self.node_object))

    def set_node_condition(self, name: str, condition: dict[str, Any]) -> dict[str, Any]:
        assert name == NODE
        with self.lock:
            self._check()
            conditions = self.node_object["status"].setdefault("conditions", [{"type": "Ready", "status": "True"}])
            before: dict[str, Any] = next((each for each in conditions if each["type"] == condition["type"]), {})
            self.node_object["status"]["conditions"] = [each for each in conditions if each is not before] + [{**before, **condition}]
            self.writes.append(("condition", dict(condition)))
            self._tell("node", "MODIFIED", self.node_object)
            return slim_node(copy.deepcopy(self.node_object))

    def create_event(self, event: dict[str, Any]) -> None:
        with self.lock:
            self._check()
            self.events.append(event)

    def evict(self, namespace: str, name: str, uid: str) -> None:
        self._check()
        self.evicted.append(f"{namespace}/{name}/{uid}")

    def _check(self) -> None:
        if self.away:
            raise ClusterUnavailable("connection refused")

    def _follow(self, kind: str) -> queue.Queue[tuple[str, Any]]:
        changes: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._followers.append((kind, changes))
        return changes

    def _changes(
        self, changes: queue.Queue[tuple[str, Any]], stop: threading.Event, wanted: Callable[[Any], bool]
    ) -> Iterator[tuple[str, Any]]:
        while not stop.is_set():
            try:
                kind, found = changes.get(timeout=0.02)
            except queue.Empty:
                if self.away:
                    return
                continue
            if wanted(found):
                yield kind, found

    def _tell(self, kind: str, change: str, found: dict[str, Any]) -> None:
        slim = slim_pod if kind == "pods" else slim_node
        for followed, changes in self._followers:
            if followed == kind:
                changes.put((change, slim(copy.deepcopy(found))))


def _merge(target: dict[str, str], patch: Mapping[str, str | None]) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value


@dataclass
class Admitted:
    """A container that the kubelet has ids and an Allocate answer for."""

    namespace: str
    pod: str
    uid: str
    container: str
    init: bool
    ids: tuple[str, ...]
    cdi_names: list[str]


@dataclass
class Created:
    """What the runtime made of a container: its slot's edits, and the page behind them."""

    slot: str
    edits: dict[str, Any]
    gpus: list[region.GpuQuota]

    @property
    def devices(self) -> list[str]:
        return [node["path"] for node in self.edits.get("deviceNodes", [])]


class StartFailed(Exception):
    """PreStart was refused, or the CDI name could not be resolved."""


@dataclass
class FakeKubelet:
    """Registration and pod-resources on real sockets, admission and container starts by method."""

    folder: Path
    cdi_dir: Path
    seed: int = 1
    registrations: list[api.RegisterRequest] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    admitted: list[Admitted] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)  # of the checkpoint
    writes_checkpoint: bool = True

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.lock = threading.RLock()
        self.running = False
        self._channel: grpc.Channel | None = None
        self._stream: Any = None
        (self.folder / "device-plugins").mkdir(parents=True, exist_ok=True)
        (self.folder / "pod-resources").mkdir(parents=True, exist_ok=True)
        self.start_serving()

    # --- life -----------------------------------------------------------------------------------------------------------

    def start_serving(self) -> None:
        for path in (self.folder / "device-plugins").glob("*.sock"):
            path.unlink()
        self._registration = self._serve(
            "device-plugins/kubelet.sock",
            "v1beta1.Registration",
            {"Register": (self._register, api.RegisterRequest)},
        )
        self._resources = self._serve(
            "pod-resources/kubelet.sock",
            "v1.PodResourcesLister",
            {"List": (self._list, pods_api.ListPodResourcesRequest)},
        )
        self.running = True

    def stop_serving(self) -> None:
        self.running = False
        if self._stream is not None:
            self._stream.cancel()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for server in (self._registration, self._resources):
            server.stop(0).wait()

    def restart(self) -> None:
        """Its memory of devices (the checkpoint) survives, every socket goes."""
        self.stop_serving()
        (self.folder / "pod-resources" / "kubelet.sock").unlink(missing_ok=True)
        self.ids = []
        self.start_serving()

    def drop_stream(self) -> None:
        """What happens to a plugin when another instance's stream ends: its own is closed."""
        self._stream.cancel()

    def _serve(self, name: str, service: str, methods: Mapping[str, tuple[Any, Any]]) -> grpc.Server:
        server = grpc.server(futures.ThreadPoolExecutor(4))
        handlers: dict[str, Any] = {
            method: grpc.unary_unary_rpc_method_handler(behaviour, request.FromString, lambda answer: answer.SerializeToString())
            for method, (behaviour, request) in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix://{self.folder / name}")
        server.start()
        return server

    def _register(self, request: api.RegisterRequest, _context: grpc.ServicerContext) -> api.Empty:
        with self.lock:
            self.registrations.append(request)
            if self._channel is not None:
                self._stream.cancel()
                self._channel.close()
            self._channel = grpc.insecure_channel(f"unix://{self.folder / 'device-plugins' / request.endpoint}")
            watch: Any = self._channel.unary_stream(
                "/v1beta1.DevicePlugin/ListAndWatch", lambda message: message.SerializeToString(), api.ListAndWatchResponse.FromString
            )
            self._stream = watch(api.Empty())
            threading.Thread(target=self._read_stream, args=(self._stream,), daemon=True).start()
        return api.Empty()

    def _read_stream(self, stream: Any) -> None:
        try:
            for response in stream:
                with self.lock:
                    self.ids = [device.ID for device in response.devices if device.health == "Healthy"]
        except grpc.RpcError:
            pass
        with self.lock:
            if stream is self._stream:
                self.ids = []  # an ended stream makes every device unhealthy

    def _list(self, _request: pods_api.ListPodResourcesRequest, _context: grpc.ServicerContext) -> pods_api.ListPodResourcesResponse:
        response = pods_api.ListPodResourcesResponse()
        with self.lock:
            for admitted in self.admitted:
                if not admitted.init:
                    listed = response.pod_resources.add(name=admitted.pod, namespace=admitted.namespace)
                    listed.containers.add(name=admitted.container).devices.add(resource_name=wire.RESOURCE_NUMBER, device_ids=admitted.ids)
                    listed.containers.add(name="other").devices.add(resource_name="example.com/nic", device_ids=["eth0"])
        return response

    # --- what the sync loop does ----------------------------------------------------------------------------------------

    def call(self, method: str, request: Any, answer: Any, timeout: float = 30.0) -> Any:
        assert self._channel is not None, "no plugin is registered"
        return self._channel.unary_unary(f"/v1beta1.DevicePlugin/{method}", lambda message: message.SerializeToString(), answer.FromString)(
            request, timeout=timeout
        )

    def admit(self, found: Mapping[str, Any]) -> None:
        """Allocate for every container that requests, init containers first; their ids go on to the app containers."""
        metadata, spec = found["metadata"], found["spec"]
        reusable: list[str] = []
        done: list[Admitted] = []
        for init, container in [(True, c) for c in spec.get("initContainers", [])] + [(False, c) for c in spec["containers"]]:
            number = int((container.get("resources", {}).get("limits") or {}).get(wire.RESOURCE_NUMBER, 0))
            if not number:
                continue
            ids = self._choose(number, reusable, done)
            answer = self.call("Allocate", api.AllocateRequest(container_requests=[{"devices_ids": ids}]), api.AllocateResponse)
            names = [device.name for device in answer.container_responses[0].cdi_devices]
            done.append(
                Admitted(metadata["namespace"], metadata["name"], metadata["uid"], container["name"], init, tuple(sorted(ids)), names)
            )
            reusable = sorted(set(reusable) | set(ids)) if init else [device_id for device_id in reusable if device_id not in ids]
            self._record(done[-1], answer.container_responses[0])
        with self.lock:
            self.admitted += done

    def _record(self, admitted: Admitted, answer: api.ContainerAllocateResponse) -> None:
        """Write the checkpoint, as after every allocation; what finished pods had has been forgotten before."""
        with self.lock:
            alive = {each.uid for each in self.admitted} | {admitted.uid}
            self.entries = [entry for entry in self.entries if entry["PodUID"] in alive]
            self.entries.append(
                {
                    "PodUID": admitted.uid,
                    "ContainerName": admitted.container,
                    "ResourceName": wire.RESOURCE_NUMBER,
                    "DeviceIDs": {"-1": list(admitted.ids)},
                    "AllocResp": base64.b64encode(answer.SerializeToString()).decode("ascii"),
                }
            )
            other = {**self.entries[-1], "ResourceName": "example.com/nic", "DeviceIDs": {"0": ["eth0"]}, "AllocResp": ""}
            data = {"PodDeviceEntries": [other, *self.entries], "RegisteredDevices": {wire.RESOURCE_NUMBER: self.ids}}
            if self.writes_checkpoint:
                path = self.folder / "device-plugins" / "kubelet_internal_checkpoint"
                path.with_suffix(".tmp").write_text(json.dumps({"Data": data, "Checksum": 1}), encoding="utf-8")
                path.with_suffix(".tmp").replace(path)

    def _choose(self, number: int, reusable: Sequence[str], mine: Sequence[Admitted]) -> list[str]:
        with self.lock:
            used = {device_id for admitted in [*self.admitted, *mine] for device_id in admitted.ids} - set(reusable)
            free = [device_id for device_id in self.ids if device_id not in used]
        if len(free) < number:
            raise StartFailed("UnexpectedAdmissionError: no healthy devices present")
        self.random.shuffle(free)
        must = [device_id for device_id in reusable if device_id in free][:number]
        if len(must) == number:
            return must
        request = api.PreferredAllocationRequest(
            container_requests=[{"available_deviceIDs": free, "must_include_deviceIDs": must, "allocation_size": number}]
        )
        answer = self.call("GetPreferredAllocation", request, api.PreferredAllocationResponse)
        preferred = list(answer.container_responses[0].deviceIDs)
        return preferred if len(preferred) == number and set(preferred) <= set(free) else free[:number]

    def start(self, found: Mapping[str, Any], container: str = "c0") -> Created:
        """PreStart, then create. Errors: StartFailed with the plugin's or the runtime's words."""
        with self.lock:
            admitted = next(entry for entry in self.admitted if entry.uid == found["metadata"]["uid"] and entry.container == container)
        ids = list(admitted.ids)
        random.shuffle(ids)
        try:
            self.call("PreStartContainer", api.PreStartContainerRequest(devices_ids=ids), api.PreStartContainerResponse)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            raise StartFailed(str(error.details())) from error
        return self.create(admitted)

    def create(self, admitted: Admitted) -> Created:
        """The runtime's part: look the CDI names up in every file of the folder."""
        known = {}
        for path in self.cdi_dir.glob("*.json"):
            document = json.loads(path.read_text(encoding="utf-8"))
            for device in document["devices"]:
                known[f"{document['kind']}={device['name']}"] = device["containerEdits"]
        (name,) = admitted.cdi_names
        if name not in known:
            raise StartFailed(f"CDI device injection failed: unresolvable CDI devices {name}")
        edits = known[name]
        config = next(mount["hostPath"] for mount in edits["mounts"] if mount["containerPath"] == "/run/tenfold/config")
        return Created(name.partition("=")[2], edits, region.read_config(Path(config).parent).gpus)

    def forget(self, found: Mapping[str, Any]) -> None:
        """The pod is terminal or removed: its ids are free again."""
        with self.lock:
            self.admitted = [entry for entry in self.admitted if entry.uid != found["metadata"]["uid"]]


class Bench:
    """One node: folders, fakes, and a plugin that can be started, stopped and started again over the same disk."""

    def __init__(self, **changes: Any) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="tfdp", dir="/tmp"))  # short: a socket's path has 107 bytes at most
        self.clock: Any = ManualClock()
        self.cards = FakeCards()
        self.cluster = FakeCluster()
        self.settings = Settings(
            node_name=NODE,
            hook_root=self.root / "hook",
            state_dir=self.root / "lib",
            catalogue_dir=self.root / "lib" / "catalogues",
            run_dir=self.root / "run",
            cdi_dir=self.root / "cdi",
            nvidia_cdi_spec=str(self.root / "cdi" / "nvidia.yaml"),
            kubelet_dir=self.root / "kubelet",
            metrics_address="",
            **{"prestart_wait_seconds": 0.15, "shutdown_wait_seconds": 5.0, **changes},
        )
        self.settings.cdi_dir.mkdir()
        (self.settings.cdi_dir / "nvidia.yaml").write_text(NVIDIA_SPEC, encoding="utf-8")
        self.install_hook("0.1.0-11111111")
        self.kubelet = FakeKubelet(self.settings.kubelet_dir, self.settings.cdi_dir)
        self._mounts("self", f"30 1 {RUN_DEVICE} / {self.settings.run_dir.resolve()} rw - tmpfs tmpfs rw\n")
        self._plugin: Plugin | None = None

    @property
    def plugin(self) -> Plugin:
        assert self._plugin is not None
        return self._plugin

    def install_hook(self, version: str) -> None:
        folder = self.settings.hook_root / version
        folder.mkdir(parents=True)
        (folder / "libtenfold.so").write_bytes(b"\x7fELF")
        (folder / "ld.so.preload").write_text("/usr/local/tenfold/libtenfold.so\n", encoding="utf-8")
        shutil.copy(workshop.build_page_library(), folder / page_writer.LIBRARY)
        link = self.settings.hook_root / "next"
        link.symlink_to(version)
        link.replace(self.settings.hook_root / "current")

    def start(self, register: bool = True) -> Plugin:
        """Start the plugin and, with ``register``, bring it to where the kubelet knows its ids."""
        pod_resources = KubeletPodResources(self.settings.pod_resources_socket, wire.RESOURCE_NUMBER)
        self._plugin = Plugin(self.settings, self.cluster, self.cards, pod_resources, self.clock, Processes(self.root / "proc"))
        self._plugin.begin()
        until(lambda: self.plugin.bookings.synced and self.plugin.advertiser.node, "the plugin knows pods and node")
        if register:
            self.settle()
            self.cluster.kubelet_status_update()
            until(lambda: self.plugin.advertiser.ready, "allocatable has been seen")
            self.round()
            until(lambda: self.kubelet.ids, "the kubelet knows the ids")
        return self._plugin

    def start_blind(self) -> Plugin:
        """Start the plugin while the API server is away and do one round once it has noticed."""
        pod_resources = KubeletPodResources(self.settings.pod_resources_socket, wire.RESOURCE_NUMBER)
        self._plugin = Plugin(self.settings, self.cluster, self.cards, pod_resources, self.clock, Processes(self.root / "proc"))
        self._plugin.begin()
        until(lambda: self.plugin._lost, "the plugin has noticed")
        self.round()
        return self._plugin

    def round(self) -> None:
        """What the plugin's threads do when they come round now: registration, the node's own rounds, and every key that is due."""
        self.plugin.registration.run_due()
        self.plugin.rounds.run_due()
        self.plugin.writer.work_all()
        self.plugin.registration.run_due()

    def until_revision(self, revision: str) -> None:
        until(lambda: self.plugin.advertiser.revision == revision, "the node watch shows the revision")
        self.round()

    def settle(self) -> None:
        """Let the watches catch up, then do what is due."""
        for _ in range(2):
            self.until_seen()
            self.round()

    def until_seen(self) -> None:
        """Wait until the plugin's picture of the pods is the API server's."""
        with self.cluster.lock:
            expected = {
                found["metadata"]["uid"]: dict(found["metadata"]["annotations"])
                for found in self.cluster.pods.values()
                if found["spec"].get("nodeName") == NODE
            }
        until(lambda: self._seen() == expected or self.cluster.away, "the watch shows every pod")

    def _seen(self) -> dict[str, Any]:
        with self.plugin.bookings.changed:
            return {uid: found["metadata"].get("annotations", {}) for uid, found in self.plugin.bookings.pods.items()}

    def bind(self, *found: dict[str, Any]) -> None:
        """The scheduler binds pods; the plugin sees and books them."""
        for each in found:
            self.cluster.put(each)
        self.settle()

    def run(self, found: dict[str, Any]) -> Created:
        """Bind, admit and start a pod of one container."""
        self.bind(found)
        self.kubelet.admit(found)
        created = self.kubelet.start(found)
        self.cluster.change(found, phase="Running")
        return created

    def spend(self, slot: str, used_bytes: int, gpu_time_us: int = 0) -> None:
        """What the hook of one process in the container writes into the state for the first card."""
        first_slot = region.STATE_SLOTS_OFFSET
        with open(self.settings.slots_dir / slot / "state", "r+b") as stream:
            os.pwrite(stream.fileno(), struct.pack("<QQ", used_bytes, gpu_time_us), region.STATE_GPUS_OFFSET + region.UUID_CHARS)
            os.pwrite(stream.fileno(), struct.pack("<Q", 1 if used_bytes else 0), first_slot)
            os.pwrite(stream.fileno(), struct.pack("<Q", used_bytes), first_slot + region.SLOT_USED_OFFSET)

    def process(self, pid: int, slot: str) -> None:
        """A process of a slot's container, until ``end_process``: what /proc shows of its mounts."""
        self._mounts(str(pid), f"711 700 {RUN_DEVICE} /slots/{slot}/config /run/tenfold/config ro - tmpfs tmpfs rw\n")

    def end_process(self, pid: int) -> None:
        shutil.rmtree(self.root / "proc" / str(pid))

    def _mounts(self, process: str, lines: str) -> None:
        folder = self.root / "proc" / process
        folder.mkdir(parents=True)
        (folder / "mountinfo").write_text("700 600 0:90 / / rw - overlay overlay rw\n" + lines, encoding="utf-8")

    def end(self, found: dict[str, Any]) -> None:
        """Delete a pod the graceful way: it ends, the kubelet frees its ids, the object goes."""
        self.cluster.change(found, deleting=True)
        self.cluster.change(found, phase="Failed")
        self.kubelet.forget(found)
        self.cluster.delete(found)

    def crash(self) -> None:
        """The plugin is gone without a word; the disk stays."""
        if self._plugin is not None:
            self._plugin._left.set()
            for thread in self._plugin._watches:
                thread.join(5)
            self._plugin.endpoint.stop()
            self._plugin = None

    def close(self) -> None:
        self.crash()
        if self.kubelet.running:
            self.kubelet.stop_serving()
        shutil.rmtree(self.root)
