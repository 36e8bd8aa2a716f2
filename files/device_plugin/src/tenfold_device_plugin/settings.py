"""Every switch of the device plugin: one table of name, default, unit, meaning.

Owns precedence, written once: a flag (``--node-name``) over its environment variable (``TENFOLD_NODE_NAME``) over the default. Paths
are the node's own and are mounted into the plugin's container at the same place, because they also go into CDI files, which the
container runtime reads outside of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ._domain import region
from .errors import SettingsError

__all__ = ["Settings"]

ENVIRONMENT_PREFIX = "TENFOLD_"
LOG_LEVELS = ("debug", "info", "warning", "error")


def _means(text: str) -> dict[str, str]:
    return {"meaning": text}


@dataclass(frozen=True)
class Settings:
    """Units: *_seconds in seconds, *_count plain numbers. Errors: SettingsError with every wrong switch by its name."""

    # Who we are
    node_name: str = field(default="", metadata=_means("name of our Node object; required"))
    namespace: str = field(default="tenfold-system", metadata=_means("namespace of the ConfigMaps tenfold-tiers-<hash8>"))
    kubeconfig: str = field(default="", metadata=_means("kubeconfig file; empty: the pod's service account"))
    scheduler_names: str = field(
        default="volcano", metadata=_means("comma list of spec.schedulerName values that book cards; pods of others are refused")
    )
    # What we advertise
    slices_per_card: int = field(default=0, metadata=_means("slices of a card; 0: the catalogue's slices_per_card"))
    # What every new container's page says beside its quota
    hook_policy: str = field(
        default="closed", metadata=_means("what a hook does that cannot read its page: closed (no CUDA) or open (no limits, counted)")
    )
    hook_view: str = field(default="", metadata=_means("comma list of what NVML shows scaled to the slice: clocks, compute_mode"))
    # Folders, the same inside our container and on the node
    hook_root: Path = field(
        default=Path("/usr/local/tenfold/hook"), metadata=_means("immutable hook versions, 'current' points to the one for new containers")
    )
    state_dir: Path = field(default=Path("/var/lib/tenfold"), metadata=_means("ledger and slot names; must survive a reboot"))
    catalogue_dir: Path = field(
        default=Path("/var/lib/tenfold/catalogues"), metadata=_means("cache of the tier catalogues that this node has obeyed")
    )
    run_dir: Path = field(default=Path("/run/tenfold"), metadata=_means("slots/<slot>/config and state; a tmpfs"))
    cdi_dir: Path = field(default=Path("/var/run/cdi"), metadata=_means("where slot CDI files are written; the runtime must watch it"))
    nvidia_cdi_spec: str = field(
        default="", metadata=_means("the node's NVIDIA CDI specification; empty: nvidia.yaml or .json in cdi_dir, then /etc/cdi")
    )
    kubelet_dir: Path = field(
        default=Path("/var/lib/kubelet"), metadata=_means("holds device-plugins/kubelet.sock and pod-resources/kubelet.sock")
    )
    # Times
    heartbeat_seconds: float = field(
        default=30.0, metadata=_means("between two patches of the node's handshake; old schedulers give a node up after 60")
    )
    scan_seconds: float = field(default=10.0, metadata=_means("between two looks at the cards' health"))
    collect_seconds: float = field(default=10.0, metadata=_means("between two clean-ups of slots whose pod is gone"))
    slot_grace_seconds: float = field(
        default=15.0, metadata=_means("how long a slot's files outlive its pod's object; a running container keeps what it has mounted")
    )
    forced_grace_seconds: float = field(
        default=10.0,
        metadata=_means("how long a force-deleted pod's share stays booked, at most, where the node's processes cannot be seen"),
    )
    prestart_wait_seconds: float = field(
        default=20.0, metadata=_means("how long PreStart waits for a terminating pod's share; the kubelet gives up after 30")
    )
    shutdown_wait_seconds: float = field(default=25.0, metadata=_means("how long SIGTERM waits for bound pods that lack their Allocate"))
    api_timeout_seconds: float = field(default=5.0, metadata=_means("for one request to the API server"))
    xid_hold_seconds: float = field(default=300.0, metadata=_means("how long a card stays out of service after a critical XID error"))
    # Edges
    metrics_address: str = field(default=":9394", metadata=_means("host:port of /metrics, /healthz and /readyz; empty: none"))
    evict_after_refusals: int = field(default=0, metadata=_means("evict a controller-owned pod after so many refused starts; 0: never"))
    log_level: str = field(default="info", metadata=_means("one of " + ", ".join(LOG_LEVELS)))

    @classmethod
    def from_sources(cls, arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
        """Flags over environment over defaults. Errors: SettingsError naming each switch, its value and what was expected."""
        flags = vars(_parser().parse_args(list(arguments)))
        values: dict[str, Any] = {}
        problems = []
        for row in fields(cls):
            source, text = f"--{row.name.replace('_', '-')}", flags.get(row.name)
            if text is None:
                source = ENVIRONMENT_PREFIX + row.name.upper()
                text = environment.get(source)
            if text is None:
                continue
            try:
                kind: Any = type(row.default)
                values[row.name] = kind(text)
            except ValueError:
                problems.append(f"{source} is {text!r}, expected {'a whole number' if isinstance(row.default, int) else 'a number'}")
        settings = cls(**values)
        problems += settings._problems()
        if problems:
            raise SettingsError("; ".join(problems))
        return settings

    def _problems(self) -> list[str]:
        problems = []
        if not self.node_name:
            problems.append("node_name is empty, expected the name of this Node object; set TENFOLD_NODE_NAME")
        if self.slices_per_card < 0:
            problems.append(f"slices_per_card is {self.slices_per_card}, expected 0 or more")
        if self.log_level not in LOG_LEVELS:
            problems.append(f"log_level is {self.log_level!r}, expected one of {', '.join(LOG_LEVELS)}")
        if self.hook_policy not in region.POLICIES:
            problems.append(f"hook_policy is {self.hook_policy!r}, expected one of {', '.join(region.POLICIES)}")
        strangers = [word for word in self.views if word not in region.VIEWS]
        if strangers:
            problems.append(f"hook_view has {strangers[0]!r}, expected some of {', '.join(region.VIEWS)}")
        if not 0 < self.prestart_wait_seconds + self.api_timeout_seconds <= 25:
            problems.append(
                f"prestart_wait_seconds {self.prestart_wait_seconds:g} and api_timeout_seconds {self.api_timeout_seconds:g} sum up to "
                "more than 25; the kubelet breaks a PreStart off after 30"
            )
        for row in fields(self):
            value = getattr(self, row.name)
            if isinstance(value, Path) and not value.is_absolute():
                problems.append(f"{row.name} is {str(value)!r}, expected an absolute path")
            if row.name.endswith("_seconds") and value < 0:
                problems.append(f"{row.name} is {value:g}, expected 0 or more")
        return problems

    @property
    def schedulers(self) -> frozenset[str]:
        return frozenset(_words(self.scheduler_names))

    @property
    def views(self) -> tuple[str, ...]:
        return _words(self.hook_view)

    @property
    def slots_dir(self) -> Path:
        return self.run_dir / "slots"

    @property
    def device_plugins_dir(self) -> Path:
        return self.kubelet_dir / "device-plugins"

    @property
    def pod_resources_socket(self) -> Path:
        return self.kubelet_dir / "pod-resources" / "kubelet.sock"

    def nvidia_cdi_candidates(self) -> list[Path]:
        """Where the node's NVIDIA CDI specification may be, best first."""
        if self.nvidia_cdi_spec:
            return [Path(self.nvidia_cdi_spec)]
        return [folder / name for folder in (self.cdi_dir, Path("/etc/cdi")) for name in ("nvidia.yaml", "nvidia.json", "nvidia.yml")]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tenfold_device_plugin", description="Bind Kubernetes containers to slices of NVIDIA cards.")
    for row in fields(Settings):
        default = str(row.default) or "none"
        parser.add_argument(
            f"--{row.name.replace('_', '-')}",
            metavar="VALUE",
            help=f"{row.metadata['meaning']} (default {default}; environment {ENVIRONMENT_PREFIX}{row.name.upper()})",
        )
    return parser
