"""The Kubernetes client edge against an HTTP server: what is asked, and what each answer means."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
import yaml

from tenfold_device_plugin.cluster import KubernetesCluster
from tenfold_device_plugin.errors import ClusterUnavailable, Conflict, Rejected
from tests.unit.device_plugin.bench import ManualClock

POD = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "7",
        "managedFields": [{"x": 1}],
        "annotations": {"a": "b"},
    },
    "spec": {
        "nodeName": "n",
        "schedulerName": "volcano",
        "volumes": [{}],
        "containers": [{"name": "c", "image": "i", "resources": {"limits": {"x": "1"}}}],
    },
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True", "reason": "r"}],
    },
}
SLIM = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7", "annotations": {"a": "b"}},
    "spec": {"nodeName": "n", "schedulerName": "volcano", "containers": [{"name": "c", "resources": {"limits": {"x": "1"}}}]},
    "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
}


class ApiServer:
    """Answers from a list of (status, body) by method and path; keeps what was asked."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, str, dict[str, list[str]], Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                url = urlparse(self.path)
                outer.asked.append((self.command, url.path, parse_qs(url.query), body))
                key = (self.command + (" watch" if "watch" in url.query else ""), url.path)
                answers = outer.answers.get(key) or [(404, {"message": f"{url.path} not found"})]
                status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = _serve  # noqa: N815 (the base class's names)

            def log_message(self, *_arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cluster(api: ApiServer, tmp_path: Path, clock: ManualClock) -> KubernetesCluster:
    path = tmp_path / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
                "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{api.server.server_port}"}}],
                "users": [{"name": "x", "user": {"token": "t"}}],
            }
        ),
        encoding="utf-8",
    )
    return KubernetesCluster(str(path), timeout_seconds=2, clock=clock)


def lines(*events: tuple[str, Any]) -> bytes:
    return b"".join(json.dumps({"type": kind, "object": found}).encode() + b"\n" for kind, found in events)


class TestReading:
    def test_a_pod_is_cut_down_to_what_we_read(self, cluster: KubernetesCluster, api: ApiServer) -> None:
        api.answers["GET", "/api/v1/namespaces/ns/pods/p"] = [(200, POD)]
        assert cluster.pod("ns", "p") == SLIM

    def test_what_does_not_exist_is_none(self, cluster: KubernetesCluster) -> None:
        assert cluster.pod("ns", "gone") is None
        assert cluster.node("gone") is None
        assert cluster.config_map("ns", "gone") is None

    @pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
    def test_any_other_refusal_is_a_server_that_is_away(self, cluster: KubernetesCluster, api: ApiServer, status: int) -> None:
        api.answers["GET", "/api/v1/namespaces/ns/pods/p"] = [(status, {"message": "no"})]
        with pytest.raises(ClusterUnavailable, match=f"refuses GET /api/v1/namespaces/ns/pods/p: {status} no"):
            cluster.pod("ns", "p")

    def test_a_dead_server_is_away(self, cluster: KubernetesCluster, api: ApiServer) -> None:
        api.close()
        with pytest.raises(ClusterUnavailable, match="does not answer GET /api/v1/nodes/n"):
            cluster.node("n")

    def test_an_answer_that_is_no_json_is_a_server_that_is_away(self, cluster: KubernetesCluster, api: ApiServer) -> None:
        api.answers["GET", "/api/v1/nodes/n"] = [(200, b"<html>")]
        with pytest.raises(ClusterUnavailable, match="is no JSON"):
            cluster.node("n")


