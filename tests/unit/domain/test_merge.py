"""Laws of merging into a user's file and giving it back, for all three formats."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import merge
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import MergeError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.merge import Edit
from ansible_collections.tenfold.vgpu.plugins.plugin_utils.formats import CODECS
from hypothesis import given
from hypothesis import strategies as st

WHERE = "/etc/x/config"
FORMATS = sorted(set(CODECS) - {"flags"})  # flags have neither tables nor a syntax
keys = st.sampled_from(["a", "b", "io.containerd.grpc.v1.cri", "enable-cdi", "sub"])
scalars = st.one_of(st.booleans(), st.integers(-5, 1 << 40), st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=12))
values = st.one_of(scalars, st.lists(st.integers(0, 9), max_size=3))
documents = st.recursive(
    st.dictionaries(keys, values, max_size=3),
    lambda inner: st.dictionaries(keys, st.one_of(values, inner), max_size=3),
    max_leaves=12,
)
# Edits never lead through or onto one another: a depth of its own for each name.
edits = st.lists(
    st.tuples(st.sampled_from([("x",), ("a2", "x"), ("sub2", "deep", "x"), ("sub2", "deep", "y"), ("sub2", "z")]), values),
    max_size=4,
    unique_by=lambda edit: edit[0],
).map(lambda pairs: [Edit(path, value) for path, value in pairs])
formats = st.sampled_from(FORMATS)


def text_of(document: dict[str, Any], form: str) -> str:
    codec = CODECS[form]()
    empty = codec.parse("", WHERE)
    empty.update(copy.deepcopy(document))
    return codec.dump(empty)


def plain_of(text: str | None, form: str) -> dict[str, Any]:
    codec = CODECS[form]()
    return codec.plain(codec.parse(text or "", WHERE))


def merged(text: str | None, wanted: list[Edit], form: str, record: merge.Record | None = None) -> merge.Plan:
    return merge.merge(text, lambda _: wanted, record, CODECS[form](), WHERE)


def through_text(record: merge.Record | None) -> merge.Record | None:
    return merge.Record.from_text(record.as_text(), WHERE) if record else None


class TestMerging:
    @given(document=documents, wanted=edits, form=formats)
    def test_every_edit_holds_and_no_other_key_changes(self, document: dict[str, Any], wanted: list[Edit], form: str) -> None:
        after = plain_of(merged(text_of(document, form), wanted, form).text, form)
        for edit in wanted:
            assert merge.lookup(after, edit.path) == edit.value
        for key, value in document.items():
            assert after[key] == value

    @given(document=documents, wanted=edits, form=formats)
    def test_second_merge_changes_nothing(self, document: dict[str, Any], wanted: list[Edit], form: str) -> None:
        first = merged(text_of(document, form), wanted, form)
        second = merged(first.text, wanted, form, through_text(first.record))
        assert (second.text, second.record) == (first.text, through_text(first.record))

    @given(document=documents, first=edits, second=edits, form=formats)
    def test_edits_that_are_no_longer_wanted_are_taken_back(
        self, document: dict[str, Any], first: list[Edit], second: list[Edit], form: str
    ) -> None:
        one = merged(text_of(document, form), first, form)
        two = merged(one.text, second, form, through_text(one.record))
        assert plain_of(two.text, form) == plain_of(merged(text_of(document, form), second, form).text, form)

    @pytest.mark.parametrize("form", FORMATS)
    def test_settings_that_the_user_has_already_leave_no_record(self, form: str) -> None:
        text = text_of({"a": True, "sub": {"b": 3}}, form)
        assert merged(text, [Edit(("a",), True), Edit(("sub", "b"), 3)], form) == merge.Plan(text, None, [])

    @pytest.mark.parametrize("form", sorted(CODECS))
    def test_nothing_to_merge_makes_no_file(self, form: str) -> None:
        assert merged(None, [], form) == merge.Plan(None, None, [])

    def test_true_is_not_one(self) -> None:
        """And a file without a line end at its end keeps that form."""
        for end in ("", "\n"):
            assert merged('{"a": 1}' + end, [Edit(("a",), True)], "json").text == '{"a": true}' + end

    def test_value_where_a_table_is_needed_is_refused_by_name(self) -> None:
        with pytest.raises(MergeError, match=r"'/etc/x/config': plugins is 'none', expected a table"):
            merged('plugins = "none"\n', [Edit(("plugins", "cri", "x"), 1)], "toml")

    def test_table_where_a_value_is_needed_is_refused_by_name(self) -> None:
        with pytest.raises(MergeError, match=r"a\.b is a table, expected a value"):
            merged("[a.b]\nc = 1\n", [Edit(("a", "b"), 1)], "toml")


class TestGivingBack:
    @given(document=st.none() | documents, wanted=edits, form=formats)
    def test_file_that_nobody_touched_returns_byte_for_byte(self, document: dict[str, Any] | None, wanted: list[Edit], form: str) -> None:
        text = None if document is None else text_of(document, form)
        plan = merged(text, wanted, form)
        if plan.record is not None:
            assert merge.unmerge(plan.text, through_text(plan.record), CODECS[form](), WHERE) == merge.Plan(text, None)

    @given(document=documents, wanted=edits, form=formats)
    def test_what_the_user_wrote_since_stays(self, document: dict[str, Any], wanted: list[Edit], form: str) -> None:
        plan = merged(text_of(document, form), wanted, form)
        edited = plain_of(plan.text, form)
        edited["theirs"] = 7
        back = merge.unmerge(text_of(edited, form), through_text(plan.record), CODECS[form](), WHERE)
        if plan.record is not None:
            assert plain_of(back.text, form) == {**document, "theirs": 7}

    def test_value_that_the_user_changed_since_is_left_and_named(self) -> None:
        plan = merged("a = 1\n", [Edit(("a",), 2), Edit(("b",), 3)], "toml")
        back = merge.unmerge("a = 5\nb = 3\n", plan.record, CODECS["toml"](), WHERE)
        assert back == merge.Plan("a = 5\n", None, ["a"])

    def test_file_that_we_made_is_kept_once_the_user_added_to_it(self) -> None:
        plan = merged(None, [Edit(("a",), 2)], "toml")
        back = merge.unmerge(f"{plan.text}mine = true\n", plan.record, CODECS["toml"](), WHERE)
        assert back == merge.Plan("mine = true\n", None, [])

    def test_without_a_record_nothing_changes(self) -> None:
        assert merge.unmerge("a = 1\n", None, CODECS["toml"](), WHERE) == merge.Plan("a = 1\n", None)

    def test_file_that_another_tool_rewrote_is_merged_anew(self) -> None:
        """kubespray writes its own config.toml on every run (kubernetes-sigs/kubespray#12277)."""
        wanted = [Edit(("runtime", "nvidia"), "x"), Edit(("cdi",), True)]
        first = merged("cdi = false\n", wanted, "toml")
        second = merged("# by kubespray\n", wanted, "toml", first.record)
        assert merge.unmerge(second.text, second.record, CODECS["toml"](), WHERE).text == "# by kubespray\n"


class TestAtLeast:
    @given(before=st.integers(0, 500), wanted=st.integers(0, 500))
    def test_number_is_raised_and_never_lowered(self, before: int, wanted: int) -> None:
        rules = [Edit(("maxPods",), wanted, at_least=True)]
        plan = merged(f"maxPods: {before}\n", rules, "yaml")
        assert plain_of(plan.text, "yaml") == {"maxPods": max(before, wanted)}

    def test_number_of_an_earlier_merge_can_be_lowered_again(self) -> None:
        first = merged("maxPods: 110\n", [Edit(("maxPods",), 500, at_least=True)], "yaml")
        second = merged(first.text, [Edit(("maxPods",), 250, at_least=True)], "yaml", first.record)
        assert second.text == "maxPods: 250\n"


class TestRecord:
    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1}', "null", '{"version": 1, "replaced": [{}]}'])
    def test_damaged_record_is_refused_with_what_to_do(self, text: str) -> None:
        with pytest.raises(MergeError, match=r"record '/etc/x/config' is damaged .* restore it from a backup"):
            merge.Record.from_text(text, WHERE)

    def test_record_of_another_release_is_refused(self) -> None:
        text = json.dumps({"version": 9})
        with pytest.raises(MergeError, match="has version 9, expected 1"):
            merge.Record.from_text(text, WHERE)


def test_edits_of_flattens_nested_settings() -> None:
    assert merge.edits_of({"a": 1, "b": {"c": [2], "d": {"e": "f"}}}) == [
        Edit(("a",), 1),
        Edit(("b", "c"), [2]),
        Edit(("b", "d", "e"), "f"),
    ]
