"""A slot on the node: its configuration page, its state, and the hook that its container loads.

Owns the slot folders under the run folder and the choice of the hook version, with which pages are also written: its page library serves
every slot of the node, whichever hook the slot's container has. The layout of both files is the domain's ``region``; who may have which
quota was decided before.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ._domain import page_writer, region
from ._domain.errors import RegionError
from .cdi import Mount
from .errors import Refused
from .state import Share

__all__ = ["PageMemory", "Pages"]

MIB = 2**20
HOOK_LIBRARY = "libtenfold.so"
HOOK_PRELOAD = "ld.so.preload"
HOOK_TOOL = "vgpuctl"
_SLOT_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Pages:
    """``policy`` and ``view`` go into every page as they are (``_domain.region``)."""

    slots_dir: Path
    hook_root: Path
    policy: str = "closed"
    view: tuple[str, ...] = ()

    def start(self, slot: str, shares: Iterable[Share], neighbours: Mapping[str, int]) -> list[Mount]:
        """Make the slot ready for a container that is about to start: page, fresh state, and the mounts that it gets.

        ``neighbours`` counts the other slots on each card, by UUID. Errors: Refused when no hook is installed or a file can't be written.
        """
        hook = self.current_hook()
        folder = self.folder(slot)
        try:
            gpus = [replace(quota, neighbours=neighbours.get(quota.uuid, 0)) for quota in quotas(shares)]
            region.create_slot(folder, gpus, policy=self.policy, view=self.view, library=hook / page_writer.LIBRARY)
        except RegionError as error:
            raise Refused("page", str(error)) from error
        mounts = [
            Mount(hook / HOOK_LIBRARY, f"/usr/local/tenfold/{HOOK_LIBRARY}"),
            Mount(hook / HOOK_PRELOAD, "/etc/ld.so.preload"),
            Mount(folder / "config", "/run/tenfold/config"),
            Mount(folder / "state", "/run/tenfold/state", writable=True),
        ]
        if (hook / HOOK_TOOL).is_file():
            mounts.insert(1, Mount(hook / HOOK_TOOL, f"/usr/local/tenfold/{HOOK_TOOL}"))
        return mounts

    def rewrite(self, slot: str, shares: Iterable[Share]) -> None:
        """Put new quotas in force in a running container; what its page tells of neighbours stays.

        Errors: Refused when the page is missing or damaged, or no hook is installed.
        """
        new = quotas(shares)

        def change(page: region.SlotConfig) -> region.SlotConfig:
            old = {quota.uuid: quota for quota in page.gpus}
            kept = [(quota, old.get(quota.uuid, quota)) for quota in new]
            gpus = [replace(quota, neighbours=before.neighbours, pressure=before.pressure) for quota, before in kept]
            return replace(page, gpus=gpus, policy=self.policy, view=self.view)

        self.change(slot, change)

    def change(self, slot: str, change: Callable[[region.SlotConfig], region.SlotConfig]) -> region.SlotConfig:
        """Change a running container's page, unless that makes no difference. Errors: as ``rewrite``."""
        library = self.current_hook() / page_writer.LIBRARY
        try:
            return region.change_config(self.folder(slot), change, library=library)
        except RegionError as error:
            raise Refused("page", str(error)) from error

    def state(self, slot: str) -> region.SlotState:
        """What the container's processes say of themselves. Errors: RegionError."""
        return region.read_state(self.folder(slot))

    def cut_state(self, slot: str) -> int:
        """Cut a state that its container has made longer than it is back to size; the bytes taken away.

        The file is the container's to write, and so to lengthen: unchecked, one tenant fills the run folder for all. Errors: OSError.
        """
        path = self.folder(slot) / "state"
        try:
            surplus = path.lstat().st_size - region.STATE_BYTES
        except FileNotFoundError:
            return 0
        if surplus > 0:
            os.truncate(path, region.STATE_BYTES)
        return max(0, surplus)

    def exists(self, slot: str) -> bool:
        return (self.folder(slot) / "config").exists()

    def remove(self, slot: str) -> None:
        """Errors: OSError; a folder that is not there is fine."""
        folder = self.folder(slot)
        if folder.exists():
            shutil.rmtree(folder)

    def slots(self) -> set[str]:
        """The slots that have a folder."""
        if not self.slots_dir.is_dir():
            return set()
        return {path.name for path in self.slots_dir.iterdir() if _SLOT_NAME.fullmatch(path.name)}

    def folder(self, slot: str) -> Path:
        return self.slots_dir / slot

    def current_hook(self) -> Path:
        """The immutable folder behind ``current``: a container keeps the version that it started with.

        Errors: Refused when it is missing or incomplete: a mount without source fails the container in words that name no cause.
        """
        link = self.hook_root / "current"
        try:
            folder = link.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise Refused("no_hook", f"no hook in force: '{link}' leads nowhere ({error}); run the role cuda_hook on this node") from error
        for name in (HOOK_LIBRARY, HOOK_PRELOAD, page_writer.LIBRARY):
            if not (folder / name).is_file():
                raise Refused(
                    "no_hook",
                    f"the hook in '{folder}' has no '{name}': it is older than this device plugin or incomplete; "
                    "run the role cuda_hook on this node (an upgrade brings the hook first, then the plugin)",
                )
        return folder

    def problem(self) -> str:
        """Why no container could start or get another quota now; empty: nothing."""
        try:
            self.current_hook()
        except Refused as refusal:
            return str(refusal)
        return ""


class PageMemory:
    """The pages of living containers, each read again only when it was written. For one thread."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._read: dict[str, tuple[int, region.SlotConfig]] = {}

    def of(self, slots: Iterable[str]) -> dict[str, region.SlotConfig]:
        """Left out: slots whose page cannot be read, and nobody can tell them anything. Slots not asked for are forgotten."""
        configs = {slot: config for slot in slots if (config := self._config(slot)) is not None}
        for slot in set(self._read) - set(configs):
            del self._read[slot]
        return configs

    def _config(self, slot: str) -> region.SlotConfig | None:
        folder = self._pages.folder(slot)
        try:
            generation = region.read_generation(folder)
            if slot not in self._read or self._read[slot][0] != generation:
                self._read[slot] = (generation, region.read_config(folder))
        except RegionError:
            return None
        return self._read[slot][1]


def quotas(shares: Iterable[Share]) -> list[region.GpuQuota]:
    return [
        region.GpuQuota(
            uuid=share.uuid,
            memory_limit_bytes=share.memory_mib * MIB,
            core_limit_percent=share.limit_cores_percent,
            mode=share.mode,
            priority=share.priority,
        )
        for share in shares
    ]
