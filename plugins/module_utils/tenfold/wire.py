"""The annotations and resource names through which Volcano, the kubelet and the device plugin speak.

Owns encoding and decoding. A decoder here believes nothing: what is not exactly in the format raises WireError with the place, where
the scheduler itself would read 0 or drop the node in silence. Whether a pod may have what an annotation claims is ``fit``'s and the
ledger's question.

Source: Volcano v1.15.1, pkg/scheduler/api/devices/nvidia/vgpu/utils.go (decodeNodeDevices, encodePodDevices, DecodePodDevices),
pkg/scheduler/api/devices/util.go (ExtractResourceRequest), pkg/scheduler/api/devices/config/vgpu.go (names).
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Iterable, Mapping, Sequence

from .errors import QuantityError, WireError
from .quantities import parse_integer
from .slices import Assignment, SliceRequest

__all__ = [
    "BIND_PHASE_ALLOCATING",
    "BIND_PHASE_SUCCESS",
    "MODE_HAMI_CORE",
    "NODE_HANDSHAKE_ANNOTATION",
    "NODE_REGISTER_ANNOTATION",
    "POD_BIND_PHASE_ANNOTATION",
    "POD_BIND_TIME_ANNOTATION",
    "POD_DEVICES_TO_ALLOCATE_ANNOTATION",
    "POD_IDS_ANNOTATION",
    "POD_NODE_ANNOTATION",
    "POD_TIME_ANNOTATION",
    "QUOTA_ANNOTATION",
    "QUOTA_STATUS_ANNOTATION",
    "RESOURCE_CORES",
    "RESOURCE_MEMORY",
    "RESOURCE_NUMBER",
    "TIERS_REVISION_ANNOTATION",
    "TIER_LABEL",
    "Assignment",
    "QuotaRequest",
    "RegisterRecord",
    "RequestingContainer",
    "decode_quota",
    "decode_register",
    "decode_segments",
    "encode_quota",
    "encode_register",
    "encode_segments",
    "requesting_containers",
]

RESOURCE_NUMBER = "volcano.sh/vgpu-number"
RESOURCE_MEMORY = "volcano.sh/vgpu-memory"
RESOURCE_CORES = "volcano.sh/vgpu-cores"

NODE_REGISTER_ANNOTATION = "volcano.sh/node-vgpu-register"
NODE_HANDSHAKE_ANNOTATION = "volcano.sh/node-vgpu-handshake"

POD_NODE_ANNOTATION = "volcano.sh/vgpu-node"
POD_TIME_ANNOTATION = "volcano.sh/vgpu-time"
POD_IDS_ANNOTATION = "volcano.sh/vgpu-ids-new"
POD_DEVICES_TO_ALLOCATE_ANNOTATION = "volcano.sh/devices-to-allocate"
POD_BIND_TIME_ANNOTATION = "volcano.sh/bind-time"
POD_BIND_PHASE_ANNOTATION = "volcano.sh/bind-phase"
BIND_PHASE_ALLOCATING = "allocating"
BIND_PHASE_SUCCESS = "success"

TIER_LABEL = "tenfold.dev/tier"
TIERS_REVISION_ANNOTATION = "tenfold.dev/tiers-revision"
QUOTA_ANNOTATION = "tenfold.dev/quota"  # an operator asks for another quota of a running pod
QUOTA_STATUS_ANNOTATION = "tenfold.dev/quota-status"  # the device plugin says what came of it

MODE_HAMI_CORE = "hami-core"

_INT32_MAXIMUM = 2**31 - 1  # the scheduler keeps requests and assignments in an int32
_DECIMAL = re.compile(r"\d{1,10}", re.ASCII)
_RECORD_FIELDS = ("uuid", "count", "memory", "type", "healthy", "mode")
_ASSIGNMENT_FIELDS = ("uuid", "type", "memory", "cores")


@dataclass(frozen=True)
class RegisterRecord:
    """One card as a node publishes it. Units: count in slices (0 = out of service), memory_mib in MiB.

    ``type`` must contain ``NVIDIA`` in capitals, or no pod is ever placed. ``healthy`` is read by nobody: use count 0.
    """

    uuid: str
    count: int
    memory_mib: int
    type: str
    healthy: bool = True
    mode: str = MODE_HAMI_CORE


@dataclass(frozen=True)
class RequestingContainer:
    """A container of ``spec.containers`` that asks for a slice; ``index`` is its position there, not its segment's."""

    index: int
    name: str
    request: SliceRequest


def encode_register(records: Iterable[RegisterRecord]) -> str:
    """``UUID,count,memory,type,health,mode:`` for each card, in the order that gives the scheduler its card numbers.

    Errors: WireError for a field with a separator in it, a negative number, or a type without ``NVIDIA``.
    """
    return "".join(_encode_record(position, record) for position, record in enumerate(records))


