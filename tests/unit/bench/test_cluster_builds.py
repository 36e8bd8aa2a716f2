"""What is compiled, with which flags, and when the cache may be reused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.cluster import builds, gomodules
from tests.cluster.builds import Component
from tests.cluster.errors import FleetError
from tests.cluster.versions import Versions


@pytest.fixture()
def components() -> dict[str, Component]:
    return {component.name: component for component in builds.components(Versions.from_file(), "package main")}


class TestComponents:
    def test_versions_file_names_every_component(self, components: dict[str, Component]) -> None:
        assert list(components) == ["kubernetes", "volcano", "containerd", "nvidia-container-toolkit", "helm"]

    def test_component_without_pinned_version_is_refused_by_name(self) -> None:
        versions = Versions({gomodules.KUBERNETES: "v1.35.4"}, (), "0.1.0")
        with pytest.raises(FleetError, match=r"no go_modules entry '\S+'"):
            builds.components(versions, "")

    def test_only_the_toolkit_links_against_libc(self, components: dict[str, Component]) -> None:
        assert [name for name, component in components.items() if component.environment()["CGO_ENABLED"] == "1"] == [
            "nvidia-container-toolkit"
        ]

    def test_binaries_hold_no_path_of_the_builder(self, components: dict[str, Component]) -> None:
        for component in components.values():
            for program in component.programs:
                assert "-trimpath" in component.argv(program, Path("/x"))

    def test_binaries_tell_their_version(self, components: dict[str, Component]) -> None:
        for component in components.values():
            assert component.version.removeprefix("v") in next(
                word for word in component.argv(next(iter(component.programs)), Path("/x")) if word.startswith("-ldflags=")
            )


class TestKey:
    def test_same_inputs_give_the_same_key(self, components: dict[str, Component]) -> None:
        assert components["helm"].key("go1.26.8") == components["helm"].key("go1.26.8")

    @pytest.mark.parametrize("change", [{"version": "v9.9.9"}, {"cgo": True}, {"linker_flags": ("-x",)}, {"programs": {"helm": "./other"}}])
    def test_whatever_changes_the_binary_changes_the_key(self, components: dict[str, Component], change: dict[str, object]) -> None:
        helm = components["helm"]
        assert dataclasses.replace(helm, **change).key("go1.26.8") != helm.key("go1.26.8")  # type: ignore[arg-type]

    def test_another_compiler_gives_another_key(self, components: dict[str, Component]) -> None:
        assert components["helm"].key("go1.25.0") != components["helm"].key("go1.26.8")

    def test_kubernetes_is_rebuilt_when_its_main_changes(self, components: dict[str, Component]) -> None:
        other = builds.components(Versions.from_file(), "package main // changed")[0]
        assert other.key("go1.26.8") != components["kubernetes"].key("go1.26.8")
