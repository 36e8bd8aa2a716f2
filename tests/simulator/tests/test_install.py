"""A node's root file system with the simulated driver: what is where, and that NVIDIA's own toolkit takes it for a driver."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from . import bench
from .bench import Machine

STATE = "run/nvidia-persistenced/socket"


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    for folder in ("usr", "etc", "dev", "run"):
        (tmp_path / "root" / folder).mkdir(parents=True)
    return tmp_path / "root"


def install(driver: Path, rootfs: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(bench.SIMULATOR / "install.sh"), str(rootfs), "--build", str(driver), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def boot(rootfs: Path) -> None:
    bench.run(
        [
            str(rootfs / "usr/bin/tenfold-sim"),
            *("--state", str(rootfs / STATE)),
            *("boot", "--config", str(rootfs / "etc/tenfold-sim/machine.conf"), "--dev", str(rootfs / "dev")),
        ]
    )


def tree(rootfs: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for path in sorted(rootfs.rglob("*"))
        if path.is_file() and "profiles" not in path.parts
    }


def test_files_lie_where_a_driver_package_puts_them(driver: Path, rootfs: Path) -> None:
    install(driver, rootfs, "--driver", "535.161.08", "--cards", "2", "--uuid-seed", "node")
    library = rootfs / "usr/lib/x86_64-linux-gnu"
    for name in ("libcuda", "libnvidia-ml"):
        assert (library / f"{name}.so.1").readlink() == Path(f"{name}.so.535.161.08")
        assert (library / f"{name}.so.535.161.08").is_file()
    assert os.access(rootfs / "usr/bin/nvidia-smi", os.X_OK)
    assert (rootfs / "etc/systemd/system/sysinit.target.wants/tenfold-sim.service").is_symlink()


def test_a_second_install_changes_nothing(driver: Path, rootfs: Path) -> None:
    words = ("--driver", "535", "--uuid-seed", "node")
    install(driver, rootfs, *words)
    before = tree(rootfs)
    install(driver, rootfs, *words)
    assert tree(rootfs) == before


def test_another_driver_replaces_the_old_one(driver: Path, rootfs: Path) -> None:
    install(driver, rootfs, "--driver", "535")
    install(driver, rootfs, "--driver", "570")
    names = {path.name for path in (rootfs / "usr/lib/x86_64-linux-gnu").iterdir()}
    assert "libcuda.so.570.195.03" in names
    assert not any("535" in name for name in names)


def test_bad_options_install_nothing(driver: Path, rootfs: Path) -> None:
    for words, expected in (
        (("--driver", "333"), 'driver is "333"'),
        (("--card", "voodoo"), "voodoo"),
        (("--model", "dreamt"), "dreamt"),
        (("--set", "colour=red"), 'unknown key "colour"'),
        (("--frob", "1"), "unknown option '--frob'"),
    ):
        done = install(driver, rootfs, *words, check=False)
        assert done.returncode != 0
        assert expected in done.stderr
        assert not (rootfs / "usr/lib").exists()


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("device nodes need root")


def test_booting_makes_the_machine_and_its_device_nodes_and_is_harmless_twice(driver: Path, rootfs: Path) -> None:
    needs_root()
    install(driver, rootfs, "--cards", "2", "--uuid-seed", "node")
    boot(rootfs)
    inode = (rootfs / STATE).stat().st_ino
    boot(rootfs)
    assert (rootfs / STATE).stat().st_ino == inode
    nodes = {path.name: (os.major(path.stat().st_rdev), os.minor(path.stat().st_rdev)) for path in (rootfs / "dev").iterdir()}
    assert nodes == {
        "nvidia0": (195, 0),
        "nvidia1": (195, 1),
        "nvidiactl": (195, 255),
        "nvidia-uvm": (511, 0),
        "nvidia-uvm-tools": (511, 1),
    }
    assert all(stat.S_ISCHR(path.stat().st_mode) for path in (rootfs / "dev").iterdir())


def test_a_process_sees_only_cards_whose_device_node_it_may_open(driver: Path, tmp_path: Path) -> None:
    """As in a container: the state is there, the nodes under /dev are what the runtime put there (here: none)."""
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has NVIDIA device nodes")
    machine = Machine(driver, tmp_path / "state")
    machine.tool("init", "--card", "a800-80gb", "--cards", "2", "--device-nodes", "required")
    with machine.process() as process:
        assert process.cuda("cuInit", 0)[0] == bench.NO_DEVICE
        process.must("nvmlInit_v2")
        assert process.must("nvmlDeviceGetCount_v2", bench.out("u32")) == 0
    assert "No devices were found" in machine.smi("-L").stdout


def test_one_node_shows_one_card(driver: Path, tmp_path: Path) -> None:
    """In a mount namespace of its own, /dev gets the second card's node alone."""
    needs_root()
    machine = Machine(driver, tmp_path / "state")
    machine.tool("init", "--card", "a800-80gb", "--cards", "2", "--device-nodes", "required")
    script = 'mount -t tmpfs -o dev tmpfs /dev && mknod /dev/nvidia1 c 195 1 && exec "$0" -L'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, str(driver / "nvidia-smi")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PATH": os.environ["PATH"], **machine.environment},
    )
    if done.returncode and "mount" in done.stderr:
        pytest.skip("no mount namespaces here")
    assert done.stdout == f"GPU 0: NVIDIA A800-SXM4-80GB (UUID: {machine.truth()['cards'][1]['uuid']})\n"


@pytest.mark.toolkit
class TestNvidiaToolkit:
    """nvidia-ctk describes the cards as it would describe real ones. TENFOLD_NVIDIA_CTK names it, else it is looked for on PATH."""

    def describe(self, rootfs: Path) -> Any:
        tool = os.environ.get("TENFOLD_NVIDIA_CTK") or shutil.which("nvidia-ctk")
        if not tool or not Path(tool).exists():
            pytest.skip("no nvidia-ctk: TENFOLD_NVIDIA_CTK names none, or one that 'python3 -m tests.cluster build' has yet to compile")
        done = subprocess.run(
            [tool, "cdi", "generate", f"--driver-root={rootfs}", f"--dev-root={rootfs}", "--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PATH": os.environ["PATH"], "TENFOLD_SIM_STATE": str(rootfs / STATE)},
        )
        assert done.returncode == 0, done.stderr
        return yaml.safe_load(done.stdout)

    def test_its_specification_carries_the_machine_into_containers_read_write(self, driver: Path, rootfs: Path) -> None:
        needs_root()
        install(driver, rootfs, "--cards", "2", "--uuid-seed", "node")
        boot(rootfs)
        # the specification is of this root file system, whose nodes are not under our own /dev
        bench.run([str(driver / "tenfold-sim"), "--state", str(rootfs / STATE), "set", "device_nodes_required=0"])
        text = self.describe(rootfs)
        mounts = {mount["containerPath"]: mount for mount in text["containerEdits"]["mounts"]}
        assert "ro" not in mounts[f"/{STATE}"]["options"]
        assert {"/usr/bin/nvidia-smi", "/usr/lib/x86_64-linux-gnu/libcuda.so.535.161.08"} <= set(mounts)
        names = {device["name"] for device in text["devices"]}
        assert {"0", "1", "all"} <= names
        assert sum(name.startswith("GPU-") for name in names) == 2
