"""The whole process: real sockets to the kubelet, HTTP to an API server, signals, memory. Only NVML and the other two are fakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from tenfold_device_plugin._domain import wire
from tenfold_device_plugin.errors import Conflict
from tenfold_device_plugin.main import hold_state
from tests import ROOT
from tests.unit.device_plugin.bench import CARD_A, CARD_B, MIB, NODE, Bench, FakeCluster, pod, until

RSS_MAXIMUM_KIB = 80 * 1024
FAKE_NVML = f"""
class NVMLError(Exception):
    pass
nvmlEventTypeXidCriticalError = 8
CARDS = ["{CARD_A}", "{CARD_B}"]
class Memory:
    total, used, free = 81920 * 2**20, 0, 81920 * 2**20
def __getattr__(call):
    def missing(*arguments):
        raise NVMLError(call)
    return missing
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return len(CARDS)
def nvmlDeviceGetHandleByIndex(index): return CARDS[index]
def nvmlDeviceGetUUID(handle): return handle
def nvmlDeviceGetName(handle): return "NVIDIA A800-SXM4-80GB"
def nvmlDeviceGetMemoryInfo(handle): return Memory
"""


class HttpApi:
    """``FakeCluster`` over HTTP: the five paths and the two watches that the plugin uses."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.stop = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                url = urlparse(self.path)
                if "watch" in parse_qs(url.query):
                    return self._watch(url.path)
                try:
                    return self._send(200, outer.answer(self.command, url.path, body))
                except Conflict as error:
                    return self._send(409, {"message": str(error)})
                except KeyError:
                    return self._send(404, {"message": "not found"})

            do_GET = do_POST = do_PATCH = _serve  # noqa: N815 (the base class's names)

            def _send(self, status: int, answer: Any) -> None:
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _watch(self, path: str) -> None:
                self.send_response(200)
                self.end_headers()
                follow = outer.cluster.follow_pods if path.endswith("pods") else outer.cluster.follow_node
                for kind, found in follow(NODE, outer.stop):
                    if kind == "SYNCED":
                        events = [("MODIFIED", each) for each in found]  # what changed between list and watch
                    else:
                        events = [(kind, found)]
                    for event, each in events:
                        each["metadata"].setdefault("resourceVersion", "2")
                        self.wfile.write(json.dumps({"type": event, "object": each}).encode() + b"\n")

            def log_message(self, *_arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def answer(self, method: str, path: str, body: Any) -> Any:
        """Errors: KeyError for what does not exist, Conflict."""
        cluster, parts = self.cluster, path.strip("/").split("/")[2:]
        if parts == ["pods"]:
            return {"metadata": {"resourceVersion": "1"}, "items": list(cluster.pods.values())}
        if parts == ["nodes"]:
            return {"metadata": {"resourceVersion": "1"}, "items": [cluster.node_object]}
        if parts[0] == "nodes" and parts[-1] == "status" and "conditions" in body["status"]:
            return cluster.set_node_condition(parts[1], body["status"]["conditions"][0])
        if parts[0] == "nodes" and parts[-1] == "status":
            return cluster.set_node_resources(
                parts[1],
                *({key: int(value) for key, value in body["status"].get(kind, {}).items()} for kind in ("capacity", "allocatable")),
            )
        if parts[0] == "nodes":
            return cluster.annotate_node(parts[1], body["metadata"]["annotations"])
        namespace, kind = parts[1], parts[2]
        if kind == "events":
            cluster.create_event(body)
            return body
        if kind == "configmaps":
            return {"data": cluster.config_maps[namespace, parts[3]]}
        found = cluster.pods[namespace, parts[3]]
        if method == "PATCH":
            return cluster.annotate_pod(namespace, parts[3], body["metadata"]["uid"], body["metadata"]["annotations"])
        return found

    def close(self) -> None:
        self.stop.set()
        self.server.shutdown()
        self.server.server_close()


class Process:
    """The plugin as its container runs it."""

    def __init__(self, bench: Bench, api: HttpApi) -> None:
        root = bench.root
        (root / "nvml").mkdir(exist_ok=True)
        (root / "nvml" / "pynvml.py").write_text(FAKE_NVML, encoding="utf-8")
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{api.server.server_port}"}}],
            "users": [{"name": "x", "user": {"token": "t"}}],
        }
        (root / "kubeconfig").write_text(json.dumps(kubeconfig), encoding="utf-8")
        settings = bench.settings
        folders = ("hook_root", "state_dir", "catalogue_dir", "run_dir", "cdi_dir", "nvidia_cdi_spec", "kubelet_dir")
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{root / 'nvml'}:{ROOT / 'files/device_plugin/src'}",
            "MALLOC_ARENA_MAX": "2",  # as in the Containerfile
            "TENFOLD_NODE_NAME": NODE,
            "TENFOLD_KUBECONFIG": str(root / "kubeconfig"),
            "TENFOLD_METRICS_ADDRESS": "127.0.0.1:0",
            **{f"TENFOLD_{name.upper()}": str(getattr(settings, name)) for name in folders},
        }
        self.log = root / "log"
        with open(self.log, "w", encoding="utf-8") as stream:
            self.process = subprocess.Popen([sys.executable, "-m", "tenfold_device_plugin"], env=environment, stderr=stream)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]

    def rss_kib(self) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS"))

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def api(bench: Bench) -> Iterator[HttpApi]:
    made = HttpApi(bench.cluster)
    yield made
    made.close()


