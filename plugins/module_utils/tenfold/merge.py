"""How Tenfold's settings enter a user's configuration file, and how they leave it again.

Owns the decision: given the file's text, the wanted settings and the record of an earlier merge, what text and what record come next.
Foreign keys, comments and order survive because the caller's codec keeps them (``plugin_utils.formats``); the node's part (read,
validate, rename) is the module ``node_config_file``. What each engine needs to be told is ``runtime_config``'s task.

The promise: a second merge changes nothing; ``unmerge`` gives back what was there, byte for byte if nobody edited the file since, key by
key otherwise, and never takes away what a user wrote in the meantime.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Mapping, MutableMapping, Protocol, Sequence, Tuple

from .errors import MergeError

__all__ = ["Codec", "Edit", "Plan", "Record", "Replaced", "Rules", "edits_of", "lookup", "merge", "sha256_of", "unmerge"]

Path = Tuple[str, ...]  # the keys from the root to a value
RECORD_VERSION = 1
_ABSENT: Any = object()


class Codec(Protocol):
    """Parses and writes one format. ``parse`` raises MergeError with file, line and cause; ``plain`` gives a plain copy."""

    def parse(self, text: str, where: str) -> MutableMapping[str, Any]: ...

    def dump(self, document: MutableMapping[str, Any]) -> str: ...

    def plain(self, document: Mapping[str, Any]) -> dict[str, Any]: ...

    def add_table(self, parent: MutableMapping[str, Any], key: str, is_last: bool) -> None: ...


@dataclass(frozen=True)
class Edit:
    """One wanted value: a scalar or a list at ``path``. ``at_least``: an integer that never falls below what the user had."""

    path: Path
    value: Any
    at_least: bool = False


Rules = Callable[[Mapping[str, Any]], Sequence[Edit]]


@dataclass(frozen=True)
class Replaced:
    """What one edit replaced. ``tables_made``: how many enclosing tables, from the innermost outwards, exist only because of us."""

    path: Path
    had: bool
    before: Any
    after: Any
    tables_made: int = 0


@dataclass(frozen=True)
class Record:
    """What Tenfold replaced in a file.

    ``existed``: the file was there before; ``original``: its whole text, kept as long as nobody else edited the file;
    ``text_sha256``: of the text that Tenfold wrote.
    """

    existed: bool
    original: str | None
    text_sha256: str
    replaced: Sequence[Replaced]

    def as_text(self) -> str:
        """Canonical JSON, so that the same record is the same bytes."""
        entries = []
        for one in self.replaced:
            entry: dict[str, Any] = {"path": list(one.path), "after": one.after, "tables_made": one.tables_made}
            if one.had:
                entry["before"] = one.before
            entries.append(entry)
        document = {
            "version": RECORD_VERSION,
            "about": "what Tenfold replaced in the file beside this one; needed to give it back",
            "existed": self.existed,
            "original": self.original,
            "text_sha256": self.text_sha256,
            "replaced": entries,
        }
        return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_text(cls, text: str, where: str) -> Record:
        """Errors: MergeError if the record is damaged or of another version."""
        try:
            raw = json.loads(text)
            if raw["version"] != RECORD_VERSION:
                raise MergeError(
                    f"record {where!r} has version {raw['version']!r}, expected {RECORD_VERSION}: "
                    "another release wrote it; use that release",
                    path=where,
                )
            replaced = [
                Replaced(
                    path=tuple(str(key) for key in entry["path"]),
                    had="before" in entry,
                    before=entry.get("before"),
                    after=entry["after"],
                    tables_made=int(entry["tables_made"]),
                )
                for entry in raw["replaced"]
            ]
            return cls(existed=bool(raw["existed"]), original=raw["original"], text_sha256=str(raw["text_sha256"]), replaced=replaced)
        except (KeyError, TypeError, ValueError) as error:
            raise MergeError(
                f"record {where!r} is damaged ({error}): restore it from a backup, or remove it and let the file count as the user's own",
                path=where,
            ) from error


@dataclass(frozen=True)
class Plan:
    """What a file should become. ``text`` None: no file. ``left``: paths that a user changed since our merge and that stay theirs."""

    text: str | None
    record: Record | None
    left: Sequence[str] = ()


def sha256_of(text: str) -> str:
    """The hash that ties a record to a text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def edits_of(settings: Mapping[str, Any]) -> list[Edit]:
    """Flattens nested settings into one edit per scalar or list."""
    return [Edit(path, value) for path, value in _leaves(settings, ())]


