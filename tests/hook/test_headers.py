"""hooks.def and cuda.h declare what NVIDIA's header of the newest driver does: parameters in number and size, structs in size."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.hook import nvidia_headers
from tests.hook.workshop import HOOK_SOURCE

pytestmark = pytest.mark.full

ABI = HOOK_SOURCE / "src" / "abi"

# Only the driver's library has these flavours of the resolver; no header declares them.
UNDECLARED = {"cuGetProcAddress_ptsz", "cuGetProcAddress_v2_ptsz"}
# Ours is a part of theirs, or has another name.
OTHER_STRUCTS = {
    "CUDA_ARRAY_DESCRIPTOR": "CUDA_ARRAY_DESCRIPTOR_v2",
    "CUDA_ARRAY3D_DESCRIPTOR": "CUDA_ARRAY3D_DESCRIPTOR_v2",
    "CUDA_MEM_ALLOC_NODE_PARAMS": "CUDA_MEM_ALLOC_NODE_PARAMS_v1",
}


@pytest.fixture(scope="module")
def header() -> Path:
    try:
        return nvidia_headers.ensure() / "cuda.h"
    except nvidia_headers.NoHeadersError as error:
        pytest.skip(str(error))


def types_of(parameters: str) -> list[str]:
    """Types of a named parameter list; a pointer to a function counts as a pointer."""
    parameters = re.sub(r"\w+\s*\(\*\w+\)\([^()]*\)", "void *function", parameters.strip())
    if parameters == "void":
        return []
    return [re.sub(r"\w+\s*$", "", one) if "[" not in one else "void *" for one in parameters.split(",")]


def declared(header: Path) -> dict[str, list[str]]:
    """All versions of all functions: the define keeps the header from renaming the old ones away."""
    command = ["gcc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", str(header)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return {name: types_of(parameters) for name, parameters in re.findall(r"CUresult\s+(cu\w+)\s*\(([^;]*?)\)\s*;", text, re.S)}


def hooked() -> dict[str, list[str]]:
    rows = re.findall(r"^CUDA_(?:HOOK|REAL)\((\w+), (?:.*?, \w+, \w+, )?\((.*)\)\)$", (ABI / "hooks.def").read_text(), re.M)
    return {name: types_of(parameters) for name, parameters in rows}


def sizes(types: list[str], include: Path, folder: Path) -> list[int]:
    source, program = folder / "sizes.c", folder / "sizes"
    lines = "".join(f'printf("%zu\\n", sizeof({one}));\n' for one in types)
    source.write_text(f'#include <stdio.h>\n#include "{include}"\nint main(void) {{\n{lines}return 0; }}\n')
    subprocess.run(["gcc", "-w", "-D__CUDA_API_VERSION_INTERNAL", "-o", str(program), str(source)], check=True, timeout=60)
    return [int(line) for line in subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=10).stdout.split()]


def test_every_hooked_function_takes_what_the_header_says(header: Path, tmp_path: Path) -> None:
    theirs, ours = declared(header), hooked()
    assert len(ours) > 100
    assert set(ours) - set(theirs) == UNDECLARED
    common = sorted(set(ours) & set(theirs))
    assert {name: len(ours[name]) for name in common} == {name: len(theirs[name]) for name in common}
    flat = [(name, index) for name in common for index in range(len(ours[name]))]
    our_sizes = sizes([ours[name][index] for name, index in flat], ABI / "cuda.h", tmp_path)
    their_sizes = sizes([theirs[name][index] for name, index in flat], header, tmp_path)
    assert dict(zip(flat, our_sizes)) == dict(zip(flat, their_sizes))


def test_structs_have_the_headers_size(header: Path, tmp_path: Path) -> None:
    names = re.findall(r"^\} (CU\w+);", (ABI / "cuda.h").read_text(), re.MULTILINE)
    assert len(names) > 10
    ours = sizes(names, ABI / "cuda.h", tmp_path)
    theirs = sizes([OTHER_STRUCTS.get(name, name) for name in names], header, tmp_path)
    assert dict(zip(names, ours)) == dict(zip(names, theirs))
