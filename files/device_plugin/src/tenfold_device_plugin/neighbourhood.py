"""Tells every slice who else is on its card and, where its mode asks for it, who works there.

Owns the memory of what slots claimed when they were last looked at, and the moment of a write: a page is touched when what it tells has
changed, at most once a round. The rule is the domain's ``pressure``; quota, mode and priority are taken from the page, so that what an
operator has set by hand counts. Where no slot of a card is elastic or has a priority, nobody's state is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from . import log
from ._domain import pressure, region
from ._domain.errors import RegionError
from ._domain.pressure import Sight, Tenant
from ._domain.region import GpuQuota, SlotConfig
from .clock import Clock
from .errors import Refused
from .pages import PageMemory, Pages
from .scan import CardUse

__all__ = ["Neighbourhood"]


class Neighbourhood:
    """For one thread."""

    def __init__(self, pages: Pages, clock: Clock, card_uses: Callable[[], Mapping[str, CardUse]]) -> None:
        """``card_uses`` is NVML's view of all cards, by UUID; asked only for slots whose GPU time the hook does not count."""
        self._pages = pages
        self._clock = clock
        self._card_uses = card_uses
        self._memory = PageMemory(pages)
        self._sights: dict[tuple[str, str], Sight] = {}
        self._said: dict[str, str] = {}

    def tell(self, slots: Iterable[str]) -> list[str]:
        """One round over the slots of living containers; the names of those whose page was changed."""
        if self._pages.problem():
            return []  # said elsewhere
        configs = self._memory.of(slots)
        for slot in set(self._said) - set(configs):
            self._said.pop(slot)
        told = self._told(configs)
        return [slot for slot, config in configs.items() if self._write(slot, config, told)]

    # --- who is there and works -----------------------------------------------------------------------------------------

    def _told(self, configs: Mapping[str, SlotConfig]) -> dict[tuple[str, str], tuple[int, str | None]]:
        """For each slot and card the number of others there and the pressure; None: leave that as it is."""
        on_card: dict[str, dict[str, GpuQuota]] = {}
        for slot, config in configs.items():
            for quota in config.gpus:
                on_card.setdefault(quota.uuid, {})[slot] = quota
        told: dict[tuple[str, str], tuple[int, str | None]] = {}
        sights: dict[tuple[str, str], Sight] = {}
        for uuid, quotas in on_card.items():
            listeners = {slot for slot, quota in quotas.items() if pressure.listens(quota)}
            tenants = self._tenants(uuid, quotas, sights) if listeners else []
            for slot, quota in quotas.items():
                if slot not in listeners:
                    word: str | None = "unknown"
                elif tenants is None:
                    word = None
                else:
                    word = pressure.pressure_on(slot, quota.priority, tenants)
                told[slot, uuid] = (len(quotas) - 1, word)
        self._sights = sights
        return told

    def _tenants(self, uuid: str, quotas: Mapping[str, GpuQuota], sights: dict[tuple[str, str], Sight]) -> list[Tenant] | None:
        """None: after a start of ours a single look does not tell who works."""
        now = self._clock.monotonic()
        tenants, is_known = [], True
        for slot, quota in quotas.items():
            if pressure.is_measured(quota):
                sight = pressure.look(self._sights.get((slot, uuid)), self._gpu_time_us(slot, uuid), now)
                sights[slot, uuid] = sight
                is_known = is_known and sight.is_known
                is_working = sight.is_working(now)
            else:
                is_working = self._may_work(slot, uuid)
            tenants.append(Tenant(slot, quota.priority, is_working))
        return tenants if is_known else None

    def _gpu_time_us(self, slot: str, uuid: str) -> int:
        try:
            return region.read_gpu_times_us(self._pages.folder(slot)).get(uuid, 0)
        except RegionError:
            return 0  # damaged by its tenant: it claims nothing

    def _may_work(self, slot: str, uuid: str) -> bool:
        """Of a slot without a limit the hook counts no time: it may work while a process of it holds memory and the card is not idle."""
        try:
            gpus = self._pages.state(slot).gpus
        except RegionError:
            return False
        if not any(gpu.uuid == uuid and gpu.processes and gpu.used_bytes for gpu in gpus):
            return False
        use = self._card_uses().get(uuid)
        return use is None or use.busy_percent != 0

    # --- what pages say -------------------------------------------------------------------------------------------------

    def _write(self, slot: str, config: SlotConfig, told: Mapping[tuple[str, str], tuple[int, str | None]]) -> bool:
        def change(page: SlotConfig) -> SlotConfig:
            return replace(page, gpus=[_with(quota, *told.get((slot, quota.uuid), (quota.neighbours, None))) for quota in page.gpus])

        if change(config) == config:
            return False
        try:
            written = self._pages.change(slot, change)
        except Refused as refusal:
            if self._said.get(slot) != str(refusal):
                self._said[slot] = str(refusal)
                log.say(logging.WARNING, f"cannot tell slot {slot} of its neighbours, going on without: {refusal}", slot=slot)
            return False
        self._said.pop(slot, None)
        return written.generation != config.generation


def _with(quota: GpuQuota, neighbours: int, word: str | None) -> GpuQuota:
    return replace(quota, neighbours=neighbours, pressure=quota.pressure if word is None else word)