def _leaves(settings: Mapping[str, Any], prefix: Path) -> Iterator[tuple[Path, Any]]:
    for key, value in settings.items():
        path = (*prefix, str(key))
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        else:
            yield path, value


def lookup(document: Mapping[str, Any], path: Iterable[str], default: Any = None) -> Any:
    """The value at ``path``, or ``default`` where a key is missing or a parent is no table."""
    value: Any = document
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return default
        value = value[key]
    return value


def merge(text: str | None, rules: Rules, record: Record | None, codec: Codec, where: str) -> Plan:
    """The file's next text and record so that every edit holds.

    ``text`` None: the file does not exist. ``rules`` is given the file as it would be without us, so that it decides the same each time;
    an edit of an earlier merge that it no longer wants is taken back.
    Errors: MergeError if the text does not parse, or if an edit's parent is not a table.
    """
    document = codec.parse(text or "", where)
    present = codec.plain(document)
    expected = copy.deepcopy(present)
    if record is not None and not any(_same(lookup(present, one.path, _ABSENT), one.after) for one in record.replaced):
        record = None  # another tool wrote the file anew: it is the user's own again
    known = {one.path: one for one in record.replaced} if record else {}
    without_us = copy.deepcopy(present)
    _take_back(without_us, list(known.values()))
    edits = rules(without_us)
    wanted = {edit.path for edit in edits}
    stale = [one for one in known.values() if one.path not in wanted]
    left = _take_back(document, stale)
    _take_back(expected, stale)
    replaced = []
    for edit in edits:
        one = _replacement(expected, edit, known.get(edit.path), where)
        _put(document, one, codec, where)
        _put(expected, one, _PlainTables(), where)
        if edit.path in known or not one.had or not _same(one.after, one.before):
            replaced.append(one)
    if text is None and not replaced:
        return Plan(None, None, left)
    after = text if text is not None and _same(present, expected) else codec.dump(document)
    _check(after, expected, codec, where)
    return Plan(after, _next_record(text, after, record, replaced) if replaced else None, left)


def unmerge(text: str | None, record: Record | None, codec: Codec, where: str) -> Plan:
    """The file as it was before the first merge. Nothing recorded: nothing changes."""
    if record is None or text is None:
        return Plan(text, None)
    if record.text_sha256 == sha256_of(text) and (record.original is not None or not record.existed):
        return Plan(record.original if record.existed else None, None)
    document = codec.parse(text, where)
    expected = copy.deepcopy(codec.plain(document))
    left = _take_back(document, record.replaced)
    _take_back(expected, record.replaced)
    if not record.existed and not expected:
        return Plan(None, None, left)
    after = text if _same(expected, codec.plain(codec.parse(text, where))) else codec.dump(document)
    _check(after, expected, codec, where)
    return Plan(after, None, left)


class _PlainTables:
    """The table maker of plain dicts, for the model that a codec's output is compared with."""

    def add_table(self, parent: MutableMapping[str, Any], key: str, is_last: bool) -> None:  # noqa: ARG002
        parent[key] = {}


