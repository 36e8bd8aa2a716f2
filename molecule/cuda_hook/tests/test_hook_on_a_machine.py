"""What the role leaves on a machine: an immutable version, a link to it, a bounded tmpfs that returns after a reboot."""

from __future__ import annotations

import re

from testinfra.host import Host

ROOT = "/usr/local/tenfold/hook"


def test_current_is_a_version_with_its_files(host: Host) -> None:
    version = host.file(f"{ROOT}/current").linked_to
    assert re.fullmatch(rf"{ROOT}/\d+\.\d+\.\d+-[0-9a-f]{{8}}", version)
    assert host.file(f"{ROOT}/current/ld.so.preload").content_string == "/usr/local/tenfold/libtenfold.so\n"
    assert host.file(f"{ROOT}/current/libtenfold.so").mode == 0o755
    assert host.file(f"{ROOT}/current/libtenfold_page.so").mode == 0o755
    digest = host.check_output(f"cd {ROOT}/current/ && export LC_ALL=C && sha256sum * | sha256sum")
    assert digest[:8] == version[-8:]


def test_machine_has_no_compiler_and_runs_the_tools(host: Host) -> None:
    assert host.run("command -v gcc cc clang").stdout == ""
    assert host.run(f"{ROOT}/current/vgpuctl show").rc in (0, 1)


def test_library_is_silent_in_a_program_that_uses_no_card(host: Host) -> None:
    result = host.run(f"LD_PRELOAD={ROOT}/current/libtenfold.so /bin/echo hello")
    assert (result.stdout, result.stderr) == ("hello\n", "")


def test_slots_have_a_tmpfs_of_their_own_that_is_bounded(host: Host) -> None:
    mount = host.mount_point("/run/tenfold")
    assert mount.filesystem == "tmpfs"
    assert {"nosuid", "nodev", "noexec", "size=16384k", "nr_inodes=512"} <= set(mount.options)
    full = host.run("head -c 20M /dev/zero > /run/tenfold/full; rm -f /run/tenfold/full")
    assert "No space left on device" in full.stderr


def test_mount_returns_after_a_reboot(host: Host) -> None:
    assert host.service("run-tenfold.mount").is_enabled
    assert host.check_output("systemctl show run-tenfold.mount --property=ActiveState") == "ActiveState=active"


def test_memory_of_the_plugin_is_for_root_alone(host: Host) -> None:
    assert host.file("/var/lib/tenfold").mode == 0o700
