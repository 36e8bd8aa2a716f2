"""The cluster's roles as far as they go without a cluster: manifests of the example fleet, and what they share with the plugin."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import tiers

from tenfold_device_plugin import settings
from tests import ROOT

ROLES = ("volcano", "slice_tiers", "vgpu_device_plugin")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def render(folder: Path, **variables: str) -> dict[str, list[dict[str, Any]]]:
    """File name -> documents that playbooks/cluster.yml renders for inventories/a800, without Volcano's chart (which needs helm)."""
    words = {"cluster_apply": "render", "cluster_render_path": str(folder), **variables}
    argv = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "--inventory=inventories/a800",
        "--tags=slice_tiers,vgpu_device_plugin",
        "--extra-vars=" + " ".join(f"{name}={value}" for name, value in words.items()),
        "playbooks/cluster.yml",
    ]
    done = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name: list(yaml.safe_load_all(path.read_text(encoding="utf-8"))) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The example fleet as it is."""
    return render(tmp_path_factory.mktemp("manifests"))


def one(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = [document for document in documents if document["kind"] == kind]
    assert len(found) == 1
    return found[0]


class TestRendering:
    def test_needs_no_host_and_no_cluster(self, rendered: dict[str, list[dict[str, Any]]]) -> None:
        assert sorted(rendered) == [
            "slice_tiers.yaml",
            "slice_tiers_nodes.yaml",
            "vgpu_device_plugin.yaml",
            "vgpu_device_plugin_nodes.yaml",
        ]

    def test_the_catalogue_is_immutable_and_named_by_its_content(self, rendered: dict[str, list[dict[str, Any]]]) -> None:
        config_map = one(rendered["slice_tiers.yaml"], "ConfigMap")
        catalogue = tiers.Catalogue.from_json(config_map["data"]["catalogue.json"])
        assert config_map["immutable"] is True
        assert config_map["metadata"]["name"] == f"tenfold-tiers-{catalogue.hash8}"

    def test_every_node_obeys_it_and_gets_the_plugin(self, rendered: dict[str, list[dict[str, Any]]]) -> None:
        revision = one(rendered["slice_tiers.yaml"], "ConfigMap")["metadata"]["name"].rpartition("-")[2]
        obeying = rendered["slice_tiers_nodes.yaml"]
        assert {node["metadata"]["annotations"]["tenfold.dev/tiers-revision"] for node in obeying} == {revision}
        labelled = {node["metadata"]["name"] for node in rendered["vgpu_device_plugin_nodes.yaml"]}
        assert labelled == {node["metadata"]["name"] for node in obeying} and len(labelled) == 20
        selector = one(rendered["vgpu_device_plugin.yaml"], "DaemonSet")["spec"]["template"]["spec"]["nodeSelector"]
        assert all(node["metadata"]["labels"] == selector for node in rendered["vgpu_device_plugin_nodes.yaml"])

    def test_both_roles_write_the_same_namespace(self, rendered: dict[str, list[dict[str, Any]]]) -> None:
        """Server-side apply removes what one of two applies by the same manager leaves out."""
        assert one(rendered["slice_tiers.yaml"], "Namespace") == one(rendered["vgpu_device_plugin.yaml"], "Namespace")

    def test_nodes_are_labelled_by_their_way_and_policies_come_where_asked(self, tmp_path: Path) -> None:
        documents = render(tmp_path, gpu_node_enforcement="mig", slice_tiers_policies_enabled="true", slice_tiers_policies_operators="olga")
        assert {node["metadata"]["labels"]["tenfold.dev/enforcement"] for node in documents["vgpu_device_plugin_nodes.yaml"]} == {"mig"}
        kinds = [document["kind"] for document in documents["slice_tiers_policies.yaml"]]
        assert kinds.count("ValidatingAdmissionPolicy") == kinds.count("ValidatingAdmissionPolicyBinding") == 2
        data = one(documents["slice_tiers_policies.yaml"], "ConfigMap")["data"]
        assert (data["small"], data["_operators"]) == ("8192,10", "olga")


class TestTheDaemonSet:
    def pod(self, rendered: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
        spec: dict[str, Any] = one(rendered["vgpu_device_plugin.yaml"], "DaemonSet")["spec"]["template"]["spec"]
        return spec

    def test_two_plugins_never_share_a_node(self, rendered: dict[str, list[dict[str, Any]]]) -> None:
        strategy = one(rendered["vgpu_device_plugin.yaml"], "DaemonSet")["spec"]["updateStrategy"]
        assert strategy["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}

    def test_it_may_end_as_slowly_as_the_plugin_wants(self, rendered: dict[str, list[dict[str, Any]]]) -> None:
        wanted = settings.Settings(node_name="x").shutdown_wait_seconds
        assert self.pod(rendered)["terminationGracePeriodSeconds"] >= max(60, wanted + 10)

    def test_it_sees_the_nodes_own_processes(self, rendered: dict[str, list[dict[str, Any]]]) -> None:
        """NVML names them by the node's pids, and their mounts in the node's /proc say which slot they belong to."""
        assert self.pod(rendered)["hostPID"] is True

    def test_every_variable_is_a_switch_of_the_plugin(self, rendered: dict[str, list[dict[str, Any]]]) -> None:
        names = {entry["name"] for entry in self.pod(rendered)["containers"][0]["env"] if entry["name"].startswith("TENFOLD_")}
        assert names <= {f"TENFOLD_{name.upper()}" for name in settings.Settings.__dataclass_fields__}

    def test_every_folder_of_the_plugin_is_mounted_where_the_node_has_it(self, rendered: dict[str, list[dict[str, Any]]]) -> None:
        pod = self.pod(rendered)
        paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
        mounts = pod["containers"][0]["volumeMounts"]
        assert all(paths[mount["name"]] == mount["mountPath"] for mount in mounts)
        defaults = settings.Settings(node_name="x")
        needed = [defaults.hook_root, defaults.state_dir, defaults.catalogue_dir, defaults.run_dir, defaults.cdi_dir]
        needed += [defaults.device_plugins_dir, defaults.pod_resources_socket.parent, Path("/etc/cdi")]
        for folder in needed:
            assert any(Path(mount["mountPath"]) in (folder, *folder.parents) for mount in mounts), folder

    def test_it_may_do_what_the_plugin_says_it_needs_and_no_more(self, rendered: dict[str, list[dict[str, Any]]]) -> None:
        table = re.findall(
            r"^    (\S+) +((?:get|list|watch|patch|create)(?: (?:get|list|watch|patch|create))*) {2,}",
            (ROOT / "files/device_plugin/src/tenfold_device_plugin/cluster.py").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        wanted = {resource: set(verbs.split()) for resource, verbs in table if resource != "pods/eviction"}
        documents = rendered["vgpu_device_plugin.yaml"]
        rules = one(documents, "ClusterRole")["rules"] + one(documents, "Role")["rules"]
        assert {rule["resources"][0]: set(rule["verbs"]) for rule in rules} == wanted
        assert "configmaps" not in [rule["resources"][0] for rule in one(documents, "ClusterRole")["rules"]]


@pytest.mark.parametrize("role", ROLES)
class TestEveryRole:
    def test_describes_each_default_with_its_value(self, role: str) -> None:
        defaults = load(ROOT / "roles" / role / "defaults/main.yml")
        entries = load(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"]
        options = {name: option for entry in entries.values() for name, option in entry["options"].items()}
        described = {name: option["default"] for name, option in options.items() if "default" in option}
        assert described == {name: value for name, value in defaults.items() if "{{" not in str(value)}
        assert all(option.get("description") for option in options.values())

    def test_has_variables_of_its_own_name_only(self, role: str) -> None:
        files = [ROOT / "roles" / role / "defaults/main.yml", *(ROOT / "roles" / role / "vars").rglob("*.yml")]
        names = [name for file in files for name in load(file)]
        assert all(name.startswith((role, f"__{role}")) for name in names)

    def test_can_be_taken_away_again(self, role: str) -> None:
        options = load(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
        assert options[f"{role}_state"]["choices"] == ["present", "absent"]


def test_the_example_fleet_has_158_cards_on_20_nodes() -> None:
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible-playbook")),
            "--inventory=inventories/a800",
            "--tags=tiers",
            "playbooks/preflight.yml",
        ],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on 158 cards of 20 nodes" in done.stdout