class TestWriting:
    def test_a_pod_patch_carries_the_uid(self, cluster: KubernetesCluster, api: ApiServer) -> None:
        api.answers["PATCH", "/api/v1/namespaces/ns/pods/p"] = [(200, POD)]
        assert cluster.annotate_pod("ns", "p", "u", {"a": "b", "c": None}) == SLIM
        assert api.asked[-1][3] == {"metadata": {"uid": "u", "annotations": {"a": "b", "c": None}}}

    @pytest.mark.parametrize("status", [404, 409, 422])
    def test_another_object_is_a_conflict(self, cluster: KubernetesCluster, api: ApiServer, status: int) -> None:
        api.answers["PATCH", "/api/v1/namespaces/ns/pods/p"] = [(status, {"message": "UID mismatch"})]
        with pytest.raises(Conflict, match="UID mismatch"):
            cluster.annotate_pod("ns", "p", "u", {})

    @pytest.mark.parametrize(
        ("status", "words"),
        [
            (400, "admission webhook denied the request"),
            (403, "unable to create new content in namespace ns because it is being terminated"),
            (413, "Request entity too large"),
            (500, 'Internal error occurred: failed calling webhook "x.y.z": context deadline exceeded'),
        ],
    )
    def test_what_the_server_will_not_have_is_rejected(self, cluster: KubernetesCluster, api: ApiServer, status: int, words: str) -> None:
        api.answers["PATCH", "/api/v1/namespaces/ns/pods/p"] = [(status, {"message": words})]
        with pytest.raises(Rejected, match=f"refuses PATCH /api/v1/namespaces/ns/pods/p: {status} "):
            cluster.annotate_pod("ns", "p", "u", {})

    @pytest.mark.parametrize("status", [401, 408, 429, 500, 503])
    def test_what_passes_by_itself_is_a_server_that_is_away(self, cluster: KubernetesCluster, api: ApiServer, status: int) -> None:
        api.answers["PATCH", "/api/v1/namespaces/ns/pods/p"] = [(status, {"message": "no"})]
        with pytest.raises(ClusterUnavailable):
            cluster.annotate_pod("ns", "p", "u", {})

    def test_node_resources_go_to_the_status_as_quantities(self, cluster: KubernetesCluster, api: ApiServer) -> None:
        api.answers["PATCH", "/api/v1/nodes/n/status"] = [(200, {"metadata": {"name": "n"}, "status": {}})]
        cluster.set_node_resources("n", {"volcano.sh/vgpu-memory": 5}, {})
        assert api.asked[-1][3] == {"status": {"capacity": {"volcano.sh/vgpu-memory": "5"}}}

    def test_events_and_evictions_name_their_pod(self, cluster: KubernetesCluster, api: ApiServer) -> None:
        api.answers["POST", "/api/v1/namespaces/ns/events"] = [(201, {})]
        api.answers["POST", "/api/v1/namespaces/ns/pods/p/eviction"] = [(201, {})]
        cluster.create_event(
            {
                "metadata": {"namespace": "ns", "generateName": "p."},
                "involvedObject": {"name": "p"},
                "firstTimestamp": "2026-11-30T10:00:00Z",
            }
        )
        assert api.asked[-1][3]["involvedObject"] == {"name": "p"}
        cluster.evict("ns", "p", "u")
        assert api.asked[-1][3]["deleteOptions"] == {"preconditions": {"uid": "u"}}


LIST = {"metadata": {"resourceVersion": "10"}, "items": [POD]}


class Pauses(threading.Event):
    """A stop that waits by the clock in its hand and keeps what it was asked to wait; set after so many pauses."""

    def __init__(self, clock: ManualClock, most: int = 1000) -> None:
        super().__init__()
        self.clock = clock
        self.most = most
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        self.clock.advance(timeout)
        if len(self.seconds) >= self.most:
            self.set()
        return self.is_set()


