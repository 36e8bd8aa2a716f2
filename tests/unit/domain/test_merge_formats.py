"""What a merge leaves of a user's spelling, and how a broken file is refused: with file, line and cause."""

from __future__ import annotations

import difflib

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import merge
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import MergeError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.merge import Edit
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.runtime_config import kubelet_flags_edits
from ansible_collections.tenfold.vgpu.plugins.plugin_utils.formats import CODECS

KUBEADM = """\
# written by kubeadm
apiVersion: kubelet.config.k8s.io/v1beta1
clusterDNS:
- 10.96.0.10
evictionHard: {memory.available: "5%"}   # flow style
kind: KubeletConfiguration
mode: 0644
text: 'it''s'
maxPods: 110    # room
# tail
"""
INDENTED = """\
---
clusterDNS:
  - 10.96.0.10
  - 10.96.0.11
registerWithTaints:
  - key: nvidia.com/gpu
    effect: NoSchedule
"""
CONTAINERD = """\
version = 2   # of the file

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = 'pause:1'  # mirror
    [plugins."io.containerd.grpc.v1.cri".registry]
      config_path = "/etc/containerd/certs.d"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/opt"
"""
DAEMON = """\
{
  "log-opts": {"max-size": "10m"},
  "mtu": 1450,
  "hosts": ["fd://"],
  "é": "ü"
}
"""


def changed_lines(before: str, form: str, *wanted: Edit) -> tuple[list[str], list[str]]:
    """Lines that a merge takes away and adds, blank ones apart."""
    after = merge.merge(before, lambda _: wanted, None, CODECS[form](), "f").text or ""
    diff = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[2:].strip()]
    return [line[2:] for line in diff if line[0] == "-"], [line[2:] for line in diff if line[0] == "+"]


def test_yaml_changes_one_value_and_keeps_its_comment() -> None:
    assert changed_lines(KUBEADM, "yaml", Edit(("maxPods",), 250)) == (["maxPods: 110    # room"], ["maxPods: 250    # room"])


@pytest.mark.parametrize("text", [KUBEADM, INDENTED, INDENTED.replace("  - ", "- ").replace("    effect", "  effect")])
def test_yaml_adds_a_key_and_touches_no_other_line(text: str) -> None:
    assert changed_lines(text, "yaml", Edit(("cpu",), "x")) == ([], ["cpu: x"])


def test_toml_adds_keys_and_tables_and_touches_no_other_line() -> None:
    cri = ("plugins", "io.containerd.grpc.v1.cri")
    removed, added = changed_lines(
        CONTAINERD, "toml", Edit((*cri, "enable_cdi"), True), Edit((*cri, "containerd", "runtimes", "n", "t"), "v")
    )
    assert removed == []
    assert [line.strip() for line in added] == [
        "enable_cdi = true",
        '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.n]',
        't = "v"',
    ]


def test_json_keeps_order_indentation_and_letters() -> None:
    after = merge.merge(DAEMON, lambda _: [Edit(("mtu",), 1500)], None, CODECS["json"](), "f").text or ""
    assert list(CODECS["json"]().parse(after, "f")) == ["log-opts", "mtu", "hosts", "é"]
    assert '\n  "mtu": 1500,\n' in after
    assert '"é": "ü"' in after


class TestFlags:
    """A kubelet whose limit stands on its command line: the file that holds it is changed there, and nowhere else."""

    TEXT = '# --max-pods=30 was too low\nKUBELET_EXTRA_ARGS="--node-ip=10.0.0.1 --max-pods=110 --x-max-pods=5"\nOTHER=1\n'

    def plan(self, text: str, max_pods: int) -> merge.Plan:
        return merge.merge(text, lambda found: kubelet_flags_edits(found, max_pods), None, CODECS["flags"](), "f")

    def test_number_is_raised_where_it_stands(self) -> None:
        plan = self.plan(self.TEXT, 250)
        assert plan.text == self.TEXT.replace("--max-pods=110", "--max-pods=250")
        assert merge.unmerge(plan.text, plan.record, CODECS["flags"](), "f").text == self.TEXT

    def test_larger_number_and_a_file_without_the_flag_stay(self) -> None:
        for text in (self.TEXT, "OTHER=1\n", "ARGS=--max-pods\n"):
            assert self.plan(text, 100) == merge.Plan(text, None, [])

    def test_number_after_a_space_is_a_number_too(self) -> None:
        assert self.plan("ARGS=--max-pods 110\n", 250).text == "ARGS=--max-pods 250\n"


@pytest.mark.parametrize(
    ("form", "text", "place", "cause"),
    [
        ("toml", "version = 2\n[plugins\n", "line 2", "Expected ']'"),
        ("toml", "a = 1\nb = \n", "line 2", "Invalid value"),
        ("toml", "[a]\nx = 1\n[a]\n", "line 3", "twice"),
        ("toml", "a = 1\na = 2\n", "line 2", "Cannot overwrite"),
        ("yaml", "a: 1\nb: [1,\nc: 2\n", "line 4", "expected ',' or ']'"),
        ("yaml", "a: 1\na: 2\n", "line 2", "duplicate key"),
        ("yaml", "a: 1\n\tb: 2\n", "line 2", "character"),
        ("yaml", "- a\n- b\n", "line 1", "expected a mapping"),
        ("yaml", "a: 1\n---\nb: 2\n", "line 2", "another document"),
        ("json", '{\n  "a": 1,\n}\n', "line 3", "double quotes"),
        ("json", '{\n  "a": 1,\n  "b": 1,\n  "a": 2\n}\n', "line 4", "'a' is given twice"),
        ("json", "[]", "line 1", "expected an object"),
    ],
)
def test_broken_file_is_refused_with_file_line_and_cause(form: str, text: str, place: str, cause: str) -> None:
    with pytest.raises(MergeError) as refused:
        merge.merge(text, lambda _: [Edit(("x",), 1)], None, CODECS[form](), "/etc/site/file")
    message = str(refused.value)
    assert message.startswith(f"cannot parse '/etc/site/file' {place}, column ")
    assert cause in message
    assert message.endswith("correct the file and run again, nothing was changed")
    assert refused.value.details["path"] == "/etc/site/file"
