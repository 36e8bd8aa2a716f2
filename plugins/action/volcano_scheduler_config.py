"""The merge of Volcano's scheduler configuration: read through the API, decide here, write through the API.

Owns the order of these steps and the record that makes the merge undoable. The decision is ``tenfold_cluster.volcano_config``'s, YAML
that keeps comments ``plugin_utils.formats``', requests the modules' cluster_facts, cluster_patch and cluster_objects.
Options and results: plugins/modules/volcano_scheduler_config.py.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, Mapping

from ansible.plugins.action import ActionBase
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import TenfoldError
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster import volcano_config
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold_cluster.errors import ClusterError
from ansible_collections.tenfold.vgpu.plugins.plugin_utils.formats import CODECS
from ansible_collections.tenfold.vgpu.plugins.plugin_utils.plain import answer_of, plain

ARGUMENT_SPEC = {
    "kubeconfig": {"type": "str", "default": ""},
    "context": {"type": "str"},
    "namespace": {"type": "str", "required": True},
    "config_map": {"type": "str", "required": True},
    "key": {"type": "str", "default": "volcano-scheduler.conf"},
    "base": {"type": "str"},
    "state": {"type": "str", "choices": ["present", "absent", "rendered"], "default": "present"},
    "schedule_policy": {"type": "str", "choices": ["binpack", "spread"], "default": "binpack"},
    "schedule_weight": {"type": "int", "default": 10},
    "binpack_enabled": {"type": "bool", "default": True},
}
# Annotation of the ConfigMap: what our merge did, and the text before the first one.
RECORD_ANNOTATION = "tenfold.dev/scheduler-config-record"
# An object's annotations may hold 256 KiB together (kubernetes, pkg/apis/core/validation); a longer original is undone piece by piece.
_ORIGINAL_LIMIT_BYTES = 64 << 10

Values = Dict[str, Any]


class Failed(Exception):
    """A module that this action called has failed; its result is ours."""

    def __init__(self, result: Values) -> None:
        super().__init__(str(result.get("msg")))
        self.result = result


class ActionModule(ActionBase):  # type: ignore[misc]
    """One merge: one call to read, and one to write if something is to do."""

    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: Values | None = None) -> Values:
        result: Values = super().run(tmp, task_vars)
        self._told: list[Any] = result.setdefault("warnings", [])
        _, options = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        try:
            result.update(self._merge(plain(options), task_vars or {}))
        except Failed as error:
            result.update(error.result)
        except (ClusterError, TenfoldError) as error:
            result.update(failed=True, msg=str(error), error_details=error.details)
        return result

    def _merge(self, options: Values, task_vars: Values) -> Values:
        place = f"ConfigMap '{options['namespace']}/{options['config_map']}', key '{options['key']}'"
        live = {} if options["state"] == "rendered" else self._read(options, task_vars)
        before = (live.get("data") or {}).get(options["key"]) if live else None
        if before is None and options["state"] == "absent":
            return {"changed": False, "text": "", "merged_by_us": False, "restart_needed": False}
        start = before if before is not None else options["base"]
        if start is None:
            raise ClusterError(f"{place} does not exist; is volcano_namespace where Volcano's scheduler runs?")
        record = _record_of(live)
        try:
            text, record = plan(start, record, options, place)
        except ClusterError as error:
            raise ClusterError(f"cannot merge into {place}: {error}; nothing was changed", **error.details) from error
        result = {"changed": False, "text": text, "merged_by_us": record is not None, "restart_needed": False}
        encoded = None if record is None else json.dumps(record, sort_keys=True)
        recorded = (live.get("metadata", {}).get("annotations") or {}).get(RECORD_ANNOTATION)
        if options["state"] == "rendered" or (before == text and encoded == recorded):
            return result
        self._write(options, live, text, encoded, task_vars)
        result.update(changed=True, restart_needed=before is not None and _is_vgpu_on(before) != _is_vgpu_on(text))
        result["diff"] = {"before": before or "", "after": text, "before_header": place, "after_header": place}
        return result

    def _read(self, options: Values, task_vars: Values) -> Values:
        wanted = {"kind": "ConfigMap", "name": options["config_map"], "namespace": options["namespace"]}
        answer = self._call("cluster_facts", {"objects": [wanted]}, options, task_vars)
        live: Values = answer["objects"][0]
        return live

    def _write(self, options: Values, live: Values, text: str, record: str | None, task_vars: Values) -> None:
        data = {options["key"]: text}
        if live:
            # With the version that we have read, the server refuses the write if somebody else wrote in between.
            metadata = {"resourceVersion": live["metadata"]["resourceVersion"], "annotations": {RECORD_ANNOTATION: record}}
            arguments = {
                "kind": "ConfigMap",
                "namespace": options["namespace"],
                "names": [options["config_map"]],
                "patch": {"metadata": metadata, "data": data},
            }
            self._call("cluster_patch", arguments, options, task_vars)
            return
        document = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": options["config_map"],
                "namespace": options["namespace"],
                "labels": {"app.kubernetes.io/managed-by": "tenfold"},
                "annotations": {RECORD_ANNOTATION: record},
            },
            "data": data,
        }
        self._call("cluster_objects", {"documents": [document]}, options, task_vars)

    def _call(self, name: str, arguments: Values, options: Values, task_vars: Values) -> Values:
        connection = {key: options[key] for key in ("kubeconfig", "context") if options[key] is not None}
        arguments = {**connection, **arguments}
        answer = answer_of(self._execute_module(module_name=f"tenfold.vgpu.{name}", module_args=arguments, task_vars=task_vars), self._told)
        if answer.get("failed"):
            raise Failed(answer)
        return answer


def plan(start: str, record: Values | None, options: Mapping[str, Any], place: str) -> tuple[str, Values | None]:
    """The text that *start* becomes and the record that goes with it (None: nothing of ours is in it).

    Pure. Errors: ConfigMergeError (see ``volcano_config.merge``), MergeError with line and cause for a text that is no YAML.
    """
    wishes = {
        "deviceshare.VGPUEnable": True,
        "deviceshare.SchedulePolicy": options["schedule_policy"],
        "deviceshare.ScheduleWeight": options["schedule_weight"],
    }
    if options["state"] == "present" and _is_superseded(start, record, options["base"]):
        start, record = options["base"], None
    codec = CODECS["yaml"]()
    document = codec.parse(start, place)
    if options["state"] == "absent":
        if record is None:
            return start, None
        if record.get("original") is not None and record["merged_sha256"] == _sha256(start):
            return record["original"], None
        ours = record.get("wishes") or wishes
        return (codec.dump(document) if volcano_config.unmerge(document, record, ours) else start), None
    done = volcano_config.merge(document, wishes, options["binpack_enabled"])
    if not done["added"] and not done["replaced"]:
        return start, record
    text = codec.dump(document)
    older = record or {"added": [], "replaced": {}, "wishes": {}}
    # A value that our last merge wrote is not the owner's: what that merge had replaced is.
    replaced = dict(older["replaced"])
    for name, value in done["replaced"].items():
        if name not in older["wishes"] or value != older["wishes"][name]:
            replaced[name] = value
    is_edited = record is not None and record["merged_sha256"] != _sha256(start)
    original = older.get("original") if record else start
    if is_edited or len((original or "").encode()) > _ORIGINAL_LIMIT_BYTES:
        original = None
    merged = {
        "added": sorted({*older["added"], *done["added"]}),
        "replaced": replaced,
        "wishes": wishes,
        "merged_sha256": _sha256(text),
        "original": original,
    }
    return text, merged


def _is_superseded(text: str, record: Values | None, base: str | None) -> bool:
    """True when nobody has edited *text* since our merge, and what it was merged into is not what the chart brings now."""
    if record is None or base is None or record.get("original") is None or record["merged_sha256"] != _sha256(text):
        return False
    return bool(base != record["original"])


def _record_of(live: Values) -> Values | None:
    """The record of an earlier merge; one that somebody has damaged counts as none, since the text alone decides then."""
    text = (live.get("metadata", {}).get("annotations") or {}).get(RECORD_ANNOTATION) if live else None
    if text is None:
        return None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    is_whole = isinstance(record, dict) and {"added", "replaced", "wishes", "merged_sha256"} <= set(record)
    return record if is_whole else None


def _is_vgpu_on(text: str) -> bool:
    return bool(volcano_config.is_vgpu_on(CODECS["yaml"]().parse(text, "the scheduler's configuration")))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
