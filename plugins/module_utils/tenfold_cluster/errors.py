"""The errors of the cluster modules. A module turns them into its failure message, so each says what, where and what to do."""

from __future__ import annotations

from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TenfoldError

__all__ = ["ChartError", "ClusterError", "ConfigMergeError", "UnreachableError"]


class ClusterError(TenfoldError):
    """Anything that a cluster module reports and stops at; `details` ends up in the module's result."""


class UnreachableError(ClusterError):
    """The API server can't be reached or does not let us in."""


class ChartError(ClusterError):
    """The chart can't be rendered, or does not contain what a Volcano chart contains."""


class ConfigMergeError(ClusterError):
    """A user's configuration can't be merged with ours without breaking one of the two."""
