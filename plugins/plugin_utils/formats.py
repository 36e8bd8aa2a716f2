"""TOML, YAML and JSON that keep a user's comments, order and quoting.

Owns parsing with the place of an error, and writing. What is changed is decided in ``tenfold.merge``, which sees only mappings.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import re
import sys
from typing import Any, Dict, Mapping, MutableMapping

import tomlkit
import tomlkit.exceptions
import tomlkit.items
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold.errors import MergeError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.util import load_yaml_guess_indent

__all__ = ["CODECS", "FlagsCodec", "JsonCodec", "TomlCodec", "YamlCodec", "codec_of"]


def _refusal(where: str, cause: str, line: int | None, column: int | None) -> MergeError:
    place = f" line {line}, column {column}" if line is not None and column is not None else ""
    return MergeError(
        f"cannot parse {where!r}{place}: {cause}; correct the file and run again, nothing was changed",
        path=where,
        line=line,
        column=column,
        cause=cause,
    )


class TomlCodec:
    """TOML 1.0 through tomlkit."""

    def parse(self, text: str, where: str) -> MutableMapping[str, Any]:
        try:
            return tomlkit.parse(text)
        except tomlkit.exceptions.ParseError as error:
            raise _refusal(where, *_cause_and_place(text, error)) from error
        except tomlkit.exceptions.TOMLKitError as error:
            raise _refusal(where, str(error), None, None) from error

    def dump(self, document: MutableMapping[str, Any]) -> str:
        return tomlkit.dumps(document)

    def plain(self, document: Mapping[str, Any]) -> dict[str, Any]:
        unwrapped = document.unwrap() if hasattr(document, "unwrap") else document
        return dict(unwrapped)

    def add_table(self, parent: MutableMapping[str, Any], key: str, is_last: bool) -> None:
        """A table that only holds others gets no header of its own. New tables follow their siblings' indentation."""
        table = tomlkit.table(is_super_table=not is_last)
        if is_last:
            table.trivia.indent = "\n" + _indent_of_tables(parent)
        parent[key] = table


def _indent_of_tables(parent: Mapping[str, Any]) -> str:
    for value in parent.values():
        if isinstance(value, tomlkit.items.Table):
            if value.is_super_table():
                return _indent_of_tables(value)
            return value.trivia.indent.rpartition("\n")[2]
    return ""


def _cause_and_place(text: str, error: tomlkit.exceptions.ParseError) -> tuple[str, int, int]:
    """Where Python has its own parser, its place is the better one: tomlkit names the line after a table that is given twice."""
    if sys.version_info >= (3, 11):
        import tomllib

        try:
            tomllib.loads(text)
        except tomllib.TOMLDecodeError as other:
            found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(other))
            if found:
                return found.group(1), int(found.group(2)), int(found.group(3))
    return re.sub(r" at line \d+ col \d+$", "", str(error)), error.line, error.col


class YamlCodec:
    """One YAML document through ruamel.yaml's round trip; the indentation of sequences follows the file."""

    def __init__(self) -> None:
        self._indent = 2
        self._sequence_offset = 0
        self._has_start = False

    def _yaml(self) -> YAML:
        yaml = YAML(typ="rt")
        yaml.preserve_quotes = True
        yaml.width = 1 << 20
        yaml.explicit_start = self._has_start
        yaml.indent(mapping=self._indent, sequence=self._sequence_offset + 2, offset=self._sequence_offset)
        return yaml

    def parse(self, text: str, where: str) -> MutableMapping[str, Any]:
        try:
            document = self._yaml().load(text)
            if text.strip():
                _, indent, offset = load_yaml_guess_indent(text)
                self._indent, self._sequence_offset = indent if indent and not offset else 2, offset or 0
            self._has_start = bool(re.search(r"^---\s*$", text, re.MULTILINE))
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
            raise _refusal(where, error.problem or error.context or "not YAML", line, column) from error
        except YAMLError as error:
            raise _refusal(where, str(error).splitlines()[0], None, None) from error
        if document is None:
            return CommentedMap()
        if not isinstance(document, MutableMapping):
            raise _refusal(where, f"the document is a {type(document).__name__}, expected a mapping", 1, 1)
        return document

    def dump(self, document: MutableMapping[str, Any]) -> str:
        stream = io.StringIO()
        self._yaml().dump(document, stream)
        return stream.getvalue()

    def plain(self, document: Mapping[str, Any]) -> dict[str, Any]:
        return {key: _plain(value) for key, value in document.items()}

    def add_table(self, parent: MutableMapping[str, Any], key: str, is_last: bool) -> None:  # noqa: ARG002
        parent[key] = CommentedMap()


