"""Whether a running service is older than what it reads.

Owns that judgement. A changed task of the same run is no proof that a restart is needed, nor an unchanged one that it is not: another host
may have ended the run between the two. So the running process is compared with its files, each time. Asking systemd and restarting is the
module ``node_service``'s part.
"""

from __future__ import annotations

import re
import shlex
from typing import Callable, Mapping

__all__ = ["PROPERTIES", "command_line", "seconds_since_read", "units", "why_stale"]

# What systemd is asked. Its monotonic stamps, in microseconds, stay right when the wall clock is set after a boot.
PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "MainPID",
    "NeedDaemonReload",
    "ExecMainStartTimestampMonotonic",
    "StateChangeTimestampMonotonic",
)
_RUNNING = ("active", "activating", "reloading")


def units(text: str) -> dict[str, dict[str, str]]:
    """Name of a service -> its properties, from what `systemctl show` prints of one or several."""
    found = {}
    for block in text.split("\n\n"):
        values: dict[str, str] = {}
        for key, separator, value in (line.partition("=") for line in block.splitlines()):
            if separator:  # a property that is given several times, such as EnvironmentFiles, has a line for each
                values[key] = f"{values[key]}\n{value}" if key in values else value
        name = values.get("Id", "")
        if name.endswith(".service"):
            found[name[: -len(".service")]] = values
    return found


def command_line(unit: Mapping[str, str], read: Callable[[str], str | None]) -> list[str]:
    """The command line of the service's process; where none runs, the one with which systemd would start it.

    ``read(path)`` gives a file's text or None. Sources: systemd.exec(5) for Environment and EnvironmentFile, systemd.service(5) for how
    variables stand in ExecStart.
    """
    pid = unit.get("MainPID", "0")
    running = (read(f"/proc/{pid}/cmdline") or "") if pid.isdecimal() and pid != "0" else ""
    if running:
        return [argument for argument in running.split("\0") if argument]
    found = re.search(r"argv\[\]=(.*?) ; ", unit.get("ExecStart", ""))
    variables = dict(word.split("=", 1) for word in _words(unit.get("Environment", "")) if "=" in word)
    for line in unit.get("EnvironmentFiles", "").splitlines():
        for setting in (read(line.partition(" (")[0]) or "").splitlines():
            name, separator, value = setting.strip().partition("=")
            if separator and not name.startswith(("#", ";")):
                variables[name] = value.strip("\"'")
    arguments = []
    for word in _words(found.group(1)) if found else []:
        name = word[1:].strip("{}")
        if word.startswith("$"):
            arguments += _words(variables.get(name, ""))
        else:
            arguments.append(re.sub(r"\$\{(\w+)\}", lambda match: variables.get(match.group(1), ""), word))
    return arguments


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote
        return text.split()


def seconds_since_read(unit: Mapping[str, str], is_reloadable: bool, monotonic_seconds: float) -> float | None:
    """How long ago the service read its files, None if systemd does not say.

    It reads them when it starts; ``is_reloadable``: also on reload, which is a change of the unit's state.
    """
    stamps = [unit.get("ExecMainStartTimestampMonotonic", ""), unit.get("StateChangeTimestampMonotonic", "") if is_reloadable else ""]
    known = [int(stamp) for stamp in stamps if stamp.isdecimal() and int(stamp) > 0]
    return monotonic_seconds - max(known) / 1e6 if known else None


def why_stale(unit: Mapping[str, str], since_read_seconds: float | None, file_ages_seconds: Mapping[str, float], is_pending: bool) -> str:
    """Why the service has to read its files again; empty if it need not.

    ``file_ages_seconds``: how long ago each file was written. ``is_pending``: something that it reads has changed, or would have without
    check mode. A service that does not run reads everything when it starts, unless it is down because it failed.
    """
    state = unit.get("ActiveState", "")
    if state == "failed":
        return "it has failed"
    if state not in _RUNNING:
        return ""
    if is_pending:
        return "what it reads has changed"
    if file_ages_seconds and since_read_seconds is None:
        return "systemd does not say when it started"
    newer = {path: since_read_seconds - age for path, age in file_ages_seconds.items() if since_read_seconds and age < since_read_seconds}
    return ", ".join(f"{path!r} is {seconds:.0f} s newer than the running service" for path, seconds in sorted(newer.items()))
