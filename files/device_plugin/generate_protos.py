"""Write the ``*_pb2`` modules of the device plugin from its ``.proto`` files, or say whether they are in step.

Owns the form in which they are committed. They are committed so that the image needs no compiler and the type checker sees them.
Two things differ from protoc's own output: linters are told to skip the file, and protoc's check that the protobuf runtime is at least
as new as protoc is left out: these messages use nothing newer than proto3 of 2016, so any runtime of versions.yml reads them.

    python3 files/device_plugin/generate_protos.py [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

PROTOS = Path(__file__).resolve().parent / "src" / "tenfold_device_plugin" / "protos"
NAMES = ("device_plugin", "pod_resources")
HEADER = "# Written by generate_protos.py; change the .proto file instead.\n# ruff: noqa\n# fmt: off\n# mypy: ignore-errors\n"
_RUNTIME_IMPORT = "from google.protobuf import runtime_version as _runtime_version\n"
_RUNTIME_CHECK = re.compile(r"_runtime_version\.ValidateProtobufRuntimeVersion\(.*?\n\)\n", re.DOTALL)
_RUNTIME_COMMENT = re.compile(r"# (Protobuf Python Version: .*|NO CHECKED-IN PROTOBUF GENCODE|-\*- coding: utf-8 -\*-)\n")


def generated() -> dict[str, str]:
    """The text of every generated file by its name. Errors: SystemExit when protoc is missing or refuses a file."""
    try:
        from grpc_tools import protoc
    except ImportError:
        raise SystemExit("cannot generate: the package 'grpcio-tools' is not installed; use the project's virtual environment") from None
    texts = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            arguments = ["protoc", f"-I{PROTOS}", f"--python_out={folder}", f"--pyi_out={folder}", f"{name}.proto"]
            if protoc.main(arguments) != 0:
                raise SystemExit(f"protoc refuses '{name}.proto'; its message is above")
            module = (Path(folder) / f"{name}_pb2.py").read_text(encoding="utf-8").replace(_RUNTIME_IMPORT, "")
            texts[f"{name}_pb2.py"] = HEADER + _RUNTIME_COMMENT.sub("", _RUNTIME_CHECK.sub("", module))
            texts[f"{name}_pb2.pyi"] = HEADER.replace("ignore-errors", 'disable-error-code="type-arg"') + (
                Path(folder) / f"{name}_pb2.pyi"
            ).read_text(encoding="utf-8")
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a committed file differs")
    check = parser.parse_args().check
    stale = [
        name for name, text in generated().items() if not (PROTOS / name).exists() or (PROTOS / name).read_text(encoding="utf-8") != text
    ]
    if check:
        for name in stale:
            print(f"'{name}' is not what its .proto file says; run files/device_plugin/generate_protos.py", file=sys.stderr)
        return 1 if stale else 0
    for name, text in generated().items():
        (PROTOS / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
