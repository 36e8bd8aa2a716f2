"""What a module on a node says reaches the person: the whole way, through a real connection with pipelining.

ansible-core 2.19 puts objects of its own into a module's result (a warning, a failure), which no format library and no json.dumps knows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.roles.bench import CONTAINERD, Site, changes, site, words

__all__ = ["site"]


def merge(site: Site, *arguments: str, **options: Any) -> Any:
    task = {"tenfold.vgpu.node_config": {"engine_version": "2.2.1", "max_pods": 250, **options}}
    return site.run([{"hosts": "node-1", "tasks": [task]}], *arguments)


def test_the_first_run_with_a_new_remote_temporary_folder_works(site: Site) -> None:
    """Making that folder is worth a warning to Ansible, in the result of the module that needed it first."""
    file, new = site.folder / "config.toml", site.folder / "tmp" / "new"
    file.write_text("version = 3\n")
    site.host["ansible_remote_tmp"] = str(new)
    site.inventory({"gpu_nodes": {"hosts": {"node-1": site.host}}})
    result = merge(site, subject="containerd", path=str(file))
    assert changes(result) == 1
    assert new.is_dir()
    assert "did not exist and was created" in words(result)
    assert "nvidia-container-runtime" in file.read_text()


def test_a_file_that_is_not_utf_8_is_named_with_the_byte(site: Site) -> None:
    (site.folder / "config.toml").write_bytes(b"version = 3 # \xff\n")
    said = words(merge(site, subject="containerd", path=str(site.folder / "config.toml")))
    assert f"cannot read '{site.folder}/config.toml': byte 14 is not UTF-8; correct the file and run again" in said


def test_a_folder_that_cannot_be_written_to_is_named_with_the_systems_words(site: Site) -> None:
    """Not even root makes files in /sys."""
    said = words(merge(site, subject="kubelet", path="/sys/kernel/tenfold.yaml"))
    assert "cannot write '/sys/kernel/" in said and "; nothing was changed" in said


def test_a_text_that_the_engine_refuses_is_told_in_the_engines_words(site: Site) -> None:
    refusal = 'grep -q nvidia "$2" 2>/dev/null && { echo "containerd: no runtime of that name" >&2; exit 1; }\n'
    site.program("containerd", refusal + CONTAINERD)
    file = site.folder / "config.toml"
    file.write_text("version = 3\n")
    for arguments in (["--check"], []):
        said = words(merge(site, *arguments, subject="containerd", path=str(file)))
        assert f"containerd refuses '{file}': containerd: no runtime of that name; correct the file" in said
    assert file.read_text() == "version = 3\n"


def test_a_cluster_that_does_not_answer_is_named(site: Site) -> None:
    admin = Path(site.folder / "admin.conf")
    admin.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: x, cluster: {server: 'https://127.0.0.1:1'}}]\n"
        "contexts: [{name: x, context: {cluster: x, user: x}}]\nusers: [{name: x, user: {token: x}}]\n"
    )
    options = {"namespace": "volcano-system", "config_map": "c", "key": "k", "base": "actions: allocate\n", "kubeconfig": str(admin)}
    said = words(site.run([{"hosts": "node-1", "tasks": [{"tenfold.vgpu.volcano_scheduler_config": options}]}]))
    assert "https://127.0.0.1:1" in said
