"""The domain's fit rule gives the answers of Volcano 1.15.1's own code: cards, amounts, score, and the ledgers before and after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterable

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import fit, wire
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.fit import CardLedger, FitRefusal

VECTORS = Path(__file__).parent / "vectors" / "volcano_fit_1.15.1.jsonl"
CASES = [json.loads(line) for line in VECTORS.read_text().splitlines()]


def used(cards: Iterable[CardLedger]) -> list[list[int]]:
    return [[card.used_count, card.used_memory_mib, card.used_cores_percent] for card in cards]


def ledgers(question: dict[str, Any]) -> list[CardLedger]:
    records = wire.decode_register(question["register"])
    cards = [CardLedger(record.uuid, record.count, record.memory_mib, record.type) for record in records]
    bound = [(pod["uid"], wire.decode_segments(pod["ids"])) for pod in question["bound"]]
    groups = {pod["uid"]: f"default/{pod['group']}" for pod in question["bound"] if pod["group"]}
    return fit.book_as_volcano(cards, bound, groups)


def decide(question: dict[str, Any], cards: list[CardLedger]) -> fit.PodFit | FitRefusal:
    annotations = question["pod"]["metadata"]["annotations"]
    spreads = annotations.get("volcano.sh/vgpu-podgroup-policy") == "spread"
    requests = [each.request for each in wire.requesting_containers(question["pod"])]
    return fit.fit_pod(requests, cards, question["policy"], annotations, "default/ring" if spreads else None)


def test_the_vectors_cover_every_outcome() -> None:
    errors = {case["answer"].get("error", "") for case in CASES}
    assert {"", "no enough gpu cards on node node", "not enough gpu fitted on this node"} < errors
    assert {case["question"]["policy"] for case in CASES} == {"binpack", "spread", ""}
    assert sum("ids" in case["answer"] for case in CASES) > len(CASES) / 4


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_answer_is_volcanos(number: int) -> None:
    question, answer = CASES[number]["question"], CASES[number]["answer"]
    cards = ledgers(question)
    assert used(cards) == answer["before"]
    decision = decide(question, cards)
    if "error" in answer:
        assert isinstance(decision, FitRefusal)
        assert decision.message.split(" on ")[0].split(":")[0] == answer["error"].split(" on ")[0]
        assert "after" not in answer
    else:
        assert not isinstance(decision, FitRefusal), str(decision)
        assert wire.encode_segments(decision.segments) == answer.get("ids", "")
        assert used(decision.cards) == answer.get("after", answer["before"])
        assert decision.score == pytest.approx(answer.get("score", 0.0), abs=1e-9)
