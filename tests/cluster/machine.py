"""What is on a simulated machine's disk beyond Debian: programs, units and configuration, as its users have them before Tenfold.

Pure: a machine and the cluster's identities in, files and program names out. ``disk`` writes them, ``components`` says what is in
argv and configuration files, ``driver`` adds the simulated driver of GPU nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from . import kubeconfig, layout, network
from .components import containerd, kubelet
from .components.etcd import Etcd
from .components.kube_apiserver import KubeApiserver
from .components.kube_controller_manager import KubeControllerManager
from .components.kube_proxy import KubeProxy
from .components.kube_scheduler import KubeScheduler
from .identities import Identities
from .images import PAUSE_IMAGE
from .layout import Machine
from .pki import Pair
from .systemd import Unit

PKI = "/etc/kubernetes/pki"
CONTROLLER_MANAGER = "system:kube-controller-manager"

# component of ``builds`` -> its programs that every machine has in /usr/bin
NODE_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "kubernetes": ("kubelet", "kube-proxy", "kubectl"),
    "containerd": ("containerd", "containerd-shim-runc-v2", "ctr"),
}
CONTROL_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "kubernetes": ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
}
GPU_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "nvidia-container-toolkit": ("nvidia-ctk", "nvidia-container-runtime", "nvidia-cdi-hook"),
}

# The toolkit as a careful site leaves it after installation: no container gets a card by an environment variable or by a mount that
# its own pod asks for (CVE class "envvar injection"; NVIDIA container toolkit v1.20.0, internal/config/config.go for the keys).
TOOLKIT_CONFIG = """\
# NVIDIA container toolkit configuration of this site, hardened by its security team.
accept-nvidia-visible-devices-as-volume-mounts = false
accept-nvidia-visible-devices-envvar-when-unprivileged = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"

[nvidia-container-runtime]
log-level = "info"
runtimes = ["runc"]
"""


@dataclass(frozen=True)
class MachineFile:
    """One file of a machine: absolute path, content, mode."""

    path: str
    text: str
    mode: int = 0o644


def programs(machine: Machine) -> list[tuple[str, str]]:
    """(component, program) of everything that belongs into the machine's /usr/bin."""
    sets = [NODE_PROGRAMS, CONTROL_PROGRAMS if machine.is_control else GPU_PROGRAMS]
    return [(component, program) for programs_of in sets for component, names in programs_of.items() for program in names]


def units(machine: Machine) -> list[Unit]:
    """Every unit that the machine starts at boot, but for the driver's."""
    return [*_node_units(machine), *(_control_units(machine) if machine.is_control else [])]


def _node_units(machine: Machine) -> list[Unit]:
    agent = _kubelet(machine)
    proxy = KubeProxy(machine.name, "/etc/kubernetes/kube-proxy.conf", layout.POD_RANGE)
    runtime_settings = ("Delegate=yes", "KillMode=process", "OOMScoreAdjust=0")
    return [
        # systemd leaves mount propagation of a container as it finds it; kubelets rely on a shared root
        Unit(
            "fleet-mounts.service",
            "Share the machine's mounts",
            ["/usr/bin/mount", "--make-rshared", "/"],
            once=True,
            wanted_by="sysinit.target",
        ),
        Unit(
            "containerd.service",
            "containerd container runtime",
            containerd.Containerd(PAUSE_IMAGE).argv(),
            after=("network.target", "fleet-mounts.service", "fleet-driver.service", "dbus.service"),
            settings=("Type=notify", *runtime_settings),
        ),
        Unit(
            "kubelet.service",
            "kubelet: the Kubernetes node agent",
            agent.argv(),
            after=("containerd.service", "network-online.target"),
            wants=("containerd.service",),
            settings=("EnvironmentFile=-/etc/default/kubelet", "KillMode=process"),
        ),
        Unit("kube-proxy.service", "kube-proxy: service addresses", proxy.argv(), after=("network.target",)),
    ]


