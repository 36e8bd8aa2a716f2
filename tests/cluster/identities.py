"""Who is who in the simulated cluster: subjects and groups that Kubernetes' RBAC knows, issued once per fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import layout
from .pki import Authority, Pair, token_keys


@dataclass(frozen=True)
class Identities:
    """kubelets: by machine name. tokens: key pair for service account tokens, its certificate field holds the public key."""

    authority_certificate: str
    admin: Pair
    apiserver: Pair
    apiserver_kubelet_client: Pair
    controller_manager: Pair
    scheduler: Pair
    proxy: Pair
    kubelets: Mapping[str, Pair]
    tokens: Pair

    @classmethod
    def issue(cls) -> Identities:
        authority = Authority()
        api_addresses = ("127.0.0.1", layout.CONTROL.address, layout.API_SERVICE_ADDRESS)
        api_names = ("localhost", layout.CONTROL.name, "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        return cls(
            authority_certificate=authority.certificate,
            admin=authority.issue("kubernetes-admin", "system:masters"),
            apiserver=authority.issue("kube-apiserver", addresses=api_addresses, names=api_names),
            apiserver_kubelet_client=authority.issue("kube-apiserver-kubelet-client", "system:masters"),
            controller_manager=authority.issue("system:kube-controller-manager"),
            scheduler=authority.issue("system:kube-scheduler"),
            proxy=authority.issue("system:kube-proxy"),
            kubelets={
                one.name: authority.issue(f"system:node:{one.name}", "system:nodes", addresses=[one.address], names=[one.name])
                for one in layout.MACHINES
            },
            tokens=token_keys(),
        )

    @classmethod
    def blank(cls) -> Identities:
        """Every field empty: with it, what is on machines can be compared without what differs from fleet to fleet."""
        none = Pair("", "")
        return cls("", none, none, none, none, none, none, {one.name: none for one in layout.MACHINES}, none)
