"""Compiles the components into the cache: one folder per content key, whole or absent.

Owns fetching modules, the shared workspace and the atomic rename; what to build and with which flags is said by ``builds`` and
``gomodules``. An interrupted build loses nothing that Go's own build cache kept.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from . import builds, command, gomodules, lock
from .builds import Component
from .console import Console
from .errors import FleetError
from .paths import Paths
from .versions import Versions

HYPERKUBE_SOURCE = Path(__file__).parent / "hyperkube" / "main.go"
BUILD_DEADLINE_SECONDS = 3600
DOWNLOAD_DEADLINE_SECONDS = 900


def go_version() -> str:
    """The compiler's version, such as "go1.26.8".

    Errors: FleetError when Go is missing or too old for Kubernetes.
    """
    if shutil.which("go") is None:
        raise FleetError(f"cannot compile Kubernetes: no Go found in PATH; install Go {_minimum()} or newer")
    found = command.run(["go", "env", "GOVERSION"], env=builds.GO_ENVIRONMENT).stdout.strip()
    match = re.match(r"go(\d+)\.(\d+)", found)
    if match and (int(match[1]), int(match[2])) < builds.GO_MINIMUM:
        raise FleetError(f"cannot compile Kubernetes: Go is {found!r}, expected {_minimum()} or newer")
    return found


def _minimum() -> str:
    return ".".join(str(number) for number in builds.GO_MINIMUM)


def ensure(paths: Paths, versions: Versions, console: Console) -> dict[str, Path]:
    """Every component's folder by component name, built where the cache lacks it."""
    compiler = go_version()
    components = builds.components(versions, HYPERKUBE_SOURCE.read_text(encoding="utf-8"))
    folders = {component.name: paths.bin / f"{component.name}-{component.key(compiler)}" for component in components}

    def missing() -> list[Component]:
        return [component for component in components if not folders[component.name].is_dir()]

    if missing():
        with lock.awaited(paths.build_lock, "compile the fleet's components", console, deadline_seconds=BUILD_DEADLINE_SECONDS):
            wanted = missing()
            for number, component in enumerate(wanted, 1):
                console.say(f"[{number}/{len(wanted)}] {component.title}: compiling (about {component.cold_minutes:g} min cold)")
                _build(component, folders[component.name], paths, versions, console)
    return folders


def _build(component: Component, folder: Path, paths: Paths, versions: Versions, console: Console) -> None:
    log = paths.logs / f"build-{component.name}.log"
    log.unlink(missing_ok=True)
    staging = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    source = staging / "src"
    source.mkdir(parents=True)
    with console.heartbeat(f"{component.title}, fetching modules"):
        if component.shared:
            _write_workspace(source, versions)
        else:
            shutil.copytree(module_folder(component.module, component.version), source, dirs_exist_ok=True)
            _make_writable(source)
    before = console.elapsed_seconds
    for program in component.programs:
        argv = component.argv(program, staging / program)
        what = f"{component.title}, {program}"
        console.watch(what, argv, log=log, cwd=source, env=component.environment(), deadline_seconds=BUILD_DEADLINE_SECONDS)
    for link in component.links:
        (staging / link).symlink_to(next(iter(component.programs)))
    shutil.rmtree(source)
    staging.rename(folder)
    console.say(f"      {component.title}: compiled in {console.elapsed_seconds - before:.0f} s")


def _download(module: str, version: str) -> Mapping[str, str]:
    """Go's own record of one module in its module cache: Dir, GoMod and more."""
    argv = ["go", "mod", "download", "-json", f"{module}@{version}"]
    # outside any module, so that no go.mod decides what may be asked for
    done = command.run(argv, cwd=Path("/"), env=builds.GO_ENVIRONMENT, deadline_seconds=DOWNLOAD_DEADLINE_SECONDS, allowed=(0, 1))
    record: dict[str, str] = json.loads(done.stdout or "{}")
    if done.returncode or record.get("Error"):
        raise FleetError(f"cannot fetch Go module {module}@{version}: {record.get('Error') or done.stderr.strip()}")
    return record


def module_folder(module: str, version: str) -> Path:
    """The read-only source of a module, fetched through the Go module proxy that this machine is set up with."""
    return Path(_download(module, version)["Dir"])


def _write_workspace(folder: Path, versions: Versions) -> None:
    kubernetes = _download(gomodules.KUBERNETES, versions.of(gomodules.KUBERNETES))
    volcano = _download(gomodules.VOLCANO, versions.of(gomodules.VOLCANO))
    texts = [Path(record["GoMod"]).read_text(encoding="utf-8") for record in (kubernetes, volcano)]
    (folder / "go.mod").write_text(gomodules.workspace(texts[0], texts[1], versions.go_modules), encoding="utf-8")
    sums = [(Path(record["Dir"]) / "go.sum").read_text(encoding="utf-8") for record in (kubernetes, volcano)]
    (folder / "go.sum").write_text(gomodules.merged_sums(sums), encoding="utf-8")
    (folder / "cmd" / "hyperkube").mkdir(parents=True)
    shutil.copy(HYPERKUBE_SOURCE, folder / "cmd" / "hyperkube" / "main.go")
    apis = folder / "volcano-apis"
    shutil.copytree(module_folder(gomodules.VOLCANO_APIS, versions.of(gomodules.VOLCANO_APIS)), apis)
    _make_writable(apis)
    (apis / gomodules.APIS_SUPPLEMENT_PATH).write_text(gomodules.APIS_SUPPLEMENT, encoding="utf-8")


def _make_writable(tree: Path) -> None:
    """Go's module cache is read-only; a copy of it could neither be written to nor removed."""
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o200)
