"""Checks that imports, includes and calls point one way, and that no files stand in a circle (docs/architecture.md).

- Python of the product: playbooks -> roles -> modules and actions -> domain. A positive list per layer, since the rule of the domain is
  "the standard library and itself, nothing else", which no list of forbidden packages can say.
- C of the hook: a folder may include and use what ROOMS says. A .c file and the header of its name are one file. Who uses a function or
  variable by name depends on the file that defines it, whatever header, or declaration written by hand, the name came from. Nobody
  calls what the hook exports: it is the program's to call.
- Circles: none among the files of the hook, none among the Python files. An import counts wherever it stands: within a function, and under
  ``if TYPE_CHECKING`` too.

Reads every file as text (Python by ast), so nothing is imported, compiled or run.
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping

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
    Layer("plugins/filter", (DOMAIN, CONTROLLER, "ansible.errors", "ansible.inventory", "ansible.parsing")),
    Layer(
        "files/device_plugin",
        ("tenfold_device_plugin", "grpc", "grpc_tools", "google.protobuf", "kubernetes", "urllib3", "pynvml", "prometheus_client", "yaml"),
        skip=("_domain",),
    ),
)


SEARCHED = ("collections", "files/device_plugin/src", ".")  # where an import is looked for, beside the importing file's own folder
PYTHON = ("plugins", "files", "roles", "tools", "tests")  # where files in a circle are looked for
NO_SOURCES = {"build", "node_modules"}

HOOK = "files/hook/src"
ROOMS = {  # folder -> other folders that its files may include and use
    "abi": (),
    "base": (),
    "limiter": (),
    "driver": ("abi", "base"),
    "slice": ("abi", "base", "driver"),
    "memory": ("abi", "base", "driver", "slice"),
    "compute": ("abi", "base", "driver", "slice", "limiter"),
    "hooks": ("abi", "base", "driver", "slice", "memory", "compute", "limiter"),
    "host": ("abi", "base", "slice"),
}

Edges = Mapping[str, "set[str]"]


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


def outward_imports(root: Path) -> Iterator[str]:
    """Every import that points the wrong way, with file, line and what that layer may import."""
    for layer in LAYERS:
        for path in sorted((root / layer.folder).rglob("*.py")):
            if set(layer.skip) & set(path.relative_to(root).parts):
                continue
            for line, name in imported_names(ast.parse(path.read_text(encoding="utf-8"), str(path))):
                if not is_allowed(name, layer):
                    allowed = ", ".join(layer.may_import) or "nothing"
                    yield f"{path.relative_to(root)}:{line}: imports '{name}'; {layer.folder} may import the standard library and {allowed}"


# --- who needs whom -----------------------------------------------------------------------------------------------------------


def python_edges(root: Path) -> Edges:
    """File -> the files of the tree that it imports, as paths below *root*."""
    paths = {path for folder in PYTHON for path in (root / folder).rglob("*.py") if not NO_SOURCES & set(path.relative_to(root).parts)}
    edges: dict[str, set[str]] = {}
    for path in sorted(paths):
        needs = edges.setdefault(str(path.relative_to(root)), set())
        for candidates in imported_files(path, root):
            needs |= {str(file.relative_to(root)) for file in [file for file in candidates if file in paths and file != path][:1]}
    return edges


def imported_files(path: Path, root: Path) -> Iterator[list[Path]]:
    """For each name that is imported the files that it may mean: a module of a package before a name that the package defines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        level = node.level if isinstance(node, ast.ImportFrom) else 0
        bases = [path.parents[level - 1]] if level else [path.parent, *(root / folder for folder in SEARCHED)]
        for module, name in names:
            packages = [base.joinpath(*module.split(".")) if module else base for base in bases]
            stems = [stem for package in packages for stem in ([package / name] if name else []) + [package]]
            yield [file.resolve() for stem in stems for file in (stem.with_name(stem.name + ".py"), stem / "__init__.py")]


