#!/usr/bin/env python3
"""The accounting oracle: random work over all kinds of device memory, then the hook's ledger against the simulated driver's truth.

    tests/hook/oracle/run.py --quick                 about 10 s: every kind, failing driver calls, a kill storm, kills inside operations
    tests/hook/oracle/run.py --full                  a million operations, and hooks broken on purpose, each of which must be found
    tests/hook/oracle/run.py --only TEXT             the scenarios whose name holds TEXT (of --full)
Options: --build DIR (default TENFOLD_BUILD or build/hook-tests), --seed N (default: the day; a failure names its own),
--part I/N (every N-th scenario, from the I-th on: several processes share a run).

Owns the order of things and the report; ``plan`` holds the scenarios, ``conductor.c`` plays one. Exit status 1 names scenario, seed, the
numbers that differ and the command that plays it again.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.hook.workshop import Machine

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "collections")]

from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region  # noqa: E402

from tests.hook.oracle import plan  # noqa: E402

HERE = Path(__file__).resolve().parent
LIMITS_BYTES = (2 << 30, 512 << 20)  # of card 0 and card 1: small enough that refusals are common
OVERHEAD_BYTES = (24 << 20, 3 << 20)  # of a context and of a module; small, so that many processes fit into the limits
SCENARIO_SECONDS = 180
NEVER_CALLED, NO_TRACING = 3, 77


class Bench:
    """Built programs and one simulated machine; a fresh slot for every scenario."""

    def __init__(self, build: Path, folder: Path) -> None:
        os.environ["TENFOLD_BUILD"] = str(build)
        from tests.hook import workshop

        self.workshop, self.build, self.folder = workshop, build, folder
        workshop.BUILD = build
        self.simulator = workshop.build_simulator()
        self.hook = workshop.build_hook()
        workshop.make(HERE, build / "oracle")
        self.machines: dict[tuple[str, int, bool], Machine] = {}
        self.slots = 0

    def machine(self, scenario: plan.Scenario) -> Machine:
        key = scenario.driver, scenario.cards, scenario.is_measured
        if key not in self.machines:
            folder = self.folder / "-".join(map(str, ("driver", *key)))
            folder.mkdir()
            context_bytes, module_bytes = OVERHEAD_BYTES if scenario.is_measured else (0, 0)
            self.machines[key] = self.workshop.Machine.make(
                self.simulator,
                folder,
                cards=scenario.cards,
                driver=scenario.driver,
                graph_use_is_mapped=0,  # the books tell live blocks of graphs from what their pool keeps
                context_bytes=context_bytes,
                module_bytes=module_bytes,
            )
        return self.machines[key]

    def covered(self) -> dict[str, bool]:
        """Which kinds this hook covers at all, by its exported symbols."""
        exported = {line.split()[0] for line in (self.hook / "symbols.txt").read_text().splitlines() if line.strip()}
        return {kind: exported.issuperset(symbols) for kind, symbols in plan.KINDS.items()}

    def mutant(self, mutant: plan.Mutant) -> Path:
        """A hook that is broken in one place."""
        name, line, replacement = mutant.patch

        def damage(sources: Path) -> None:
            if not name:
                shutil.copy(HERE / "mutant.c", sources / "slice" / "mutant.c")
                return
            text = (sources / name).read_text(encoding="utf-8")
            if line not in text:
                raise RuntimeError(f"{mutant.name}: {name} has no {line!r} any more: adapt the mutation")
            (sources / name).write_text(text.replace(line, replacement), encoding="utf-8")

        cc = "gcc" if name else f"gcc -D{mutant.macro} -Wl,--wrap={mutant.wrapped}"
        build: Path = self.workshop.build_broken_hook(self.folder / mutant.macro, damage, CC=cc)
        return build

    def command(self, scenario: plan.Scenario, kinds: list[str], hook: Path, seed: int) -> list[str]:
        self.slots += 1
        slot = self.folder / f"slot-{self.slots}"
        machine = self.machine(scenario)
        overhead = "measured" if scenario.is_measured else "reserved"
        quotas = [region.GpuQuota(uuid, limit, 0, overhead=overhead) for uuid, limit in zip(machine.uuids, LIMITS_BYTES)]
        region.create_slot(slot, quotas, library=self.hook / "libtenfold_page.so")
        mask = sum(1 << list(plan.KINDS).index(kind) for kind in kinds)
        fixed = {
            "machine": machine.state,
            "slot": slot,
            "preload": hook / "libtenfold.so",
            "driver": self.simulator,
            "worker": self.build / "oracle" / "worker",
            "seed": seed,
            "kinds": hex(mask),
        }
        words = [word for option, value in fixed.items() for word in (f"--{option}", str(value))]
        return [str(self.build / "oracle" / "conductor"), scenario.command, *words, *scenario.words]

    def play(self, scenario: plan.Scenario, kinds: list[str], hook: Path, seed: int) -> tuple[int, dict[str, Any]]:
        """Exit status and answer of one scenario; then the books once more through the doors that the product uses."""
        command = self.command(scenario, kinds, hook, seed)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SCENARIO_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return 1, {"problem": f"no verdict in {SCENARIO_SECONDS} s"}
        try:
            answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            return 1, {"problem": f"the conductor ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"}
        if done.stderr.strip() and done.returncode == 0:
            return 1, {**answer, "problem": f"the hook is not silent: {done.stderr.strip()[:300]}"}
        if done.returncode == 0:
            problem = self.look_again(self.folder / f"slot-{self.slots}", self.machine(scenario))
            if problem:
                return 1, {**answer, "problem": problem}
        return done.returncode, answer

    def look_again(self, slot: Path, machine: Machine) -> str:
        """What a stranger sees when all is over: the Python mirror, vgpuctl and the simulator's own tool."""
        state = region.read_state(slot)
        ledger = [gpu.used_bytes for gpu in state.gpus]
        shown = json.loads(
            subprocess.run([str(self.hook / "vgpuctl"), "show", "--json", str(slot)], capture_output=True, text=True, check=True).stdout
        )
        by_tool = [gpu["memory_used_bytes"] for gpu in shown["gpus"]]
        truth = [machine.allocated_bytes(card) for card in range(len(machine.uuids))]
        # a process that nobody has outlived keeps its context's bytes in the file
        if sum(ledger) != state.overhead_bytes or ledger != by_tool or shown["overhead_bytes"] != state.overhead_bytes or any(truth):
            return f"everybody is gone, in use are: state file {ledger} ({state.overhead_bytes} overhead), vgpuctl {by_tool}, truth {truth}"
        return ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests/hook/oracle/run.py")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--quick", action="store_true")
    mode.add_argument("--full", action="store_true")
    mode.add_argument("--only", metavar="TEXT")
    parser.add_argument("--build", type=Path, default=Path(os.environ.get("TENFOLD_BUILD", ROOT / "build" / "hook-tests")))
    parser.add_argument("--seed", type=int, default=int(time.time()) // 86400)
    parser.add_argument("--part", type=part, default=(1, 1), metavar="I/N")
    options = parser.parse_args(arguments)
    scenarios = plan.quick() if options.quick else plan.full()
    if options.only:
        scenarios = [scenario for scenario in plan.full() + plan.quick() if options.only in scenario.name]
        if not scenarios:
            parser.error(f"no scenario's name holds {options.only!r}; --full prints them all")
    mine = slice(options.part[0] - 1, None, options.part[1])
    scenarios = scenarios[mine]
    with tempfile.TemporaryDirectory(prefix="tenfold-oracle-") as folder:
        bench = Bench(options.build.resolve(), Path(folder))
        began = time.monotonic()
        covered = bench.covered()
        for kind in (kind for kind, is_covered in covered.items() if not is_covered):
            print(f"skip: memory of kind {kind!r}: the hook exports no {' or no '.join(plan.KINDS[kind])}")
        failures, operations = play_all(bench, scenarios, covered, options.seed)
        if options.full:
            failures += check_mutants(bench, list(plan.MUTANTS)[mine], options.seed)
        print(f"{len(scenarios)} scenarios, {operations} operations, {failures} wrong, {time.monotonic() - began:.1f} s")
    return int(failures > 0)


def part(text: str) -> tuple[int, int]:
    """'2/3' -> (2, 3)"""
    first, _, count = text.partition("/")
    found = int(first), int(count)
    if not 1 <= found[0] <= found[1]:
        raise ValueError
    return found


def play_all(bench: Bench, scenarios: list[plan.Scenario], covered: dict[str, bool], seed: int) -> tuple[int, int]:
    failures = operations = 0
    for scenario in scenarios:
        kinds = [kind for kind in scenario.kinds or plan.KINDS if covered[kind]]
        if not kinds:
            continue
        status, answer = bench.play(scenario, kinds, bench.hook, seed)
        operations += answer.get("operations", 0)
        never_made = [
            kind
            for kind, count in answer.get("made", {}).items()
            if not count and scenario.command == "rounds" and scenario.driver == "535"
        ]
        if status == NO_TRACING:
            print(f"skip: {scenario.name}: {answer['problem']}")
        elif status == 0 and never_made:
            failures += 1
            print(f"FAILED {scenario.name}: never made: {', '.join(never_made)}, so nothing was tested")
        elif status == 0 or (status == NEVER_CALLED and scenario.may_be_idle):
            print(f"  ok  {answer['seconds']:6.1f} s  {scenario.name}: {summary(scenario, answer)}", flush=True)
        else:
            failures += 1
            report(bench, scenario, kinds, seed, answer)
    return failures, operations


def summary(scenario: plan.Scenario, answer: dict[str, Any]) -> str:
    parts = {
        "operations": answer["operations"],
        "refusals": answer["refusals"],
        "injected errors": answer["injected"],
        "kills": answer["kills"],
    }
    return ", ".join(f"{count} {what}" for what, count in parts.items() if count) or f"{scenario.options.get('symbol')} is never called"


def report(bench: Bench, scenario: plan.Scenario, kinds: list[str], seed: int, answer: dict[str, Any]) -> None:
    """The least that somebody needs who wants to see it again."""
    print(f"FAILED {scenario.name}: {answer.get('problem', 'no reason given')}")
    print(f"  seed {seed}, after {answer.get('operations', '?')} operations, round {answer.get('rounds', '?')}, kinds {'+'.join(kinds)}")
    for line in answer.get("last", ())[:4]:
        print(f"  last of {line}")
    again = ["python", "tests/hook/oracle/run.py", "--only", scenario.name, "--seed", str(seed), "--build", str(bench.build)]
    print(f"  again: {shlex.join(again)}", flush=True)


def check_mutants(bench: Bench, mutants: Sequence[plan.Mutant], seed: int) -> int:
    """How many broken hooks the oracle does not find."""
    missed = 0
    for mutant in mutants:
        hook = bench.mutant(mutant)
        found = ""
        for scenario in plan.mutant_scenarios():
            status, answer = bench.play(scenario, ["linear"], hook, seed)
            if status == 1:
                found = f"{scenario.name}: {answer['problem']}"
                break
        missed += not found
        print(f"  found: {mutant.name}: {found}" if found else f"FAILED a broken hook was not found: {mutant.name}", flush=True)
    return missed


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RuntimeError as error:  # a build that fails: the compiler's words say it all
        print(f"tests/hook/oracle/run.py: {error}", file=sys.stderr)
        sys.exit(2)
