"""The two files of a slot, as the host sees them: the configuration page it writes and the state it reads.

Owns the Python mirror of ``files/hook/include/tenfold_region.h`` (the C header is the truth; tests/unit/test_region.py compares every
offset). Who gets which quota is ``tiers``' task; slot names, CDI files and persistence are the device plugin's.

The page has two checksummed copies and an active index: a writer that dies leaves the last good copy in force. The state belongs to the
tenant, so it is read with pread, bounded, and nothing in it is believed beyond its own numbers.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Sequence, Union

from .errors import RegionError

__all__ = [
    "ABI_VERSION",
    "CONFIG_BYTES",
    "GPUS_MAX",
    "SLOTS_MAX",
    "STATE_BYTES",
    "GpuQuota",
    "GpuState",
    "SlotConfig",
    "SlotState",
    "create_slot",
    "read_config",
    "read_state",
    "write_config",
]

ABI_VERSION = 1
CONFIG_MAGIC = 0x31474643464E4554
STATE_MAGIC = 0x315453464E4554

GPUS_MAX = 16
SLOTS_MAX = 1024
UUID_CHARS = 48

HEADER_BYTES = 64
CONFIG_BYTES = 12288
COPY_OFFSETS = (4096, 8192)
STATE_GPUS_OFFSET = 4096
STATE_SLOTS_OFFSET = STATE_GPUS_OFFSET + GPUS_MAX * 512
STATE_BYTES = STATE_SLOTS_OFFSET + SLOTS_MAX * 256

BYTES_MASK = (1 << 42) - 1

# Structs in the header's order of members; "x" is reserved room.
HEADER = struct.Struct("<QIIQQII24x")  # magic, abi_version, header_bytes, file_bytes, generation, active, reserved
HEADER_GENERATION_OFFSET = 24
HEADER_ACTIVE_OFFSET = 32
COPY_HEAD = struct.Struct("<QQIIII32x")  # checksum, generation, gpu_count, policy, view, reserved
GPU_CONFIG = struct.Struct("<48sQQIIiII44x")  # uuid, memory, overhead reserve, core percent, mode, priority, neighbours, pressure
GPU_STATE = struct.Struct("<48sQQQ")  # uuid, used (tagged), gpu_time_us, refusals; 512 bytes each in the file
GPU_STATE_STRIDE = 512
STATE_COUNTERS = struct.Struct("<QQQQ")  # slots_high_water, open_fallbacks, unknown_entry_points, reaped
SLOT_HEAD = struct.Struct("<QQQII")  # identity, start_ticks, pid_namespace, pid, flags
SLOT_STRIDE = 256
SLOT_USED_OFFSET = 128
COPY_BYTES = COPY_HEAD.size + GPUS_MAX * GPU_CONFIG.size

MODES = ("hard", "elastic", "off", "priority")
PRESSURES = ("unknown", "none", "lower", "higher", "equal")
POLICIES = ("closed", "open")
VIEWS = ("clocks", "compute_mode")

# A page writer holds the lock for microseconds; one that needs longer than this is stuck.
LOCK_SECONDS = 2.0

PathLike = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class GpuQuota:
    """What one container may use of one card.

    Units:  memory_limit_bytes in bytes, 0 = no limit; core_limit_percent 1 to 99, 0 or 100 = no limit; priority 0 is the highest;
            overhead_reserve_bytes is charged once per process for what the driver itself needs (0 = not charged); neighbours is the number
            of other slots on the card, for people. pressure says who else works there, for the modes "elastic" and "priority"; where it is
            "unknown", the hook asks NVML.
    """

    uuid: str
    memory_limit_bytes: int
    core_limit_percent: int
    mode: str = "hard"
    priority: int = 0
    overhead_reserve_bytes: int = 0
    neighbours: int = 0
    pressure: str = "unknown"


@dataclass(frozen=True)
class SlotConfig:
    """The page in force. ``generation`` grows by one with each write."""

    generation: int
    gpus: list[GpuQuota]
    policy: str = "closed"
    view: tuple[str, ...] = ()
    abi_version: int = ABI_VERSION


@dataclass(frozen=True)
class GpuState:
    """What the container's processes say they use of one card (tenant-writable: a claim, not a proof)."""

    uuid: str
    used_bytes: int
    gpu_time_us: int
    processes: int
    refusals: int = 0


@dataclass(frozen=True)
class SlotState:
    gpus: list[GpuState]
    processes: int = 0
    generation: int = 0
    open_fallbacks: int = 0
    unknown_entry_points: int = 0
    reaped: int = 0


