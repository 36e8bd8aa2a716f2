"""What a kubelet runs with, by its own rules: flags, drop-ins and file, and which engine that makes.

Owns these rules and as much of YAML and JSON as they need, since a node's Python has no library for YAML. Nothing is touched here: reading
is a function that the caller gives. Raising the number is ``runtime_config``'s task.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Iterable, Iterator, Sequence

from .versions import Version

__all__ = ["MAX_PODS_DEFAULT", "Kubelet", "drop_ins", "engine_of", "flag", "scalars"]

MAX_PODS_DEFAULT = 110
_CONFIG_DEFAULT = "/var/lib/kubelet/config.yaml"
# Kubernetes 1.24 took dockershim out; from then on the kubelet's own default is containerd's socket.
_ENDPOINT_DEFAULT, _DOCKERSHIM, _WITHOUT_DOCKERSHIM = "unix:///run/containerd/containerd.sock", "unix:///var/run/dockershim.sock", (1, 24)
_FLOW_TOKEN = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|[{}\[\],:]|[^{}\[\],:\"'\s](?:[^{}\[\],:\n]|:(?!\s))*")
_BLOCK_LINE = re.compile(r"(\s*)(\"[^\"]+\"|'[^']+'|[^\s#\"'{}\[\]-][^\s:#]*)\s*:(?:\s+(.*))?$")


@dataclass(frozen=True)
class Kubelet:
    """Settings in force after the next start.

    ``max_pods`` never exceeds ``max_pods_ceiling`` (podsPerCore times cores; None if there is none); ``max_pods_source`` is the file that
    gives maxPods, ``flag --max-pods`` or ``default``. ``runtime_endpoint`` is None where nothing tells.
    """

    config_path: str | None
    config_dir: str | None
    max_pods: int
    max_pods_source: str
    max_pods_ceiling: int | None
    runtime_endpoint: str | None

    @classmethod
    def read(
        cls,
        arguments: Sequence[str],
        version: str,
        read: Callable[[str], str | None],
        names: Callable[[str], Iterable[str]],
        cores: int,
    ) -> Kubelet:
        """``arguments``: its command line, empty if unknown. ``read(path)``: a file's text or None; ``names(path)``: names in a folder."""
        path = flag(arguments, "--config") or (_CONFIG_DEFAULT if not arguments else None)
        folder = flag(arguments, "--config-dir")
        files = [*([path] if path else []), *(drop_ins(folder, names) if folder else [])]
        texts = [(file, scalars(read(file) or "")) for file in files]

        def setting(option: str, key: str) -> tuple[str | None, str]:
            """A flag, the last one, beats every file; a later drop-in beats an earlier one, and all of them the file."""
            given = flag(arguments, option)
            if given is not None:
                return given, f"flag {option}"
            return next(((found[key], file) for file, found in reversed(texts) if key in found), (None, "default"))

        number, source = setting("--max-pods", "maxPods")
        max_pods = _positive(number) or MAX_PODS_DEFAULT
        per_core = _positive(setting("--pods-per-core", "podsPerCore")[0])
        ceiling = per_core * cores if per_core and cores else None
        endpoint = setting("--container-runtime-endpoint", "containerRuntimeEndpoint")[0]
        if not endpoint and arguments:
            is_old = Version.parse(version).parts < _WITHOUT_DOCKERSHIM and flag(arguments, "--container-runtime") != "remote"
            endpoint = _DOCKERSHIM if is_old else _ENDPOINT_DEFAULT
        return cls(
            config_path=path,
            config_dir=folder,
            max_pods=min(max_pods, ceiling or max_pods),
            max_pods_source=source if _positive(number) else "default",
            max_pods_ceiling=ceiling,
            runtime_endpoint=endpoint or None,
        )


def flag(arguments: Sequence[str], *names: str) -> str | None:
    """The last value of ``--name=value``, ``--name value`` or ``-n value``."""
    found = None
    for position, argument in enumerate(arguments):
        for name in names:
            if argument.startswith(f"{name}="):
                found = argument[len(name) + 1 :]
            elif argument == name and position + 1 < len(arguments):
                found = arguments[position + 1]
    return found


def drop_ins(folder: str, names: Callable[[str], Iterable[str]]) -> list[str]:
    """The files of a `--config-dir` in the order in which they are merged: sub-folders too, each at its name's place, and only ``*.conf``.

    Source: Kubernetes, cmd/kubelet/app/server.go, mergeKubeletConfigurations (filepath.WalkDir).
    """
    found = []
    for name in sorted(names(folder)):
        path = f"{folder.rstrip('/')}/{name}"
        inside = drop_ins(path, names)
        if inside or list(names(path)):
            found += inside
        elif name.endswith(".conf"):
            found.append(path)
    return found


def engine_of(endpoint: str | None) -> str | None:
    """Which engine serves a CRI endpoint; None for one of another name. cri-dockerd speaks for docker."""
    socket = (endpoint or "").rstrip("/").rpartition("/")[2]
    for word, engine in (("docker", "docker"), ("crio", "crio"), ("containerd", "containerd")):
        if word in socket:
            return engine
    return None


def scalars(text: str) -> dict[str, str | None]:
    """The scalars at the top of one JSON or YAML document, as texts; ``null`` is None. Names count in their own letter case."""
    lines: list[str] = []
    for whole in text.lstrip("\ufeff").splitlines():
        is_border = whole.startswith(("---", "..."))
        if is_border and lines:
            break  # the kubelet reads the first document
        line = whole[3:] if is_border else whole
        if line.strip() and not line.lstrip().startswith(("#", "%")):
            lines.append(line)
    pairs = _flow("\n".join(lines)) if lines and lines[0].lstrip().startswith("{") else _block(lines)
    return {_unquoted(key): None if value in ("null", "~", "") else _unquoted(value) for key, value in pairs}


def _block(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    margin = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    for line in lines:
        match = _BLOCK_LINE.match(line.rstrip())
        if match and len(match.group(1)) == margin:
            value = (match.group(3) or "").strip()
            yield match.group(2), value if value.startswith(("'", '"')) else re.sub(r"(^|\s+)#.*", "", value)


def _flow(text: str) -> Iterator[tuple[str, str]]:
    depth, key, has_colon = 0, "", False
    for token in (found.group().strip() for found in _FLOW_TOKEN.finditer(text)):
        if token in "{[":
            depth += 1
        elif token in "}]":
            depth -= 1
        elif depth != 1:
            continue
        elif token == ",":
            key, has_colon = "", False
        elif token == ":":
            has_colon = True
        elif not key:
            key = token
        elif has_colon:
            yield key, token


def _unquoted(text: str) -> str:
    return re.sub(r"^([\"'])(.*)\1(\s*#.*)?$", r"\2", text)


def _positive(text: str | None) -> int | None:
    """A number of pods; 0 and what is no number count as not given."""
    return int(text) or None if text is not None and re.fullmatch(r"\d{1,12}", text.strip(), re.ASCII) else None
