"""kube-proxy in nftables mode: service addresses inside a machine's network namespace."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KubeProxy:
    node_name: str
    kubeconfig: str
    pod_range: str

    def argv(self) -> list[str]:
        return [
            "/usr/bin/kube-proxy",
            f"--kubeconfig={self.kubeconfig}",
            f"--hostname-override={self.node_name}",
            "--proxy-mode=nftables",
            f"--cluster-cidr={self.pod_range}",
            # the connection table's size belongs to the host, a container may not set it
            "--conntrack-max-per-core=0",
        ]