def _encode_record(position: int, record: RegisterRecord) -> str:
    place = f"register record {position}"
    _check_text(place, "uuid", record.uuid)
    _check_text(place, "type", record.type)
    _check_text(place, "mode", record.mode)
    if "NVIDIA" not in record.type:
        raise WireError(f'{place}: type is {record.type!r}, expected one with "NVIDIA" in it, or no pod is ever placed', record=position)
    for name, number in (("count", record.count), ("memory", record.memory_mib)):
        if not 0 <= number <= _INT32_MAXIMUM:
            raise WireError(f"{place}: {name} is {number}, expected 0 to {_INT32_MAXIMUM}", record=position, field=name)
    healthy = "true" if record.healthy else "false"
    return f"{record.uuid},{record.count},{record.memory_mib},{record.type},{healthy},{record.mode}:"


def decode_register(text: str) -> list[RegisterRecord]:
    """The cards in a node's register annotation.

    Errors: WireError where the scheduler would drop the node (no ``:``, fewer than six fields) and where it would read a wrong
    number as 0. Fields after the sixth are ignored, as there.
    """
    if not text.endswith(":"):
        raise WireError(
            f"register annotation is {_shown(text)}, expected records that end in ':'; the scheduler ignores this node", text=text
        )
    return [_decode_record(position, record) for position, record in enumerate(text[:-1].split(":"))]


def _decode_record(position: int, text: str) -> RegisterRecord:
    place = f"register record {position}"
    fields = text.split(",")
    if len(fields) < len(_RECORD_FIELDS):
        raise WireError(
            f"{place} is {_shown(text)}, expected six fields ({','.join(_RECORD_FIELDS)}); the scheduler ignores this node", record=position
        )
    uuid, count, memory, card_type, healthy, mode = fields[: len(_RECORD_FIELDS)]
    _check_text(place, "uuid", uuid)
    if healthy not in ("true", "false"):
        raise WireError(f"{place}: healthy is {healthy!r}, expected 'true' or 'false'", record=position, field="healthy")
    return RegisterRecord(
        uuid=uuid,
        count=_decimal(place, "count", count),
        memory_mib=_decimal(place, "memory", memory),
        type=card_type,
        healthy=healthy == "true",
        mode=mode,
    )


def encode_segments(segments: Iterable[Iterable[Assignment]]) -> str:
    """``UUID,type,memory,cores:`` for each card, containers joined by ``;``. An empty segment stays as an empty place.

    Errors: WireError for a field with a separator in it or a number outside 0 to 2147483647.
    """
    return ";".join(
        "".join(_encode_assignment(f"segment {k} card {n}", assignment) for n, assignment in enumerate(segment))
        for k, segment in enumerate(segments)
    )


def _encode_assignment(place: str, assignment: Assignment) -> str:
    _check_text(place, "uuid", assignment.uuid)
    _check_text(place, "type", assignment.type)
    for name, number in (("memory", assignment.memory_mib), ("cores", assignment.cores_percent)):
        if not 0 <= number <= _INT32_MAXIMUM:
            raise WireError(f"{place}: {name} is {number}, expected 0 to {_INT32_MAXIMUM}", field=name)
    return f"{assignment.uuid},{assignment.type},{assignment.memory_mib},{assignment.cores_percent}:"


def decode_segments(text: str) -> list[list[Assignment]]:
    """The segments of ``volcano.sh/vgpu-ids-new`` or ``devices-to-allocate``; segment k is the k-th requesting container's.

    An empty text has no segments; an empty segment is a container that was served, or asked for no card.
    Errors: WireError with the segment and card; also for a card twice in one segment, which the scheduler never writes.
    """
    if not text:
        return []
    return [_decode_segment(k, segment) for k, segment in enumerate(text.split(";"))]


def _decode_segment(k: int, text: str) -> list[Assignment]:
    if not text:
        return []
    if not text.endswith(":"):
        raise WireError(f"segment {k} is {_shown(text)}, expected cards that end in ':'", segment=k)
    assignments = [_decode_assignment(f"segment {k} card {n}", card) for n, card in enumerate(text[:-1].split(":"))]
    if len({assignment.uuid for assignment in assignments}) != len(assignments):
        raise WireError(f"segment {k} names a card twice: {_shown(text)}", segment=k)
    return assignments


def _decode_assignment(place: str, text: str) -> Assignment:
    fields = text.split(",")
    if len(fields) != len(_ASSIGNMENT_FIELDS):
        raise WireError(f"{place} is {_shown(text)}, expected four fields ({','.join(_ASSIGNMENT_FIELDS)})")
    uuid, card_type, memory, cores = fields
    _check_text(place, "uuid", uuid)
    _check_text(place, "type", card_type)
    return Assignment(uuid, card_type, _decimal(place, "memory", memory), _decimal(place, "cores", cores))