def create_slot(
    slot_dir: PathLike,
    gpus: Sequence[GpuQuota],
    hook_abi: int = ABI_VERSION,
    *,
    policy: str = "closed",
    view: Sequence[str] = (),
) -> SlotConfig:
    """Make the folder's ``config`` (0444) and a fresh ``state`` (0666), both with all their blocks allocated; return the page in force.

    For a container that is about to start: an old state is replaced (its processes' pid namespace is gone, so nobody could ever reap them),
    an old page is updated in place. Errors: RegionError when the quotas are wrong or the file system is full; then nothing half-made stays.
    """
    folder = Path(slot_dir)
    if hook_abi != ABI_VERSION:
        raise RegionError(
            f"hook ABI {hook_abi} is not supported, expected {ABI_VERSION}; upgrade the device plugin and the hook together",
            slot=str(folder),
            hook_abi=hook_abi,
        )
    _check_page(gpus, policy, view)
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        generation = _old_state_generation(folder / "state") + 1
        _install(folder / "state", _state_pages(gpus, generation), STATE_BYTES, 0o666)
        if not _page_is_usable(folder / "config"):
            _install(folder / "config", _config_pages(gpus, policy, view, generation=1), CONFIG_BYTES, 0o444)
            return read_config(folder)
    except OSError as error:
        raise RegionError(f"cannot create slot {str(folder)!r}: {error.strerror or error}", slot=str(folder)) from error
    return write_config(folder, gpus, policy=policy, view=view)


def write_config(slot_dir: PathLike, gpus: Sequence[GpuQuota], *, policy: str = "closed", view: Sequence[str] = ()) -> SlotConfig:
    """Put a new page in force for running processes, in place, and return it.

    The inactive copy is written whole, then the active index: whoever dies in between leaves the old page. One writer at a time (flock).
    Errors: RegionError for wrong quotas, a missing or damaged file, or a stuck writer.
    """
    _check_page(gpus, policy, view)
    path = Path(slot_dir) / "config"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise RegionError(f"cannot open {str(path)!r}: {error.strerror}", path=str(path)) from error
    try:
        _lock(descriptor, path)
        old = _parse_config(_read(descriptor, CONFIG_BYTES, path), path)
        active = _active_copy(_read(descriptor, CONFIG_BYTES, path), path)
        copy = _encode_copy(gpus, policy, view, old.generation + 1)
        _write(descriptor, copy, COPY_OFFSETS[1 - active])
        _write(descriptor, struct.pack("<QI", old.generation + 1, 1 - active), HEADER_GENERATION_OFFSET)
        return _parse_config(_read(descriptor, CONFIG_BYTES, path), path)
    except OSError as error:
        raise RegionError(f"cannot write {str(path)!r}: {error.strerror or error}", path=str(path)) from error
    finally:
        os.close(descriptor)


def read_config(slot_dir: PathLike) -> SlotConfig:
    """The page in force. Errors: RegionError when it is missing, of another ABI, or both copies are damaged."""
    path = Path(slot_dir) / "config"
    return _parse_config(_read_file(path, CONFIG_BYTES), path)


def read_state(slot_dir: PathLike) -> SlotState:
    """What the container says it uses, per card of the state file.

    Reads with pread and follows no link; a file of another size, magic or ABI is a RegionError. Numbers are cut to what they can be: bytes
    to 42 bits, processes to the slots that exist. Unused cards (empty UUID) are left out, so are those whose UUID is no UUID.
    """
    path = Path(slot_dir) / "state"
    data = _read_file(path, STATE_BYTES)
    magic, abi, _header_bytes, file_bytes, generation, _active, _reserved = HEADER.unpack_from(data, 0)
    _check_header(path, magic, STATE_MAGIC, abi, file_bytes, STATE_BYTES)
    _high_water, open_fallbacks, unknown, reaped = STATE_COUNTERS.unpack_from(data, HEADER_BYTES)
    live = list(_live_slots(data))
    gpus = []
    for index in range(GPUS_MAX):
        raw_uuid, used, gpu_time_us, refusals = GPU_STATE.unpack_from(data, STATE_GPUS_OFFSET + index * GPU_STATE_STRIDE)
        uuid = _decode_uuid(raw_uuid)
        if not uuid:
            continue
        on_card = sum(1 for offset in live if _slot_uses(data, offset, index))
        gpus.append(GpuState(uuid, used & BYTES_MASK, gpu_time_us, on_card, refusals))
    return SlotState(gpus, len(live), generation, open_fallbacks, unknown, reaped)


# --- encoding -----------------------------------------------------------------------------------------------------------------


