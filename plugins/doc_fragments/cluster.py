"""Options of the modules that talk to the Kubernetes API; the first two are ``tenfold_cluster.arguments.CONNECTION``."""

from __future__ import annotations


class ModuleDocFragment:
    """The plain fragment is how to reach the API server. Defaults that differ from module to module stand there."""

    DOCUMENTATION = r"""
requirements: [kubernetes >= 31]
options:
  kubeconfig:
    description: Kubeconfig of a cluster administrator, on the host that runs the task. Empty means the client's own default.
    type: str
    default: ''
  context:
    description: Context of the kubeconfig. Default is its current one.
    type: str
"""

    DOCUMENTS = r"""
options:
  documents:
    description: The objects. Order does not matter.
    type: list
    elements: dict
    default: []
  labels:
    description: Labels that every document gets (pod templates do not).
    type: dict
    default: {}
"""

    NODES = r"""
options:
  nodes:
    description: Names of the nodes.
    type: list
    elements: str
    required: true
  timeout_s:
    description: Deadline for all nodes together, in seconds.
    type: int
"""

    WAIT = r"""
options:
  wait:
    description: Wait until what was written is in service (workloads rolled out, definitions established, jobs complete), or gone.
    type: bool
  wait_timeout_s:
    description: Deadline for the whole wait, in seconds.
    type: int
    default: 180
"""
