"""Checks that imports point one way: playbooks -> roles -> modules and actions -> domain (docs/architecture.md).

Reads every Python file of the product as text (ast), so nothing is imported or run. A positive list per layer, since the rule of
the domain is "the standard library and itself, nothing else", which no list of forbidden packages can say.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Layer:
    """One folder and the top-level packages that its files may import beside the standard library."""

    folder: str
    may_import: tuple[str, ...]
    skip: tuple[str, ...] = ()


PLUGINS = "ansible_collections.tenfold.vgpu.plugins"
DOMAIN = f"{PLUGINS}.module_utils.tenfold"
CLUSTER_CLIENT = f"{PLUGINS}.module_utils.tenfold_cluster"
CONTROLLER = f"{PLUGINS}.plugin_utils"
ANSIBLE_BASE = ("ansible.module_utils.basic", "ansible.module_utils.common")
LAYERS = (
    Layer("plugins/module_utils/tenfold", ()),
    Layer("plugins/module_utils/tenfold_cluster", (DOMAIN, "kubernetes", "yaml")),
    Layer("plugins/plugin_utils", (DOMAIN, "tomlkit", "ruamel")),
    Layer("plugins/modules", (DOMAIN, CLUSTER_CLIENT, *ANSIBLE_BASE, "kubernetes", "yaml")),
    Layer("plugins/action", (DOMAIN, CLUSTER_CLIENT, CONTROLLER, "ansible.plugins", "ansible.errors", "ansible.module_utils.common")),
    Layer("plugins/filter", (DOMAIN, "ansible.errors")),
    Layer(
        "files/device_plugin",
        ("tenfold_device_plugin", "grpc", "grpc_tools", "google.protobuf", "kubernetes", "urllib3", "pynvml", "prometheus_client", "yaml"),
        skip=("_domain",),
    ),
)


def imported_names(tree: ast.AST) -> list[tuple[int, str]]:
    """Line and absolute dotted name of every import; relative ones (which can't leave their package) are left out."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.lineno, node.module))
    return found


def is_allowed(name: str, layer: Layer) -> bool:
    """True when *name* is standard library or below a package that *layer* may import."""
    if name.split(".")[0] in sys.stdlib_module_names or name == "__future__":
        return True
    return any(name == package or name.startswith(package + ".") for package in layer.may_import)


def problems(root: Path) -> list[str]:
    """One line per import that points the wrong way, each with file, line and what that layer may import."""
    found: list[str] = []
    for layer in LAYERS:
        for path in sorted((root / layer.folder).rglob("*.py")):
            if set(layer.skip) & set(path.relative_to(root).parts):
                continue
            for line, name in imported_names(ast.parse(path.read_text(encoding="utf-8"), str(path))):
                if not is_allowed(name, layer):
                    allowed = ", ".join(layer.may_import) or "nothing"
                    found.append(
                        f"{path.relative_to(root)}:{line}: imports '{name}'; {layer.folder} may import the standard library and {allowed}"
                    )
    return found


def main() -> int:
    """Prints the problems; 1 if there is one."""
    found = problems(ROOT)
    print("\n".join(found) or "import layers: ok")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
