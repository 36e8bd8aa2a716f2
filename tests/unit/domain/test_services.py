"""When a running service is older than what it reads, from systemd's own words."""

from __future__ import annotations

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import services

RUNNING = {"ActiveState": "active", "ExecMainStartTimestampMonotonic": "40000000", "StateChangeTimestampMonotonic": "90000000"}
KUBEADM = """\
Id=kubelet.service
MainPID=0
ActiveState=failed
ExecStart={ path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet $KUBELET_CONFIG_ARGS --v=${LEVEL} $KUBELET_EXTRA_ARGS ; pid=0 }
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml --config-dir=/d" LEVEL=2
EnvironmentFiles=/var/lib/kubelet/kubeadm-flags.env (ignore_errors=yes)
EnvironmentFiles=/etc/default/kubelet (ignore_errors=yes)
"""


class TestWhyStale:
    @pytest.mark.parametrize(
        ("ages", "why"),
        [
            ({}, ""),
            ({"/f": 61.0}, ""),
            ({"/f": 50.0, "/g": 70.0}, "'/f' is 10 s newer than the running service"),
            ({"/f": -5.0}, "'/f' is 65 s newer"),
        ],
    )
    def test_a_file_counts_if_it_is_younger_than_the_process(self, ages: dict[str, float], why: str) -> None:
        found = services.why_stale(RUNNING, services.seconds_since_read(RUNNING, False, 100.0), ages, False)
        assert found.startswith(why) and bool(found) == bool(why)

    def test_a_reload_counts_as_reading_only_where_reload_is_how_it_reads(self) -> None:
        assert services.seconds_since_read(RUNNING, False, 100.0) == 60.0
        assert services.seconds_since_read(RUNNING, True, 100.0) == 10.0

    @pytest.mark.parametrize("state", ["active", "activating", "reloading"])
    def test_what_has_changed_for_sure_needs_no_time(self, state: str) -> None:
        assert services.why_stale({"ActiveState": state}, None, {}, True) == "what it reads has changed"

    def test_an_unknown_age_is_no_proof_that_all_is_well(self) -> None:
        assert services.why_stale({"ActiveState": "active"}, None, {"/f": 5.0}, False) == "systemd does not say when it started"

    def test_what_is_down_stays_down_unless_it_failed(self) -> None:
        assert services.why_stale({"ActiveState": "inactive"}, None, {"/f": 5.0}, True) == ""
        assert services.why_stale({"ActiveState": "failed"}, None, {}, False) == "it has failed"


class TestCommandLine:
    def test_the_running_process_tells_it(self) -> None:
        assert services.command_line({"MainPID": "7"}, {"/proc/7/cmdline": "a\0--b=c\0"}.get) == ["a", "--b=c"]

    def test_without_one_the_unit_does_with_its_variables(self) -> None:
        """So that a service that failed to start is still found with its own configuration file."""
        files = {"/etc/default/kubelet": "# site\nKUBELET_EXTRA_ARGS='--max-pods=58 --node-ip=1.2.3.4'\n"}
        assert services.command_line(services.units(KUBEADM)["kubelet"], files.get) == [
            *("/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml", "--config-dir=/d", "--v=2", "--max-pods=58", "--node-ip=1.2.3.4")
        ]

    def test_neither_is_no_command_line(self) -> None:
        assert services.command_line({}, lambda _path: None) == []