class TestFollowing:
    @pytest.fixture(autouse=True)
    def _pauses(self, clock: ManualClock) -> None:
        self.pauses = Pauses(clock)

    def take(self, cluster: KubernetesCluster, count: int) -> list[Any]:
        found = []
        for change in cluster.follow_pods("n", self.pauses):
            found.append(change)
            if len(found) == count:
                break
        return found

    def test_lists_then_watches_from_there_and_keeps_its_place(self, cluster: KubernetesCluster, api: ApiServer) -> None:
        later = {**POD, "metadata": {**POD["metadata"], "resourceVersion": "12"}}  # type: ignore[dict-item]
        bookmark = {"metadata": {"resourceVersion": "15"}}
        api.answers["GET", "/api/v1/pods"] = [(200, LIST)]
        api.answers["GET watch", "/api/v1/pods"] = [
            (200, lines(("MODIFIED", later), ("BOOKMARK", bookmark))),
            (200, lines(("DELETED", later))),
        ]
        kinds = [kind for kind, _ in self.take(cluster, 3)]
        assert kinds == ["SYNCED", "MODIFIED", "DELETED"]
        asked = [query for method, path, query, _ in api.asked]
        assert asked[0]["fieldSelector"] == ["spec.nodeName=n"]
        assert [query.get("resourceVersion") for query in asked] == [None, ["10"], ["15"]]

    @pytest.mark.parametrize("gone", [(200, lines(("ERROR", {"code": 410}))), (410, {"message": "too old"})], ids=["event", "status"])
    def test_starts_over_when_the_server_has_forgotten(self, cluster: KubernetesCluster, api: ApiServer, gone: tuple[int, Any]) -> None:
        api.answers["GET", "/api/v1/pods"] = [(200, LIST)]
        api.answers["GET watch", "/api/v1/pods"] = [gone, (200, lines(("ADDED", POD)))]
        assert [kind for kind, _ in self.take(cluster, 3)] == ["SYNCED", "SYNCED", "ADDED"]

    def test_says_when_the_watch_breaks_off(self, cluster: KubernetesCluster, api: ApiServer) -> None:
        api.answers["GET", "/api/v1/pods"] = [(200, LIST)]
        api.answers["GET watch", "/api/v1/pods"] = [(200, b'{"type": "ADDED", "obj\n')]
        kind, words = self.take(cluster, 2)[1]
        assert kind == "LOST" and "broke off" in words

    def test_that_ends_at_once_pauses_longer_each_time_and_keeps_its_place(
        self, cluster: KubernetesCluster, api: ApiServer, clock: ManualClock
    ) -> None:
        api.answers["GET", "/api/v1/pods"] = [(200, LIST)]
        api.answers["GET watch", "/api/v1/pods"] = [(200, b"")]
        pauses = Pauses(clock, most=8)
        kinds = [kind for kind, _ in cluster.follow_pods("n", pauses)]
        assert kinds == ["SYNCED", *["LOST"] * 8]
        assert [0.5 * least <= pause <= 1.5 * least for pause, least in zip(pauses.seconds, (0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30))] == [
            True
        ] * 8

    @pytest.mark.parametrize("code", [410, 500])
    def test_that_begins_with_an_error_lists_anew_after_a_pause(
        self, cluster: KubernetesCluster, api: ApiServer, clock: ManualClock, code: int
    ) -> None:
        api.answers["GET", "/api/v1/pods"] = [(200, LIST)]
        api.answers["GET watch", "/api/v1/pods"] = [(200, lines(("ERROR", {"kind": "Status", "code": code, "message": "x"})))]
        pauses = Pauses(clock, most=5)
        assert [kind for kind, _ in cluster.follow_pods("n", pauses)] == ["SYNCED"] * 5
        assert sum(pauses.seconds) > 10

    def test_of_a_server_that_is_away_pauses_and_goes_on_from_its_place(
        self, cluster: KubernetesCluster, api: ApiServer, clock: ManualClock
    ) -> None:
        api.answers["GET", "/api/v1/pods"] = [(200, LIST)]
        api.answers["GET watch", "/api/v1/pods"] = [(503, {"message": "shutting down"}), (200, lines(("ADDED", POD)))]
        assert [kind for kind, _ in self.take(cluster, 3)] == ["SYNCED", "LOST", "ADDED"]
        assert len(self.pauses.seconds) == 1 and clock.monotonic() > 1000.0

    def test_that_lasted_forgets_the_failures_before(self, cluster: KubernetesCluster, api: ApiServer, clock: ManualClock) -> None:
        api.answers["GET", "/api/v1/pods"] = [(200, LIST)]
        ends: tuple[int, Any] = (200, b"")
        api.answers["GET watch", "/api/v1/pods"] = [ends, ends, ends, (200, lines(("ADDED", POD))), ends]
        pauses = Pauses(clock, most=4)
        assert [kind for kind, _ in cluster.follow_pods("n", pauses)] == ["SYNCED", *["LOST"] * 3, "ADDED", "LOST"]
        assert pauses.seconds[3] <= 1.2


def test_without_any_credentials_the_start_fails_with_words(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnavailable, match="cannot load"):
        KubernetesCluster(str(tmp_path / "none"), 1)
