#!/usr/bin/env python3
"""The hook's tests in one command: ``tests/hook/run.py --quick`` (no sanitizers, 60 to 80 s) or ``--full``.

pytest runs over tests/hook in several processes, in two turns: tests that judge time come last, beside nothing but each other. What they
build goes to ``TENFOLD_BUILD`` (default ``build/hook-tests`` of the tree). Further arguments go to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VIRTUAL_TIME = "tests/hook/virtual_time/test_virtual_time.py"
# Beside what is marked "full": the limiter broken on purpose, a dozen times, and its laws under sanitizers.
LEFT_OUT_OF_QUICK = (
    f"{VIRTUAL_TIME}::test_a_broken_limiter_is_noticed",
    *(f"{VIRTUAL_TIME}::test_the_laws_of_the_controller[gcc-{sanitizer}]" for sanitizer in ("thread", "all")),
)
# What a longer run of the same covers.
LEFT_OUT_OF_FULL = (
    "tests/hook/oracle/test_oracle.py::test_the_ledger_equals_the_truth_after_random_work_failures_and_kills",
    "tests/hook/test_compute.py::test_a_changed_limit_takes_effect_in_a_running_process[twice]",
)


NONE_FOUND = 5  # pytest's exit status


def main(arguments: list[str]) -> int:
    modes = [word for word in arguments if word in ("--quick", "--full")]
    rest = [word for word in arguments if word not in modes]
    if len(modes) != 1:
        print("usage: tests/hook/run.py --quick | --full [pytest arguments]", file=sys.stderr)
        return 2
    is_quick = modes == ["--quick"]
    left_out = [f"--deselect={name}" for name in (LEFT_OUT_OF_QUICK if is_quick else LEFT_OUT_OF_FULL)]
    where = [] if any((ROOT / word.split("::")[0]).exists() for word in rest) else ["tests/hook"]
    codes = [
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", f"-n{workers}", "--dist=worksteal", "-m", marks, *left_out, *rest, *where],
            cwd=ROOT,
            check=False,
        ).returncode
        for marks, workers in turns(is_quick, os.cpu_count() or 1)
    ]
    found = [code for code in codes if code != NONE_FOUND]
    return max(found, default=NONE_FOUND)


def turns(is_quick: bool, processors: int) -> list[tuple[str, int]]:
    """Marks and processes of each turn. Tests that judge time mostly wait: many go side by side, but nothing that compiles beside them."""
    only = "not full and " if is_quick else ""
    return [(f"{only}not timing", processors + 1), (f"{only}timing", 2 * processors)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
