"""Assemble the folder from which the device plugin's image is built: code with its copy of the domain, requirements, constraints, wheels.

    python3 files/device_plugin/build_context.py OUTDIR [--wheels FOLDER]
    podman build --build-arg BASE_IMAGE=... -t tenfold-device-plugin OUTDIR

Owns what goes into the image. The folder's content depends on the sources alone, so that its hash can name the image; ``--print-hash``
prints that hash and writes nothing. Needs PyYAML.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = "tenfold_device_plugin"
DOMAIN_LINK = "_domain"
_IGNORED = ("__pycache__", "*.pyc", DOMAIN_LINK)


def constraints() -> list[str]:
    """The version ranges of versions.yml. Errors: SystemExit when the file or its list is missing."""
    try:
        import yaml
    except ImportError:
        raise SystemExit("cannot read versions.yml: the package 'pyyaml' is not installed; use the project's virtual environment") from None
    path = ROOT / "versions.yml"
    found = yaml.safe_load(path.read_text(encoding="utf-8")).get("python_device_plugin")
    if not found:
        raise SystemExit(f"'{path}' has no list python_device_plugin")
    return sorted(str(line) for line in found)


def requirement_names() -> list[str]:
    """Names without versions: what pyproject.toml depends on is what versions.yml lists."""
    return sorted(line.replace("<", ">").replace("=", ">").split(">")[0].strip() for line in constraints())


def assemble(folder: Path, wheels: Path | None) -> None:
    """Fill ``folder``, which is emptied of an earlier context first. Errors: SystemExit when it holds something else."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "Containerfile").exists():
        raise SystemExit(f"'{folder}' is not empty and no build context, expected a new folder")
    shutil.rmtree(folder, ignore_errors=True)
    application = folder / "app" / PACKAGE
    shutil.copytree(HERE / "src" / PACKAGE, application, ignore=shutil.ignore_patterns(*_IGNORED))
    shutil.copytree(ROOT / "plugins" / "module_utils" / "tenfold", application / DOMAIN_LINK, ignore=shutil.ignore_patterns(*_IGNORED))
    shutil.copy(HERE / "Containerfile", folder / "Containerfile")
    (folder / "constraints.txt").write_text("\n".join(constraints()) + "\n", encoding="utf-8")
    (folder / "requirements.txt").write_text("\n".join(requirement_names()) + "\n", encoding="utf-8")
    target = folder / "wheels"
    target.mkdir()
    (target / "README").write_text("Wheels here are used instead of an index.\n", encoding="utf-8")
    for wheel in sorted(wheels.glob("*.whl")) if wheels else []:
        shutil.copy(wheel, target / wheel.name)


def content_hash(folder: Path) -> str:
    """12 hex digits over names and bytes of every file."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("outdir", type=Path, nargs="?", help="folder to write")
    parser.add_argument("--wheels", type=Path, help="folder with wheels for an offline build")
    parser.add_argument("--print-hash", action="store_true", help="print the hash of the content")
    arguments = parser.parse_args()
    if arguments.outdir is None and not arguments.print_hash:
        parser.error("expected OUTDIR or --print-hash")
    if arguments.wheels is not None and not arguments.wheels.is_dir():
        parser.error(f"--wheels is '{arguments.wheels}', expected a folder")
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.outdir or Path(scratch) / "context"
        assemble(folder, arguments.wheels)
        if arguments.print_hash:
            print(content_hash(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
