"""The CDI file of a slot: what the container runtime adds to a container that starts with ``tenfold.dev/vgpu=<slot>``.

Owns which parts of the node's NVIDIA specification a slice gets (the card, the driver, the hooks that make them usable; no graphics, no
display: Vulkan and OpenGL allocate device memory past the hook) and how the file is put in place. What the mounts contain is ``pages``'.
Source of the format: CDI specification 0.6 to 1.0 (container-device-interface SPEC.md); of the NVIDIA parts: nvidia-container-toolkit
1.20.0, ``nvidia-ctk cdi generate``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ._domain import files
from .errors import CdiError

__all__ = ["KIND", "CdiFolder", "NvidiaSpec", "device_name", "slot_of_device", "slot_spec"]

KIND = "tenfold.dev/vgpu"
FILE_PREFIX = "tenfold-"
_FILE_NAME = re.compile(rf"(?:{FILE_PREFIX}|(?P<leftover>\.){FILE_PREFIX})(?P<slot>[0-9a-f]{{32}})\.json(?(leftover)\..+)")
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
NO_INJECTION = "void"  # the nvidia runtime, if it runs this container, then adds nothing of its own

_GRAPHICS_FOLDERS = (
    "/dev/dri",
    "/usr/share/vulkan",
    "/etc/vulkan",
    "/usr/share/glvnd",
    "/etc/glvnd",
    "/usr/share/egl",
    "/etc/egl",
    "/etc/X11",
)
_GRAPHICS_NAMES = (
    "libEGL", "libGL", "libOpenGL", "libvdpau", "libglxserver", "libnvidia-egl", "libnvidia-gl", "libnvidia-eglcore", "libnvidia-tls",
    "libnvidia-fbc", "libnvidia-vulkan", "libnvidia-wayland", "libnvidia-gtk", "libnvidia-allocator", "nvidia-drm", "nvidia_drv",
    "nvidia_icd", "nvidia_layers", "10_nvidia", "15_nvidia", "20_nvidia", "nvidia-modeset",
)  # fmt: skip


def device_name(slot: str) -> str:
    return f"{KIND}={slot}"


def slot_of_device(name: str) -> str:
    """The slot that a CDI device's full name stands for; empty: the device is none of ours."""
    kind, _, slot = name.partition("=")
    return slot if kind == KIND else ""


