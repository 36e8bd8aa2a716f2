"""The table of hooked symbols in docs/enforcement.md, made from src/abi/hooks.def.

``symbols_table.py`` prints it, ``symbols_table.py --write FILE`` puts it between the markers of FILE.
tests/unit/domain/test_hook_verify.py fails when the two differ.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DEFINITION = Path(__file__).resolve().parents[1] / "src" / "abi" / "hooks.def"
MARKERS = ("<!-- hooked symbols: begin -->", "<!-- hooked symbols: end -->")
CLASSES = ("resolve", "memory", "view", "launch", "sync", "context")


def rows(definition: str) -> dict[str, list[str]]:
    """class -> symbols, in the order of the file."""
    table: dict[str, list[str]] = {name: [] for name in CLASSES}
    table["resolve"] += ["dlsym", "dlvsym"]
    for match in re.finditer(r'^(?:CUDA_HOOK\((\w+), "\w+", \d+, (\w+)|NVML_HOOK\((\w+), (\w+))', definition, re.MULTILINE):
        symbol, group = (match[1], match[2]) if match[1] else (match[3], match[4])
        table[group].append(symbol)
    return table


def table(definition: str) -> str:
    lines = ["| class | symbols |", "|---|---|"]
    lines += [f"| {group} | {', '.join(symbols)} |" for group, symbols in rows(definition).items()]
    return "\n".join(lines) + "\n"


def replaced(text: str, definition: str) -> str:
    """The document with its table made anew. Errors: ValueError when the markers are missing."""
    before, begin, rest = text.partition(MARKERS[0])
    _old, end, after = rest.partition(MARKERS[1])
    if not begin or not end:
        raise ValueError(f"the document lacks the lines {MARKERS[0]!r} and {MARKERS[1]!r}")
    return f"{before}{begin}\n{table(definition)}{end}{after}"


def main(arguments: list[str]) -> int:
    definition = DEFINITION.read_text()
    if len(arguments) == 2 and arguments[0] == "--write":
        path = Path(arguments[1])
        path.write_text(replaced(path.read_text(), definition))
        return 0
    print(table(definition), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
