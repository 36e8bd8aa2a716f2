"""Our structures have the layout of NVIDIA's, number by number; and NVIDIA's own headers agree where they are at hand.

The table is what the public documentation's declarations come to on x86-64. With TENFOLD_NVIDIA_HEADERS (folders, colon-separated, that
hold cuda.h and nvml.h; the PyPI packages nvidia-cuda-runtime and nvidia-nvml-dev-cu12 bring them) the same numbers are computed from
NVIDIA's declarations. Those headers are never part of this tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import bench

# our type: (size, {our field: offset}); their type, {our field: their field}
LAYOUTS: dict[str, tuple[str, int, dict[str, tuple[int, str]]]] = {
    "CUuuid": ("CUuuid", 16, {}),
    "CUlaunchConfig": (
        "CUlaunchConfig",
        56,
        {"shared_bytes": (24, "sharedMemBytes"), "stream": (32, "hStream"), "attribute_count": (48, "numAttrs")},
    ),
    "CUDA_LAUNCH_PARAMS": ("CUDA_LAUNCH_PARAMS", 56, {"stream": (40, "hStream"), "kernel_parameters": (48, "kernelParams")}),
    "CUDA_KERNEL_NODE_PARAMS_v1": ("CUDA_KERNEL_NODE_PARAMS_v1", 56, {"kernel_parameters": (40, "kernelParams"), "extra": (48, "extra")}),
    "CUDA_KERNEL_NODE_PARAMS_v2": ("CUDA_KERNEL_NODE_PARAMS_v2", 72, {"kernel": (56, "kern"), "context": (64, "ctx")}),
    "CUmemLocation": ("CUmemLocation", 8, {"type": (0, "type"), "id": (4, "id")}),
    "CUmemAllocationProp": ("CUmemAllocationProp", 32, {"location": (8, "location"), "flags": (24, "allocFlags")}),
    "CUmemAccessDesc": ("CUmemAccessDesc", 12, {"flags": (8, "flags")}),
    "CUmemPoolProps": ("CUmemPoolProps", 88, {"location": (8, "location"), "max_bytes": (24, "maxSize")}),
    "CUDA_MEM_ALLOC_NODE_PARAMS": ("CUDA_MEM_ALLOC_NODE_PARAMS_v1", 120, {"size_bytes": (104, "bytesize"), "address": (112, "dptr")}),
    "CUDA_ARRAY_DESCRIPTOR": ("CUDA_ARRAY_DESCRIPTOR", 24, {"format": (16, "Format")}),
    "CUDA_ARRAY3D_DESCRIPTOR": ("CUDA_ARRAY3D_DESCRIPTOR", 40, {"format": (24, "Format"), "flags": (32, "Flags")}),
    "CUDA_ARRAY_MEMORY_REQUIREMENTS": ("CUDA_ARRAY_MEMORY_REQUIREMENTS", 32, {"alignment_bytes": (8, "alignment")}),
    "CUipcMemHandle": ("CUipcMemHandle", 64, {}),
    "CUDA_HOST_NODE_PARAMS": ("CUDA_HOST_NODE_PARAMS_v1", 16, {"user_data": (8, "userData")}),
    "CUDA_GRAPH_INSTANTIATE_PARAMS": ("CUDA_GRAPH_INSTANTIATE_PARAMS", 32, {"result": (24, "result_out")}),
    "CUgraphNodeParams": ("CUgraphNodeParams", 256, {"kernel": (16, "kernel"), "reserved2": (248, "reserved2")}),
    "CUdevResource": ("CUdevResource", 144, {"multiprocessors": (96, "sm")}),
}
NVML_LAYOUTS: dict[str, tuple[str, int, dict[str, tuple[int, str]]]] = {
    "nvmlPciInfo_t": ("nvmlPciInfo_t", 68, {"device_id": (28, "pciDeviceId"), "bus_id": (36, "busId")}),
    "nvmlMemory_t": ("nvmlMemory_t", 24, {"free": (8, "free"), "used": (16, "used")}),
    "nvmlMemory_v2_t": ("nvmlMemory_v2_t", 40, {"reserved": (16, "reserved"), "used": (32, "used")}),
    "nvmlProcessInfo_v1_t": ("nvmlProcessInfo_v1_t", 16, {"used_bytes": (8, "usedGpuMemory")}),
    "nvmlProcessInfo_v2_t": ("nvmlProcessInfo_v2_t", 24, {"gpu_instance": (16, "gpuInstanceId")}),
    "nvmlProcessUtilizationSample_t": ("nvmlProcessUtilizationSample_t", 32, {"time_us": (8, "timeStamp"), "sm_percent": (16, "smUtil")}),
    "nvmlUtilization_t": ("nvmlUtilization_t", 8, {"memory_percent": (4, "memory")}),
    "nvmlEventData_t": ("nvmlEventData_t", 32, {"type": (8, "eventType"), "gpu_instance": (24, "gpuInstanceId")}),
    "nvmlDeviceAttributes_t": ("nvmlDeviceAttributes_t", 40, {"memory_mib": (32, "memorySizeMB")}),
}


def compile_checks(tmp_path: Path, include: str, lines: list[str], flags: list[str]) -> None:
    source = tmp_path / "check.c"
    source.write_text(f"#include <stddef.h>\n#include <{include}>\n" + "\n".join(lines) + "\n")
    bench.run(["gcc", "-std=c11", "-fsyntax-only", *flags, str(source)])


def checks(layouts: dict[str, tuple[str, int, dict[str, tuple[int, str]]]], *, theirs: bool) -> list[str]:
    lines = []
    for ours, (their_name, size, fields) in layouts.items():
        name = their_name if theirs else ours
        lines.append(f'_Static_assert(sizeof({name}) == {size}, "size of {name}");')
        for field, (offset, their_field) in fields.items():
            member = their_field if theirs else field
            lines.append(f'_Static_assert(offsetof({name}, {member}) == {offset}, "{name}.{member}");')
    return lines


@pytest.mark.parametrize(("include", "layouts"), [("cuda_abi.h", LAYOUTS), ("nvml_abi.h", NVML_LAYOUTS)])
def test_our_structures_have_the_documented_layout(
    tmp_path: Path, include: str, layouts: dict[str, tuple[str, int, dict[str, tuple[int, str]]]]
) -> None:
    compile_checks(tmp_path, include, checks(layouts, theirs=False), [f"-I{bench.SIMULATOR / 'include'}"])


@pytest.mark.full
@pytest.mark.parametrize(("include", "layouts"), [("cuda.h", LAYOUTS), ("nvml.h", NVML_LAYOUTS)])
def test_nvidias_headers_agree(tmp_path: Path, include: str, layouts: dict[str, tuple[str, int, dict[str, tuple[int, str]]]]) -> None:
    folders = [Path(folder) for folder in os.environ.get("TENFOLD_NVIDIA_HEADERS", "").split(":") if folder]
    if not any((folder / include).is_file() for folder in folders):
        pytest.skip(f"TENFOLD_NVIDIA_HEADERS names no folder with {include}")
    compile_checks(tmp_path, include, checks(layouts, theirs=True), [f"-I{folder}" for folder in folders])
