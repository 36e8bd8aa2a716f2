"""Metrics: names that dashboards rely on, numbers from page, state and NVML, series that end with their container."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tenfold_device_plugin.main import STALE_SECONDS
from tenfold_device_plugin.metrics import MetricsServer
from tenfold_device_plugin.serve import STREAM_GAP_SECONDS
from tests.unit.device_plugin.bench import CARD_A, CARD_B, CATALOGUE, MIB, Bench, StartFailed, pod, until


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def server(bench: Bench) -> Iterator[MetricsServer]:
    made = MetricsServer("127.0.0.1:0", bench.start().metrics, bench.plugin)
    made.start()
    yield made
    made.stop()


def scrape(server: MetricsServer) -> dict[str, list[tuple[dict[str, str], float]]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as response:
        text = response.read().decode()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


class TestAContainer:
    def test_has_limit_and_usage_under_the_names_of_dashboards(self, bench: Bench, server: MetricsServer) -> None:
        created = bench.run(pod("one", "xlarge", card=CARD_B))
        bench.spend(created.slot, 5 * MIB, 0)
        found = scrape(server)
        labels = {
            "node_name": "gpu-1",
            "device_uuid": CARD_B,
            "device_index": "1",
            "namespace": "default",
            "pod": "one",
            "container": "c0",
            "tier": "xlarge",
        }
        assert found["volcano_vgpu_memory_limit_bytes"] == [(labels, 65536 * MIB)]
        assert found["volcano_vgpu_memory_usage_bytes"] == [(labels, 5 * MIB)]
        assert found["volcano_vgpu_cores_limit_percent"] == [(labels, 100)]
        assert "volcano_vgpu_cores_usage_percent" not in found

    def test_the_nodes_own_sight_is_told_beside_the_containers_claim(self, bench: Bench, server: MetricsServer) -> None:
        created = bench.run(pod("one", card=CARD_B))
        assert "tenfold_gpu_busy_seconds_total" not in scrape(server)  # nobody has looked yet
        bench.plugin.gpu_times._busy_ns = {(created.slot, CARD_B): 2_500_000_000, ("0" * 32, CARD_B): 1}
        [(labels, seconds)] = scrape(server)["tenfold_gpu_busy_seconds_total"]
        assert (labels["pod"], labels["device_uuid"], seconds) == ("one", CARD_B, 2.5)

    def test_core_use_is_gpu_time_between_two_scrapes(self, bench: Bench, server: MetricsServer) -> None:
        created = bench.run(pod("one"))
        bench.spend(created.slot, 0, 1_000_000)
        scrape(server)
        bench.clock.advance(10)
        bench.spend(created.slot, 0, 2_500_000)
        assert [value for _, value in scrape(server)["volcano_vgpu_cores_usage_percent"]] == [15.0]

    def test_a_counter_that_went_back_gives_no_number(self, bench: Bench, server: MetricsServer) -> None:
        created = bench.run(pod("one"))
        bench.spend(created.slot, 0, 5_000_000)
        scrape(server)
        bench.clock.advance(1)
        bench.spend(created.slot, 0, 1)
        assert "volcano_vgpu_cores_usage_percent" not in scrape(server)

    def test_with_a_damaged_state_keeps_its_limit(self, bench: Bench, server: MetricsServer) -> None:
        created = bench.run(pod("one"))
        (bench.settings.slots_dir / created.slot / "state").write_bytes(b"x")
        found = scrape(server)
        assert "volcano_vgpu_memory_usage_bytes" not in found
        assert len(found["volcano_vgpu_memory_limit_bytes"]) == 1

    def test_takes_its_series_with_it(self, bench: Bench, server: MetricsServer) -> None:
        found = pod("one")
        bench.run(found)
        assert len(scrape(server)["volcano_vgpu_memory_limit_bytes"]) == 1
        bench.end(found)
        bench.settle()
        assert "volcano_vgpu_memory_limit_bytes" not in scrape(server)

    def test_is_one_series_even_if_an_init_container_used_its_ids(self, bench: Bench, server: MetricsServer) -> None:
        found = pod("one")
        found["spec"]["initContainers"] = [{"name": "setup", "resources": {"limits": CATALOGUE.tier("small").limits()}}]
        bench.bind(found)
        bench.kubelet.admit(found)
        bench.kubelet.start(found, "setup")
        bench.kubelet.start(found, "c0")
        assert len(scrape(server)["volcano_vgpu_memory_limit_bytes"]) == 1


class TestTheNode:
    def test_shows_cards_slots_refusals_and_revision(self, bench: Bench, server: MetricsServer) -> None:
        bench.run(pod("one", card=CARD_A))
        (bench.settings.hook_root / "current").unlink()
        second = pod("two", card=CARD_A)
        bench.bind(second)
        bench.kubelet.admit(second)
        with pytest.raises(StartFailed):
            bench.kubelet.start(second)
        found = scrape(server)
        card = {"node_name": "gpu-1", "device_uuid": CARD_A, "device_index": "0"}
        assert (card, 2 * 8192 * MIB) in found["tenfold_card_booked_bytes"]
        assert (card, 1024 * MIB) in found["tenfold_card_memory_used_bytes"]
        assert (card, 1) in found["tenfold_card_healthy"]
        assert found["tenfold_refusals_total"] == [({"reason": "no_hook"}, 1)]
        assert found["tenfold_slots"] == [({}, 2)]
        assert found["tenfold_containers_without_hook"] == [({}, 2)]
        assert found["tenfold_tiers_revision_info"] == [({"revision": CATALOGUE.hash8}, 1)]

    @pytest.mark.parametrize(("path", "status"), [("/healthz", 200), ("/readyz", 200), ("/other", 404)])
    def test_answers_its_probes(self, server: MetricsServer, path: str, status: int) -> None:
        assert self.status(server, path) == status

    def test_is_not_ready_while_the_kubelet_does_not_know_it(self, bench: Bench, server: MetricsServer) -> None:
        bench.kubelet.drop_stream()
        until(lambda: not bench.plugin.service.watched, "the plugin has noticed")
        bench.clock.advance(2 * STREAM_GAP_SECONDS)
        assert self.status(server, "/readyz") == 503

    def test_says_why_it_is_not_ready(self, bench: Bench, server: MetricsServer) -> None:
        (bench.settings.hook_root / "current").unlink()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/readyz", timeout=5)
        with caught.value as error:
            assert error.read().startswith(b"no hook in force: ")

    def test_is_dead_when_its_rounds_stop(self, bench: Bench, server: MetricsServer) -> None:
        bench.clock.advance(STALE_SECONDS)
        assert self.status(server, "/healthz") == 503
        bench.round()
        assert self.status(server, "/healthz") == 200

    def status(self, server: MetricsServer, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as response:
                return response.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code
