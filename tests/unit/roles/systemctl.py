"""A systemctl for one pretended node: real processes, started as its unit files say, and systemd's words about them.

A unit is a JSON file beside the one that says how it runs: ``argv``; ``flags``, a file whose last line of the form ``NAME=flags`` adds to
it; ``is_unit``, whether that file is part of the unit, which systemd reads on daemon-reload alone, and not an environment file.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Optional

UNITS = Path(os.environ["TENFOLD_TEST_UNITS"])


def load(path: Path) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def flags_now(unit: Dict[str, Any]) -> str:
    lines = Path(unit["flags"]).read_text().splitlines() if unit.get("flags") else []
    return next((line.partition("ARGS=")[2].strip("'\"") for line in reversed(lines) if "ARGS=" in line), "")


def age(unit: Dict[str, Any]) -> float:
    return Path(unit["flags"]).stat().st_mtime if unit.get("is_unit") else 0.0


def show(name: str) -> str:
    unit, running = load(UNITS / f"{name}.json"), load(UNITS / f"{name}.running")
    if not unit:
        return f"Id={name}.service\nLoadState=not-found\nActiveState=inactive\nMainPID=0\n"
    loaded = load(UNITS / f"{name}.loaded")
    lines = {
        "Id": f"{name}.service",
        "LoadState": "loaded",
        "ActiveState": running.get("state", "inactive"),
        "MainPID": running.get("pid", 0),
        "ExecStart": f"{{ path={unit['argv'][0]} ; argv[]={' '.join(unit['argv'])} ; ignore_errors=no ; }}",
        "NeedDaemonReload": "yes" if age(unit) > loaded.get("at", 0.0) else "no",
        "ExecMainStartTimestampMonotonic": running.get("at_us", 0),
        "StateChangeTimestampMonotonic": running.get("at_us", 0),
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def stop(name: str) -> None:
    pid: Optional[int] = load(UNITS / f"{name}.running").get("pid")
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def start(name: str) -> None:
    unit = load(UNITS / f"{name}.json")
    stop(name)
    loaded = load(UNITS / f"{name}.loaded")
    flags = loaded.get("flags", "") if unit.get("is_unit") else flags_now(unit)
    running: Dict[str, Any] = {"state": "failed"}
    if not unit.get("refuses"):
        argv = [*unit["argv"], *flags.split()]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        pid = subprocess.Popen(argv, start_new_session=True, **quiet).pid  # type: ignore[call-overload]
        running = {"state": "active", "pid": pid, "at_us": int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)}
    (UNITS / f"{name}.running").write_text(json.dumps(running))
    if unit.get("refuses"):
        sys.exit(f"Job for {name}.service failed because the control process exited with error code.")


def main(verb: str, names: "list[str]") -> None:
    with (UNITS / "log").open("a") as log:
        if verb != "show":
            log.write(" ".join([verb, *names]) + "\n")
    if verb == "show":
        sys.stdout.write("\n".join(show(name) for name in names))
    elif verb == "daemon-reload":
        for path in UNITS.glob("*.json"):
            unit = load(path)
            path.with_suffix(".loaded").write_text(json.dumps({"at": age(unit), "flags": flags_now(unit)}))
    elif verb in ("restart", "reload"):
        start(names[0])


if __name__ == "__main__":
    main(sys.argv[1], [each.replace(".service", "") for each in sys.argv[2:] if not each.startswith("-")])
