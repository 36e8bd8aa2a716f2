"""Judges a scene: values in, broken promises out, each a sentence that names the pod and both numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .observe import PodView
from .scenes import PodRequest, Scene

__all__ = ["broken_by_bare_pod", "broken_by_pod", "broken_by_scene", "requests_of"]

MIB = 1 << 20
CUDA_ERROR_OUT_OF_MEMORY = 2


def requests_of(scene: Scene) -> dict[str, PodRequest]:
    """The scene's requests by pod name."""
    return {request.name: request for wave in scene.waves for request in wave}


def broken_by_scene(scene: Scene, views: Sequence[PodView]) -> list[str]:
    """Every promise of the scene that the pods break: packing first, then each pod."""
    broken = []
    cards = Counter(view.card_uuid for view in views)
    spread = tuple(sorted(cards.values(), reverse=True))
    if spread != scene.pods_per_card:
        broken.append(f"{scene.title}: expected {scene.pods_per_card} pods per card, seen {spread}")
    requests = requests_of(scene)
    missing = sorted(set(requests) - {view.name for view in views})
    broken += [f"{scene.title}: pod '{name}' is not there" for name in missing]
    for view in views:
        broken += broken_by_pod(requests[view.name], view)
    return broken


def broken_by_pod(request: PodRequest, view: PodView) -> list[str]:
    """What the pod's annotation and its own view from inside have wrong."""
    where = f"pod '{view.name}' on {view.node or 'no node'}"
    broken = []
    if (view.memory_mib, view.reserved_cores_percent) != (request.memory_mib, request.reserved_cores_percent):
        broken.append(
            f"{where}: annotation books {view.memory_mib} MiB and {view.reserved_cores_percent} %, "
            f"asked for {request.memory_mib} MiB and {request.reserved_cores_percent} %"
        )
    if view.inside is None:
        return [*broken, f"{where}: no view from inside"]
    if len(view.inside.cards) != 1:
        return [*broken, f"{where}: sees {len(view.inside.cards)} cards, expected 1"]
    card = view.inside.cards[0]
    if card["uuid"] != view.card_uuid:
        broken.append(f"{where}: sees card {card['uuid']}, the scheduler chose {view.card_uuid}")
    for source in ("cuda", "nvml"):
        total_bytes = card[f"{source}_total_bytes"]
        if total_bytes != request.memory_mib * MIB:
            broken.append(f"{where}: {source} shows {total_bytes} bytes in all, expected {request.memory_mib * MIB}")
    if card["core_limit_percent"] != request.limit_cores_percent:
        broken.append(f"{where}: core limit {card['core_limit_percent']} %, expected {request.limit_cores_percent} %")
    return broken + _broken_refusal(where, request, card["refusal"])


def _broken_refusal(where: str, request: PodRequest, refusal: dict[str, Any] | None) -> list[str]:
    if refusal is None:
        return [f"{where}: allocated without end, expected a refusal at {request.memory_mib} MiB"]
    broken = []
    if refusal["allocated_bytes"] + refusal.get("overhead_bytes", 0) != request.memory_mib * MIB:
        broken.append(f"{where}: refused after {refusal['allocated_bytes']} bytes, expected exactly {request.memory_mib * MIB}")
    if refusal["result"] != CUDA_ERROR_OUT_OF_MEMORY:
        broken.append(f"{where}: refused with CUresult {refusal['result']}, expected {CUDA_ERROR_OUT_OF_MEMORY}")
    return broken


def broken_by_bare_pod(view: PodView) -> list[str]:
    """A CUDA pod without a slice must see no card."""
    if view.inside is None:
        return [f"pod '{view.name}': no view from inside"]
    return [f"pod '{view.name}' has no slice and sees card {card['uuid']}" for card in view.inside.cards]
