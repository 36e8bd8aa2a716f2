"""Merges of users' files: read on the node, decide here, validate and write on the node.

Owns the order of these steps and what each subject's file is (format, rules, probe). The decision is ``tenfold.merge``'s, the keys are
``tenfold.runtime_config``'s, the formats are ``plugin_utils.formats``'; the node's half is the module ``node_config_file``.
Options and results: plugins/modules/node_config.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

from ansible.plugins.action import ActionBase
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import merge, runtime_config
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import MergeError, TenfoldError
from ansible_collections.tenfold.vgpu.plugins.plugin_utils.formats import CODECS, codec_of
from ansible_collections.tenfold.vgpu.plugins.plugin_utils.plain import answer_of, plain

ARGUMENT_SPEC = {
    "subject": {"type": "str", "required": True, "choices": ["containerd", "docker", "crio", "nvidia_toolkit", "kubelet", "kubelet_flags"]},
    "path": {"type": "path", "required": True},
    "record_path": {"type": "path"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "runtime": {
        "type": "dict",
        "apply_defaults": True,
        "options": {
            "name": {"type": "str", "default": "nvidia"},
            "binary": {"type": "path", "default": "/usr/bin/nvidia-container-runtime"},
            "is_default": {"type": "bool", "default": False},
            "takeover": {"type": "bool", "default": False},
            "cdi_enabled": {"type": "bool", "default": True},
        },
    },
    "engine_version": {"type": "str"},
    "settings": {"type": "dict"},
    "max_pods": {"type": "int"},
    "validate": {"type": "list", "elements": "str"},
}
# What a merge needs to know; giving back needs none of it.
REQUIRED_TO_MERGE = {
    "containerd": "engine_version",
    "docker": "engine_version",
    "nvidia_toolkit": "settings",
    "kubelet": "max_pods",
    "kubelet_flags": "max_pods",
}
# The first docker release that knows `features.cdi`, and the first whose `dockerd --validate` exists.
_DOCKER_WITH_CDI = 25
_DOCKER_WITH_VALIDATE = 23


@dataclass(frozen=True)
class Subject:
    """What kind of file it is. ``probe`` is a command on the node, ``{file}`` the file's path; empty: nothing validates it."""

    format: str
    rules: Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], Sequence[Any]]
    probe: tuple[str, ...] = ()


def _containerd(document: Mapping[str, Any], options: Mapping[str, Any], effective: Mapping[str, Any]) -> Sequence[Any]:
    runtime = runtime_config.RuntimeOptions(**options["runtime"])
    return runtime_config.containerd_edits(document, runtime, options["engine_version"], effective, options["path"])


def _docker(document: Mapping[str, Any], options: Mapping[str, Any], _effective: Mapping[str, Any]) -> Sequence[Any]:
    runtime = runtime_config.RuntimeOptions(**options["runtime"])
    return runtime_config.docker_edits(document, runtime, _major(options["engine_version"]) >= _DOCKER_WITH_CDI, options["path"])


def _crio(document: Mapping[str, Any], options: Mapping[str, Any], _effective: Mapping[str, Any]) -> Sequence[Any]:
    return runtime_config.crio_edits(document, runtime_config.RuntimeOptions(**options["runtime"]), options["path"])


def _nvidia_toolkit(_document: Mapping[str, Any], options: Mapping[str, Any], _effective: Mapping[str, Any]) -> Sequence[Any]:
    return merge.edits_of(options["settings"])


def _kubelet(document: Mapping[str, Any], options: Mapping[str, Any], _effective: Mapping[str, Any]) -> Sequence[Any]:
    return runtime_config.kubelet_edits(document, options["max_pods"], options["path"])


def _kubelet_flags(document: Mapping[str, Any], options: Mapping[str, Any], _effective: Mapping[str, Any]) -> Sequence[Any]:
    return runtime_config.kubelet_flags_edits(document, options["max_pods"])


SUBJECTS = {
    "containerd": Subject("toml", _containerd, ("containerd", "--config", "{file}", "config", "dump")),
    "docker": Subject("json", _docker, ("dockerd", "--validate", "--config-file", "{file}")),
    "crio": Subject("toml", _crio),
    "nvidia_toolkit": Subject("toml", _nvidia_toolkit),
    "kubelet": Subject("yaml", _kubelet),
    "kubelet_flags": Subject("flags", _kubelet_flags),
}


def _major(version: str) -> int:
    return runtime_config.engine_release("docker", version, "26.1.5").parts[0]


