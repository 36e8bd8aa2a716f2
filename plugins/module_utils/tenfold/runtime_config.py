"""What each container engine and the NVIDIA toolkit must be told so that slices work.

Owns the rules: which keys, under which names for which version of a file, and what in a user's file forbids them. How the keys enter
the file is ``merge``'s task. Every function takes the parsed file and returns edits; nothing here reads a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from .errors import MergeError, VersionError
from .merge import Edit, lookup
from .versions import Version

__all__ = [
    "CDI_FOLDERS",
    "RuntimeOptions",
    "containerd_edits",
    "containerd_foreign_changes",
    "containerd_overridden",
    "crio_edits",
    "docker_edits",
    "engine_release",
    "kubelet_edits",
    "kubelet_flags_edits",
    "new_file_version",
]

# Where the engines look for CDI specifications unless told otherwise.
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
# The CRI plugin's name changed with version 3 of the file and stayed in version 4 (containerd 2.0 and 2.3, docs/cri/config.md).
_CRI_PLUGIN = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime", 4: "io.containerd.cri.v1.runtime"}


@dataclass(frozen=True)
class RuntimeOptions:
    """How the nvidia runtime is offered. ``is_default``: it runs every container; ``takeover``: even if the user named another."""

    name: str = "nvidia"
    binary: str = "/usr/bin/nvidia-container-runtime"
    is_default: bool = False
    takeover: bool = False
    cdi_enabled: bool = True


def new_file_version(engine_version: str) -> int:
    """The version that a containerd file made from nothing gets: 2 for containerd 1, 3 for 2.0 to 2.2, 4 from 2.3 on."""
    release = engine_release("containerd", engine_version, "1.7.24").parts
    if release < (2,):
        return 2
    return 3 if release < (2, 3) else 4


def engine_release(engine: str, version: str, example: str) -> Version:
    """What an engine says of itself. Errors: MergeError."""
    try:
        return Version.parse(version)
    except VersionError as error:
        raise MergeError(f"{engine} reports version {version!r}, expected a number such as {example!r}") from error


def containerd_edits(
    document: Mapping[str, Any], options: RuntimeOptions, engine_version: str, effective: Mapping[str, Any], where: str
) -> list[Edit]:
    """Edits of containerd's main file.

    ``effective``: what `containerd config dump` says with this file, imports included.
    Errors: MergeError for a file without a version that has plugin sections (version 1), for a version above 4, for a disabled CRI
    plugin, and for a foreign default runtime without ``takeover``.
    """
    version = document.get("version")
    edits = []
    if version is None:
        if document.get("plugins"):
            raise MergeError(
                f"{where!r} has plugin sections but no 'version': containerd reads it as version 1, whose names end with containerd 2; "
                "rewrite it as version 2 (`containerd config default` shows the names)",
                path=where,
            )
        version = new_file_version(engine_version)
        edits.append(Edit(("version",), version))
    if isinstance(version, bool) or version not in _CRI_PLUGIN:
        raise MergeError(f"{where!r} has version {version!r}, expected 2, 3 or 4", path=where, version=version)
    plugin = _CRI_PLUGIN[version]
    disabled = [str(name) for name in document.get("disabled_plugins") or []]
    if {"cri", plugin, _CRI_PLUGIN[2]} & set(disabled):
        raise MergeError(
            f"{where!r} disables the CRI plugin (disabled_plugins = {disabled!r}), so no kubelet can use this containerd: "
            "take it off the list",
            path=where,
        )
    cri = ("plugins", plugin)
    runtimes = (*cri, "containerd", "runtimes")
    effective_containerd = _effective_containerd(effective)
    base = lookup(effective_containerd, ("default_runtime_name",), "runc")
    if base == options.name:
        base = "runc"
    if engine_release("containerd", engine_version, "1.7.24").parts < (2,) and not lookup(document, runtimes):
        edits += _default_runtimes(effective_containerd, runtimes, options.name)
    edits.append(Edit((*runtimes, options.name, "runtime_type"), "io.containerd.runc.v2"))
    edits.append(Edit((*runtimes, options.name, "options", "BinaryName"), options.binary))
    # A pod must find its cgroup driver whatever its runtime: NVIDIA/nvidia-docker#1788. False is what a missing key means.
    if lookup(effective_containerd, ("runtimes", base, "options", "SystemdCgroup")) is True:
        edits.append(Edit((*runtimes, options.name, "options", "SystemdCgroup"), True))
    if options.cdi_enabled:
        edits += _containerd_cdi(document, cri, version)
    if options.is_default:
        present = lookup(document, (*cri, "containerd", "default_runtime_name"))
        if present not in (None, "runc", options.name) and not options.takeover:
            raise _foreign_default(where, "default_runtime_name", present, options.name)
        edits.append(Edit((*cri, "containerd", "default_runtime_name"), options.name))
    return edits


def _default_runtimes(effective_containerd: Mapping[str, Any], path: tuple[str, ...], ours: str) -> list[Edit]:
    """In containerd 1 a file that names one runtime loses the built-in ones (seen with 1.6.20 and 1.7.24), so they are written out."""
    edits = []
    for name, runtime in sorted((lookup(effective_containerd, ("runtimes",)) or {}).items()):
        if name != ours:
            edits += [Edit((*path, name, *leaf), value) for leaf, value in _flatten(runtime).items() if value not in _ZERO]
    return edits


def _containerd_cdi(document: Mapping[str, Any], cri: tuple[str, str], version: int) -> list[Edit]:
    """CDI is off by default for files of version 2 and on from 3 (containerd 1.7 and 2.0, docs/cri/config.md)."""
    edits = []
    if version == 2 or lookup(document, (*cri, "enable_cdi")) is False:
        edits.append(Edit((*cri, "enable_cdi"), True))
    folders = lookup(document, (*cri, "cdi_spec_dirs"))
    if isinstance(folders, list):
        missing = [folder for folder in CDI_FOLDERS if not {folder, folder.replace("/var/run", "/run")} & set(folders)]
        if missing:
            edits.append(Edit((*cri, "cdi_spec_dirs"), [*folders, *missing]))
    return edits


def _effective_containerd(effective: Mapping[str, Any]) -> Mapping[str, Any]:
    for plugin in (_CRI_PLUGIN[3], _CRI_PLUGIN[2]):
        section = lookup(effective, ("plugins", plugin, "containerd"))
        if isinstance(section, Mapping):
            return section
    return {}


def containerd_foreign_changes(before: Mapping[str, Any], after: Mapping[str, Any], options: RuntimeOptions) -> list[str]:
    """Keys of containerd's effective configuration that a merge would change although they are not Tenfold's.

    In containerd 1 a CRI section in one file replaces that of another as a whole; comparing two dumps is the only way to see it.
    """
    flat_before, flat_after = _flatten(before), _flatten(after)
    foreign = []
    for path in sorted(set(flat_before) | set(flat_after)):
        ours = options.name in path or path[-1] in _OUR_KEYS or path[0] in _NO_SETTINGS
        if ours:
            continue
        one, other = flat_before.get(path, _NOTHING), flat_after.get(path, _NOTHING)
        # A runtime's key that is missing is its zero value; elsewhere a missing key is a default of containerd's.
        is_runtime = "runtimes" in path and {repr(one), repr(other)} <= _ZERO_TEXTS
        if one != other and not is_runtime:
            foreign.append(".".join(path))
    return foreign


def containerd_overridden(effective: Mapping[str, Any], options: RuntimeOptions) -> list[str]:
    """Our keys that do not hold in containerd's effective configuration although the main file has them: an imported file wins."""
    section = _effective_containerd(effective)
    found = lookup(section, ("runtimes", options.name, "options", "BinaryName"))
    overridden = [] if found == options.binary else [f"containerd.runtimes.{options.name}.options.BinaryName = {found!r}"]
    if options.is_default and section.get("default_runtime_name") != options.name:
        overridden.append(f"containerd.default_runtime_name = {section.get('default_runtime_name')!r}")
    if options.cdi_enabled:
        switches = {lookup(effective, ("plugins", plugin, "enable_cdi")) for plugin in set(_CRI_PLUGIN.values())} - {None}
        overridden += ["enable_cdi = False"] if switches == {False} else []
    return overridden


