"""The kubelet of a simulated machine: kubeadm's paths, kubeadm's defaults, and the few settings that a container needs.

The configuration file is a user's file to the product: it carries comments and keys that a merge must keep.
"""

from __future__ import annotations

from dataclasses import dataclass

CONFIG_FILE = "/var/lib/kubelet/config.yaml"
CONFIG_FOLDER = "/etc/kubernetes/kubelet.conf.d"
KUBECONFIG = "/etc/kubernetes/kubelet.conf"


@dataclass(frozen=True)
class Kubelet:
    """taint_key: the node registers with ``taint_key=present:NoSchedule``; None registers without a taint."""

    node_name: str
    node_address: str
    container_runtime_socket: str
    taint_key: str | None = None

    def argv(self) -> list[str]:
        return [
            "/usr/bin/kubelet",
            f"--config={CONFIG_FILE}",
            f"--config-dir={CONFIG_FOLDER}",
            f"--kubeconfig={KUBECONFIG}",
            f"--hostname-override={self.node_name}",
            f"--node-ip={self.node_address}",
            "$KUBELET_EXTRA_ARGS",
        ]

    def config_yaml(self) -> str:
        taint = _TAINT.format(key=self.taint_key) if self.taint_key else ""
        return _CONFIG.format(socket=self.container_runtime_socket) + taint


_CONFIG = """\
# Kubelet configuration of this site, owned by its platform team.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix://{socket}
tlsCertFile: /var/lib/kubelet/pki/kubelet.crt
tlsPrivateKeyFile: /var/lib/kubelet/pki/kubelet.key
resolvConf: /etc/resolv.conf
staticPodPath: /etc/kubernetes/manifests
# Kubernetes' default; kept explicit since the last capacity review.
maxPods: 110
# Images of this site come from its mirror and stay.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: 1s
nodeStatusReportFrequency: 10s
syncFrequency: 5s
# A machine that is a container: its limits, swap and disks are the host's.
failSwapOn: false
failCgroupV1: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
oomScoreAdj: 0
maxOpenFiles: 20000
evictionHard:
  memory.available: "0%"
  nodefs.available: "0%"
  nodefs.inodesFree: "0%"
  imagefs.available: "0%"
  imagefs.inodesFree: "0%"
"""

_TAINT = """\
# GPU nodes take only pods that ask for a GPU.
registerWithTaints:
- key: {key}
  value: present
  effect: NoSchedule
"""
