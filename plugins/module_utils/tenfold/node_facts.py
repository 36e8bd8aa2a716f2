"""What a GPU node is: driver, cards, container engines, kubelet, toolkit, and what else claims its cards.

Owns which questions are asked and how answers are read. It touches nothing itself: reading files and running commands are functions
that the caller gives (``Host``), so a test needs no host. Judging the answers is ``drivers.check_node``'s task.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

from .cards import by_product_name
from .drivers import DriverVersion, capabilities
from .errors import DriverError
from .kubelet_settings import Kubelet, engine_of, flag
from .services import PROPERTIES, command_line, units
from .versions import Version

__all__ = ["Host", "collect"]

# What nvidia-smi is asked, in the order of its answer; every one exists since driver 440 except MIG, which older ones answer as
# "[Not Supported]" or refuse as a whole (then the shorter list is asked).
_CARD_FIELDS = ("index", "uuid", "name", "memory.total", "compute_mode", "pci.bus_id", "driver_version", "mig.mode.current")
_ENGINES = {
    "containerd": ("containerd", "/etc/containerd/config.toml"),
    "docker": ("dockerd", "/etc/docker/daemon.json"),
    "crio": ("crio", "/etc/crio/crio.conf"),
}
_UNITS = ("kubelet", "containerd", "docker", "crio")
_DEVICE_PLUGIN_FOLDER = "/var/lib/kubelet/device-plugins"
_KUBELET_OWN_FILES = ("kubelet.sock", "kubelet_internal_checkpoint", "DEPRECATION")
_OUR_SOCKET_PREFIX = "tenfold"


@dataclass(frozen=True)
class Host:
    """How to look at a node.

    ``run(argv)`` gives (exit status, stdout, stderr), exit status 127 for a command that does not exist; ``read(path)`` the text of a
    file or None; ``names(path)`` the names in a folder, empty if there is none; ``glibc`` such as ``glibc 2.36``, ``kernel`` such as
    ``6.1.0-18-amd64``, ``machine`` such as ``x86_64``, ``python`` such as ``3.11.2``.
    """

    run: Callable[[Sequence[str]], tuple[int, str, str]]
    read: Callable[[str], str | None]
    names: Callable[[str], list[str]]
    glibc: str | None = None
    kernel: str = ""
    machine: str = ""
    python: str = ""


def collect(host: Host) -> dict[str, Any]:
    """Everything at once; what is not there is None or empty, never an error."""
    smi = _nvidia_smi(host)
    module_version = _kernel_module_version(host.read("/proc/driver/nvidia/version"))
    driver = smi.driver or module_version
    cards = [_with_capabilities(card, driver) for card in smi.cards]
    found = _units(host)
    engines = {name: engine for name, engine in ((name, _engine(host, name, found)) for name in _ENGINES) if engine is not None}
    kubelet = _kubelet(host, found.get("kubelet"))
    sockets = [name for name in sorted(host.names(_DEVICE_PLUGIN_FOLDER)) if name.endswith(".sock") and name not in _KUBELET_OWN_FILES]
    return {
        "driver": driver,
        "driver_kernel_module": module_version,
        "nvidia_smi_error": smi.error,
        "cards": cards,
        "engines": engines,
        "engine": _engine_in_use(kubelet, engines),
        "kubelet": kubelet,
        "toolkit_version": _version_of(host, ["nvidia-ctk", "--version"]),
        "device_plugin_sockets": sockets,
        "rival_device_plugins": [name for name in sockets if not name.startswith(_OUR_SOCKET_PREFIX) and _claims_cards(name)],
        "glibc_version": _first_version(host.glibc or ""),
        "kernel": host.kernel,
        "machine": host.machine,
        "python": host.python,
        "cgroup": _cgroup(host),
        "selinux": _selinux(host),
        "machine_id": _stripped(host.read("/etc/machine-id")),
        "system_uuid": (_stripped(host.read("/sys/class/dmi/id/product_uuid")) or "").lower() or None,
    }


def _claims_cards(socket_name: str) -> bool:
    """The names under which other plugins serve NVIDIA cards: nvidia-gpu.sock, nvidia-vgpu-number.sock, nvidia-mig-1g.10gb.sock, ..."""
    lowered = socket_name.lower()
    return "nvidia" in lowered or "gpu" in lowered


@dataclass(frozen=True)
class _SmiAnswer:
    driver: str | None
    cards: tuple[dict[str, Any], ...]
    error: str | None


def _nvidia_smi(host: Host) -> _SmiAnswer:
    status, out, err = _query(host, _CARD_FIELDS)
    if status not in (0, 127) and "mig.mode" in out + err:
        status, out, err = _query(host, _CARD_FIELDS[:-1])
    if status != 0:
        reason = "nvidia-smi is not installed" if status == 127 else _one_line(err or out) or f"nvidia-smi ended with {status}"
        return _SmiAnswer(None, (), reason)
    cards = []
    driver = None
    for row in csv.reader(out.splitlines(), skipinitialspace=True):
        values = dict(zip(_CARD_FIELDS, (_known(value) for value in row)))
        if not (values.get("uuid") or "").startswith("GPU-"):
            continue
        driver = driver or values.get("driver_version")
        cards.append(_card(values))
    if not cards:
        return _SmiAnswer(None, (), _one_line(out) or "nvidia-smi lists no card")
    return _SmiAnswer(driver, tuple(sorted(cards, key=lambda card: card["index"])), None)


def _query(host: Host, fields: Sequence[str]) -> tuple[int, str, str]:
    return host.run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])


def _known(value: str) -> str | None:
    """nvidia-smi puts what it does not know in brackets: [N/A], [Not Supported], [Unknown Error]."""
    stripped = value.strip()
    return None if not stripped or stripped.startswith("[") or stripped == "N/A" else stripped


def _card(values: Mapping[str, str | None]) -> dict[str, Any]:
    name = values.get("name") or ""
    model = by_product_name(name)
    return {
        "index": _integer(values.get("index")) or 0,
        "uuid": values.get("uuid"),
        "name": name,
        "model": model.name if model else None,
        "memory_mib": _integer(values.get("memory.total")),
        "mig_mode": values.get("mig.mode.current"),
        "compute_mode": values.get("compute_mode"),
        "pci_bus_id": values.get("pci.bus_id"),
    }


def _with_capabilities(card: dict[str, Any], driver: str | None) -> dict[str, Any]:
    try:
        able = capabilities(DriverVersion.parse(driver or ""), by_product_name(card["name"]))
    except DriverError:
        able = {}
    return {**card, "capabilities": able}


def _kernel_module_version(text: str | None) -> str | None:
    """From ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat ...`` or ``... Open Kernel Module for x86_64  575.57.08``."""
    match = re.search(r"Kernel Module(?:\s+for\s+\S+)?\s+(\d+(?:\.\d+)+)", text or "", re.ASCII)
    return match.group(1) if match else None


def _units(host: Host) -> dict[str, dict[str, str]]:
    """Properties of the units that run; without systemd an empty dict."""
    status, out, _err = host.run(["systemctl", "show", f"--property={','.join(PROPERTIES)}", *(f"{unit}.service" for unit in _UNITS)])
    return units(out) if status == 0 else {}


def _binary(arguments: Sequence[str], name: str) -> str:
    """The running program where it was started by its full path, which need not be on PATH."""
    return arguments[0] if arguments and arguments[0].startswith("/") and arguments[0].endswith(name) else name


def _engine(host: Host, name: str, found: Mapping[str, Mapping[str, str]]) -> dict[str, Any] | None:
    binary, default_path = _ENGINES[name]
    unit = found.get(name)
    arguments = command_line(unit or {}, host.read)
    version = _version_of(host, [_binary(arguments, binary), "--version"])
    if version is None:
        return None
    path = flag(arguments, "--config", "-c", "--config-file") or default_path
    text = host.read(path)
    format_match = re.search(r"^\s*version\s*=\s*(\d+)", text or "", re.MULTILINE | re.ASCII) if name == "containerd" else None
    return {
        "version": version,
        "active": (unit or {}).get("ActiveState") == "active",
        "config_path": path,
        "config_present": text is not None,
        "config_version": int(format_match.group(1)) if format_match else None,
    }


def _kubelet(host: Host, unit: Mapping[str, str] | None) -> dict[str, Any] | None:
    arguments = command_line(unit or {}, host.read)
    version = _version_of(host, [_binary(arguments, "kubelet"), "--version"])
    if version is None:
        return None
    cores = len(re.findall(r"^processor\s*:", host.read("/proc/cpuinfo") or "", re.MULTILINE))
    return {
        **vars(Kubelet.read(arguments, version, host.read, host.names, cores)),
        "version": version,
        "active": (unit or {}).get("ActiveState") == "active",
        "root_dir": flag(arguments, "--root-dir") or "/var/lib/kubelet",
        "flags": arguments[1:],
    }


def _engine_in_use(kubelet: Mapping[str, Any] | None, engines: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The kubelet's, whatever else runs on the node; where no kubelet tells, one that runs, else one that is there."""
    if kubelet and kubelet["runtime_endpoint"]:
        return engine_of(kubelet["runtime_endpoint"])
    preferred = [name for name in ("containerd", "crio", "docker") if name in engines]
    return next((name for name in preferred if engines[name]["active"]), preferred[0] if preferred else None)


def _version_of(host: Host, argv: Sequence[str]) -> str | None:
    status, out, _err = host.run(argv)
    return _first_version(out) if status == 0 else None


def _first_version(text: str) -> str | None:
    found = Version.find(text)
    return found.text if found else None


def _cgroup(host: Host) -> str:
    if host.read("/sys/fs/cgroup/cgroup.controllers") is not None:
        return "v2"
    return "hybrid" if host.read("/sys/fs/cgroup/unified/cgroup.controllers") is not None else "v1"


def _selinux(host: Host) -> str:
    return {"1": "enforcing", "0": "permissive"}.get((host.read("/sys/fs/selinux/enforce") or "").strip(), "disabled")


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,12}", text.strip(), re.ASCII) else None


def _stripped(text: str | None) -> str | None:
    return (text or "").strip() or None


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