_NOTHING: Any = "(nothing)"
_ZERO: tuple[Any, ...] = ("", 0, False, [], None)
_ZERO_TEXTS = {repr(value) for value in (*_ZERO, 0.0, _NOTHING)}
_OUR_KEYS = ("enable_cdi", "cdi_spec_dirs", "default_runtime_name")
# containerd 1 lists the files that it read, this one included, under "imports".
_NO_SETTINGS = ("version", "imports")


def _flatten(table: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, (*prefix, str(key))))
        else:
            flat[(*prefix, str(key))] = value
    return flat


def docker_edits(document: Mapping[str, Any], options: RuntimeOptions, has_cdi_feature: bool, where: str) -> list[Edit]:
    """Edits of docker's daemon.json. ``has_cdi_feature``: docker 25 or later, which knows `features.cdi`.

    Errors: MergeError for a foreign default runtime without ``takeover``.
    """
    edits = [Edit(("runtimes", options.name, "path"), options.binary)]
    if options.cdi_enabled and has_cdi_feature:
        edits.append(Edit(("features", "cdi"), True))
    if options.is_default:
        present = document.get("default-runtime")
        if present not in (None, "runc", options.name) and not options.takeover:
            raise _foreign_default(where, "default-runtime", present, options.name)
        edits.append(Edit(("default-runtime",), options.name))
    return edits


