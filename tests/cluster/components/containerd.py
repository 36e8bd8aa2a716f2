"""containerd 2 of a simulated machine, as a site has it before any GPU product came: no NVIDIA runtime, no CDI setting.

The file is a user's file to the product: its comments, its registry setting and its timeouts must survive a merge.
"""

from __future__ import annotations

from dataclasses import dataclass

CONFIG_FILE = "/etc/containerd/config.toml"
SOCKET = "/run/containerd/containerd.sock"


@dataclass(frozen=True)
class Containerd:
    sandbox_image: str
    cni_binaries: str = "/usr/lib/cni"

    def argv(self) -> list[str]:
        return ["/usr/bin/containerd"]

    def config_toml(self) -> str:
        return _CONFIG.format(sandbox_image=self.sandbox_image, cni_binaries=self.cni_binaries)


_CONFIG = """\
# containerd configuration of this site, owned by its platform team.
version = 3

# Machines that are containers have neither; the plugins would only log.
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.nri.v1.nri"]

[timeouts]
  # raised after the incident with the slow disks
  'io.containerd.timeout.shim.cleanup' = '8s'

[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'

  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{sandbox_image}'

  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = '/etc/containerd/certs.d' # our mirror

[plugins.'io.containerd.cri.v1.runtime']
  # A machine that is a container may not raise limits, load profiles or mount everything.
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  tolerate_missing_hugetlb_controller = true

  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{cni_binaries}']
    conf_dir = '/etc/cni/net.d'

  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'

    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'

      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        # kubelet and containerd must agree; systemd's driver needs delegation that a container lacks
        SystemdCgroup = false
"""
