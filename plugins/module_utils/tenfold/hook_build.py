"""Compiling the hook on one builder, once per content.

Owns the decision whether a build is needed, the clear errors of a builder that lacks something, and the atomic arrival of
``<version>-<sha8>``. ``files/hook/Makefile`` knows how to compile; ``hook_verify`` proves the result on a node; roles distribute it.

The folder's name has the first 8 digits of a sha256 over everything in it, so equal bytes have one name and a name has one content. What
went in (sources, compiler, flags) is kept as a digest in ``build.json``: the same input is not compiled again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Iterator, Mapping

from . import commands
from .hook_elf import HookError, read_library
from .page_writer import LIBRARY as PAGE_LIBRARY

__all__ = ["BuildRequest", "BuiltHook", "build", "content_sha256", "find_built"]

LIBRARY = "libtenfold.so"
PRELOAD_LINE = "/usr/local/tenfold/libtenfold.so\n"
ARTIFACTS = {LIBRARY: 0o755, PAGE_LIBRARY: 0o755, "vgpuctl": 0o755, "tenfold-selftest": 0o755, "symbols.txt": 0o644}
RECORD = "build.json"
COMPILE_SECONDS = 300.0

PACKAGES = {
    "compiler": "Debian, Ubuntu: gcc; RHEL, Rocky: gcc",
    "make": "Debian, Ubuntu: make; RHEL, Rocky: make",
    "headers": "Debian, Ubuntu: libc6-dev; RHEL, Rocky: glibc-devel kernel-headers",
    "static": "Debian, Ubuntu: libc6-dev; RHEL, Rocky: glibc-static",
}


@dataclass(frozen=True)
class BuildRequest:
    """source is the folder of ``files/hook``; dest receives ``<version>-<sha8>``; compiler is a name or path, cross compilers included."""

    source: Path
    dest: Path
    version: str
    compiler: str = "gcc"
    make: str = "make"
    cflags: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuiltHook:
    """What is in ``path``. sha256 is the library's; needed_glibc "2.17"; abi the region's ABI version."""

    path: str
    name: str
    version: str
    sha256: str
    machine: str
    needed_glibc: str
    needed: list[str]
    symbols: list[str]
    abi: int
    input_sha256: str

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "library": str(Path(self.path) / LIBRARY)}


def find_built(request: BuildRequest) -> BuiltHook | None:
    """The hook that this request would give, if it is already in ``dest`` and whole; else None. Errors: HookError for a builder or source
    that cannot build at all."""
    digest = _input_digest(request)
    for record_path in sorted(request.dest.glob(f"*/{RECORD}")):
        hook = _read_record(record_path)
        if hook and hook.input_sha256 == digest and _is_whole(hook):
            return hook
    return None


def build(request: BuildRequest) -> BuiltHook:
    """Compile and install. Errors: HookError with the compiler's own message; ``dest`` then holds nothing new."""
    digest = _input_digest(request)
    _check_builder(request)
    try:
        request.dest.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=str(request.dest)) as scratch:
            _compile(request, Path(scratch) / "out")
            return _install(request, Path(scratch), digest)
    except OSError as error:
        raise HookError(f"cannot write to {str(request.dest)!r}: {error.strerror or error}", path=str(request.dest)) from error


# --- what goes in -------------------------------------------------------------------------------------------------------------


def _sources(source: Path) -> Iterator[Path]:
    for pattern in ("Makefile", "include/*.h", "src/**/*", "toolchain/*"):
        yield from sorted(path for path in source.glob(pattern) if path.is_file())


def _input_digest(request: BuildRequest) -> str:
    if not (request.source / "Makefile").is_file() or not (request.source / "src" / "abi" / "hooks.def").is_file():
        raise HookError(
            f"{str(request.source)!r} does not hold the hook's sources (no Makefile or no src/abi/hooks.def)", path=str(request.source)
        )
    digest = hashlib.sha256()
    for part in (request.version, _compiler_identity(request.compiler), *request.cflags):
        digest.update(part.encode() + b"\0")
    for path in _sources(request.source):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(request.source)} {len(data)}\0".encode() + data)
    return digest.hexdigest()


def _run(command: list[str]) -> commands.Done:
    done = commands.run(command, COMPILE_SECONDS)
    if done.status == commands.NOT_ENDED:
        raise HookError(f"{command[0]!r} did not finish within {COMPILE_SECONDS:g} s")
    if not done.has_run:
        raise HookError(f"cannot run {command[0]!r}: {done.err}")
    return done


def _compiler_identity(compiler: str) -> str:
    if shutil.which(compiler) is None:
        raise HookError(
            f"compiler {compiler!r} is not installed on the builder; install it ({PACKAGES['compiler']}) or name another one",
            compiler=compiler,
            package=PACKAGES["compiler"],
        )
    return _run([compiler, "--version"]).out.split("\n", 1)[0] + " " + _run([compiler, "-dumpmachine"]).out.strip()


