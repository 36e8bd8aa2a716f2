"""What the harness compiles: per component its module, programs, flags and how long it takes.

Pure: component in, argv and cache key out. ``compile`` runs it, ``gomodules`` writes the shared go.mod of Kubernetes and Volcano.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import fingerprint, gomodules
from .versions import Versions

CONTAINERD = "github.com/containerd/containerd/v2"
TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit"
HELM = "helm.sh/helm/v3"

# Static, stripped and without local paths. buildvcs would ask git about a folder that is not a checkout.
GO_ENVIRONMENT: Mapping[str, str] = {"GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local", "GOWORK": "off", "GO111MODULE": "on"}
# Kubernetes 1.35 says "go 1.25.0".
GO_MINIMUM = (1, 25)

# The toolkit calls NVML through symbols that only libnvidia-ml.so.1 has; they are looked up when first called.
TOOLKIT_LINKER_FLAGS = "-extldflags=-Wl,--export-dynamic,--unresolved-symbols=ignore-in-object-files,-z,lazy"


@dataclass(frozen=True)
class Component:
    """One compiled thing.

    programs: name of the binary -> package, "./..." relative to the module or to the workspace.
    links:    other names of the first binary.
    stamps:   linker variables that make ``--version`` tell the truth; Go modules carry no version of their own.
    shared:   built in the workspace of Kubernetes and Volcano instead of its own module.
    cold_minutes: on two free cores with an empty Go build cache, for the reader of the progress line.
    """

    name: str
    module: str
    version: str
    programs: Mapping[str, str]
    cold_minutes: float
    links: tuple[str, ...] = ()
    stamps: Mapping[str, str] | None = None
    linker_flags: tuple[str, ...] = ()
    cgo: bool = False
    shared: bool = False
    extra_key: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.name} {self.version.removeprefix('v')}"

    def key(self, go_version: str) -> str:
        """Cache key: everything that decides the binaries' bytes."""
        flags = [*sorted(f"{name}={package}" for name, package in self.programs.items()), *self.links, *self.linker_flags]
        stamps = [f"{variable}={value}" for variable, value in sorted((self.stamps or {}).items())]
        return fingerprint.of(self.module, self.version, go_version, str(self.cgo), *flags, *stamps, *self.extra_key)

    def argv(self, program: str, output: Path) -> list[str]:
        linker = ["-s", "-w", *self.linker_flags, *(f"-X {variable}={value}" for variable, value in (self.stamps or {}).items())]
        mode = ["-mod=mod"] if self.shared else []
        return ["go", "build", *mode, "-trimpath", f"-ldflags={' '.join(linker)}", "-o", str(output), self.programs[program]]

    def environment(self) -> dict[str, str]:
        return {**GO_ENVIRONMENT, "CGO_ENABLED": "1" if self.cgo else "0"}


def components(versions: Versions, hyperkube_source: str) -> tuple[Component, ...]:
    """Every component, in the order in which they are built: the long one first, so that trouble shows early."""
    kubernetes = versions.of(gomodules.KUBERNETES)
    pinned = (f"{module}@{versions.of(module)}" for module in gomodules.PINNED)
    workspace_inputs = (hyperkube_source, gomodules.APIS_SUPPLEMENT, *pinned)
    return (
        Component(
            name="kubernetes",
            module=gomodules.KUBERNETES,
            version=kubernetes,
            programs={"hyperkube": "./cmd/hyperkube"},
            links=("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl", "kubemark"),
            stamps=_kubernetes_stamps(kubernetes),
            cold_minutes=5,
            shared=True,
            extra_key=workspace_inputs,
        ),
        Component(
            name="volcano",
            module=gomodules.VOLCANO,
            version=versions.of(gomodules.VOLCANO),
            programs={
                "vc-scheduler": f"{gomodules.VOLCANO}/cmd/scheduler",
                "vc-controller-manager": f"{gomodules.VOLCANO}/cmd/controller-manager",
                "vc-webhook-manager": f"{gomodules.VOLCANO}/cmd/webhook-manager",
            },
            stamps={f"{gomodules.VOLCANO}/pkg/version.Version": versions.of(gomodules.VOLCANO)},
            cold_minutes=1,
            shared=True,
            extra_key=workspace_inputs,
        ),
        Component(
            name="containerd",
            module=CONTAINERD,
            version=versions.of(CONTAINERD),
            programs={name: f"./cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
            stamps={f"{CONTAINERD}/version.Version": versions.of(CONTAINERD)},
            cold_minutes=1,
        ),
        Component(
            name="nvidia-container-toolkit",
            module=TOOLKIT,
            version=versions.of(TOOLKIT),
            programs={name: f"./cmd/{name}" for name in ("nvidia-ctk", "nvidia-container-runtime", "nvidia-cdi-hook")},
            stamps={f"{TOOLKIT}/internal/info.version": versions.of(TOOLKIT).removeprefix("v")},
            linker_flags=(TOOLKIT_LINKER_FLAGS,),
            cold_minutes=1,
            cgo=True,
        ),
        Component(
            name="helm",
            module=HELM,
            version=versions.of(HELM),
            programs={"helm": "./cmd/helm"},
            stamps={f"{HELM}/internal/version.version": versions.of(HELM)},
            cold_minutes=1,
        ),
    )


def _kubernetes_stamps(version: str) -> dict[str, str]:
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean", "gitCommit": "0000000"}
    values["buildDate"] = "2026-01-01T00:00:00Z"  # fixed: the same inputs give the same binary
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return {f"{package}.{name}": value for package in packages for name, value in values.items()}
