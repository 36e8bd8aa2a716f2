"""The three keys of the article that Tenfold implements, as people copy them from there.

Owns their meaning here: each is accepted under its own spelling, mapped to what the real systems have, and answered with the
arithmetic. ``tiers`` calls this first and keeps the notes.

Source of the real meaning: Volcano v1.15.1 pkg/scheduler/api/devices/config/vgpu.go (gpuMemoryFactor, deviceMemoryScaling),
volcano-vgpu-device-plugin v1.12.0 (one kubelet device for each unit of memory); the kubelet's gRPC limit is 4 MiB.
"""

from __future__ import annotations

from typing import Any, Mapping

__all__ = ["POLICIES", "translate"]

POLICIES = ("binpack", "spread")
_SCALING_KEYS = ("deviceMemoryScaling", "device_memory_scaling")
_FACTOR_KEYS = ("gpuMemoryFactor", "gpu_memory_factor")
_POLICY_KEYS = ("SchedulePolicy", "schedule_policy", "deviceshare.SchedulePolicy")
_GRPC_LIMIT_BYTES = 4 * 1024 * 1024
_DEVICE_ENTRY_BYTES = 66  # of ``GPU-<uuid>-memory-<n>`` with its protobuf framing
_EXAMPLE_CARDS = 8
_EXAMPLE_CARD_MIB = 81920


def translate(variables: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[tuple[str, str]]]:
    """``(variables without the article's keys, notes, problems as (key, message))``.

    A key that is mapped sets its counterpart only where that is absent; where both are given and differ it is a problem.
    """
    rest = dict(variables)
    notes: list[str] = []
    problems: list[tuple[str, str]] = []
    for key in _SCALING_KEYS:
        if key in rest:
            _memory_scaling(key, rest.pop(key), rest, notes, problems)
    for key in _FACTOR_KEYS:
        if key in rest:
            _memory_factor(key, rest.pop(key), notes, problems)
    for key in _POLICY_KEYS:
        if key in rest:
            _policy(key, rest.pop(key), notes, problems)
    return rest, notes, problems


def _positive(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    return value if isinstance(value, int) and value > 0 else None


def _memory_scaling(key: str, value: Any, rest: dict[str, Any], notes: list[str], problems: list[tuple[str, str]]) -> None:
    number = _positive(value)
    if number is None:
        problems.append((key, f"is {value!r}, expected a whole number of MiB such as 256 (it becomes memory_granularity_mib)"))
        return
    given = rest.get("memory_granularity_mib")
    if given is not None and _positive(given) != number:
        problems.append((key, f"is {number}, but memory_granularity_mib is {given!r}; they are the same setting, keep one"))
        return
    rest["memory_granularity_mib"] = number
    notes.append(
        f"{key}: {number} is taken as memory_granularity_mib: {number}. In the scheduler's own configuration the key is a ratio: "
        f"{number} would promise {number} x {_EXAMPLE_CARD_MIB} = {number * _EXAMPLE_CARD_MIB} MiB of a card of {_EXAMPLE_CARD_MIB} MiB. "
        "To promise more than a card has, set memory_overcommit_ratio"
    )


def _memory_factor(key: str, value: Any, notes: list[str], problems: list[tuple[str, str]]) -> None:
    factor = _positive(value)
    if factor is None:
        problems.append((key, f"is {value!r}, expected a whole number such as 10 (Tenfold needs none: leave it out)"))
        return
    entries = _EXAMPLE_CARDS * (_EXAMPLE_CARD_MIB // factor)
    message_bytes = entries * _DEVICE_ENTRY_BYTES
    verdict = "over" if message_bytes > _GRPC_LIMIT_BYTES else "within"
    card_units, small_units = _EXAMPLE_CARD_MIB // factor, -(-8192 // factor)
    fitting = card_units // small_units if small_units else 0
    example = f"{_EXAMPLE_CARDS} cards of {_EXAMPLE_CARD_MIB} MiB"
    notes.append(
        f"{key}: {factor} is not needed and not used: memory and cores are node resources in MiB and percent, so no list of devices "
        f"meets the kubelet's 4 MiB limit. With one device for each {factor} MiB, {example} would be {entries} entries x "
        f"{_DEVICE_ENTRY_BYTES} bytes = {message_bytes} bytes, {verdict} {_GRPC_LIMIT_BYTES}; and 8192 MiB would be "
        f"{small_units} units, of which {fitting} fit a card of {card_units} units"
    )


def _policy(key: str, value: Any, notes: list[str], problems: list[tuple[str, str]]) -> None:
    if value not in POLICIES:
        problems.append((key, f"is {value!r}, expected one of: {', '.join(POLICIES)}"))
        return
    notes.append(
        f"{key}: {value} is an argument of the scheduler's deviceshare plugin, not of the tiers: role volcano sets it, together with "
        "deviceshare.ScheduleWeight, whose default of 0 means that nodes are not packed whatever the policy says"
    )