def _check_page(gpus: Sequence[GpuQuota], policy: str, view: Sequence[str]) -> None:
    if len(gpus) > GPUS_MAX:
        raise RegionError(f"a slot holds at most {GPUS_MAX} cards, got {len(gpus)}")
    if policy not in POLICIES:
        raise RegionError(f'policy is {policy!r}, expected "closed" or "open"')
    for word in view:
        if word not in VIEWS:
            raise RegionError(f"view option is {word!r}, expected one of {', '.join(VIEWS)}")
    seen = set()
    for quota in gpus:
        if not _is_uuid(quota.uuid):
            raise RegionError(f'card UUID is {quota.uuid!r}, expected "GPU-" or "MIG-" and a UUID')
        if quota.uuid in seen:
            raise RegionError(f"card {quota.uuid!r} appears twice in one slot")
        seen.add(quota.uuid)
        for name, value, highest in (
            ("memory_limit_bytes", quota.memory_limit_bytes, BYTES_MASK),
            ("overhead_reserve_bytes", quota.overhead_reserve_bytes, BYTES_MASK),
            ("core_limit_percent", quota.core_limit_percent, 100),
            ("neighbours", quota.neighbours, 0xFFFF),
        ):
            if not 0 <= value <= highest:
                raise RegionError(f"{name} of card {quota.uuid!r} is {value}, expected 0 to {highest}")
        if not -(2**31) <= quota.priority < 2**31:
            raise RegionError(f"priority of card {quota.uuid!r} is {quota.priority}, expected a 32-bit integer")
        if quota.mode not in MODES:
            raise RegionError(f"mode of card {quota.uuid!r} is {quota.mode!r}, expected one of {', '.join(MODES)}")
        if quota.pressure not in PRESSURES:
            raise RegionError(f"pressure on card {quota.uuid!r} is {quota.pressure!r}, expected one of {', '.join(PRESSURES)}")


def _is_uuid(text: str) -> bool:
    """``GPU-`` or ``MIG-`` and 32 hex digits in the usual groups (the form of NVML)."""
    groups = text.split("-")
    return (
        len(groups) == 6
        and groups[0] in ("GPU", "MIG")
        and [len(group) for group in groups[1:]] == [8, 4, 4, 4, 12]
        and all(char in "0123456789abcdefABCDEF" for group in groups[1:] for char in group)
    )


def _checksum(data: bytes) -> int:
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def _encode_copy(gpus: Sequence[GpuQuota], policy: str, view: Sequence[str], generation: int) -> bytes:
    view_bits = sum(1 << VIEWS.index(word) for word in set(view))
    body = b"".join(
        GPU_CONFIG.pack(
            quota.uuid.encode(),
            quota.memory_limit_bytes,
            quota.overhead_reserve_bytes,
            quota.core_limit_percent,
            MODES.index(quota.mode),
            quota.priority,
            quota.neighbours,
            PRESSURES.index(quota.pressure),
        )
        for quota in gpus
    ).ljust(GPUS_MAX * GPU_CONFIG.size, b"\0")
    head = (generation, len(gpus), POLICIES.index(policy), view_bits, 0)
    checksum = _checksum(COPY_HEAD.pack(0, *head) + body)
    return COPY_HEAD.pack(checksum, *head) + body


def _config_pages(gpus: Sequence[GpuQuota], policy: str, view: Sequence[str], generation: int) -> list[tuple[int, bytes]]:
    copy = _encode_copy(gpus, policy, view, generation)
    header = HEADER.pack(CONFIG_MAGIC, ABI_VERSION, HEADER_BYTES, CONFIG_BYTES, generation, 0, 0)
    return [(0, header), (COPY_OFFSETS[0], copy), (COPY_OFFSETS[1], copy)]


def _state_pages(gpus: Sequence[GpuQuota], generation: int) -> list[tuple[int, bytes]]:
    header = HEADER.pack(STATE_MAGIC, ABI_VERSION, HEADER_BYTES, STATE_BYTES, generation, 0, 0)
    cards = [(STATE_GPUS_OFFSET + index * GPU_STATE_STRIDE, quota.uuid.encode()) for index, quota in enumerate(gpus)]
    return [(0, header), *cards]


# --- decoding -----------------------------------------------------------------------------------------------------------------


def _check_header(path: Path, magic: int, expected_magic: int, abi: int, file_bytes: int, expected_bytes: int) -> None:
    if magic != expected_magic:
        raise RegionError(f"{str(path)!r} is no file of a slot: magic is {magic:#x}, expected {expected_magic:#x}", path=str(path))
    if abi != ABI_VERSION:
        raise RegionError(f"{str(path)!r} has ABI {abi}, expected {ABI_VERSION}", path=str(path), abi=abi)
    if file_bytes != expected_bytes:
        raise RegionError(f"{str(path)!r} says that it has {file_bytes} bytes, expected {expected_bytes}", path=str(path))