def c_edges(sources: Path) -> Edges:
    """File of the hook -> the files that it includes or whose functions and variables it uses, ``slice/slots`` for slots.c with slots.h. A
    function that is exported for programs counts as ``exported/`` and its name."""
    texts: dict[str, str] = {}
    for path in sorted(sources.glob("*/*.[chS]")):
        file = f"{path.parent.name}/{path.stem}"
        texts[file] = texts.get(file, "") + re.sub(r"/\*.*?\*/|//[^\n]*", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL) + "\n"
    exported = {
        name for path in sources.glob("*/*.def") for name in re.findall(r"^\w+_HOOK\((\w+)", path.read_text(encoding="utf-8"), re.M)
    }
    owners = {name: file for file, text in texts.items() for name in defined_names(text, exported)}
    edges: dict[str, set[str]] = {}
    for file, text in texts.items():
        stems = [name.rpartition(".")[0] for name in re.findall(r'^#include "(.*?)"', text, re.M)]
        included = {posixpath.normpath(posixpath.join(base, stem)) for stem in stems for base in ("", posixpath.dirname(file))}
        names = set(re.findall(r"(?<![\w.>])[A-Za-z_]\w*", re.sub(r'"(?:\\.|[^"\\\n])*"', "", text)))
        foreign = {name: owners[name] for name in names & owners.keys() if owners[name] != file}
        used = {f"exported/{name}" if name in exported else owner for name, owner in foreign.items()}
        edges[file] = (included & texts.keys()) - {file} | used
    return edges


def defined_names(text: str, exported: set[str]) -> Iterator[str]:
    """Functions and variables that other files can reach, defined in C text without comments, each at the beginning of a line. What is
    exported may be defined there by a macro."""
    text = re.sub(r"__attribute__\(\((?:[^()]|\([^()]*\))*\)\)|_Atomic\([^()]*\)|_Alignas\(\w+\)", "int", text)
    not_ours = r"^(?!(?:static|extern|typedef|enum|_Static_assert)\b|(?:struct|union) \w+ ?[{;])"
    for match in re.finditer(
        not_ours + r"\w[\w \t*]*?\b(\w+)(?:\[|;| =|\([^;{}]*\)\s*\{)|" + not_ours + r"\w[\w \t*]*\(\*(\w+)\)\(", text, re.M
    ):
        yield match[1] or match[2]
    yield from exported & set(re.findall(r"^[A-Z]\w*\((\w+)", text, re.M))


# --- what must not be -----------------------------------------------------------------------------------------------------------


def upward_uses(edges: Edges) -> Iterator[str]:
    """Every use of a folder that ROOMS does not grant."""
    for file, needs in sorted(edges.items()):
        room = posixpath.dirname(file)
        for need in sorted(needs):
            if posixpath.dirname(need) not in (room, *ROOMS.get(room, ())):
                yield f"{HOOK}/{file}: includes or uses {need}; {room} may use {', '.join(ROOMS.get(room, ())) or 'no other folder'}"


def circles(edges: Edges) -> Iterator[str]:
    """A shortest circle through each file that stands in one and was not named yet."""
    named: set[str] = set()
    for start in sorted(edges):
        came_from: dict[str, str] = {}
        todo = [start]
        while todo and start not in came_from:
            file = todo.pop(0)
            for need in sorted(edges.get(file, set()) - came_from.keys()):
                came_from[need] = file
                todo.append(need)
        if start in came_from and start not in named:
            circle = [start]
            while len(circle) == 1 or circle[-1] != start:
                circle.append(came_from[circle[-1]])
            named |= set(circle)
            yield f"these files stand in a circle: {' -> '.join(reversed(circle))}; move what they share below both"


def problems(root: Path) -> list[str]:
    """One line each."""
    of_hook = c_edges(root / HOOK)
    return [*outward_imports(root), *upward_uses(of_hook), *circles(of_hook), *circles(python_edges(root.resolve()))]


def main() -> int:
    """Prints the problems; 1 if there is one."""
    found = problems(ROOT)
    print("\n".join(found) or "import layers: ok")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