def crio_edits(document: Mapping[str, Any], options: RuntimeOptions, where: str) -> list[Edit]:
    """Edits of a CRI-O drop-in (crio.conf.d); CRI-O merges drop-ins key by key and has CDI on by default.

    Errors: MergeError for a foreign default runtime without ``takeover``.
    """
    runtime = ("crio", "runtime", "runtimes", options.name)
    edits = [Edit((*runtime, "runtime_path"), options.binary), Edit((*runtime, "runtime_type"), "oci")]
    if options.is_default:
        present = lookup(document, ("crio", "runtime", "default_runtime"))
        if present not in (None, "runc", "crun", options.name) and not options.takeover:
            raise _foreign_default(where, "crio.runtime.default_runtime", present, options.name)
        edits.append(Edit(("crio", "runtime", "default_runtime"), options.name))
    return edits


def kubelet_edits(document: Mapping[str, Any], max_pods: int, where: str) -> list[Edit]:
    """Edits of a kubelet configuration file or drop-in: maxPods is raised, never lowered.

    Errors: MergeError if the file is of another kind.
    """
    if document and document.get("kind") != "KubeletConfiguration":
        raise MergeError(
            f"{where!r} is of kind {document.get('kind')!r}, expected 'KubeletConfiguration': name the kubelet's own file "
            "(kubelet_max_pods_config_path)",
            path=where,
        )
    edits = []
    if not document:
        edits += [Edit(("apiVersion",), "kubelet.config.k8s.io/v1beta1"), Edit(("kind",), "KubeletConfiguration")]
    return [*edits, Edit(("maxPods",), max_pods, at_least=True)]


def kubelet_flags_edits(document: Mapping[str, Any], max_pods: int) -> list[Edit]:
    """Edits of a file with the kubelet's flags: `--max-pods` is raised where it stands, and never added (files are the better place)."""
    return [Edit(("--max-pods",), max_pods, at_least=True)] if "--max-pods" in document else []


def _foreign_default(where: str, key: str, present: Any, name: str) -> MergeError:
    return MergeError(
        f'cannot merge {where!r}: "{key}" is {present!r}, expected unset or "{name}"; set nvidia_runtime_takeover: true to replace it',
        path=where,
        key=key,
        present=present,
    )
