"""The text that a merge of the scheduler's configuration writes, and the record by which it is undone."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.action import volcano_scheduler_config as action

PLACE = "ConfigMap 'volcano-system/conf', key 'volcano-scheduler.conf'"
THEIRS = """\
# our team's scheduler: ask before changing
actions: "enqueue, allocate, backfill"   # no preemption here
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
- plugins:
  - name: predicates   # needed
  - name: 'mine'
    arguments:
      mine.key: "05"
configurations:
- name: enqueue
"""


def options(**changes: Any) -> dict[str, Any]:
    return {"state": "present", "base": None, "schedule_policy": "binpack", "schedule_weight": 10, "binpack_enabled": True, **changes}


def plan(text: str, record: Any = None, **changes: Any) -> tuple[str, Any]:
    result: tuple[str, Any] = action.plan(text, record, options(**changes), PLACE)
    return result


def test_every_line_of_the_owner_survives_with_comments_and_quotes() -> None:
    text, _ = plan(THEIRS)
    lines = iter(text.splitlines())
    assert all(line in lines for line in THEIRS.splitlines())


def test_volcano_gets_yaml_integers_and_booleans() -> None:
    text, _ = plan(THEIRS)
    assert "deviceshare.VGPUEnable: true\n" in text
    assert "deviceshare.ScheduleWeight: 10\n" in text


def test_a_second_merge_returns_the_same_text_and_record() -> None:
    text, record = plan(THEIRS)
    assert plan(text, record) == (text, record)


def test_a_text_that_needs_nothing_is_not_reformatted() -> None:
    text, _ = plan(THEIRS)
    odd = text.replace("  - name: gang", "  - name:   gang")
    assert plan(odd) == (odd, None)


def test_absent_gives_back_the_original_byte_for_byte() -> None:
    text, record = plan(THEIRS)
    assert plan(text, record, state="absent") == (THEIRS, None)


def test_absent_keeps_what_the_owner_added_since() -> None:
    text, record = plan(THEIRS)
    edited = text.replace("- name: enqueue\n", "- name: enqueue\n- name: later\n")
    back, left = plan(edited, record, state="absent")
    assert left is None
    assert "- name: later" in back and "deviceshare" not in back and "# needed" in back


def test_a_changed_wish_keeps_the_owners_value_on_record() -> None:
    theirs = THEIRS.replace(
        "  - name: predicates", "  - name: deviceshare\n    arguments:\n      deviceshare.ScheduleWeight: 3\n  - name: predicates"
    )
    text, record = plan(theirs)
    text, record = plan(text, record, schedule_weight=20)
    assert record["replaced"]["deviceshare.ScheduleWeight"] == 3
    assert plan(text, record, state="absent", schedule_weight=20) == (theirs, None)


class TestAChartThatBringsAnotherText:
    NEWER = THEIRS.replace("- name: enqueue", "- name: allocate")

    def test_replaces_one_that_nobody_has_edited(self) -> None:
        text, record = plan(THEIRS, base=THEIRS)
        newer, _ = plan(text, record, base=self.NEWER)
        assert "- name: allocate" in newer and "deviceshare" in newer

    def test_leaves_one_that_somebody_has_edited(self) -> None:
        text, record = plan(THEIRS, base=THEIRS)
        edited = text.replace("# needed", "# edited")
        assert "# edited" in plan(edited, record, base=self.NEWER)[0]

    def test_that_is_the_same_changes_nothing(self) -> None:
        text, record = plan(THEIRS, base=THEIRS)
        assert plan(text, record, base=THEIRS) == (text, record)


def test_absent_without_a_record_changes_nothing() -> None:
    text, _ = plan(THEIRS)
    assert plan(text, None, state="absent") == (text, None)


def test_text_that_is_no_yaml_is_refused_with_line_and_cause() -> None:
    from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TenfoldError

    with pytest.raises(TenfoldError, match=r"volcano-scheduler\.conf.*line 4"):
        plan("actions: allocate\ntiers:\n- plugins: [\n")


def test_a_long_original_is_undone_piece_by_piece() -> None:
    long = THEIRS + "# " + "x" * (70 << 10) + "\n"
    text, record = plan(long)
    assert record["original"] is None
    assert "deviceshare" not in plan(text, record, state="absent")[0]


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"added": []}'])
def test_a_damaged_record_counts_as_none(text: str) -> None:
    assert action._record_of({"metadata": {"annotations": {action.RECORD_ANNOTATION: text}}}) is None
