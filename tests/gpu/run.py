#!/usr/bin/env python3
"""The hook's suites against the driver of this machine's card; `make test-gpu`.

    tests/gpu/run.py                         the real driver; exit status 77 where there is none
    tests/gpu/run.py --simulated BUILD       the simulated driver, built into BUILD
Options: --hook DIR (what a build of files/hook makes; default: built here), --card UUID (default: the first), --only SUITE,
--most-mib N (memory of the card that the suites may take, 512), --json FILE (results and what was observed).

It needs Python, and gcc and make unless --hook is given; the card should be idle. Nothing is installed or changed on the machine. Owns the
command line and the report; the suites are tests/gpu/suites, docs/hardware.md says what was seen on which card.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.gpu import ground as grounds
from tests.hook import workshop

SUITES = ("routing", "memory", "view", "limiter", "live_change", "observe")
SKIPPED = 77
NO_DRIVER = "skip: no NVIDIA driver on this machine (libcuda.so.1 not found)"


def checks_of(suite: str) -> list[tuple[str, Callable[[grounds.Ground], None]]]:
    module = importlib.import_module(f"tests.gpu.suites.{suite}")
    return [
        (name[len("check_") :].replace("_", " "), value)
        for name, value in vars(module).items()
        if name.startswith("check_") and callable(value)
    ]


def make_ground(options: argparse.Namespace, folder: Path) -> grounds.Ground | str:
    """Where the suites run, or why they cannot."""
    base = grounds.plain_environment()
    if options.simulated:
        workshop.BUILD = options.simulated.resolve()
        machine = workshop.Machine.make(workshop.build_simulator(), folder, policy="round-robin")
        base |= machine.environment
    else:
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return NO_DRIVER
        if Path("/run/tenfold/config").exists():
            return "skip: this is a slice already (/run/tenfold/config exists); the suites need the whole card"
    found = grounds.cards(base)
    if found["result"] or not found["cards"]:
        return f"skip: libcuda.so.1 finds no card (cuInit gave {found['result']})"
    if options.card and options.card not in found["cards"]:
        return f"skip: no card {options.card!r} on this machine, expected one of {', '.join(found['cards'])}"
    hook = options.hook or workshop.build_hook()
    tolerance_points = 5.0 if options.simulated else 3.0
    return grounds.Ground(
        hook, options.card or found["cards"][0], folder, base, bool(options.simulated), tolerance_points, options.most_mib << 20
    )


def run_check(ground: grounds.Ground, check: Callable[[grounds.Ground], None]) -> tuple[str, str]:
    try:
        check(ground)
    except grounds.NotHere as reason:
        return "skip", str(reason)
    except AssertionError as error:
        return "FAILED", str(error) or "an expectation without a message; see the source"
    except Exception as error:  # a broken check is a failure with a name, and the next ones still run
        return "FAILED", f"{type(error).__name__}: {error}"
    return "ok", ""


def run_suites(ground: grounds.Ground, suites: tuple[str, ...]) -> list[dict[str, Any]]:
    outcomes = []
    for suite in suites:
        for name, check in checks_of(suite):
            began = time.monotonic()
            status, text = run_check(ground, check)
            outcomes.append({"suite": suite, "check": name, "status": status, "text": text, "seconds": round(time.monotonic() - began, 2)})
            if status == "skip":
                print(f"skip: {suite}: {name}: {text}", flush=True)
            else:
                print(f"  {status:<6} {time.monotonic() - began:5.1f} s  {suite}: {name}{f': {text}' if text else ''}", flush=True)
    return outcomes


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests/gpu/run.py")
    parser.add_argument("--simulated", type=Path, metavar="BUILD")
    parser.add_argument("--hook", type=Path)
    parser.add_argument("--card")
    parser.add_argument("--only", choices=SUITES)
    parser.add_argument("--most-mib", type=int, default=512)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tenfold-gpu-") as folder:
        ground = make_ground(options, Path(folder))
        if isinstance(ground, str):
            print(ground)
            return SKIPPED
        print(f"card {ground.uuid}, {'simulated' if ground.is_simulated else 'real'} driver, load average {os.getloadavg()[0]:.1f}")
        outcomes = run_suites(ground, (options.only,) if options.only else SUITES)
    count = {status: sum(outcome["status"] == status for outcome in outcomes) for status in ("ok", "FAILED", "skip")}
    for name, value in ground.observed.items():
        print(f"  observed: {name}: {value}")
    if options.json:
        report = {"card": ground.uuid, "is_simulated": ground.is_simulated, "outcomes": outcomes, "observed": ground.observed}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"{count['ok']} passed, {count['FAILED']} failed, {count['skip']} skipped")
    return int(count["FAILED"] > 0)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RuntimeError as error:  # a build that fails, or a program that ends by itself: their own words
        print(f"tests/gpu/run.py: {error}", file=sys.stderr)
        sys.exit(2)
