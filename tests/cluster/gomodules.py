"""The text of one go.mod that builds the mains of k8s.io/kubernetes, etcd and volcano.sh/volcano as dependencies.

Pure: texts of the modules' own go.mod files in, text out. ``compile`` fetches those and runs the compiler. Needed because Kubernetes
names its staging modules v0.0.0 and replaces them by folders that the published module lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

KUBERNETES = "k8s.io/kubernetes"
VOLCANO = "volcano.sh/volcano"
VOLCANO_APIS = "volcano.sh/apis"
ETCD = "go.etcd.io/etcd/server/v3"
PINNED = (KUBERNETES, VOLCANO, VOLCANO_APIS, ETCD)

# The module proxy has no volcano.sh/apis v1.15.1, which Volcano 1.15.1 asks for. v1.14.0 lacks this one constant of it; its value is
# given in Volcano's docs/design/scheduling-gates-queue-admission.md.
APIS_SUPPLEMENT_PATH = "pkg/apis/scheduling/v1beta1/zz_tenfold_supplement.go"
APIS_SUPPLEMENT = """package v1beta1

// QueueAllocationGateKey marks pods whose queue admission is still open.
const QueueAllocationGateKey = GroupName + "/queue-allocation-gate"
"""

_REQUIRE_BLOCK = re.compile(r"^require\s*\((.*?)^\)", re.MULTILINE | re.DOTALL)
_REQUIRE_LINE = re.compile(r"^require\s+([^(\s].*)$", re.MULTILINE)
_REQUIRE = re.compile(r"^\s*(?P<module>\S+\.\S+)\s+(?P<version>v\S+)", re.MULTILINE)
_STAGING = re.compile(r"^\s*(?:replace\s+)?(k8s\.io/\S+)\s+=>\s+\./staging/", re.MULTILINE)


def requirements(go_mod: str) -> dict[str, str]:
    """Module -> version of every ``require`` of a go.mod, without the v0.0.0 placeholders of Kubernetes' staging modules."""
    found: dict[str, str] = {}
    for block in [*_REQUIRE_BLOCK.findall(go_mod), *_REQUIRE_LINE.findall(go_mod)]:
        for match in _REQUIRE.finditer(block):
            if match["version"] != "v0.0.0":
                found[match["module"]] = match["version"]
    return found


def staging_modules(kubernetes_go_mod: str) -> list[str]:
    """Modules that Kubernetes develops in its own tree and publishes as v0.MINOR.PATCH."""
    return sorted(set(_STAGING.findall(kubernetes_go_mod)))


def version_order(version: str) -> tuple[tuple[int, int, int], bool, tuple[tuple[bool, int, str], ...]]:
    """Sort key of a Go module version: numbers, then a release above its pre-releases (pseudo-versions among them).

    Source: Semantic Versioning 2.0.0, item 11.
    """
    core, _, pre = version.removeprefix("v").partition("+")[0].partition("-")
    major, minor, patch = (int(number) for number in core.split("."))
    identifiers = tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in pre.split(".")) if pre else ()
    return (major, minor, patch), not pre, identifiers


def workspace(kubernetes_go_mod: str, volcano_go_mod: str, versions: Mapping[str, str]) -> str:
    """The go.mod; ``versions`` holds the four modules above, and ``./volcano-apis`` must hold the supplemented copy of the third."""
    kubernetes = versions[KUBERNETES]
    staging_version = "v0." + kubernetes.removeprefix("v1.")
    staging = staging_modules(kubernetes_go_mod)
    highest: dict[str, str] = {}
    for source in (kubernetes_go_mod, volcano_go_mod):
        for module, version in requirements(source).items():
            if module not in highest or version_order(version) > version_order(highest[module]):
                highest[module] = version
    highest.update(dict.fromkeys(staging, staging_version))
    highest.update({module: versions[module] for module in PINNED})
    lines = ["module tenfold.dev/testfleet", "", "go 1.25.0", "", "godebug default=go1.25", "", "require ("]
    lines += [f"\t{module} {version}" for module, version in sorted(highest.items())]
    lines += [")", "", "replace (", f"\t{VOLCANO_APIS} => ./volcano-apis"]
    lines += [f"\t{module} => {module} {staging_version}" for module in staging]
    lines += [")", ""]
    return "\n".join(lines)


def merged_sums(sums: Iterable[str]) -> str:
    """One go.sum from several: spares look-ups in the checksum database, which does not know every pseudo-version asked for here."""
    return "".join(sorted({line + "\n" for text in sums for line in text.splitlines() if line}))
