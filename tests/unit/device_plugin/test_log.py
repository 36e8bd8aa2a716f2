"""Log lines: one JSON object each, with identity, in UTC."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from tenfold_device_plugin import log


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root, ours = logging.getLogger(), logging.getLogger("tenfold")
    kept = root.handlers[:], root.level, ours.level
    made = io.StringIO()
    log.configure("info", made)
    yield made
    root.handlers[:], root.level, ours.level = kept


def test_a_line_carries_its_sentence_and_identity_without_empty_fields(stream: io.StringIO) -> None:
    log.say(logging.WARNING, "pod a/b: moved", pod="b", uid=None)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("+00:00")
    assert line == {"level": "warning", "message": "pod a/b: moved", "pod": "b"}


def test_a_message_of_two_lines_stays_one_line(stream: io.StringIO) -> None:
    log.say(logging.ERROR, "a\nb %s %d", pod="x\ny")
    assert stream.getvalue().count("\n") == 1


def test_a_fault_of_ours_brings_its_traceback(stream: io.StringIO) -> None:
    try:
        raise ValueError("odd")
    except ValueError as error:
        log.say(logging.CRITICAL, "ended", error=error)
    assert "ValueError: odd" in json.loads(stream.getvalue())["traceback"]


def test_other_libraries_are_heard_from_warning_on_in_the_same_form(stream: io.StringIO) -> None:
    logging.getLogger("urllib3").info("quiet")
    logging.getLogger("urllib3").warning("pool is full")
    assert json.loads(stream.getvalue())["message"] == "pool is full"
