"""The two files of a slot, as the host sees them: the configuration page it writes and the state it reads.

Owns the Python mirror of ``files/hook/include/tenfold_region.h`` (the C header is the truth; tests/unit/domain/test_region.py compares
every offset). Who gets which quota is ``tiers``' task; slot names, CDI files and persistence are the device plugin's.

The page has two checksummed copies and an active index: a writer that dies leaves the last good copy in force. Pages are written by the
hook's own C function (``page_writer``) and read here without it, because a reader must also work inside a slice. The state belongs to
the tenant, so it is read with pread, bounded, and nothing in it is believed beyond its own numbers.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, Mapping, Sequence, Union

from . import files, page_writer
from .errors import RegionError

__all__ = [
    "ABI_VERSION",
    "CONFIG_BYTES",
    "GPUS_MAX",
    "SLOTS_MAX",
    "STATE_BYTES",
    "BusyWindow",
    "GpuQuota",
    "GpuState",
    "SlotConfig",
    "SlotState",
    "change_config",
    "create_slot",
    "read_busy",
    "read_config",
    "read_generation",
    "read_gpu_times_us",
    "read_state",
    "tell_busy",
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
BUSY_OFFSET = 1024
BUSY_WINDOWS = 16
STATE_GPUS_OFFSET = 4096
STATE_SLOTS_OFFSET = STATE_GPUS_OFFSET + GPUS_MAX * 512
STATE_BYTES = STATE_SLOTS_OFFSET + SLOTS_MAX * 256

BYTES_MASK = (1 << 42) - 1

# Structs in the header's order of members; "x" is reserved room.
HEADER = struct.Struct("<QIIQQII24x")  # magic, abi_version, header_bytes, file_bytes, generation, active, reserved
COPY_HEAD = struct.Struct("<QQIIII32x")  # checksum, generation, gpu_count, policy, view, reserved
GPU_CONFIG = struct.Struct("<48sQQIIiIII40x")  # uuid, memory, reserve, core percent, mode, priority, neighbours, pressure, overhead
BUSY_WINDOW = struct.Struct("<Q16sQQQ16x")  # checksum, uuid, from_ns, to_ns, busy_ns
GPU_STATE = struct.Struct("<48sQQQ")  # uuid, used (tagged), gpu_time_us, refusals; 512 bytes each in the file
GPU_STATE_STRIDE = 512
STATE_COUNTERS = struct.Struct("<QQQQ")  # slots_high_water, open_fallbacks, unknown_entry_points, reaped
SLOT_HEAD = struct.Struct("<QQQII")  # identity, start_ticks, pid_namespace, pid, flags
SLOT_LIVE = 1  # in the identity's two lowest bits
SLOT_STRIDE = 256
SLOT_OVERHEAD_OFFSET = 48
SLOT_USED_OFFSET = 128
COPY_BYTES = COPY_HEAD.size + GPUS_MAX * GPU_CONFIG.size

MODES = ("hard", "elastic", "off", "priority")
PRESSURES = ("unknown", "none", "lower", "higher", "equal")
OVERHEADS = ("measured", "reserved")
POLICIES = ("closed", "open")
VIEWS = ("clocks", "compute_mode")

PathLike = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class GpuQuota:
    """What one container may use of one card.

    Units:  memory_limit_bytes in bytes, 0 = no limit; core_limit_percent 1 to 99, 0 or 100 = no limit; priority 0 is the highest;
            overhead_reserve_bytes is charged to each process up front for what the driver itself needs; overhead says whether what it
            really took beyond the program's allocations is charged, too ("measured"), or the reserve alone ("reserved"). neighbours is the
            number of other slots on the card, for people. pressure says who else works there, for the modes "elastic" and "priority"; where
            it is "unknown", the hook asks NVML.
    """

    uuid: str
    memory_limit_bytes: int
    core_limit_percent: int
    mode: str = "hard"
    priority: int = 0
    overhead_reserve_bytes: int = 0
    neighbours: int = 0
    pressure: str = "unknown"
    overhead: str = "measured"


@dataclass(frozen=True)
class SlotConfig:
    """The page in force. ``generation`` grows by one with each write."""

    generation: int
    gpus: list[GpuQuota]
    policy: str = "closed"
    view: tuple[str, ...] = ()
    abi_version: int = ABI_VERSION


@dataclass(frozen=True)
class BusyWindow:
    """GPU time of all processes of a container between two of NVML's samples, as the host saw it. Units: ns of CLOCK_MONOTONIC."""

    uuid: str
    from_ns: int
    to_ns: int
    busy_ns: int