def _replacement(document: Mapping[str, Any], edit: Edit, known: Replaced | None, where: str) -> Replaced:
    now = lookup(document, edit.path, _ABSENT)
    if isinstance(now, Mapping):
        raise MergeError(
            f"cannot merge {where!r}: {_dotted(edit.path)} is a table, expected a value; remove it or merge by hand",
            path=where,
            key=list(edit.path),
        )
    if known is not None and _same(now, known.after):
        had, before, made = known.had, known.before, known.tables_made
    else:
        had, before, made = now is not _ABSENT, None if now is _ABSENT else copy.deepcopy(now), _missing_tables(document, edit.path, where)
    value = edit.value
    if edit.at_least and had and isinstance(before, int) and not isinstance(before, bool):
        value = max(before, value)
    return Replaced(edit.path, had, before, value, made)


def _missing_tables(document: Mapping[str, Any], path: Path, where: str) -> int:
    table: Any = document
    for depth, key in enumerate(path[:-1]):
        if key not in table:
            return len(path) - 1 - depth
        table = table[key]
        if not isinstance(table, Mapping):
            raise MergeError(
                f"cannot merge {where!r}: {_dotted(path[: depth + 1])} is {table!r}, expected a table; remove it or merge by hand",
                path=where,
                key=list(path[: depth + 1]),
            )
    return 0


def _put(document: MutableMapping[str, Any], one: Replaced, tables: Any, where: str) -> None:
    table = document
    for depth, key in enumerate(one.path[:-1]):
        if key not in table:
            tables.add_table(table, key, depth == len(one.path) - 2)
        table = table[key]
        if not isinstance(table, MutableMapping):
            raise MergeError(f"cannot merge {where!r}: {_dotted(one.path[: depth + 1])} is no table", path=where)
    name = one.path[-1]
    if name not in table or not _same(table[name], one.after):
        table[name] = copy.deepcopy(one.after)


def _take_back(document: MutableMapping[str, Any], replaced: Sequence[Replaced]) -> list[str]:
    """Puts the recorded values back, last first; returns the paths that somebody changed since and that are therefore left alone."""
    left = []
    for one in reversed(list(replaced)):
        now = lookup(document, one.path, _ABSENT)
        if now is _ABSENT and not one.had:
            continue
        if not _same(now, one.after):
            left.append(_dotted(one.path))
            continue
        chain: list[MutableMapping[str, Any]] = [document]
        for key in one.path[:-1]:
            chain.append(chain[-1][key])
        if one.had:
            chain[-1][one.path[-1]] = copy.deepcopy(one.before)
            continue
        del chain[-1][one.path[-1]]
        for level in range(one.tables_made):
            table, depth = chain[-1 - level], len(one.path) - 2 - level
            if table:
                break
            del chain[-2 - level][one.path[depth]]
    return sorted(left)


def _next_record(text: str | None, after: str, record: Record | None, replaced: Sequence[Replaced]) -> Record:
    """The original text stays in the record only while every byte that changed since is ours."""
    if record is None:
        return Record(existed=text is not None, original=text, text_sha256=sha256_of(after), replaced=replaced)
    if text is None:
        return Record(existed=False, original=None, text_sha256=sha256_of(after), replaced=replaced)
    original = record.original if record.text_sha256 == sha256_of(text) else None
    existed = record.existed or record.text_sha256 != sha256_of(text)
    return Record(existed=existed, original=original, text_sha256=sha256_of(after), replaced=replaced)


def _check(after: str, expected: Mapping[str, Any], codec: Codec, where: str) -> None:
    """A format library must not change more than it was asked for: the written text is read back and compared with a plain model."""
    if not _same(codec.plain(codec.parse(after, where)), expected):
        raise MergeError(
            f"cannot merge {where!r} without changing other keys: its tables are in an order that the format "
            "library does not keep; merge by hand, or bring the tables of one section together; nothing was changed",
            path=where,
        )


def _same(one: Any, other: Any) -> bool:
    """Equality that tells True from 1, as configuration files do."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(_same(left, right) for left, right in zip(one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _dotted(path: Sequence[str]) -> str:
    return ".".join(key if key.replace("-", "").replace("_", "").isalnum() else f'"{key}"' for key in path)
