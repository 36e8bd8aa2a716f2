"""Which Volcano a cluster has, whether slices can live with it, and which part of a chart an object plays."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import volcano
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.errors import ChartError, ClusterError


def scheduler(namespace: str = "volcano-system", image: str = "docker.io/volcanosh/vc-scheduler:v1.15.1", **labels: str) -> dict[str, Any]:
    container = {
        "name": "volcano-scheduler",
        "image": image,
        "args": ["--logtostderr", "--scheduler-conf=/volcano.scheduler/volcano-scheduler.conf", "-v=3"],
        "volumeMounts": [{"name": "conf", "mountPath": "/volcano.scheduler"}],
    }
    pod_spec = {"containers": [container], "volumes": [{"name": "conf", "configMap": {"name": "volcano-scheduler-configmap"}}]}
    metadata = {"name": "volcano-scheduler", "namespace": namespace, "labels": labels}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": {"spec": pod_spec}}}


def found(*deployments: dict[str, Any], **options: Any) -> volcano.Scheduler:
    answer = volcano.find_scheduler(deployments, **options)
    assert answer is not None
    return answer


class TestFindingTheScheduler:
    def test_it_is_known_by_its_image(self) -> None:
        one = found(scheduler())
        assert (one.namespace, one.deployment, one.version) == ("volcano-system", "volcano-scheduler", "1.15.1")
        assert (one.config_map, one.config_key) == ("volcano-scheduler-configmap", "volcano-scheduler.conf")

    def test_it_is_known_by_its_label_where_the_image_was_renamed(self) -> None:
        assert found(scheduler(image="registry:5000/mirror/sched@sha256:00", app="volcano-scheduler")).version == ""

    def test_a_deployment_without_either_is_none(self) -> None:
        assert volcano.find_scheduler([scheduler(image="kube-batch:v0.5")]) is None

    @pytest.mark.parametrize(
        ("image", "version"),
        [
            ("registry:5000/vc-scheduler:v1.15.1", "1.15.1"),
            ("registry:5000/vc-scheduler:v1.16.0-alpha.1", "1.16.0-alpha.1"),
            ("registry:5000/vc-scheduler:latest", ""),
            ("registry:5000/vc-scheduler", ""),
            ("vc-scheduler:v1.15.1@sha256:0123", "1.15.1"),
        ],
    )
    def test_its_version_is_its_tag_and_nothing_else(self, image: str, version: str) -> None:
        assert found(scheduler(image=image)).version == version

    def test_a_shell_line_and_a_renamed_key_are_understood(self) -> None:
        deployment = scheduler()
        pod_spec = deployment["spec"]["template"]["spec"]
        pod_spec["containers"][0].update(args=None, command=["sh", "-c", "/vc-scheduler --scheduler-conf=/volcano.scheduler/s.conf 2>&1"])
        pod_spec["volumes"][0]["configMap"]["items"] = [{"key": "conf", "path": "s.conf"}]
        assert found(deployment).config_key == "conf"

    def test_of_two_the_one_in_the_given_namespace_counts(self) -> None:
        assert found(scheduler("a"), scheduler("b"), namespace="b").namespace == "b"
        with pytest.raises(ClusterError, match=r"more than one Volcano scheduler .*'a/volcano-scheduler', 'b/volcano-scheduler'"):
            volcano.find_scheduler([scheduler("a"), scheduler("b")], namespace="c")

    def test_a_configuration_on_no_config_map_is_refused(self) -> None:
        deployment = scheduler()
        deployment["spec"]["template"]["spec"]["volumes"][0] = {"name": "conf", "hostPath": {"path": "/etc"}}
        with pytest.raises(ClusterError, match="which is on no ConfigMap"):
            volcano.find_scheduler([deployment])

    def test_ours_are_told_from_others_by_namespace_and_name(self) -> None:
        assert found(scheduler("a"), ours=["a/volcano-scheduler"]).is_ours
        assert not found(scheduler("a"), ours=["b/volcano-scheduler"]).is_ours


class TestVersions:
    @pytest.mark.parametrize("version", ["1.15.1", "v1.15.1", "1.15.2", "1.16.0-alpha.1", "2.0.0"])
    def test_the_minimum_and_newer_are_supported(self, version: str) -> None:
        volcano.require_supported(version, "1.15.1", "'x/y'")

    @pytest.mark.parametrize("version", ["1.15.0", "1.14.4", "v1.9.0", "0.4.2"])
    def test_older_ones_are_refused_with_the_reason(self, version: str) -> None:
        with pytest.raises(ClusterError, match=rf"'x/y' is {version}, expected 1\.15\.1 or newer: before 1\.15\.0 SchedulePolicy"):
            volcano.require_supported(version, "1.15.1", "'x/y'")

    def test_an_unknown_one_asks_for_the_variable(self) -> None:
        with pytest.raises(ClusterError, match="set volcano_installed_version"):
            volcano.require_supported("", "1.15.1", "'x/y'")


CONFIG = {"kind": "ConfigMap", "metadata": {"name": "volcano-scheduler-configmap"}, "data": {"volcano-scheduler.conf": ""}}
JOB = {
    "kind": "Job",
    "metadata": {"name": "init", "annotations": {"helm.sh/hook": "pre-install,pre-upgrade", "helm.sh/hook-weight": "5", "keep": "me"}},
}


class TestPartsOfAChart:
    def chart(self) -> list[dict[str, Any]]:
        deployment = scheduler()
        del deployment["metadata"]["namespace"]
        return copy.deepcopy([{"kind": "CustomResourceDefinition", "metadata": {"name": "jobs"}}, CONFIG, JOB, deployment])

    def test_every_object_is_in_one_part(self) -> None:
        parts = volcano.chart_parts(self.chart(), "volcano-system")
        assert [one["metadata"]["name"] for one in parts.crds] == ["jobs"]
        assert [one["kind"] for one in parts.objects] == ["Deployment"]
        assert parts.config["kind"] == "ConfigMap" and parts.config_key == "volcano-scheduler.conf"
        assert parts.scheduler == "volcano-scheduler"

    def test_what_helm_runs_first_loses_helms_annotations_only(self) -> None:
        init = volcano.chart_parts(self.chart(), "volcano-system").init
        assert init == [{"kind": "Job", "metadata": {"name": "init", "annotations": {"keep": "me"}}}]

    def test_another_chart_is_refused(self) -> None:
        with pytest.raises(ChartError, match="no Deployment with the flag --scheduler-conf"):
            volcano.chart_parts([CONFIG], "volcano-system")
        with pytest.raises(ChartError, match="no ConfigMap 'volcano-scheduler-configmap'"):
            volcano.chart_parts([one for one in self.chart() if one["kind"] != "ConfigMap"], "volcano-system")
