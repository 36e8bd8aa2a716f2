"""Which steps a test target runs: CI runs everything once, a part alone runs its own quick tests too."""

from __future__ import annotations

import pytest

from tools import run_tests


def names(*words: str) -> list[str]:
    return [step.name for step in run_tests.steps_of(list(words))]


def test_ci_runs_every_step_once_and_nothing_that_a_longer_step_covers() -> None:
    every = [step.name for step in run_tests.STEPS]
    assert names("all") == [name for name in every if name != "hook-quick"]
    assert len(set(every)) == len(every)


def test_check_alone_tests_the_hook_too() -> None:
    assert "hook-quick" in names("check")


def test_what_covers_a_step_is_a_group_of_ci_with_steps_of_its_own() -> None:
    for step in run_tests.STEPS:
        assert step.group in run_tests.SHARES_S
        assert not step.covered_by or (step.covered_by in run_tests.CI_GROUPS and names(step.covered_by))


def test_the_fleet_is_up_for_the_suite_and_gone_at_the_end() -> None:
    cluster = names("demo", "cluster")
    assert [*cluster[:3], cluster[-1]] == ["check-mode", "demo", "cluster-suite", "fleet-down"]
    assert names("molecule") == ["molecule default", "molecule cuda_hook"]


def test_an_unknown_group_is_refused_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tests.main(["nods"]) == 2
    assert "expected all, molecule or one of check, hook, nodes" in capsys.readouterr().err