@dataclass(frozen=True)
class GpuState:
    """What the container's processes say they use of one card (tenant-writable: a claim, not a proof).

    ``processes`` are the attached ones; in a slot of several cards, those of them that hold memory on this card. A process that was killed
    counts until another one of its container notices, as its memory does.
    """

    uuid: str
    used_bytes: int
    gpu_time_us: int
    processes: int
    refusals: int = 0


@dataclass(frozen=True)
class SlotState:
    """``overhead_bytes`` is what of the cards' ``used_bytes``, all cards together, no program has allocated: contexts, modules."""

    gpus: list[GpuState]
    processes: int = 0
    generation: int = 0
    open_fallbacks: int = 0
    unknown_entry_points: int = 0
    reaped: int = 0
    overhead_bytes: int = 0


def create_slot(
    slot_dir: PathLike,
    gpus: Sequence[GpuQuota],
    hook_abi: int = ABI_VERSION,
    *,
    policy: str = "closed",
    view: Sequence[str] = (),
    library: Path | None = None,
) -> SlotConfig:
    """Make the folder's ``config`` (0444) and a fresh ``state`` (0666), both with all their blocks allocated; return the page in force.

    For a container that is about to start: an old state is replaced (its processes' pid namespace is gone, so nobody could ever reap them),
    an old page is updated in place. ``library`` writes the page (``page_writer``; None: that of the hook in force on this node). Errors:
    RegionError when the quotas are wrong, the library can't be used or the file system is full; then nothing half-made stays.
    """
    folder = Path(slot_dir)
    if hook_abi != ABI_VERSION:
        raise RegionError(
            f"hook ABI {hook_abi} is not supported, expected {ABI_VERSION}; upgrade the device plugin and the hook together",
            slot=str(folder),
            hook_abi=hook_abi,
        )
    _check_page(gpus, policy, view)
    is_new = not folder.exists()
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        page = _fresh_or_changed_page(folder, gpus, policy, view, library)
        generation = _old_state_generation(folder / "state") + 1
        _install(folder / "state", STATE_BYTES, 0o666, lambda descriptor: _write_state(descriptor, gpus, generation))
    except (OSError, RegionError) as error:
        if is_new:
            shutil.rmtree(str(folder), ignore_errors=True)
        if isinstance(error, RegionError):
            raise
        raise RegionError(f"cannot create slot {str(folder)!r}: {error.strerror or error}", slot=str(folder)) from error
    return page


def _fresh_or_changed_page(folder: Path, gpus: Sequence[GpuQuota], policy: str, view: Sequence[str], library: Path | None) -> SlotConfig:
    if _page_is_usable(folder / "config"):
        return write_config(folder, gpus, policy=policy, view=view, library=library)
    copy = _encode_copy(gpus, policy, view)
    _install(folder / "config", CONFIG_BYTES, 0o444, lambda descriptor: page_writer.create(descriptor, copy, ABI_VERSION, library))
    return read_config(folder)


def write_config(
    slot_dir: PathLike, gpus: Sequence[GpuQuota], *, policy: str = "closed", view: Sequence[str] = (), library: Path | None = None
) -> SlotConfig:
    """Put a new page in force for running processes, in place, and return it.

    Whoever dies in between leaves the old page. One writer at a time. Errors: RegionError for wrong quotas, a missing or damaged file, a
    stuck writer, or a library that can't be used.
    """
    _check_page(gpus, policy, view)
    generation = _write_page(Path(slot_dir) / "config", _encode_copy(gpus, policy, view), 0, library)
    return SlotConfig(generation, list(gpus), policy, tuple(word for word in VIEWS if word in view))