def _copy_is_good(data: bytes, index: int) -> bool:
    copy = data[COPY_OFFSETS[index] : COPY_OFFSETS[index] + COPY_BYTES]
    checksum = int.from_bytes(copy[:8], "little")
    gpu_count: int = COPY_HEAD.unpack_from(copy)[2]
    return checksum == _checksum(bytes(8) + copy[8:]) and gpu_count <= GPUS_MAX


def _active_copy(data: bytes, path: Path) -> int:
    """Index of the copy in force: the active one if it is whole, else the other."""
    magic, abi, _header_bytes, file_bytes, _generation, active, _reserved = HEADER.unpack_from(data, 0)
    _check_header(path, magic, CONFIG_MAGIC, abi, file_bytes, CONFIG_BYTES)
    first = int(active) & 1
    for index in (first, 1 - first):
        if _copy_is_good(data, index):
            return index
    raise RegionError(f"both copies in {str(path)!r} are damaged; create the slot again", path=str(path))


def _parse_config(data: bytes, path: Path) -> SlotConfig:
    offset = COPY_OFFSETS[_active_copy(data, path)]
    _sum, generation, gpu_count, policy, view_bits, _reserved = COPY_HEAD.unpack_from(data, offset)
    gpus = []
    for index in range(gpu_count):
        raw_uuid, memory, overhead, cores, mode, priority, neighbours, pressure = GPU_CONFIG.unpack_from(
            data, offset + COPY_HEAD.size + index * GPU_CONFIG.size
        )
        if mode >= len(MODES):
            raise RegionError(f"mode of card {index} in {str(path)!r} is {mode}, expected 0 to {len(MODES) - 1}", path=str(path))
        told = PRESSURES[pressure] if pressure < len(PRESSURES) else "unknown"
        gpus.append(GpuQuota(_decode_uuid(raw_uuid), memory, cores, MODES[mode], priority, overhead, neighbours, told))
    view = tuple(word for bit, word in enumerate(VIEWS) if view_bits >> bit & 1)
    return SlotConfig(generation, gpus, POLICIES[policy & 1], view)


def _decode_uuid(raw: bytes) -> str:
    text = raw.split(b"\0", 1)[0].decode("ascii", "replace")
    return text if _is_uuid(text) else ""


def _live_slots(data: bytes) -> Iterator[int]:
    """Offsets of slots that a process holds (state bits 1 or 2 of the identity word)."""
    for index in range(SLOTS_MAX):
        offset = STATE_SLOTS_OFFSET + index * SLOT_STRIDE
        if SLOT_HEAD.unpack_from(data, offset)[0] & 3:
            yield offset


def _slot_uses(data: bytes, slot_offset: int, gpu_index: int) -> bool:
    word = int.from_bytes(data[slot_offset + SLOT_USED_OFFSET + gpu_index * 8 :][:8], "little")
    return bool(word & BYTES_MASK)


# --- files --------------------------------------------------------------------------------------------------------------------


def _install(path: Path, pages: Sequence[tuple[int, bytes]], size_bytes: int, mode: int) -> None:
    """A new file with every block allocated (a hole would be SIGBUS for the program that maps it on a full tmpfs), by rename."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=str(path.parent))
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        for offset, data in pages:
            _write(descriptor, data, offset)
        os.fchmod(descriptor, mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RegionError(f"another writer has held {str(path)!r} for {LOCK_SECONDS:g} s", path=str(path)) from None
            time.sleep(0.002)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    written = os.pwrite(descriptor, data, offset)
    if written != len(data):
        raise OSError(28, f"wrote {written} of {len(data)} bytes")


def _read(descriptor: int, size_bytes: int, path: Path) -> bytes:
    data = os.pread(descriptor, size_bytes + 1, 0)
    if len(data) != size_bytes:
        raise RegionError(
            f"{str(path)!r} has {'more than ' if len(data) > size_bytes else ''}{min(len(data), size_bytes)} bytes, expected {size_bytes}",
            path=str(path),
        )
    return data


def _read_file(path: Path, size_bytes: int) -> bytes:
    """The whole file, never through a link, never blocking on something that is no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise RegionError(f"cannot open {str(path)!r}: {error.strerror}", path=str(path)) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RegionError(f"{str(path)!r} is no regular file", path=str(path))
        return _read(descriptor, size_bytes, path)
    except OSError as error:
        raise RegionError(f"cannot read {str(path)!r}: {error.strerror}", path=str(path)) from error
    finally:
        os.close(descriptor)


def _old_state_generation(path: Path) -> int:
    try:
        data = _read_file(path, STATE_BYTES)
    except RegionError:
        return 0
    return int(HEADER.unpack_from(data, 0)[4]) & 0x7FFFFFFFFFFFFFFF


def _page_is_usable(path: Path) -> bool:
    try:
        read_config(path.parent)
    except RegionError:
        return False
    return True
