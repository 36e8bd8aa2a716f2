"""What each engine is told, for each version of its file, and what in a user's file forbids a merge."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import merge, runtime_config
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import MergeError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.runtime_config import RuntimeOptions

WHERE = "/etc/containerd/config.toml"
V2 = "io.containerd.grpc.v1.cri"
V3 = "io.containerd.cri.v1.runtime"
OPTIONS = RuntimeOptions()


def containerd(
    document: dict[str, Any], options: RuntimeOptions = OPTIONS, engine: str = "2.2.1", effective: dict[str, Any] | None = None
) -> dict[tuple[str, ...], Any]:
    edits = runtime_config.containerd_edits(document, options, engine, effective or {}, WHERE)
    return {edit.path: edit.value for edit in edits}


class TestContainerd:
    @pytest.mark.parametrize(("version", "plugin"), [(2, V2), (3, V3), (4, V3)])
    def test_runtime_goes_where_that_version_of_the_file_looks_for_it(self, version: int, plugin: str) -> None:
        edits = containerd({"version": version})
        runtime = ("plugins", plugin, "containerd", "runtimes", "nvidia")
        assert edits[(*runtime, "runtime_type")] == "io.containerd.runc.v2"
        assert edits[(*runtime, "options", "BinaryName")] == "/usr/bin/nvidia-container-runtime"

    @pytest.mark.parametrize(
        ("version", "present", "expected"),
        [(2, None, True), (2, False, True), (3, None, None), (3, False, True), (4, None, None), (4, True, None)],
    )
    def test_cdi_is_switched_on_only_where_it_is_off(self, version: int, present: bool | None, expected: bool | None) -> None:
        plugin = V2 if version == 2 else V3
        document: dict[str, Any] = {"version": version}
        if present is not None:
            document["plugins"] = {plugin: {"enable_cdi": present}}
        assert containerd(document).get(("plugins", plugin, "enable_cdi")) == expected

    def test_own_cdi_folders_are_kept_and_ours_added(self) -> None:
        document = {"version": 3, "plugins": {V3: {"cdi_spec_dirs": ["/opt/cdi", "/run/cdi"]}}}
        assert containerd(document)[("plugins", V3, "cdi_spec_dirs")] == ["/opt/cdi", "/run/cdi", "/etc/cdi"]

    @pytest.mark.parametrize(
        ("engine", "version"), [("1.7.24~ds1", 2), ("1.6.20", 2), ("2.0.0", 3), ("v2.2.1", 3), ("2.3.0-rc.1", 4), ("2.10.0", 4), ("3.0", 4)]
    )
    def test_new_file_gets_the_version_of_the_engine(self, engine: str, version: int) -> None:
        assert containerd({}, engine=engine)[("version",)] == version

    def test_cgroup_driver_is_that_of_the_default_runtime(self) -> None:
        """Else pods flap after a reboot: NVIDIA/nvidia-docker#1788."""
        effective = {
            "plugins": {
                V3: {
                    "containerd": {
                        "default_runtime_name": "site",
                        "runtimes": {"site": {"options": {"SystemdCgroup": True}}, "runc": {"options": {"SystemdCgroup": False}}},
                    }
                }
            }
        }
        path = ("plugins", V2, "containerd", "runtimes", "nvidia", "options", "SystemdCgroup")
        assert containerd({"version": 2}, effective=effective)[path] is True
        assert path not in containerd({"version": 2})

    def test_default_runtime_is_left_alone_unless_asked(self) -> None:
        key = ("plugins", V3, "containerd", "default_runtime_name")
        assert key not in containerd({"version": 3})
        assert containerd({"version": 3}, RuntimeOptions(is_default=True))[key] == "nvidia"

    def test_foreign_default_runtime_is_replaced_only_by_takeover(self) -> None:
        document = {"version": 3, "plugins": {V3: {"containerd": {"default_runtime_name": "kata"}}}}
        with pytest.raises(
            MergeError, match=r"\"default_runtime_name\" is 'kata', expected unset or \"nvidia\"; set nvidia_runtime_takeover: true"
        ):
            containerd(document, RuntimeOptions(is_default=True))
        containerd(document, RuntimeOptions(is_default=True, takeover=True))

    @pytest.mark.parametrize(
        ("document", "cause"),
        [
            ({"plugins": {"cri": {}}}, "no 'version'"),
            ({"version": 1}, "version 1, expected 2, 3 or 4"),
            ({"version": 5}, "version 5, expected 2, 3 or 4"),
            ({"version": True}, "version True"),
            ({"version": "2"}, "version '2'"),
            ({"disabled_plugins": ["cri"]}, "disables the CRI plugin"),
            ({"version": 3, "disabled_plugins": [V3]}, "disables the CRI plugin"),
        ],
    )
    def test_file_that_no_kubelet_could_use_is_refused(self, document: dict[str, Any], cause: str) -> None:
        with pytest.raises(MergeError, match=cause):
            containerd(document)

    def test_version_that_is_no_number_is_refused(self) -> None:
        with pytest.raises(MergeError, match="reports version 'master'"):
            containerd({}, engine="master")

    def test_lost_section_is_told_from_our_own_keys(self) -> None:
        """On containerd 1 a section in one file replaces that of an imported one as a whole."""
        before = {"plugins": {V2: {"sandbox_image": "mirror/pause", "containerd": {"runtimes": {"runc": {"runtime_type": "r"}}}}}}
        after = {"plugins": {V2: {"enable_cdi": True, "containerd": {"runtimes": {"nvidia": {"runtime_type": "r"}}}}}}
        assert runtime_config.containerd_foreign_changes(before, after, OPTIONS) == [
            f"plugins.{V2}.containerd.runtimes.runc.runtime_type",
            f"plugins.{V2}.sandbox_image",
        ]
        assert runtime_config.containerd_foreign_changes(before, before, OPTIONS) == []

    def test_zero_value_of_a_runtime_and_the_list_of_read_files_are_no_change(self) -> None:
        before = {
            "imports": ["/tmp/a"],
            "plugins": {V2: {"containerd": {"runtimes": {"runc": {"snapshotter": "", "options": {"IoUid": 0}}}}}},
        }
        after = {"imports": ["/tmp/b"], "plugins": {V2: {"containerd": {"runtimes": {"runc": {}}}}}}
        assert runtime_config.containerd_foreign_changes(before, after, OPTIONS) == []

    def test_built_in_runtime_is_written_out_where_naming_ours_would_lose_it(self) -> None:
        """Seen with containerd 1.6.20 and 1.7.24; containerd 2 merges."""
        runc = {"runtime_type": "io.containerd.runc.v2", "snapshotter": "", "options": {"SystemdCgroup": True, "IoUid": 0}}
        effective = {"plugins": {V2: {"containerd": {"default_runtime_name": "runc", "runtimes": {"runc": runc, "nvidia": {"x": 1}}}}}}
        runtimes = ("plugins", V2, "containerd", "runtimes")
        old = containerd({"version": 2}, engine="1.7.24", effective=effective)
        assert {path[4:]: value for path, value in old.items() if path[:5] == (*runtimes, "runc")} == {
            ("runc", "runtime_type"): "io.containerd.runc.v2",
            ("runc", "options", "SystemdCgroup"): True,
        }
        own = {"version": 2, "plugins": {V2: {"containerd": {"runtimes": {"runc": {"runtime_type": "x"}}}}}}
        for document, engine in ((own, "1.7.24"), ({"version": 2}, "2.2.1")):
            assert not [path for path in containerd(document, engine=engine, effective=effective) if path[:5] == (*runtimes, "runc")]

    @pytest.mark.parametrize("plugin", [V2, V3])
    def test_key_that_an_imported_file_overrides_is_named(self, plugin: str) -> None:
        def effective(binary: str, cdi: bool) -> dict[str, Any]:
            runtimes = {"nvidia": {"options": {"BinaryName": binary}}}
            return {"plugins": {plugin: {"enable_cdi": cdi, "containerd": {"default_runtime_name": "runc", "runtimes": runtimes}}}}

        right = effective(OPTIONS.binary, True)
        assert runtime_config.containerd_overridden(right, OPTIONS) == []
        assert runtime_config.containerd_overridden(effective("/opt/other", False), OPTIONS) == [
            "containerd.runtimes.nvidia.options.BinaryName = '/opt/other'",
            "enable_cdi = False",
        ]
        assert runtime_config.containerd_overridden(right, RuntimeOptions(is_default=True)) == ["containerd.default_runtime_name = 'runc'"]


