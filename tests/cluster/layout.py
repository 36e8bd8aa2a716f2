"""The simulated fleet's fixed names and addresses (docs/architecture.md, "Test fleet").

Pure. Every leftover that ``down`` may remove carries one of these names; nothing else on the machine is ever touched.
"""

from __future__ import annotations

from dataclasses import dataclass

BRIDGE = "tenfold-br0"
HOST_ADDRESS = "10.77.0.1"
NODE_PREFIX_BITS = 24
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
POD_RANGE = "10.244.0.0/16"
API_PORT = 6443
CGROUP_PARENT = "tenfold-fleet"
GPU_TAINT_KEY = "nvidia.com/gpu"


@dataclass(frozen=True)
class Machine:
    """One container that stands for a machine: podman container, network namespace and Kubernetes node share its name.

    number: last byte of its address and third byte of its pods' addresses, 10 to 99.
    cards:  simulated A800-80GB cards; 0 for the control plane.
    """

    name: str
    number: int
    cards: int = 0

    @property
    def address(self) -> str:
        return f"10.77.0.{self.number}"

    @property
    def pod_range(self) -> str:
        return f"10.244.{self.number}.0/24"

    @property
    def veth(self) -> str:
        # the host's end; interface names are limited to 15 characters
        return f"tenfold-v{self.number}"

    @property
    def is_control(self) -> bool:
        return self.cards == 0


CONTROL = Machine("tenfold-control", 10)
GPU_NODES = (Machine("tenfold-gpu-1", 11, cards=2), Machine("tenfold-gpu-2", 12, cards=2))
MACHINES = (CONTROL, *GPU_NODES)
API_URL = f"https://{CONTROL.address}:{API_PORT}"