def _plain(value: Any) -> Any:
    """ruamel's nodes as plain values; its int, float and string kinds are subclasses that carry their spelling."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


_COMPACT = (",", ":")


class JsonCodec:
    """JSON with the file's own indentation, one line without spaces included.

    A repeated key is refused, since what it means depends on the reader.
    """

    def __init__(self) -> None:
        self._indent: str | None = "    "
        self._separators: tuple[str, str] | None = None
        self._end = "\n"

    def parse(self, text: str, where: str) -> MutableMapping[str, Any]:
        if not text.strip():
            return {}
        try:
            document = json.loads(text, object_pairs_hook=_unique)
        except json.JSONDecodeError as error:
            raise _refusal(where, error.msg, error.lineno, error.colno) from error
        except KeyError as error:
            key = str(error.args[0])
            numbers = [number for number, line in enumerate(text.splitlines(), start=1) if json.dumps(key) in line]
            raise _refusal(where, f"key {key!r} is given twice", numbers[-1] if numbers else None, 1) from error
        if not isinstance(document, dict):
            raise _refusal(where, f"the document is a {type(document).__name__}, expected an object", 1, 1)
        found = re.search(r"^([ \t]+)\"", text, re.MULTILINE)
        self._indent = found.group(1) if found else ("    " if not document else None)
        self._separators = _COMPACT if document and json.dumps(document, separators=_COMPACT, ensure_ascii=False) == text.strip() else None
        self._end = "\n" if text.endswith("\n") else ""
        return document

    def dump(self, document: MutableMapping[str, Any]) -> str:
        return json.dumps(document, indent=self._indent, separators=self._separators, ensure_ascii=False) + self._end

    def plain(self, document: Mapping[str, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(document))

    def add_table(self, parent: MutableMapping[str, Any], key: str, is_last: bool) -> None:  # noqa: ARG002
        parent[key] = {}


class FlagsDocument(Dict[str, Any]):
    """Numbers given as flags in a text, by flag name, and the text around them."""

    text = ""


class FlagsCodec:
    """Flags with a number inside a text, such as ``--max-pods=110`` in an environment file of the kubelet's unit.

    Such a text has no syntax of its own to break; only flags that are there already can be changed. Comments are left alone.
    """

    _FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*)([= ])(\d+)\b")

    def parse(self, text: str, where: str) -> MutableMapping[str, Any]:  # noqa: ARG002
        document = FlagsDocument()
        document.text = text
        for line in text.splitlines():
            if not line.lstrip().startswith("#"):
                document.update({match.group(1): int(match.group(3)) for match in self._FLAG.finditer(line)})
        return document

    def dump(self, document: MutableMapping[str, Any]) -> str:
        text = getattr(document, "text", "")

        def with_value(match: re.Match[str]) -> str:
            return f"{match.group(1)}{match.group(2)}{document.get(match.group(1), match.group(3))}"

        lines = text.splitlines(keepends=True)
        return "".join(line if line.lstrip().startswith("#") else self._FLAG.sub(with_value, line) for line in lines)

    def plain(self, document: Mapping[str, Any]) -> dict[str, Any]:
        return dict(document)

    def add_table(self, parent: MutableMapping[str, Any], key: str, is_last: bool) -> None:
        raise NotImplementedError("flags have no tables")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in pairs:
        if key in document:
            raise KeyError(key)
        document[key] = value
    return document


CODECS: dict[str, type[TomlCodec] | type[YamlCodec] | type[JsonCodec] | type[FlagsCodec]] = {
    "toml": TomlCodec,
    "yaml": YamlCodec,
    "json": JsonCodec,
    "flags": FlagsCodec,
}


def codec_of(name: str, text: str | None) -> TomlCodec | YamlCodec | JsonCodec | FlagsCodec:
    """The codec for a file of that format; JSON is YAML too, but keeps its own form only as JSON."""
    if name == "yaml" and (text or "").lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            json.loads(text or "")
            return JsonCodec()
    return CODECS[name]()