class NvidiaSpec:
    """The node's NVIDIA CDI specification, read again when it changes (driver upgrades rewrite it)."""

    def __init__(self, candidates: Sequence[Path]) -> None:
        self._candidates = candidates
        self._seen: tuple[Path, int, int] | None = None
        self._document: Mapping[str, Any] = {}

    def read(self) -> Mapping[str, Any]:
        """Errors: CdiError when no candidate exists or the first that does is no CDI specification."""
        for path in self._candidates:
            try:
                status = path.stat()
            except OSError:
                continue
            seen = (path, status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                self._document, self._seen = _parsed(path), seen
            return self._document
        shown = ", ".join(f"'{path}'" for path in self._candidates)
        raise CdiError(f"no NVIDIA CDI specification at {shown}; run 'nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml'")


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            document = json.loads(text)
        else:
            import yaml  # comes with the kubernetes package

            document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # the C parser where libyaml is linked in
    except OSError as error:
        raise CdiError(f"cannot read '{path}': {error.strerror}") from error
    except Exception as error:  # yaml.YAMLError or ValueError; yaml may not be importable
        raise CdiError(f"cannot parse '{path}': {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("devices"), list):
        raise CdiError(f"'{path}' is no CDI specification, expected a mapping with 'devices'")
    return document


@dataclass(frozen=True)
class Mount:
    """A file or folder of the node in the container."""

    host_path: Path
    container_path: str
    writable: bool = False

    def as_edit(self) -> dict[str, Any]:
        return {
            "hostPath": str(self.host_path),
            "containerPath": self.container_path,
            "options": ["rw" if self.writable else "ro", "nosuid", "nodev", "bind"],
        }


def slot_spec(nvidia: Mapping[str, Any], slot: str, uuids: Iterable[str], mounts: Iterable[Mount]) -> dict[str, Any]:
    """A CDI specification with one device, the slot: the cards' and the driver's edits less graphics, and our mounts.

    Errors: CdiError when the NVIDIA specification does not know a card by its UUID.
    """
    devices = {device.get("name"): device.get("containerEdits") or {} for device in nvidia["devices"]}
    sources: list[Mapping[str, Any]] = [nvidia.get("containerEdits") or {}]  # the common part first, as CDI itself orders them
    for uuid in uuids:
        if uuid not in devices:
            raise CdiError(
                f"the NVIDIA CDI specification has no device {uuid!r}, only {', '.join(sorted(map(str, devices)))}; generate it with "
                "'--device-name-strategy=uuid' or both strategies"
            )
        sources.append(devices[uuid])
    edits = _merged(sources)
    edits["env"] = [text for text in edits.get("env", []) if not text.startswith(VISIBLE_DEVICES + "=")] + [
        f"{VISIBLE_DEVICES}={NO_INJECTION}"
    ]
    edits["mounts"] = edits.get("mounts", []) + [mount.as_edit() for mount in mounts]
    return {
        "cdiVersion": str(nvidia.get("cdiVersion") or "0.6.0"),
        "kind": KIND,
        "devices": [{"name": slot, "containerEdits": edits}],
    }


def _merged(sources: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Lists of the same name joined, doubles and graphics left out; the order is kept, because hooks run in it."""
    merged: dict[str, list[Any]] = {}
    for source in sources:
        for name, entries in source.items():
            if not isinstance(entries, list):
                continue  # intelRdt and the like: nothing that a card needs
            known = merged.setdefault(name, [])
            for entry in entries:
                kept = _without_graphics(name, entry)
                if kept is not None and kept not in known:
                    known.append(kept)
    return merged


def _without_graphics(name: str, entry: Any) -> Any:
    """The entry, a smaller one, or None."""
    if name == "deviceNodes":
        return None if _is_graphics(entry.get("path", "")) else entry
    if name == "mounts":
        return None if _is_graphics(entry.get("containerPath", "")) or _is_graphics(entry.get("hostPath", "")) else entry
    if name == "hooks":
        return _hook_without_graphics(entry)
    return entry


def _hook_without_graphics(hook: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Link hooks lose their graphics links and vanish with the last; chmod hooks of /dev/dri and EGL's profile vanish; others stay."""
    arguments = [str(argument) for argument in hook.get("args") or []]
    if "update-application-profile" in arguments:
        return None
    if "create-symlinks" in arguments:
        at = arguments.index("create-symlinks") + 1
        links = [link for link in _flag_values(arguments[at:], "--link") if not any(_is_graphics(part) for part in link.split("::"))]
        if not links:
            return None
        others = _without_flag(arguments[at:], "--link")
        return {**hook, "args": arguments[:at] + others + [text for link in links for text in ("--link", link)]}
    if "chmod" in arguments and any(_is_graphics(path) for path in _flag_values(arguments, "--path")):
        return None
    return hook


def _flag_values(arguments: Sequence[str], flag: str) -> list[str]:
    values = [argument.partition("=")[2] for argument in arguments if argument.startswith(flag + "=")]
    return [arguments[at + 1] for at, argument in enumerate(arguments[:-1]) if argument == flag] + values


def _without_flag(arguments: Sequence[str], flag: str) -> list[str]:
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == flag:
            skip = True
        elif not argument.startswith(flag + "="):
            kept.append(argument)
    return kept


def _is_graphics(path: str) -> bool:
    pure = PurePosixPath(path)
    return (
        pure.name.startswith(_GRAPHICS_NAMES)
        or any(path == folder or path.startswith(folder + "/") for folder in _GRAPHICS_FOLDERS)
        or "xorg" in pure.parts
    )


@dataclass(frozen=True)
class CdiFolder:
    """The folder that the runtime watches; it reacts to renames, so files appear whole and at once."""

    folder: Path

    def path(self, slot: str) -> Path:
        return self.folder / f"{FILE_PREFIX}{slot}.json"

    def write(self, slot: str, spec: Mapping[str, Any]) -> None:
        """Errors: CdiError."""
        path = self.path(slot)
        try:
            files.write(path, json.dumps(spec, indent=1) + "\n")
        except OSError as error:
            raise CdiError(f"cannot write '{path}': {error.strerror}") from error

    def remove(self, slot: str) -> None:
        """Errors: CdiError; a file that is not there is fine."""
        try:
            self.path(slot).unlink(missing_ok=True)
        except OSError as error:
            raise CdiError(f"cannot remove '{self.path(slot)}': {error.strerror}") from error

    def slots(self) -> set[str]:
        """The slots that have a file. The folder is everybody's: a name that no slot can have is somebody else's."""
        return {match["slot"] for match in self._files() if not match["leftover"]}

    def remove_leftovers(self) -> None:
        """Files of writers that were killed. The caller sees to it that nobody writes now. Errors: OSError."""
        for match in self._files():
            if match["leftover"]:
                (self.folder / match.string).unlink(missing_ok=True)

    def _files(self) -> list[re.Match[str]]:
        if not self.folder.is_dir():
            return []
        matches = (_FILE_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return [match for match in matches if match]