class ActionModule(ActionBase):  # type: ignore[misc]
    """One merge. Remote calls: one if nothing is to do, two in check mode, three for a change."""

    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._told: list[Any] = result.setdefault("warnings", [])
        _, options = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        try:
            result.update(self._merge(plain(options), task_vars or {}))
        except TenfoldError as error:
            result.update(failed=True, msg=str(error), error_details=error.details)
        return result

    def _merge(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        path, subject = options["path"], SUBJECTS[options["subject"]]
        required = REQUIRED_TO_MERGE.get(options["subject"])
        if options["state"] == "present" and required and options[required] is None:
            raise MergeError(f"subject {options['subject']!r} with state 'present' needs {required!r}", path=path)
        common = {
            "path": path,
            "record_path": options["record_path"] or f"{path}.tenfold.json",
            "probe": list(self._probe(options, subject)),
        }
        found = self._remote({**common, "step": "read"}, task_vars)
        if found.get("failed"):
            return found
        plan = self._plan(options, subject, found)
        record = plan.record.as_text() if plan.record else None
        held = self._held(options, subject, plan.text, found)
        result = {"changed": False, "path": path, "exists": plan.text is not None, "held": held, "left": list(plan.left)}
        if plan.text == found.get("content") and record == found.get("record"):
            self._require_effect(options, found)
            return result
        refusal = self._try(options, common, plan.text, found, task_vars)
        if refusal:
            return refusal
        write = {**common, "step": "write", "content": plan.text, "record": record, "expected_sha256": found["sha256"]}
        written = self._remote(write, task_vars)
        if written.get("failed"):
            return written
        result["changed"] = written["changed"]
        result["diff"] = {"before": found.get("content") or "", "after": plan.text or "", "before_header": path, "after_header": path}
        return result

    def _plan(self, options: dict[str, Any], subject: Subject, found: dict[str, Any]) -> merge.Plan:
        path, codec = options["path"], codec_of(subject.format, found.get("content"))
        record = merge.Record.from_text(found["record"], f"{path}.tenfold.json") if found.get("record") is not None else None
        if options["state"] == "absent":
            return merge.unmerge(found.get("content"), record, codec, path)
        codec.parse(found.get("content") or "", path)  # our message names the line; the engine's own may not
        self._refuse_if_engine_does(options, found)
        effective = self._dump_of(options, found)
        return merge.merge(found.get("content"), lambda document: subject.rules(document, options, effective), record, codec, path)

    def _held(self, options: dict[str, Any], subject: Subject, text: str | None, found: dict[str, Any]) -> list[str]:
        """Which of our keys the file holds once this merge is done."""
        if options["state"] == "absent" or text is None:
            return []
        document = codec_of(subject.format, text).parse(text, options["path"])
        return [".".join(edit.path) for edit in subject.rules(document, options, self._dump_of(options, found))]

    def _try(
        self, options: dict[str, Any], common: dict[str, Any], text: str | None, found: dict[str, Any], task_vars: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Asks the engine about the new text before anything is written; a failed result, or None if it agrees."""
        if not common["probe"] or text is None:
            return None
        tried = self._remote({**common, "step": "try", "content": text}, task_vars)
        if tried.get("failed"):
            return tried
        self._refuse_if_engine_does(options, tried)
        if options["subject"] == "containerd" and options["state"] == "present":
            foreign = runtime_config.containerd_foreign_changes(
                self._dump_of(options, found), self._dump_of(options, tried), runtime_config.RuntimeOptions(**options["runtime"])
            )
            if foreign:
                raise MergeError(
                    f"cannot merge {options['path']!r}: containerd would lose or change {', '.join(foreign[:5])}, because another file "
                    "that it imports has a section of the same name; move that section into the main file; nothing was changed",
                    path=options["path"],
                    foreign=foreign,
                )
            self._require_effect(options, tried)
        return None

    def _require_effect(self, options: dict[str, Any], answer: dict[str, Any]) -> None:
        """An imported file can override the main one; then the merge would be in vain."""
        dump = self._dump_of(options, answer)
        if not dump or options["state"] == "absent":
            return
        overridden = runtime_config.containerd_overridden(dump, runtime_config.RuntimeOptions(**options["runtime"]))
        if overridden:
            raise MergeError(
                f"a file that {options['path']!r} imports overrides the NVIDIA runtime: containerd sees {', '.join(overridden)}; "
                "take these keys out of that file (look in /etc/containerd/conf.d)",
                path=options["path"],
                overridden=overridden,
            )

    def _refuse_if_engine_does(self, options: dict[str, Any], answer: dict[str, Any]) -> None:
        verdict = answer.get("probe")
        if verdict and verdict["rc"] != 0:
            cause = verdict["stderr"].strip() or verdict["stdout"].strip()
            raise MergeError(
                f"{options['subject']} refuses {options['path']!r}: {cause}; correct the file and run again, nothing was changed",
                path=options["path"],
                cause=cause,
            )

    def _dump_of(self, options: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        """containerd's effective configuration; empty for other subjects, and where containerd is not installed."""
        if options["subject"] != "containerd" or not answer.get("probe"):
            return {}
        codec = CODECS["toml"]()
        return codec.plain(codec.parse(answer["probe"]["stdout"], "the output of `containerd config dump`"))

    def _probe(self, options: dict[str, Any], subject: Subject) -> Sequence[str]:
        if options["validate"] is not None:
            return list(options["validate"])
        if options["subject"] == "docker" and _major(options["engine_version"] or "0") < _DOCKER_WITH_VALIDATE:
            return ()
        return subject.probe

    def _remote(self, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        module = "tenfold.vgpu.node_config_file"
        return answer_of(self._execute_module(module_name=module, module_args=arguments, task_vars=task_vars), self._told)