def follow_capacity(bench: Bench, process: Process) -> None:
    """Be the kubelet's status update until the plugin has registered."""

    def registered() -> bool:
        assert process.process.poll() is None, process.log.read_text(encoding="utf-8")
        if wire.RESOURCE_MEMORY in bench.cluster.node_object["status"]["capacity"]:
            bench.cluster.kubelet_status_update()
        return bool(bench.kubelet.ids)

    until(registered, "the plugin has registered", seconds=20)


def test_binds_a_full_node_within_its_memory_and_leaves_in_order(bench: Bench, api: HttpApi) -> None:
    found = [pod(f"p{number}", card=CARD_A if number % 2 else CARD_B) for number in range(20)]
    for each in found:
        bench.cluster.put(each)
    for number in range(230):  # a node holds 250 pods
        bench.cluster.put(pod(f"other{number}", None, card=None))
    process = Process(bench, api)
    try:
        follow_capacity(bench, process)
        for each in found:
            bench.kubelet.admit(each)
        for each in found:
            (gpu,) = bench.kubelet.start(each).gpus
            assert (gpu.uuid, gpu.memory_limit_bytes) == (
                wire.decode_segments(bench.cluster.annotations(each)[wire.POD_IDS_ANNOTATION])[0][0].uuid,
                8192 * MIB,
            )
        until(
            lambda: all(bench.cluster.annotations(each)[wire.POD_BIND_PHASE_ANNOTATION] == wire.BIND_PHASE_SUCCESS for each in found),
            "every pod's bind-phase is success",
        )
        assert process.rss_kib() < RSS_MAXIMUM_KIB
        assert process.terminate() == 0
    finally:
        process.process.kill()
        process.process.wait()
    assert {record.count for record in wire.decode_register(bench.cluster.node_annotations()[wire.NODE_REGISTER_ANNOTATION])} == {0}
    lines = process.lines()
    assert any(line["message"].startswith("pod default/p0: container 'c0' may start with 8192 MiB") and line["slot"] for line in lines)
    assert not [line for line in lines if line["level"] in ("error", "critical")]


def test_is_killed_at_any_moment_and_forgets_no_slot(bench: Bench, api: HttpApi) -> None:
    found = [pod(f"p{number}") for number in range(4)]
    for each in found:
        bench.cluster.put(each)
    first = Process(bench, api)
    try:
        follow_capacity(bench, first)
        for each in found:
            bench.kubelet.admit(each)
        slots = {each["metadata"]["name"]: bench.kubelet.start(each).slot for each in found[:2]}
    finally:
        first.process.kill()
        first.process.wait()
    bench.kubelet.ids = []
    second = Process(bench, api)
    try:
        follow_capacity(bench, second)
        for each in found:
            created = bench.kubelet.start(each)
            assert slots.get(each["metadata"]["name"], created.slot) == created.slot
        assert second.terminate() == 0
    finally:
        second.process.kill()
        second.process.wait()


def test_does_not_start_beside_another_that_holds_the_ledger(bench: Bench, api: HttpApi) -> None:
    with hold_state(bench.settings.state_dir):
        second = Process(bench, api)
        assert second.process.wait(20) == 1
    assert "is in use by another device plugin; wait until it has left" in second.lines()[-1]["message"]


def test_serves_metrics_and_readiness(bench: Bench, api: HttpApi) -> None:
    process = Process(bench, api)
    try:
        follow_capacity(bench, process)
        sockets = Path(f"/proc/{process.process.pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        inodes = {
            os.readlink(path) for path in Path(f"/proc/{process.process.pid}/fd").iterdir() if os.readlink(path).startswith("socket:")
        }
        ports = [
            int(row.split()[1].partition(":")[2], 16)
            for row in sockets
            if f"socket:[{row.split()[9]}]" in inodes and row.split()[3] == "0A"
        ]
        (port,) = ports
        deadline = time.monotonic() + 5
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as response:
            assert response.status == 200
        assert time.monotonic() < deadline
        assert process.terminate() == 0
    finally:
        process.process.kill()
        process.process.wait()
