"""Brings a built hook to a node, once: one remote call if the version is there already, two and a transfer if not.

Owns the transfer. What is on the node, and what may be removed from it, is the module of the same name.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# What a build folder must hold for containers to start; what else lies there (self-test, list of symbols) is carried too, except the
# builder's own record, which changes while the version stays the same.
NEEDED = ("libtenfold.so", "libtenfold_page.so", "ld.so.preload", "vgpuctl")
RECORD = "build.json"
# By name and not by mode: a file that was fetched from a builder has lost its mode.
EXECUTABLES = ("libtenfold.so", "libtenfold_page.so", "vgpuctl", "tenfold-selftest")


def archive_of(folder: Path) -> tuple[bytes, dict[str, dict[str, str]]]:
    """A tar archive of the version's files, and their hashes and modes by name.

    Errors: FileNotFoundError that names the missing file.
    """
    for name in NEEDED:
        (folder / name).stat()
    files = {}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as bundle:
        for path in sorted(one for one in folder.iterdir() if one.is_file() and one.name != RECORD):
            content = path.read_bytes()
            member = tarfile.TarInfo(path.name)
            member.size = len(content)
            bundle.addfile(member, io.BytesIO(content))
            mode = "0755" if path.name in EXECUTABLES else "0644"
            files[path.name] = {"sha256": hashlib.sha256(content).hexdigest(), "mode": mode}
    return stream.getvalue(), files


class ActionModule(ActionBase):  # type: ignore[misc]
    """Everything but a missing version is the module's work alone."""

    TRANSFERS_FILES = True
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if arguments.get("state", "current") != "staged":
            result.update(self._execute_module(module_args=arguments, task_vars=task_vars))
            return result
        if not arguments.get("source"):
            result.update(failed=True, msg="state 'staged' needs 'source', the folder with the built hook")
            return result
        try:
            archive, files = archive_of(Path(self._loader.path_dwim(arguments["source"])))
        except OSError as error:
            result.update(
                failed=True, msg=f"cannot read the built hook: {error.filename}: {error.strerror}; build it first (cuda_hook_build)"
            )
            return result
        arguments["files"] = files
        answer = self._execute_module(module_args=arguments, task_vars=task_vars)
        if answer.get("missing") and not self._task.check_mode:
            arguments["archive"] = self._bring(archive)
            answer = self._execute_module(module_args=arguments, task_vars=task_vars)
        elif answer.get("missing"):
            answer["changed"] = True
        result.update(answer)
        return result

    def _bring(self, archive: bytes) -> str:
        """Puts the archive into the task's temporary folder on the node, which Ansible removes afterwards."""
        with tempfile.NamedTemporaryFile(prefix="tenfold-hook-", suffix=".tar") as file:
            file.write(archive)
            file.flush()
            remote = self._connection._shell.join_path(self._connection._shell.tmpdir, "hook.tar")
            self._transfer_file(file.name, remote)
        return str(remote)