def requesting_containers(pod: Mapping[str, Any]) -> list[RequestingContainer]:
    """The containers of a pod (as JSON of the API) that ask for a slice, in the order of their segments.

    A container asks if its limits hold vgpu-number or vgpu-memory; cores alone do not. Init containers are never looked at.
    Memory absent or 0 is the whole card, cores absent are 0, number absent is 1.
    Errors: WireError for a number that is no whole number or that the scheduler's int32 would turn into another one.
    """
    spec = pod.get("spec") or {}
    found = []
    for index, container in enumerate(spec.get("containers") or []):
        request = _request_of(container)
        if request is not None:
            found.append(RequestingContainer(index=index, name=str(container.get("name", "")), request=request))
    return found


def _request_of(container: Mapping[str, Any]) -> SliceRequest | None:
    resources = container.get("resources") or {}
    limits: Mapping[str, Any] = resources.get("limits") or {}
    requests: Mapping[str, Any] = resources.get("requests") or {}
    if RESOURCE_NUMBER not in limits and RESOURCE_MEMORY not in limits:
        return None
    name = str(container.get("name", ""))
    number = _amount(name, RESOURCE_NUMBER, [limits], default=1)
    memory_mib = _amount(name, RESOURCE_MEMORY, [limits, requests], default=0)
    cores = _amount(name, RESOURCE_CORES, [limits, requests], default=0)
    return SliceRequest(number=number, memory_mib=memory_mib or None, cores_percent=cores)


def _amount(container: str, resource: str, sources: Sequence[Mapping[str, Any]], default: int) -> int:
    for source in sources:
        if resource in source:
            break
    else:
        return default
    try:
        number = parse_integer(source[resource])
    except QuantityError as error:
        raise WireError(f"container {container!r}: {resource}: {error}", container=container, resource=resource) from error
    if 0 <= number <= _INT32_MAXIMUM:
        return number
    hint = "; the unit is MiB, write 8192 for 8 GiB" if resource == RESOURCE_MEMORY else ""
    raise WireError(
        f"container {container!r}: {resource} is {source[resource]!r}, expected 0 to {_INT32_MAXIMUM}{hint}",
        container=container,
        resource=resource,
    )


def _check_text(place: str, name: str, value: str) -> None:
    if not value or any(separator in value for separator in ",:;"):
        raise WireError(f"{place}: {name} is {_shown(value)}, expected text without ',', ':' and ';'", field=name)


def _decimal(place: str, name: str, text: str) -> int:
    if not _DECIMAL.fullmatch(text) or int(text) > _INT32_MAXIMUM:
        raise WireError(f"{place}: {name} is {_shown(text)}, expected a number from 0 to {_INT32_MAXIMUM}", field=name)
    return int(text)


def _shown(text: str) -> str:
    """Quoted and short: an annotation may hold 256 KiB of anything."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


@dataclass(frozen=True)
class QuotaRequest:
    """What an operator asks for a running pod, of every card of its containers, or of the one ``container``.

    ``uid`` is the pod's, so that a template that is copied asks for nothing; another ``revision`` makes the same words a new request.
    Either ``tier``, or ``memory_mib`` and ``cores_percent``, of which an absent one (None) stays what it is.
    """

    uid: str
    revision: str = ""
    tier: str = ""
    memory_mib: int | None = None
    cores_percent: int | None = None
    container: str = ""


def encode_quota(request: QuotaRequest) -> str:
    return json.dumps({key: value for key, value in asdict(request).items() if value not in ("", None)}, sort_keys=True)


def decode_quota(text: str, uid: str) -> QuotaRequest:
    """The request in an annotation of the pod with this UID. Errors: WireError for all that is not exactly one."""
    try:
        found = json.loads(text)
        request = QuotaRequest(**found)
    except (RecursionError, TypeError, ValueError) as error:
        words = str(error).encode("ascii", "backslashreplace").decode()  # it may quote half a character
        raise WireError(f"{QUOTA_ANNOTATION} is no request for a quota: {words}") from error
    if request.uid != uid:
        raise WireError(f"{QUOTA_ANNOTATION} is for the pod with UID {request.uid!r}, this one's is {uid!r}")
    if not all(isinstance(text, str) for text in (request.revision, request.tier, request.container)):
        raise WireError(f"{QUOTA_ANNOTATION}: revision, tier and container are strings")
    numbers = {"memory_mib": (request.memory_mib, 1, _INT32_MAXIMUM), "cores_percent": (request.cores_percent, 0, 100)}
    given = {name: bounds for name, bounds in numbers.items() if bounds[0] is not None}
    for name, (value, least, most) in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise WireError(f"{QUOTA_ANNOTATION}: {name} is {value!r}, expected a whole number from {least} to {most}")
    if bool(request.tier) == bool(given):
        raise WireError(f"{QUOTA_ANNOTATION} names both a tier and numbers, or neither; give the tier, or memory_mib and cores_percent")
    return request
