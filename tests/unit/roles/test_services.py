"""A node's services run with what is on the disk when a run ends, whatever ended the run before it."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from tests.unit.roles.bench import Site, changes, site, words

__all__ = ["site"]


class Engine:
    """containerd as a unit of the site, with the role's variables."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.file = site.folder / "config.toml"
        self.file.write_text("version = 2\n")
        site.unit("containerd", argv=[str(site.folder / "containerd"), "--config", str(self.file)])
        site.systemctl("daemon-reload")
        site.systemctl("restart", "containerd")
        site.asked()

    def play(self, *arguments: str, **variables: Any) -> Any:
        mine = {
            "nvidia_runtime_toolkit_config_path": str(self.site.folder / "toolkit.toml"),
            "nvidia_runtime_cdi_specification_enabled": False,
        }
        return self.site.play("nvidia_runtime", "node-1", *arguments, **{**mine, **variables})


class Kubelet:
    """A kubelet whose flags stand in a file."""

    def __init__(self, site: Site, text: str, is_unit: bool = False) -> None:
        self.site = site
        self.config = site.folder / "kubelet.yaml"
        self.config.write_text("kind: KubeletConfiguration\n")
        self.flags = site.folder / "flags"
        self.flags.write_text(text)
        argv = [str(site.folder / "kubelet"), f"--config={self.config}"]
        site.unit("kubelet", argv=argv, flags=str(self.flags), is_unit=is_unit)
        site.systemctl("daemon-reload")
        site.systemctl("restart", "kubelet")
        site.asked()

    def play(self, *arguments: str, **variables: Any) -> Any:
        mine = {"kubelet_max_pods_flag_files": [str(self.flags)], "kubelet_max_pods_wait_enabled": False}
        return self.site.play("kubelet_max_pods", "node-1", *arguments, **{**mine, **variables})


FLAGS = "# site flags\nKUBELET_EXTRA_ARGS=--node-ip=10.9.0.7 --max-pods=58\n"
DROP_IN = "[Service]\nEnvironment='KUBELET_EXTRA_ARGS=--node-labels=site/pool=gpu --max-pods=17'\n"


@pytest.fixture
def engine(site: Site) -> Engine:
    return Engine(site)


class TestEngine:
    def test_a_run_that_wrote_and_did_not_restart_is_made_good_by_the_next(self, engine: Engine) -> None:
        engine.play(nvidia_runtime_restart_enabled=False)
        assert engine.site.asked() == []
        predicted = changes(engine.play("--check"))
        assert engine.site.asked() == []
        assert changes(engine.play()) == predicted == 1
        assert engine.site.asked() == ["restart containerd"]
        assert changes(engine.play()) == 0

    def test_a_restart_that_failed_is_a_failure_and_is_tried_again(self, engine: Engine) -> None:
        engine.site.unit("containerd", refuses=True)
        said = words(engine.play())
        assert "`systemctl restart containerd.service` failed with 1: Job for containerd.service failed" in said
        engine.site.unit("containerd", refuses=False)
        engine.site.asked()
        assert changes(engine.play()) == 1
        assert engine.site.asked() == ["reset-failed containerd", "restart containerd"]

    def test_it_gives_back_and_restarts_for_that_too(self, engine: Engine) -> None:
        engine.play()
        engine.play(nvidia_runtime_state="absent", nvidia_runtime_restart_enabled=False)
        engine.site.asked()
        assert changes(engine.play(nvidia_runtime_state="absent")) == 1
        assert engine.site.asked() == ["restart containerd"]


class TestKubelet:
    def test_a_flag_that_was_raised_without_restart_is_made_good_and_not_refused(self, site: Site) -> None:
        kubelet = Kubelet(site, FLAGS)
        kubelet.play(kubelet_max_pods_restart_enabled=False)
        os.utime(kubelet.flags, (time.time() - 3600,) * 2)  # the command line tells it without any clock
        assert changes(kubelet.play()) == 1
        assert site.asked() == ["restart kubelet"]
        assert "--max-pods=250" in site.running("kubelet")

    def test_a_drop_in_whose_restart_was_lost_is_read_by_the_next_run(self, site: Site) -> None:
        kubelet = Kubelet(site, DROP_IN, is_unit=True)
        kubelet.play(kubelet_max_pods_restart_enabled=False)
        assert changes(kubelet.play()) == 1
        assert site.asked() == ["daemon-reload", "restart kubelet"]
        assert "--max-pods=250" in site.running("kubelet")
        assert changes(kubelet.play()) == 0
        assert site.asked() == []

    def test_a_flag_that_no_named_file_holds_is_refused(self, site: Site) -> None:
        kubelet = Kubelet(site, FLAGS)
        said = words(kubelet.play(kubelet_max_pods_flag_files=[str(site.folder / "nothing")]))
        assert "holds that flag: take it out of the unit" in said
        assert site.asked() == []

    def test_a_configuration_file_that_is_newer_restarts_it(self, site: Site) -> None:
        kubelet = Kubelet(site, "KUBELET_EXTRA_ARGS=--v=2\n")
        kubelet.play(kubelet_max_pods_restart_enabled=False)
        assert "maxPods: 250" in kubelet.config.read_text()
        assert changes(kubelet.play()) == 1
        assert site.asked() == ["restart kubelet"]

    def test_both_come_back(self, site: Site) -> None:
        kubelet = Kubelet(site, FLAGS)
        kubelet.play()
        assert changes(kubelet.play(kubelet_max_pods_state="absent")) == 2
        assert kubelet.flags.read_text() == FLAGS
        assert "--max-pods=58" in site.running("kubelet")
        assert changes(kubelet.play(kubelet_max_pods_state="absent")) == 0

    def test_pods_per_core_that_cap_it_are_told_before_anything_is_written(self, site: Site) -> None:
        kubelet = Kubelet(site, "KUBELET_EXTRA_ARGS=--v=2\n")
        kubelet.config.write_text("kind: KubeletConfiguration\npodsPerCore: 1\n")
        assert "pods whatever maxPods says (podsPerCore times cores), expected 250" in words(kubelet.play())
        assert "maxPods" not in kubelet.config.read_text()


class TestWhichEngine:
    """The kubelet's, although containerd runs beside it."""

    SOCKET = "ARGS=--container-runtime-endpoint=unix:///run/"

    def test_cri_dockerd_means_docker(self, engine: Engine) -> None:
        site = engine.site
        Kubelet(site, f"{self.SOCKET}cri-dockerd.sock\n")
        site.program("dockerd", "echo Docker version 27.2.1, build 9e34c9b")
        site.unit("docker", argv=[str(site.folder / "containerd"), f"--config-file={site.folder}/daemon.json"])
        site.systemctl("restart", "docker")
        site.asked()
        assert changes(engine.play()) > 0
        assert site.asked() == ["reload docker"]
        assert "nvidia-container-runtime" in (site.folder / "daemon.json").read_text()
        assert engine.file.read_text() == "version = 2\n"

    def test_an_engine_that_is_not_there_is_refused_by_its_socket(self, engine: Engine) -> None:
        Kubelet(engine.site, f"{self.SOCKET}crio/crio.sock\n")
        said = words(engine.play())
        assert "on this node, whose kubelet uses unix:///run/crio/crio.sock, found containerd 1.7.24" in said
        assert engine.file.read_text() == "version = 2\n"
        assert not (engine.site.folder / "toolkit.toml").exists()