def _control_units(machine: Machine) -> list[Unit]:
    store = Etcd()
    api = KubeApiserver(store.client_url, machine.address, layout.API_PORT, layout.SERVICE_RANGE, PKI)
    return [
        Unit("etcd.service", "etcd: the cluster's store", store.argv(), settings=("Type=notify",)),
        Unit("kube-apiserver.service", "Kubernetes API server", api.argv(), after=("etcd.service",), wants=("etcd.service",)),
        Unit(
            "kube-controller-manager.service",
            "Kubernetes controllers",
            KubeControllerManager("/etc/kubernetes/controller-manager.conf", PKI).argv(),
            after=("kube-apiserver.service",),
        ),
        Unit(
            "kube-scheduler.service",
            "Kubernetes scheduler",
            KubeScheduler("/etc/kubernetes/scheduler.conf").argv(),
            after=("kube-apiserver.service",),
        ),
    ]


def _kubelet(machine: Machine) -> kubelet.Kubelet:
    taint = None if machine.is_control else layout.GPU_TAINT_KEY
    return kubelet.Kubelet(machine.name, machine.address, containerd.SOCKET, taint)


def files(machine: Machine, identities: Identities) -> list[MachineFile]:
    """Every configuration file and unit of the machine."""
    made = [
        MachineFile("/etc/machine-id", machine_id(machine) + "\n", 0o444),
        MachineFile(containerd.CONFIG_FILE, containerd.Containerd(PAUSE_IMAGE).config_toml()),
        MachineFile("/etc/cni/net.d/10-fleet.conflist", network.cni_configuration(machine)),
        MachineFile(kubelet.CONFIG_FILE, _kubelet(machine).config_yaml()),
        MachineFile(f"{kubelet.CONFIG_FOLDER}/README", "# Drop-in files for the kubelet, *.conf, read in order after its configuration.\n"),
        MachineFile(f"{PKI}/ca.crt", identities.authority_certificate),
        *_pair(identities.kubelets[machine.name], "/var/lib/kubelet/pki/kubelet"),
        _client_file(kubelet.KUBECONFIG, identities, identities.kubelets[machine.name], f"system:node:{machine.name}"),
        _client_file("/etc/kubernetes/kube-proxy.conf", identities, identities.proxy, "system:kube-proxy"),
        *(_control_files(identities) if machine.is_control else [MachineFile("/etc/nvidia-container-runtime/config.toml", TOOLKIT_CONFIG)]),
    ]
    return [*made, *(MachineFile(f"/etc/systemd/system/{unit.name}", unit.text()) for unit in units(machine))]


def _control_files(identities: Identities) -> list[MachineFile]:
    return [
        *_pair(identities.apiserver, f"{PKI}/apiserver"),
        *_pair(identities.apiserver_kubelet_client, f"{PKI}/apiserver-kubelet-client"),
        MachineFile(f"{PKI}/sa.pub", identities.tokens.certificate),
        MachineFile(f"{PKI}/sa.key", identities.tokens.key, 0o600),
        _client_file("/etc/kubernetes/controller-manager.conf", identities, identities.controller_manager, CONTROLLER_MANAGER),
        _client_file("/etc/kubernetes/scheduler.conf", identities, identities.scheduler, "system:kube-scheduler"),
        _client_file("/etc/kubernetes/admin.conf", identities, identities.admin, "kubernetes-admin"),
    ]


def _pair(pair: Pair, stem: str) -> list[MachineFile]:
    return [MachineFile(f"{stem}.crt", pair.certificate), MachineFile(f"{stem}.key", pair.key, 0o600)]


def _client_file(path: str, identities: Identities, client: Pair, user: str) -> MachineFile:
    return MachineFile(path, kubeconfig.text(layout.API_URL, identities.authority_certificate, client, user), 0o600)


def machine_id(machine: Machine) -> str:
    """Differs between machines and stays over rebuilds, as on real ones: 32 hex digits, see machine-id(5)."""
    return hashlib.sha256(f"tenfold fleet {machine.name}".encode()).hexdigest()[:32]
