"""Whose processes live, by a made-up /proc and a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenfold_device_plugin import kubelet
from tenfold_device_plugin.processes import Processes
from tenfold_device_plugin.tenants import Tenants

ONE, TWO = "1" * 32, "2" * 32
OTHER = "700 600 0:90 / / rw - overlay overlay rw\n"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        yield path


@pytest.fixture
def tenants(tmp_path: Path, served: Path) -> Tenants:
    mounts(tmp_path, "self", f"30 1 0:57 / {tmp_path} rw - tmpfs tmpfs rw\n")
    return Tenants(Processes(tmp_path / "proc"), tmp_path / "slots", served)


def mounts(folder: Path, process: str, *lines: str) -> None:
    (folder / "proc" / process).mkdir(parents=True)
    (folder / "proc" / process / "mountinfo").write_text(OTHER + "".join(lines), encoding="utf-8")


def of_slot(slot: str, device: str = "0:57") -> str:
    return f"711 700 {device} /slots/{slot}/config /run/tenfold/config ro - tmpfs tmpfs rw\n"


def test_slots_are_those_whose_files_a_process_has_mounted(tenants: Tenants, tmp_path: Path) -> None:
    mounts(tmp_path, "1")
    mounts(tmp_path, "11", of_slot(ONE))
    mounts(tmp_path, "12", of_slot(ONE))
    mounts(tmp_path, "13", of_slot(TWO, device="0:66"))  # a tenant's own tmpfs with folders of the same name
    (tmp_path / "proc" / "14").mkdir()  # it has just ended
    assert tenants.slots() == frozenset({ONE})


def test_nobody_can_tell_without_the_nodes_processes(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet, "peer_pid", lambda _socket: 0)
    assert tenants.slots() is None


def test_the_peer_of_a_socket_is_the_process_that_serves_it(served: Path, tmp_path: Path) -> None:
    assert kubelet.peer_pid(served) == os.getpid()
    assert kubelet.peer_pid(tmp_path / "none") == 0
