"""Waiting, locking and running foreign programs: every failure says what, where and what next."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from tests.cluster import command, lock, wait
from tests.cluster.console import Console
from tests.cluster.errors import FleetError


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class TestUntil:
    def test_condition_that_holds_costs_no_time(self) -> None:
        clock = Clock()
        assert wait.until("x", lambda: None, deadline_seconds=1, clock=clock, sleep=clock.sleep) == 0.0

    def test_condition_is_asked_until_it_holds(self) -> None:
        clock = Clock()
        answers = iter(["no", "not yet", None])
        assert wait.until("x", lambda: next(answers), deadline_seconds=1, clock=clock, sleep=clock.sleep) == pytest.approx(0.1)

    def test_giving_up_names_the_wait_the_last_answer_and_the_evidence(self) -> None:
        clock = Clock()
        with pytest.raises(FleetError, match=r"waited 5 s for node a: it is away\nthe journal"):
            wait.until("node a", lambda: "it is away", deadline_seconds=5, diagnose=lambda: "the journal", clock=clock, sleep=clock.sleep)
        assert clock.now == pytest.approx(5, abs=0.1)


def _hold(path: Path, connection: object) -> None:
    with lock.held(path, "hold it"):
        connection.send(os.getpid())  # type: ignore[attr-defined]
        connection.recv()  # type: ignore[attr-defined]


class TestLock:
    def test_second_process_is_told_who_holds_it(self, tmp_path: Path) -> None:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_hold, args=(tmp_path / "lock", theirs))
        process.start()
        owner = ours.recv()
        with pytest.raises(FleetError, match=rf"cannot try: .* is held by process {owner} \(to hold it\)"), lock.held(
            tmp_path / "lock", "try"
        ):
            pass
        ours.send("done")
        process.join()
        with lock.held(tmp_path / "lock", "try again"):
            pass

    def test_waiting_ends_when_the_owner_does(self, tmp_path: Path) -> None:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_hold, args=(tmp_path / "lock", theirs))
        process.start()
        ours.recv()
        ours.send("done")
        with lock.awaited(tmp_path / "lock", "build", Console(quiet=True), deadline_seconds=30):
            process.join()
        assert process.exitcode == 0

    def test_waiting_too_long_names_the_owner(self, tmp_path: Path) -> None:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_hold, args=(tmp_path / "lock", theirs))
        process.start()
        owner = ours.recv()
        refusal = rf"waited 0 s for the lock .*: process {owner} \(to hold it\)"
        with pytest.raises(FleetError, match=refusal), lock.awaited(tmp_path / "lock", "build", Console(quiet=True), deadline_seconds=0):
            pass
        ours.send("done")
        process.join()

    def test_lock_of_a_killed_process_is_free(self, tmp_path: Path) -> None:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_hold, args=(tmp_path / "lock", theirs))
        process.start()
        ours.recv()
        process.kill()
        process.join()
        with lock.held(tmp_path / "lock", "go on"):
            pass


class TestRun:
    def test_output_is_returned(self) -> None:
        assert command.run(["printf", "hello"]).stdout == "hello"

    def test_failure_shows_command_status_and_last_words(self) -> None:
        with pytest.raises(FleetError, match=r"`sh -c 'echo because >&2; exit 3'` ended with status 3:\n    because"):
            command.run(["sh", "-c", "echo because >&2; exit 3"])

    def test_allowed_status_is_no_failure(self) -> None:
        assert command.run(["false"], allowed=(0, 1)).returncode == 1

    def test_missing_program_says_how_to_get_it(self) -> None:
        with pytest.raises(FleetError, match=r"cannot run 'tenfold-no-such-program': not found; run 'python3 -m tests.cluster setup'"):
            command.run(["tenfold-no-such-program"])

    def test_program_that_hangs_is_ended_at_its_deadline(self) -> None:
        with pytest.raises(FleetError, match="did not end within 0 s"):
            command.run(["sleep", "60"], deadline_seconds=0.1)
