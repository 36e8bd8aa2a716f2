"""Rendering Volcano's chart: what helm is asked, and what is said when the chart or helm is not what it should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.tenfold.vgpu.plugins.modules import volcano_manifests

from tests.unit.modules.test_volcano_chart import CONFIG, scheduler

RunModule = Callable[..., "dict[str, Any]"]

# Writes down what it was asked and the values it was given; `show chart` answers with the version, `template` with the objects beside it.
HELM = """#!/bin/sh
here=$(dirname "$0"); echo "$*" >> "$here/asked"
case "$1" in
show) echo "version: $(cat "$here/version")";;
template) for word in "$@"; do case "$word" in *values.json) cp "$word" "$here/values";; esac; done; cat "$here/objects";;
esac
"""


@pytest.fixture
def helm(tmp_path: Path) -> Path:
    (tmp_path / "version").write_text("1.15.1", encoding="utf-8")
    (tmp_path / "objects").write_text(yaml.safe_dump_all([CONFIG, scheduler()]), encoding="utf-8")
    (tmp_path / "chart").mkdir()
    path = tmp_path / "helm"
    path.write_text(HELM, encoding="utf-8")
    path.chmod(0o755)
    return path


def options(helm: Path, **changes: Any) -> dict[str, Any]:
    chart = str(helm.parent / "chart")
    return {"helm_binary": str(helm), "chart": chart, "version": "1.15.1", "namespace": "volcano-system", **changes}


def asked(helm: Path) -> list[str]:
    return (helm.parent / "asked").read_text(encoding="utf-8").splitlines()


class TestWhatHelmIsAsked:
    def test_a_folder_needs_no_repository(self, helm: Path, run_module: RunModule) -> None:
        result = run_module(volcano_manifests.main, **options(helm, repository="https://charts.example", kubernetes_version="1.35.4"))
        assert not result["changed"] and result["scheduler"] == "volcano-scheduler"
        show, template = asked(helm)
        assert show == f"show chart {helm.parent / 'chart'}"
        assert template.startswith(f"template volcano {helm.parent / 'chart'} --namespace volcano-system --include-crds")
        assert template.endswith("--kube-version 1.35.4") and "--repo" not in template

    def test_a_name_comes_from_the_repository_in_that_version(self, helm: Path, run_module: RunModule) -> None:
        run_module(volcano_manifests.main, **options(helm, chart="volcano", repository="https://charts.example"))
        assert asked(helm)[0] == "show chart volcano --repo https://charts.example --version 1.15.1"

    def test_an_oci_reference_is_taken_as_it_is(self, helm: Path, run_module: RunModule) -> None:
        run_module(volcano_manifests.main, **options(helm, chart="oci://registry.example/volcano", repository="https://charts.example"))
        assert asked(helm)[0] == "show chart oci://registry.example/volcano --version 1.15.1"

    def test_values_reach_it_with_their_types(self, helm: Path, run_module: RunModule) -> None:
        values = {"basic": {"image_registry": "mirror:5000"}, "custom": {"scheduler_replicas": 2}}
        run_module(volcano_manifests.main, **options(helm, values=values))
        assert json.loads((helm.parent / "values").read_text(encoding="utf-8")) == values


class TestWhatIsRefused:
    def test_a_chart_of_another_version(self, helm: Path, run_module: RunModule) -> None:
        (helm.parent / "version").write_text("1.14.2", encoding="utf-8")
        assert "is version 1.14.2, expected 1.15.1" in run_module(volcano_manifests.main, **options(helm))["msg"]

    def test_a_folder_that_does_not_exist(self, helm: Path, run_module: RunModule) -> None:
        result = run_module(volcano_manifests.main, **options(helm, chart="./none"))
        assert "chart './none' does not exist; set volcano_chart" in result["msg"]

    def test_a_machine_without_helm(self, helm: Path, run_module: RunModule) -> None:
        result = run_module(volcano_manifests.main, **options(helm, helm_binary=str(helm.parent / "none")))
        assert "does not exist; install helm 3.8 or newer, or set volcano_helm_binary" in result["msg"]

    def test_a_helm_that_fails_is_quoted(self, helm: Path, run_module: RunModule) -> None:
        helm.write_text("#!/bin/sh\necho 'Error: no such host' >&2; exit 1\n", encoding="utf-8")
        assert "failed: Error: no such host" in run_module(volcano_manifests.main, **options(helm))["msg"]

    def test_another_chart(self, helm: Path, run_module: RunModule) -> None:
        (helm.parent / "objects").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
        assert "is it Volcano's" in run_module(volcano_manifests.main, **options(helm))["msg"]
