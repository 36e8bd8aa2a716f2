"""etcd, the cluster's only store, on the control plane's loopback."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Etcd:
    """client_url is where kube-apiserver finds it. No TLS: nothing but the API server shares its loopback."""

    data_folder: str = "/var/lib/etcd"
    client_url: str = "http://127.0.0.1:2379"
    peer_url: str = "http://127.0.0.1:2380"

    def argv(self) -> list[str]:
        return [
            "/usr/bin/etcd",
            f"--data-dir={self.data_folder}",
            # a test fleet may lose its store with its host; fsync costs most of the time that etcd takes
            "--unsafe-no-fsync",
            f"--listen-client-urls={self.client_url}",
            f"--advertise-client-urls={self.client_url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster=default={self.peer_url}",
        ]