def change_config(slot_dir: PathLike, change: Callable[[SlotConfig], SlotConfig], *, library: Path | None = None) -> SlotConfig:
    """Put ``change(page in force)`` in force, unless it is equal; return what is in force then.

    What another writer changes at the same time is kept: ``change`` is asked again. Generation and ABI of its answer are not looked at.
    Errors: as ``write_config`` and ``read_config``.
    """
    path = Path(slot_dir) / "config"
    while True:
        old = read_config(slot_dir)
        new = change(old)
        if (new.gpus, new.policy, set(new.view)) == (old.gpus, old.policy, set(old.view)):
            return old
        _check_page(new.gpus, new.policy, new.view)
        try:
            generation = _write_page(path, _encode_copy(new.gpus, new.policy, new.view), old.generation, library)
        except _PageChanged:
            continue
        return SlotConfig(generation, list(new.gpus), new.policy, tuple(word for word in VIEWS if word in new.view))


def read_config(slot_dir: PathLike) -> SlotConfig:
    """The page in force. Errors: RegionError when it is missing, of another ABI, or both copies are damaged."""
    path = Path(slot_dir) / "config"
    return _parse_config(_read_file(path, CONFIG_BYTES), path)


def read_generation(slot_dir: PathLike) -> int:
    """A number that changes with every write of the page: the cheap question whether to read it again. Errors: RegionError."""
    path = Path(slot_dir) / "config"
    data = _read_file(path, HEADER_BYTES, whole=False)
    magic, abi, _header_bytes, file_bytes, generation, _active, _reserved = HEADER.unpack_from(data, 0)
    _check_header(path, magic, CONFIG_MAGIC, abi, file_bytes, CONFIG_BYTES)
    return int(generation)


def tell_busy(windows: Mapping[str, Sequence[BusyWindow]], *, library: Path | None = None) -> dict[str, str]:
    """Put what the host saw of GPU time into the pages of running containers, by slot folder; no generation changes.

    Returns which folders were not told, and why: a slot that went meanwhile is no reason to leave the others out. Errors: RegionError when
    the library cannot be used.
    """
    problems: dict[str, str] = {}
    with page_writer.teller(ABI_VERSION, library) as tell:
        for folder, told in windows.items():
            try:
                descriptor = os.open(Path(folder) / "config", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    for window in told:
                        tell(descriptor, BUSY_WINDOW.pack(0, _uuid_bytes(window.uuid), window.from_ns, window.to_ns, window.busy_ns))
                finally:
                    os.close(descriptor)
            except OSError as error:
                problems[folder] = f"cannot write '{folder}/config': {error.strerror or error}"
    return problems


def read_busy(slot_dir: PathLike) -> dict[str, BusyWindow]:
    """What the host last told of GPU time, by UUID of the page's cards; those of which nothing (whole) is told are left out.

    Errors: as ``read_config``.
    """
    path = Path(slot_dir) / "config"
    data = _read_file(path, CONFIG_BYTES)
    found: dict[str, BusyWindow] = {}
    uuids = {_uuid_bytes(quota.uuid): quota.uuid for quota in _parse_config(data, path).gpus}
    for index in range(BUSY_WINDOWS):
        entry = data[BUSY_OFFSET + index * BUSY_WINDOW.size :][: BUSY_WINDOW.size]
        checksum, raw_uuid, from_ns, to_ns, busy_ns = BUSY_WINDOW.unpack(entry)
        uuid = uuids.get(raw_uuid)
        if uuid is None or checksum != _checksum(bytes(8) + entry[8:]) or not from_ns < to_ns or busy_ns > to_ns - from_ns:
            continue
        if uuid not in found or found[uuid].to_ns < to_ns:
            found[uuid] = BusyWindow(uuid, from_ns, to_ns, busy_ns)
    return found


def read_gpu_times_us(slot_dir: PathLike) -> dict[str, int]:
    """GPU time that the container's processes say they have used so far, by UUID: the cheap part of ``read_state``. Errors: RegionError."""
    path = Path(slot_dir) / "state"
    data = _read_file(path, STATE_SLOTS_OFFSET, whole=False)
    _check_state_header(data, path)
    return {uuid: gpu_time_us for _index, uuid, _used, gpu_time_us, _refusals in _cards(data)}


def read_state(slot_dir: PathLike) -> SlotState:
    """What the container says it uses, per card of the state file.

    Reads with pread and follows no link; a file of another size, magic or ABI is a RegionError. Numbers are cut to what they can be: bytes
    to 42 bits, processes to the slots that exist. Unused cards (empty UUID) are left out, so are those whose UUID is no UUID.
    """
    path = Path(slot_dir) / "state"
    data = _read_file(path, STATE_BYTES)
    generation = _check_state_header(data, path)
    _high_water, open_fallbacks, unknown, reaped = STATE_COUNTERS.unpack_from(data, HEADER_BYTES)
    attached = list(_attached_slots(data))
    cards = list(_cards(data))
    gpus = []
    for index, uuid, used, gpu_time_us, refusals in cards:
        on_card = len(attached) if len(cards) == 1 else sum(1 for offset in attached if _slot_uses(data, offset, index))
        gpus.append(GpuState(uuid, used & BYTES_MASK, gpu_time_us, on_card, refusals))
    overhead_bytes = sum(_word(data, offset + SLOT_OVERHEAD_OFFSET) for offset in attached)
    return SlotState(gpus, len(attached), generation, open_fallbacks, unknown, reaped, overhead_bytes)


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
        if quota.overhead not in OVERHEADS:
            raise RegionError(f"overhead of card {quota.uuid!r} is {quota.overhead!r}, expected one of {', '.join(OVERHEADS)}")


def _is_uuid(text: str) -> bool:
    """``GPU-`` or ``MIG-`` and 32 hex digits in the usual groups (the form of NVML)."""
    groups = text.split("-")
    return (
        len(groups) == 6
        and groups[0] in ("GPU", "MIG")
        and [len(group) for group in groups[1:]] == [8, 4, 4, 4, 12]
        and all(char in "0123456789abcdefABCDEF" for group in groups[1:] for char in group)
    )


def _uuid_bytes(uuid: str) -> bytes:
    return bytes.fromhex(uuid[4:].replace("-", ""))


def _encode_copy(gpus: Sequence[GpuQuota], policy: str, view: Sequence[str]) -> bytes:
    """``struct tenfold_config_copy`` without checksum and generation: the writer fills them in."""
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
            OVERHEADS.index(quota.overhead),
        )
        for quota in gpus
    ).ljust(GPUS_MAX * GPU_CONFIG.size, b"\0")
    return COPY_HEAD.pack(0, 0, len(gpus), POLICIES.index(policy), view_bits, 0) + body


