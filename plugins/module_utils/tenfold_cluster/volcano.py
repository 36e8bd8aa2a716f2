"""Which Volcano a cluster has, whether Tenfold can work with it, and which of a chart's objects play which part. Pure.

The merge of its scheduler's configuration is `volcano_config`; running helm is the module volcano_manifests' task.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Iterable, Iterator

from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import VersionError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.versions import Version

from .errors import ChartError, ClusterError
from .objects import Document

__all__ = ["ChartParts", "Scheduler", "chart_parts", "find_scheduler", "require_supported", "stated_version"]

_CONFIG_FLAG = "--scheduler-conf="
# Annotation of the scheduler's pod template: which merged configuration it was restarted for.
RESTART_ANNOTATION = "tenfold.dev/scheduler-config"


def stated_version(text: str) -> Version | None:
    """1.15.1 of 'v1.15.1'; None for a text that states no version ('latest', a digest)."""
    try:
        version = Version.parse(text)
    except VersionError:
        return None
    return version if version.release.count(".") == 2 else None


@dataclass(frozen=True)
class Scheduler:
    """A Volcano scheduler that the cluster runs.

    version is '' when its image does not state one, restarted_for when Tenfold has never restarted it (role volcano, restart.yml).
    """

    namespace: str
    deployment: str
    image: str
    version: str
    config_map: str
    config_key: str
    is_ours: bool
    restarted_for: str

    def as_dict(self) -> dict[str, Any]:
        """For a module's result."""
        return dict(vars(self))


def find_scheduler(deployments: Iterable[Document], ours: Iterable[str] = (), namespace: str = "") -> Scheduler | None:
    """The Volcano scheduler among *deployments*; *ours* are 'namespace/name' of those that Tenfold applied.

    Known by the label that Volcano's chart and manifests always set, or by its image's name, since a private registry keeps at least one
    of the two. Of several, the one in *namespace* counts.
    Errors: ClusterError for two schedulers, or one whose configuration is on no ConfigMap: nobody could tell where to merge.
    """
    ours = set(ours)
    found = [one for deployment in deployments for one in _schedulers_of(deployment, ours)]
    if len(found) > 1:
        found = [one for one in found if one.namespace == namespace] or found
    if len(found) > 1:
        places = ", ".join(f"'{one.namespace}/{one.deployment}'" for one in found)
        raise ClusterError(
            f"this cluster runs more than one Volcano scheduler ({places}); set volcano_namespace to the one that slices use"
        )
    return found[0] if found else None


def _schedulers_of(deployment: Document, ours: set[str]) -> Iterator[Scheduler]:
    is_labelled = (deployment["metadata"].get("labels") or {}).get("app") == "volcano-scheduler"
    pod_spec = deployment["spec"]["template"]["spec"]
    for container in pod_spec.get("containers") or []:
        if not is_labelled and "vc-scheduler" not in container.get("image", "").rpartition("/")[2]:
            continue
        words = [str(word) for word in (container.get("command") or []) + (container.get("args") or [])]
        # The chart passes one flag per word; some manifests pass a shell line.
        for path in re.findall(re.escape(_CONFIG_FLAG) + r"(\S+)", " ".join(words)):
            yield _scheduler(deployment, pod_spec, container, path, ours)


def _scheduler(deployment: Document, pod_spec: Document, container: Document, path: str, ours: set[str]) -> Scheduler:
    namespace, name = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
    folder, _, key = path.rpartition("/")
    annotations = (deployment["spec"]["template"].get("metadata") or {}).get("annotations") or {}
    volumes = {volume["name"]: volume for volume in pod_spec.get("volumes") or []}
    for mount in container.get("volumeMounts") or []:
        volume = volumes.get(mount["name"], {})
        if mount["mountPath"].rstrip("/") == folder and volume.get("configMap"):
            items = {item["path"]: item["key"] for item in volume["configMap"].get("items") or []}
            tag = container["image"].rpartition("@")[0] or container["image"]
            tag = tag.rpartition(":")[2] if ":" in tag.rpartition("/")[2] else ""
            return Scheduler(
                namespace=namespace,
                deployment=name,
                image=container["image"],
                version=tag.lstrip("v") if stated_version(tag) else "",
                config_map=volume["configMap"]["name"],
                config_key=items.get(key, key),
                is_ours=f"{namespace}/{name}" in ours,
                restarted_for=annotations.get(RESTART_ANNOTATION, ""),
            )
    raise ClusterError(
        f"Deployment '{namespace}/{name}' reads its scheduler configuration from '{path}', which is on no ConfigMap; "
        "Tenfold can merge only into a ConfigMap: mount one there"
    )


def require_supported(version: str, minimum: str, where: str) -> None:
    """Errors: ClusterError when *version* is older than *minimum* (both 'a.b.c'), or states no version."""
    have, need = stated_version(version), stated_version(minimum)
    if need is None:
        raise ValueError(f"'{minimum}' is no version")
    if have is None:
        raise ClusterError(
            f"Volcano at {where} does not state its version; set volcano_installed_version to what it is (at least {minimum} is needed)"
        )
    if have < need:
        raise ClusterError(
            f"Volcano at {where} is {version}, expected {minimum} or newer: before 1.15.0 SchedulePolicy has no effect on the card, before "
            "1.15.1 a node without a live handshake loses its cards and failed bindings keep their annotations; upgrade Volcano first"
        )


@dataclass(frozen=True)
class ChartParts:
    """A rendered chart by part. config is the scheduler's ConfigMap: merged and applied on its own, never with the rest."""

    crds: list[Document]
    init: list[Document]
    objects: list[Document]
    config: Document
    config_key: str
    scheduler: str

    def as_dict(self) -> dict[str, Any]:
        """For a module's result."""
        return dict(vars(self))


def _without_hook_annotations(document: Document) -> Document:
    kept = {name: value for name, value in document["metadata"]["annotations"].items() if not name.startswith("helm.sh/")}
    metadata = {name: value for name, value in document["metadata"].items() if name != "annotations"}
    return {**document, "metadata": {**metadata, **({"annotations": kept} if kept else {})}}


def chart_parts(documents: Iterable[Document], namespace: str) -> ChartParts:
    """Sorts what `helm template` printed.

    Helm's own hooks (jobs that must run before the rest) go into init. Objects of namespaced kinds get *namespace* where the chart
    leaves it to helm. Errors: ChartError when this is no chart of Volcano.
    """
    crds: list[Document] = []
    init: list[Document] = []
    objects: list[Document] = []
    for document in documents:
        metadata = document["metadata"]
        annotations: dict[str, str] = metadata.get("annotations") or {}
        if document["kind"] == "CustomResourceDefinition":
            crds.append(document)
        elif "helm.sh/hook" in annotations:
            if {"pre-install", "pre-upgrade"} & {word.strip() for word in annotations["helm.sh/hook"].split(",")}:
                init.append(_without_hook_annotations(document))
        else:
            objects.append(document)
    scheduler = find_scheduler(
        {**one, "metadata": {"namespace": namespace, **one["metadata"]}} for one in objects if one["kind"] == "Deployment"
    )
    if scheduler is None:
        raise ChartError(
            "the chart renders no Deployment with the flag --scheduler-conf: is it Volcano's, and is custom.scheduler_enable true?"
        )
    config = [one for one in objects if one["kind"] == "ConfigMap" and one["metadata"]["name"] == scheduler.config_map]
    if not config:
        raise ChartError(f"the chart renders no ConfigMap '{scheduler.config_map}', which its scheduler mounts")
    objects.remove(config[0])
    return ChartParts(crds, init, objects, config[0], scheduler.config_key, scheduler.deployment)
