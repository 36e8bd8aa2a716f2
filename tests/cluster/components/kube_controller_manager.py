"""kube-controller-manager, one instance, with an identity per controller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KubeControllerManager:
    kubeconfig: str
    pki_folder: str = "/etc/kubernetes/pki"

    def argv(self) -> list[str]:
        return [
            "/usr/bin/kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self.pki_folder}/sa.key",
            f"--root-ca-file={self.pki_folder}/ca.crt",
            # without it no kube-root-ca.crt is published under RBAC, and the not-ready taint stays on nodes
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--allocate-node-cidrs=false",
        ]
