"""Unit files: what systemd would read differently from what was meant is escaped."""

from __future__ import annotations

import pytest

from tests.cluster import systemd
from tests.cluster.systemd import Unit


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["/bin/echo", "a b"], "/bin/echo 'a b'"),
        (["/bin/echo", "50%"], "/bin/echo 50%%"),
        (["/bin/echo", "$HOME/x"], "/bin/echo '$$HOME/x'"),
        (["/usr/bin/kubelet", "$KUBELET_EXTRA_ARGS"], "/usr/bin/kubelet $KUBELET_EXTRA_ARGS"),
    ],
)
def test_argv_is_quoted_for_systemd(argv: list[str], line: str) -> None:
    assert systemd.quoted(argv) == line


def test_service_restarts_without_a_start_limit() -> None:
    text = Unit("a.service", "A", ["/bin/a"], after=("b.service",)).text()
    assert "StartLimitIntervalSec=0" in text
    assert "Restart=always" in text
    assert "After=b.service" in text


def test_one_shot_counts_as_active_afterwards() -> None:
    text = Unit("a.service", "A", ["/bin/a"], once=True).text()
    assert "Type=oneshot\nRemainAfterExit=yes" in text
    assert "Restart=" not in text


def test_a_unit_may_have_as_many_tasks_as_its_machine() -> None:
    """A dozen pods that start at once met systemd's default of 307 tasks: their shims count to containerd's unit."""
    assert "TasksMax=infinity" in Unit("x.service", "x", ["/bin/x"]).text().splitlines()
