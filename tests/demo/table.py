"""The demo's table: a block per card, a line per pod, its annotation beside its own view. Pure text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from .observe import PodView
from .scenes import PodRequest

__all__ = ["card_table"]

MIB = 1 << 20
HEADINGS = ("pod", "tier", "annotation", "seen inside", "refused at")


def _cells(view: PodView, request: PodRequest) -> tuple[str, ...]:
    annotation = f"{view.card_uuid[:12]} {view.memory_mib:>5} MiB {view.reserved_cores_percent:>3} %"
    inside, refused = "nothing", "-"
    if view.inside and view.inside.cards:
        card = view.inside.cards[0]
        inside = f"{card['uuid'][:12]} {card['cuda_total_bytes'] // MIB:>5} MiB {card['core_limit_percent']:>3} %"
        if card["refusal"]:
            refused = f"{card['refusal']['allocated_bytes']:>11} B"
    return view.name, request.tier or "custom", annotation, inside, refused


def card_table(views: Sequence[PodView], requests: dict[str, PodRequest], card_memory_mib: int) -> str:
    """Cards in order of node and UUID; sums of what is booked in each card's heading."""
    ordered = sorted(views, key=lambda view: (view.node, view.card_uuid, len(view.name), view.name))
    rows = {view.name: _cells(view, requests[view.name]) for view in ordered}
    width = [max(len(row[column]) for row in (HEADINGS, *rows.values())) for column in range(len(HEADINGS))]

    def line(cells: Sequence[str]) -> str:
        return "    " + "  ".join(cell.ljust(width[column]) for column, cell in enumerate(cells)).rstrip()

    lines = []
    for (node, uuid), group in groupby(ordered, key=lambda view: (view.node, view.card_uuid)):
        pods = list(group)
        memory_mib = sum(view.memory_mib for view in pods)
        cores_percent = sum(view.reserved_cores_percent for view in pods)
        lines.append(
            f"  {node}  {uuid}  {len(pods)} slice{'s' * (len(pods) != 1)}  {memory_mib}/{card_memory_mib} MiB  {cores_percent}/100 % booked"
        )
        lines.append(line(HEADINGS))
        lines += [line(rows[view.name]) for view in pods]
    return "\n".join(lines)
