"""The shared go.mod of Kubernetes and Volcano: what is taken from the modules' own files and which version wins."""

from __future__ import annotations

import pytest

from tests.cluster import gomodules

KUBERNETES_GO_MOD = """\
module k8s.io/kubernetes

go 1.25.0

require (
	github.com/google/uuid v1.6.0
	golang.org/x/net v0.47.0 // indirect
	k8s.io/api v0.0.0
	k8s.io/kubelet v0.0.0
)

require gopkg.in/yaml.v3 v3.0.1

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/kubelet => ./staging/src/k8s.io/kubelet
)
"""
VOLCANO_GO_MOD = """\
module volcano.sh/volcano

require (
	github.com/google/uuid v1.3.0
	golang.org/x/net v0.50.0
	k8s.io/api v0.35.3
)

replace k8s.io/api => k8s.io/api v0.35.3
"""
VERSIONS = {
    "k8s.io/kubernetes": "v1.35.4",
    "volcano.sh/volcano": "v1.15.1",
    "volcano.sh/apis": "v1.14.0",
    "go.etcd.io/etcd/server/v3": "v3.6.5",
}


class TestRequirements:
    def test_blocks_and_single_lines_are_read_and_placeholders_are_dropped(self) -> None:
        assert gomodules.requirements(KUBERNETES_GO_MOD) == {
            "github.com/google/uuid": "v1.6.0",
            "golang.org/x/net": "v0.47.0",
            "gopkg.in/yaml.v3": "v3.0.1",
        }

    def test_staging_modules_are_those_replaced_by_folders(self) -> None:
        assert gomodules.staging_modules(KUBERNETES_GO_MOD) == ["k8s.io/api", "k8s.io/kubelet"]


class TestVersionOrder:
    @pytest.mark.parametrize(
        ("lower", "higher"),
        [
            ("v1.9.0", "v1.10.0"),
            ("v1.0.0-rc.1", "v1.0.0"),
            ("v1.0.0-rc.2", "v1.0.0-rc.10"),
            ("v0.0.0-20240101000000-abcdefabcdef", "v0.0.0-20250101000000-abcdefabcdef"),
            ("v1.2.3-0.20240101000000-abcdefabcdef", "v1.2.3"),
            ("v1.0.0-1", "v1.0.0-alpha"),
        ],
    )
    def test_later_version_sorts_higher(self, lower: str, higher: str) -> None:
        assert gomodules.version_order(lower) < gomodules.version_order(higher)

    def test_build_metadata_does_not_count(self) -> None:
        assert gomodules.version_order("v2.0.0+incompatible") == gomodules.version_order("v2.0.0")


class TestWorkspace:
    @pytest.fixture()
    def lines(self) -> list[str]:
        return [line.strip() for line in gomodules.workspace(KUBERNETES_GO_MOD, VOLCANO_GO_MOD, VERSIONS).splitlines()]

    def test_higher_requirement_wins_whichever_module_has_it(self, lines: list[str]) -> None:
        assert "github.com/google/uuid v1.6.0" in lines
        assert "golang.org/x/net v0.50.0" in lines

    def test_staging_modules_follow_kubernetes_and_not_volcano(self, lines: list[str]) -> None:
        assert "k8s.io/api v0.35.4" in lines
        assert "k8s.io/api => k8s.io/api v0.35.4" in lines
        assert not [line for line in lines if "v0.35.3" in line]

    def test_pinned_modules_are_taken_from_the_versions_file(self, lines: list[str]) -> None:
        assert {f"{module} {version}" for module, version in VERSIONS.items()} <= set(lines)

    def test_volcano_apis_come_from_the_supplemented_copy(self, lines: list[str]) -> None:
        assert "volcano.sh/apis => ./volcano-apis" in lines


def test_merged_sums_hold_each_line_once() -> None:
    assert gomodules.merged_sums(["b v1 h1:x=\na v1 h1:y=\n", "a v1 h1:y=\n\n"]) == "a v1 h1:y=\nb v1 h1:x=\n"