class TestDocker:
    def test_runtime_and_cdi_are_added_as_far_as_the_version_knows_them(self) -> None:
        for has_feature in (True, False):
            edits = {edit.path: edit.value for edit in runtime_config.docker_edits({}, OPTIONS, has_feature, WHERE)}
            assert edits[("runtimes", "nvidia", "path")] == "/usr/bin/nvidia-container-runtime"
            assert (("features", "cdi") in edits) is has_feature
            assert ("default-runtime",) not in edits

    def test_foreign_default_runtime_is_replaced_only_by_takeover(self) -> None:
        with pytest.raises(MergeError, match="\"default-runtime\" is 'kata'"):
            runtime_config.docker_edits({"default-runtime": "kata"}, RuntimeOptions(is_default=True), True, WHERE)


class TestCrio:
    def test_runtime_is_an_oci_runtime_of_its_own(self) -> None:
        edits = runtime_config.crio_edits({}, OPTIONS, WHERE)
        assert merge.lookup(_document(edits), ("crio", "runtime", "runtimes", "nvidia")) == {
            "runtime_path": "/usr/bin/nvidia-container-runtime",
            "runtime_type": "oci",
        }

    def test_default_runtime_of_the_distribution_counts_as_unset(self) -> None:
        document = {"crio": {"runtime": {"default_runtime": "crun"}}}
        edits = runtime_config.crio_edits(document, RuntimeOptions(is_default=True), WHERE)
        assert merge.lookup(_document(edits), ("crio", "runtime", "default_runtime")) == "nvidia"


class TestKubelet:
    def test_new_drop_in_says_what_it_is(self) -> None:
        assert _document(runtime_config.kubelet_edits({}, 250, WHERE)) == {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "maxPods": 250,
        }

    def test_file_of_another_kind_is_refused(self) -> None:
        with pytest.raises(MergeError, match="of kind 'KubeProxyConfiguration'"):
            runtime_config.kubelet_edits({"kind": "KubeProxyConfiguration"}, 250, WHERE)


def _document(edits: list[merge.Edit]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for edit in edits:
        table = document
        for key in edit.path[:-1]:
            table = table.setdefault(key, {})
        table[edit.path[-1]] = edit.value
    return document
