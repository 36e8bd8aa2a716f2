"""What a site finds after the node roles ran: its own settings, ours beside them, and services that accepted both."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host

CONTAINERD = "/etc/containerd/config.toml"
KUBELET = "/var/lib/kubelet/config.yaml"
DROP_IN = "/etc/kubernetes/kubelet.conf.d/90-tenfold.conf"


@pytest.fixture
def site(host: Host) -> str:
    """v3 or v2: which version of containerd's file this site keeps."""
    return str(host.check_output("hostname")).rpartition("-")[2]


def test_containerd_knows_the_runtime_and_cdi(host: Host) -> None:
    dump = host.check_output("containerd config dump")
    runtime = dump.partition("containerd.runtimes.nvidia]")[2].partition("containerd.runtimes.runc]")[0]
    assert "BinaryName = '/usr/bin/nvidia-container-runtime'" in runtime
    assert "enable_cdi = true" in dump
    assert "default_runtime_name = 'runc'" in dump


def test_containerd_file_keeps_what_the_site_wrote(host: Host, site: str) -> None:
    text = host.file(CONTAINERD).content_string
    assert text.startswith(f"# containerd of site {'one' if site == 'v3' else 'two'}")
    assert f"version = {site[1]}\n" in text
    if site == "v3":
        assert "config_path = '/etc/containerd/certs.d' # our mirror" in text
        assert "# CDI was off by our own decision of 2024\n  enable_cdi = true" in text
    else:
        assert "restrict_oom_score_adj = true # a machine that is a container" in text
        assert "kata" in host.check_output("containerd config dump")


def test_record_says_what_was_replaced_and_is_not_for_everyone(host: Host, site: str) -> None:
    record = host.file(f"{CONTAINERD}.tenfold.json")
    assert record.mode == 0o600
    before = {tuple(entry["path"][2:]): entry.get("before") for entry in json.loads(record.content_string)["replaced"]}
    assert before[("enable_cdi",)] == (False if site == "v3" else None)


def test_no_container_may_ask_for_cards_by_itself(host: Host) -> None:
    text = host.file("/etc/nvidia-container-runtime/config.toml").content_string
    assert "accept-nvidia-visible-devices-envvar-when-unprivileged = false" in text
    assert "accept-nvidia-visible-devices-as-volume-mounts = false" in text


def test_kubelet_has_room_and_keeps_its_comments(host: Host, site: str) -> None:
    text = host.file(KUBELET).content_string
    assert "# Kubernetes' default, explicit since the last capacity review." in text
    if site == "v3":
        assert "maxPods: 110 # pods" in text
        assert "maxPods: 250" in host.file(DROP_IN).content_string
    else:
        assert "maxPods: 250 # pods" in text
        assert not host.file(DROP_IN).exists


@pytest.mark.parametrize("unit", ["containerd", "kubelet"])
def test_service_runs_with_the_merged_file_after_one_restart(host: Host, unit: str) -> None:
    state = host.check_output(f"systemctl show {unit} --property=ActiveState,NRestarts")
    journal = host.check_output(f"journalctl --unit {unit} --lines 20 --no-pager")
    assert "ActiveState=active" in state, journal
    assert "NRestarts=0" in state, journal
