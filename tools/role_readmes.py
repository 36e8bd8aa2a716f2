"""Writes each role's README.md from its meta/argument_specs.yml, the one place where variables are described.

`role_readmes.py` writes; `role_readmes.py --verify` changes nothing and fails, naming the roles whose README is out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent


def plain(text: Any) -> str:
    """Ansible's documentation markup as Markdown, on one line."""
    joined = " ".join(str(one) for one in text) if isinstance(text, list) else str(text)
    joined = re.sub(r"\b[VCOEBI]\(((?:[^()]|\([^()]*\))*)\)", r"`\1`", joined)
    return " ".join(joined.split()).replace("|", "\\|")


def default_of(name: str, spec: dict[str, Any], defaults: dict[str, Any]) -> str:
    if spec.get("required"):
        return "required"
    value = spec.get("default", defaults.get(name))
    if value is None or (isinstance(value, str) and "{{" in value):
        return "" if value is None else "from other variables"
    text = yaml.safe_dump(value, default_flow_style=True, width=1 << 20).removesuffix("\n").removesuffix("\n...")
    return f"`{text}`"


def entry_of(spec: dict[str, Any], defaults: dict[str, Any]) -> list[str]:
    """Lines about one entry point, its title left out."""
    description = spec.get("description", [])
    lines = [f"{plain(spec['short_description'])}.", ""]
    for paragraph in description if isinstance(description, list) else [description]:
        lines += [plain(paragraph), ""]
    lines += ["| variable | type | default | meaning |", "|---|---|---|---|"]
    for name, option in spec.get("options", {}).items():
        kind = option.get("type", "str")
        kind += f" of {option['elements']}" if "elements" in option else ""
        choices = f" One of {', '.join(f'`{choice}`' for choice in option['choices'])}." if "choices" in option else ""
        lines.append(f"| `{name}` | {kind} | {default_of(name, option, defaults)} | {plain(option.get('description', ''))}{choices} |")
    return [*lines, ""]


def readme_of(role: Path) -> str:
    """Text of the role's README: the role itself, then its other entry points."""
    specs = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"]
    defaults_file = role / "defaults" / "main.yml"
    defaults = (yaml.safe_load(defaults_file.read_text(encoding="utf-8")) if defaults_file.exists() else None) or {}
    lines = [f"# {role.name}", "", *entry_of(specs["main"], defaults)]
    for name in sorted(set(specs) - {"main"}):
        lines += [f"## Entry point `{name}` (`tasks_from: {name}`)", "", *entry_of(specs[name], defaults)]
    return "\n".join([*lines, "Written from `meta/argument_specs.yml` by `tools/role_readmes.py`.", ""])


def main(arguments: list[str]) -> int:
    stale = []
    for specs in sorted(ROOT.glob("roles/*/meta/argument_specs.yml")):
        role = specs.parent.parent
        path, text = role / "README.md", readme_of(role)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(role.name)
        if "--verify" not in arguments:
            path.write_text(text, encoding="utf-8")
    if stale and "--verify" in arguments:
        print(f"README.md is out of date for role {', '.join(stale)}; run: python tools/role_readmes.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