def _check_builder(request: BuildRequest) -> None:
    """Say which package is missing before make says something else."""
    if shutil.which(request.make) is None:
        raise HookError(f"{request.make!r} is not installed on the builder; install it ({PACKAGES['make']})", package=PACKAGES["make"])
    with tempfile.TemporaryDirectory(prefix="tenfold-") as scratch:
        probe = Path(scratch) / "probe.c"
        probe.write_text("#include <stdio.h>\n#include <linux/futex.h>\nint main(void) { return 0; }\n")
        compiled = _run([request.compiler, "-c", "-o", f"{scratch}/probe.o", str(probe)])
        if compiled.status:
            raise HookError(
                f"compiler {request.compiler!r} finds no C library headers; install them ({PACKAGES['headers']})",
                package=PACKAGES["headers"],
                compiler_output=compiled.err[-2000:],
            )
        linked = _run([request.compiler, "-static", "-o", f"{scratch}/probe", f"{scratch}/probe.o"])
        if linked.status:
            raise HookError(
                f"compiler {request.compiler!r} finds no static C library, which vgpuctl needs; install it ({PACKAGES['static']})",
                package=PACKAGES["static"],
                compiler_output=linked.err[-2000:],
            )


# --- what comes out -----------------------------------------------------------------------------------------------------------


def _compile(request: BuildRequest, out: Path) -> None:
    command = [request.make, "-s", "-C", str(request.source), f"BUILD={out}", f"CC={request.compiler}", f"VERSION={request.version}"]
    if request.cflags:
        command.append(f"EXTRA_CFLAGS={' '.join(request.cflags)}")
    done = _run(command)
    if done.status:
        message = done.err.replace(f"{out}/", "").strip()
        raise HookError(f"the hook does not compile with {request.compiler!r}:\n{message[:4000]}", compiler_output=message)


def _install(request: BuildRequest, scratch: Path, input_sha256: str) -> BuiltHook:
    staged = scratch / "install"
    staged.mkdir()
    for name, mode in ARTIFACTS.items():
        shutil.copyfile(str(scratch / "out" / name), str(staged / name))
        (staged / name).chmod(mode)
    (staged / "ld.so.preload").write_text(PRELOAD_LINE)
    (staged / "ld.so.preload").chmod(0o644)

    library = staged / LIBRARY
    sha256 = hashlib.sha256(library.read_bytes()).hexdigest()
    elf = read_library(library)
    files = {file: _sha256(staged / file) for file in sorted([*ARTIFACTS, "ld.so.preload"])}
    name = f"{request.version}-{content_sha256(files)[:8]}"
    hook = BuiltHook(
        path=str(request.dest / name),
        name=name,
        version=request.version,
        sha256=sha256,
        machine=elf.machine,
        needed_glibc=elf.needed_glibc,
        needed=list(elf.needed),
        symbols=list(elf.exported),
        abi=_abi_version(request.source),
        input_sha256=input_sha256,
    )
    record = {**asdict(hook), "files": files}
    (staged / RECORD).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    staged.chmod(0o755)
    _arrive(staged, Path(hook.path))
    return hook


def _arrive(staged: Path, final: Path) -> None:
    """A new name appears whole. An old one of the same bytes gets the new record, so that the next run knows its input; one that was
    damaged is moved aside first."""
    if final.is_dir():
        hook = _read_record(final / RECORD)
        if hook and _is_whole(hook):
            (staged / RECORD).replace(final / RECORD)
            return
        final.rename(staged.parent / "damaged")
    staged.rename(final)


def _abi_version(source: Path) -> int:
    for line in (source / "include" / "tenfold_region.h").read_text().splitlines():
        if line.startswith("#define TENFOLD_ABI_VERSION "):
            return int(line.split()[2].rstrip("u"))
    raise HookError(f"{str(source / 'include' / 'tenfold_region.h')!r} names no TENFOLD_ABI_VERSION")


def content_sha256(files: Mapping[str, str]) -> str:
    """Of a folder whose files have these digests by name: what ``export LC_ALL=C; sha256sum * | sha256sum`` prints there on a node."""
    return hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in sorted(files.items())).encode()).hexdigest()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_record(path: Path) -> BuiltHook | None:
    try:
        record = json.loads(path.read_text())
        record.pop("files")
        record["path"] = str(path.parent)  # the folder may have been copied from elsewhere
        return BuiltHook(**record)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _is_whole(hook: BuiltHook) -> bool:
    try:
        files = json.loads((Path(hook.path) / RECORD).read_text())["files"]
        return all(_sha256(Path(hook.path) / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError):
        return False