# --- decoding -----------------------------------------------------------------------------------------------------------------


def _checksum(data: bytes) -> int:
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def _check_header(path: Path, magic: int, expected_magic: int, abi: int, file_bytes: int, expected_bytes: int) -> None:
    if magic != expected_magic:
        raise RegionError(f"{str(path)!r} is no file of a slot: magic is {magic:#x}, expected {expected_magic:#x}", path=str(path))
    if abi != ABI_VERSION:
        raise RegionError(f"{str(path)!r} has ABI {abi}, expected {ABI_VERSION}", path=str(path), abi=abi)
    if file_bytes != expected_bytes:
        raise RegionError(f"{str(path)!r} says that it has {file_bytes} bytes, expected {expected_bytes}", path=str(path))


def _check_state_header(data: bytes, path: Path) -> int:
    """The state's generation. Errors: RegionError."""
    magic, abi, _header_bytes, file_bytes, generation, _active, _reserved = HEADER.unpack_from(data, 0)
    _check_header(path, magic, STATE_MAGIC, abi, file_bytes, STATE_BYTES)
    return int(generation)


def _cards(data: bytes) -> Iterator[tuple[int, str, int, int, int]]:
    """Index, UUID, tagged use, GPU time and refusals of each card of a state."""
    for index in range(GPUS_MAX):
        raw_uuid, used, gpu_time_us, refusals = GPU_STATE.unpack_from(data, STATE_GPUS_OFFSET + index * GPU_STATE_STRIDE)
        uuid = _decode_uuid(raw_uuid)
        if uuid:
            yield index, uuid, used, gpu_time_us, refusals


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
        raw_uuid, memory, reserve, cores, mode, priority, neighbours, pressure, overhead = GPU_CONFIG.unpack_from(
            data, offset + COPY_HEAD.size + index * GPU_CONFIG.size
        )
        if mode >= len(MODES):
            raise RegionError(f"mode of card {index} in {str(path)!r} is {mode}, expected 0 to {len(MODES) - 1}", path=str(path))
        told = PRESSURES[pressure] if pressure < len(PRESSURES) else "unknown"
        charged = OVERHEADS[overhead] if overhead < len(OVERHEADS) else "measured"
        gpus.append(GpuQuota(_decode_uuid(raw_uuid), memory, cores, MODES[mode], priority, reserve, neighbours, told, charged))
    view = tuple(word for bit, word in enumerate(VIEWS) if view_bits >> bit & 1)
    return SlotConfig(generation, gpus, POLICIES[policy & 1], view)


