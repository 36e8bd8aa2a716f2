"""Asks Volcano's own code fit questions and keeps its answers: the vectors of tests/unit/domain/test_volcano_fit.py.

Owns the questions (random, from a fixed seed). The answers come from ``volcano/main.go``, linked with the scheduler's own package. To
renew them for another Volcano version, on a machine with Go and the module in its cache:

1. copy the module's folder, put ``volcano/export.go`` into its ``pkg/scheduler/api/devices/nvidia/vgpu/``;
2. build ``volcano/main.go`` in a module that requires ``volcano.sh/volcano`` and replaces it by that copy (``tests/cluster`` has the
   go.mod that the whole bench is built with);
3. ``python tests/unit/domain/vectors/make_volcano_fit.py path/to/that/program > tests/unit/domain/vectors/volcano_fit_1.15.1.jsonl``.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

SEED = 20261130
QUESTIONS = 400
MEMORIES_MIB = (15360, 40960, 81251, 81920)
TIERS = ((8192, 10), (16384, 30), (32768, 60), (65536, 80), (65536, 100), (512, 20), (4096, 0))
TYPES = ("NVIDIA-NVIDIA A800-SXM4-80GB", "NVIDIA-Tesla T4", "nvidia-lower")


def uuid(index: int) -> str:
    return f"GPU-{index:08d}-aaaa"


def bound_pods(chance: random.Random, cards: int) -> list[dict[str, str]]:
    pods = []
    for position in range(chance.choice((0, 0, 1, 2, 4, 8))):
        containers = []
        for _ in range(chance.choice((1, 1, 2))):
            memory, cores = chance.choice(TIERS)
            chosen = chance.sample(range(cards + 1), chance.choice((1, 1, 1, min(2, cards))))  # one past the end: a card that is gone
            containers.append("".join(f"{uuid(index)},NVIDIA,{memory},{cores}:" for index in chosen))
        pods.append({"uid": f"uid-{position}", "ids": ";".join(containers), "group": chance.choice(("", "", "ring"))})
    return pods


def container(chance: random.Random, index: int) -> dict[str, Any]:
    if chance.random() < 0.15:
        return {"name": f"side-{index}"}
    memory, cores = chance.choice(TIERS[:3] + TIERS)
    limits: dict[str, str] = {"volcano.sh/vgpu-number": str(chance.choice((1,) * 8 + (2, 2, 3, 0)))}
    requests: dict[str, str] = {}
    if chance.random() < 0.93:
        chance.choice((limits, limits, requests))["volcano.sh/vgpu-memory"] = chance.choice((str(memory), f"{memory // 1000}k", "0"))
    if chance.random() < 0.93:
        chance.choice((limits, limits, requests))["volcano.sh/vgpu-cores"] = str(cores)
    if chance.random() < 0.1 and "volcano.sh/vgpu-memory" in limits:
        del limits["volcano.sh/vgpu-number"]
    return {"name": f"gpu-{index}", "resources": {"limits": limits, "requests": requests}}


def pod(chance: random.Random) -> dict[str, Any]:
    annotations = {}
    if chance.random() < 0.2:
        annotations[chance.choice(("nvidia.com/use-gputype", "nvidia.com/nouse-gputype"))] = chance.choice(
            ("a800", "T4,A800", "H100", "tesla")
        )
    if chance.random() < 0.05:
        annotations["volcano.sh/vgpu-mode"] = chance.choice(("hami-core", "mig"))
    if chance.random() < 0.2:
        annotations["volcano.sh/vgpu-podgroup-policy"] = "spread"
        annotations["scheduling.k8s.io/group-name"] = "ring"
    containers = [container(chance, index) for index in range(chance.choice((1, 1, 1, 2, 3)))]
    return {
        "metadata": {"name": "asking", "namespace": "default", "uid": "asking", "annotations": annotations},
        "spec": {"containers": containers},
    }


def question(chance: random.Random) -> dict[str, Any]:
    cards = chance.randint(1, 4)
    records = (
        f"{uuid(index)},{chance.choice((10,) * 8 + (2, 0))},{chance.choice(MEMORIES_MIB)},{chance.choice(TYPES + TYPES[:1] * 9)},"
        f"{chance.choice(('true', 'false'))},hami-core:"
        for index in range(cards)
    )
    return {
        "register": "".join(records),
        "bound": bound_pods(chance, cards),
        "pod": pod(chance),
        "policy": chance.choice(("binpack", "binpack", "spread", "")),
    }


def short(answer: dict[str, Any]) -> dict[str, Any]:
    """Of each card only what is booked (slices, MiB, percent); a refused pod leaves the ledgers as they were."""
    before, after = ([card["used"] for card in answer[name]] for name in ("before", "after"))
    kept = {name: answer[name] for name in ("ids", "score", "error") if answer[name]}
    return {**kept, "before": before, **({"after": after} if after != before else {})}


def main() -> None:
    chance = random.Random(SEED)
    questions = [question(chance) for _ in range(QUESTIONS)]
    asked = "".join(json.dumps(each) + "\n" for each in questions)
    done = subprocess.run([sys.argv[1]], input=asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    for each, answer in zip(questions, done.stdout.splitlines()):
        print(json.dumps({"question": each, "answer": short(json.loads(answer))}, separators=(",", ":")))


if __name__ == "__main__":
    main()
