"""Running a few lines of Python as a CUDA program inside a slot, and reading what they ``say``."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Any

from tests import ROOT
from tests.hook.workshop import Slot

PRELUDE = f"""
import ctypes as c, os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests.hook.cuda import *
cuda = Driver()
"""


def program(body: str) -> list[str]:
    return [sys.executable, "-B", "-S", "-c", PRELUDE + textwrap.dedent(body)]


def spinner(us: int) -> list[str]:
    """A program that keeps the card as busy as it may, with kernels of one length, until it is ended."""
    body = f"""
cuda.start()
f = cuda.spin()
while True:
    for _ in range(4): cuda.launch(f, {us})
    cuda.cuCtxSynchronize()
"""
    return program(body)


def run(slot: Slot, body: str, *, timeout: float = 60, **environment: str) -> dict[str, Any]:
    """The merged answers of one program. Anything on stderr fails the test: the hook is silent."""
    done = slot.run(program(body), timeout=timeout, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answers: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        answers.update(json.loads(line))
    return answers