def _decode_uuid(raw: bytes) -> str:
    text = raw.split(b"\0", 1)[0].decode("ascii", "replace")
    return text if _is_uuid(text) else ""


def _attached_slots(data: bytes) -> Iterator[int]:
    """Offsets of slots that a process holds; one that is being reaped belongs to a dead one."""
    for index in range(SLOTS_MAX):
        offset = STATE_SLOTS_OFFSET + index * SLOT_STRIDE
        if SLOT_HEAD.unpack_from(data, offset)[0] & 3 == SLOT_LIVE:
            yield offset


def _slot_uses(data: bytes, slot_offset: int, gpu_index: int) -> bool:
    return bool(_word(data, slot_offset + SLOT_USED_OFFSET + gpu_index * 8))


def _word(data: bytes, offset: int) -> int:
    """The bytes of a word, without the tag that some have above them."""
    return int.from_bytes(data[offset : offset + 8], "little") & BYTES_MASK


# --- files --------------------------------------------------------------------------------------------------------------------


class _PageChanged(Exception):
    """Another writer was faster."""


def _write_page(path: Path, copy: bytes, expected_generation: int, library: Path | None) -> int:
    """The new generation. Errors: RegionError; _PageChanged only with an expected generation."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise RegionError(f"cannot open {str(path)!r}: {error.strerror}", path=str(path)) from error
    try:
        _read(descriptor, CONFIG_BYTES, path)
        return page_writer.write(descriptor, copy, ABI_VERSION, expected_generation, library)
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise _PageChanged from error
        if error.errno == errno.ETIMEDOUT:
            seconds = page_writer.WAIT_MS / 1000
            words = f"another writer has held {str(path)!r} for {seconds:g} s; end it ('fuser -v' names it) and try again"
        elif error.errno == errno.EBADMSG:
            words = f"both copies in {str(path)!r} are damaged; create the slot again"
        elif error.errno == errno.EPROTO:
            words = f"{str(path)!r} is no page of ABI {ABI_VERSION}"
        else:
            words = f"cannot write {str(path)!r}: {error.strerror or error}"
        raise RegionError(words, path=str(path)) from error
    finally:
        os.close(descriptor)


def _install(path: Path, size_bytes: int, mode: int, fill: Callable[[int], object]) -> None:
    """A new file with every block allocated (a hole would be SIGBUS for the program that maps it on a full tmpfs), by rename."""
    with files.replacing(path, mode) as stream:
        os.posix_fallocate(stream.fileno(), 0, size_bytes)
        fill(stream.fileno())


def _write_state(descriptor: int, gpus: Sequence[GpuQuota], generation: int) -> None:
    header = HEADER.pack(STATE_MAGIC, ABI_VERSION, HEADER_BYTES, STATE_BYTES, generation, 0, 0)
    cards = [(STATE_GPUS_OFFSET + index * GPU_STATE_STRIDE, quota.uuid.encode()) for index, quota in enumerate(gpus)]
    for offset, data in [(0, header), *cards]:
        if os.pwrite(descriptor, data, offset) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _read(descriptor: int, size_bytes: int, path: Path) -> bytes:
    data = os.pread(descriptor, size_bytes + 1, 0)
    if len(data) != size_bytes:
        raise RegionError(
            f"{str(path)!r} has {'more than ' if len(data) > size_bytes else ''}{min(len(data), size_bytes)} bytes, expected {size_bytes}",
            path=str(path),
        )
    return data


def _read_file(path: Path, size_bytes: int, whole: bool = True) -> bytes:
    """The whole file, or its beginning, never through a link, never blocking on something that is no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise RegionError(f"cannot open {str(path)!r}: {error.strerror}", path=str(path)) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RegionError(f"{str(path)!r} is no regular file", path=str(path))
        data = _read(descriptor, size_bytes, path) if whole else os.pread(descriptor, size_bytes, 0)
        if len(data) < size_bytes:
            raise RegionError(f"{str(path)!r} has {len(data)} bytes, expected {size_bytes} or more", path=str(path))
        return data
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
