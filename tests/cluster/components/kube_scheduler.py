"""kube-scheduler: places everything that does not ask for Volcano, Volcano's own pods among it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KubeScheduler:
    kubeconfig: str

    def argv(self) -> list[str]:
        return ["/usr/bin/kube-scheduler", f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1"]
