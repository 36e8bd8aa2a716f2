"""The demo's judge must find every way in which a slice can be wrong: a judge that always agrees would hide a broken product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.demo import compute, pods, promises, scenes, table
from tests.demo.observe import Inside, PodView, parse_assignment, parse_probe

MIB = 1 << 20
REQUEST = scenes.tier_pod("small", 1)


def view(name: str = "small-1", card: str = "GPU-a", **inside: Any) -> PodView:
    card_report = {
        "uuid": card,
        "cuda_total_bytes": 8192 * MIB,
        "nvml_total_bytes": 8192 * MIB,
        "core_limit_percent": 10,
        "refusal": {"allocated_bytes": 8192 * MIB, "result": 2},
        **inside,
    }
    return PodView(name, "node-1", "Running", "", card, 8192, 10, Inside((card_report,)))


def test_a_right_slice_breaks_nothing() -> None:
    assert promises.broken_by_pod(REQUEST, view()) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(view(), memory_mib=16384), "annotation books 16384 MiB"),
        (view(uuid="GPU-b"), "sees card GPU-b, the scheduler chose GPU-a"),
        (view(cuda_total_bytes=81920 * MIB), "cuda shows 85899345920 bytes"),
        (view(nvml_total_bytes=1), "nvml shows 1 bytes"),
        (view(core_limit_percent=100), "core limit 100 %, expected 10 %"),
        (replace(view(), inside=None), "no view from inside"),
        (replace(view(), inside=Inside(())), "sees 0 cards"),
    ],
)
def test_a_wrong_slice_is_named_with_both_numbers(wrong: PodView, said: str) -> None:
    assert any(said in line for line in promises.broken_by_pod(REQUEST, wrong))


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (None, "allocated without end"),
        ({"allocated_bytes": 8192 * MIB - 1, "result": 2}, "refused after 8589934591 bytes"),
        ({"allocated_bytes": 8192 * MIB, "overhead_bytes": 2 * MIB, "result": 2}, "refused after 8589934592 bytes"),
        ({"allocated_bytes": 8192 * MIB, "result": 1}, "refused with CUresult 1"),
    ],
)
def test_a_refusal_must_come_at_exactly_the_quota(refusal: dict[str, int] | None, said: str) -> None:
    broken = promises.broken_by_pod(REQUEST, view(refusal=refusal))
    assert len(broken) == 1
    assert said in broken[0]


def test_pods_spread_over_more_cards_than_promised_break_the_scene() -> None:
    scene = scenes.Scene("two share", ((scenes.tier_pod("small", 1), scenes.tier_pod("small", 2)),), (2,))
    together = [view("small-1"), view("small-2")]
    apart = [view("small-1"), view("small-2", card="GPU-b")]
    assert promises.broken_by_scene(scene, together) == []
    assert promises.broken_by_scene(scene, apart) == ["two share: expected (2,) pods per card, seen (1, 1)"]


def test_a_missing_pod_breaks_the_scene() -> None:
    scene = scenes.Scene("two share", ((scenes.tier_pod("small", 1), scenes.tier_pod("small", 2)),), (1,))
    assert promises.broken_by_scene(scene, [view("small-1")]) == ["two share: pod 'small-2' is not there"]


def test_a_bare_pod_that_sees_a_card_breaks_its_promise() -> None:
    assert promises.broken_by_bare_pod(replace(view("bare"), inside=Inside(()))) == []
    assert promises.broken_by_bare_pod(view("bare")) == ["pod 'bare' has no slice and sees card GPU-a"]


def test_the_articles_three_lines_are_verbatim() -> None:
    article = scenes.SCENES[-1].waves[0][0]
    manifest = pods.slice_pod(article, "ns", "image")
    assert manifest["spec"]["containers"][0]["resources"]["limits"] == scenes.ARTICLE_LIMITS
    assert "tenfold.dev/tier" not in manifest["metadata"]["labels"]


def test_assignment_and_probe_are_read_as_they_are_written() -> None:
    assert parse_assignment("GPU-a,NVIDIA,512,20:") == ("GPU-a", 512, 20)
    assert parse_assignment("") == ("", 0, 0)
    assert parse_probe("warning\n") is None
    assert parse_probe('note\n{"cards": []}\n') == Inside(())


def test_the_table_shows_each_pods_view_beside_its_annotation() -> None:
    text = table.card_table([view("small-1"), view("small-2")], {f"small-{n}": scenes.tier_pod("small", n) for n in (1, 2)}, 81920)
    assert "node-1  GPU-a  2 slices  16384/81920 MiB  20/100 % booked" in text
    assert text.count("GPU-a  8192 MiB  10 %") == 4


def test_a_share_of_gpu_time_may_be_three_points_off_and_no_more() -> None:
    assert compute.broken_by_shares([compute.Share("a", 30, 32.9), compute.Share("b", 60, 57.1)]) == []
    assert compute.broken_by_shares([compute.Share("a", 30, 33.1)]) == ["pod 'a' got 33.1 % of GPU time, expected 30 +- 3 %"]


def test_what_the_node_told_is_there_and_fresh_and_near_the_limit() -> None:
    limits = {"a": 30}

    def told(**card: float) -> list[str]:
        return compute.broken_by_told({"a": ("/run/tenfold/slots/x", card)}, limits)

    assert told(host_busy_percent=24.5, host_busy_age_ms=900) == []
    expected = "expected 30 +- 12 % within 3000 ms"
    assert told(host_busy_percent=55.0, host_busy_age_ms=900) == [f"pod 'a': the node told 55.0 % 900 ms ago, {expected}"]
    assert told(host_busy_percent=30.0, host_busy_age_ms=9000) == [f"pod 'a': the node told 30.0 % 9000 ms ago, {expected}"]
    assert told() == compute.broken_by_told({}, limits) == ["pod 'a': the node has told nothing"]
