"""kube-apiserver with what production has on: RBAC, node authorization and restriction, admission policies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KubeApiserver:
    """Files are read from pki_folder under kubeadm's names."""

    etcd_url: str
    advertise_address: str
    port: int
    service_range: str
    pki_folder: str = "/etc/kubernetes/pki"

    def argv(self) -> list[str]:
        pki = self.pki_folder
        return [
            "/usr/bin/kube-apiserver",
            f"--etcd-servers={self.etcd_url}",
            "--bind-address=0.0.0.0",
            f"--secure-port={self.port}",
            f"--advertise-address={self.advertise_address}",
            f"--service-cluster-ip-range={self.service_range}",
            f"--client-ca-file={pki}/ca.crt",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
            f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            # beta and off by default in 1.35 (apiserver pkg/features/kube_features.go); tiers are filled in by such a policy
            "--feature-gates=MutatingAdmissionPolicy=true",
            "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
            "--allow-privileged=true",
            "--profiling=false",
        ]
