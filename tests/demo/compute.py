"""Compute shares on the fleet: two slices of one card run side by side, then the host changes both quotas while they run.

Measures in simulated GPU time, which the simulated driver counts exactly per process: a busy host's clock judges nothing. The window is
the simulator's own clock.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import pods, scenes
from .observe import Cluster

__all__ = [
    "NEW_LIMITS_PERCENT",
    "REQUESTS",
    "TOLERANCE_POINTS",
    "Share",
    "broken_by_shares",
    "broken_by_told",
    "change_limits",
    "slots_at_work",
    "start",
    "watch",
]

REQUESTS = (scenes.tier_pod("medium", 1), scenes.tier_pod("large", 1))
# What the host sets while both run: the medium slice grows, the large one shrinks.
NEW_LIMITS_PERCENT = {"medium-1": 55, "large-1": 25}
TOLERANCE_POINTS = 3.0
SPIN = "python3 -m tenfold_device_plugin.probe --json --spin-seconds 120 --kernel-us 1000"
VGPUCTL = "/usr/local/tenfold/hook/current/vgpuctl"
SETTLE_S = 1.5
WINDOW_S = 5.0
WINDOWS = 3
# What the node tells a slice is of half a second, in which a launch more or less counts.
TOLD_POINTS = 12
TOLD_AGE_MS = 3000  # a hook believes no older one


@dataclass(frozen=True)
class Share:
    """GPU time of one pod over a window, in percent of the window."""

    pod: str
    limit_percent: int
    seen_percent: float


def on_node(node: str, *command: str) -> str:
    """Output of a command on a node of the fleet."""
    return subprocess.run(["podman", "exec", node, *command], stdout=subprocess.PIPE, text=True, check=True, timeout=30).stdout


def start(cluster: Cluster, namespace: str, image: str, requests: Sequence[scenes.PodRequest] = REQUESTS) -> str:
    """Starts busy pods and waits until all launch kernels; the node whose card they share with those that are there already."""
    cluster.submit(pods.slice_pod(request, namespace, image, SPIN) for request in requests)
    names = {request.name for request in requests}

    def all_run() -> bool:
        views = cluster.views(namespace)
        return names <= {view.name for view in views} and all(view.phase == "Running" for view in views)

    cluster.wait(f"busy pods {sorted(names)} to run", 60, all_run, lambda: str(cluster.views(namespace)))
    views = cluster.views(namespace)
    if len({view.card_uuid for view in views}) != 1:
        raise RuntimeError(f"the busy pods are not on one card: {views}")
    node = views[0].node
    namespaces = pid_namespaces(cluster, namespace, names)
    cluster.wait(
        f"pods {sorted(names)} to launch kernels",
        30,
        lambda: all(gpu_time_ns(node, namespaces[name])[1] for name in names),
        lambda: "not all did",
    )
    return node


def pid_namespaces(cluster: Cluster, namespace: str, names: Iterable[str]) -> dict[str, int]:
    """Each busy pod's pid namespace, by which the simulator's truth knows its processes."""
    found = {}
    for name in names:
        link = cluster.kubectl("exec", "-n", namespace, name, "--", "readlink", "/proc/self/ns/pid")
        match = re.search(r"\[(\d+)\]", link)
        if not match:
            raise RuntimeError(f"pod '{name}': unexpected pid namespace {link!r}")
        found[name] = int(match[1])
    return found


def gpu_time_ns(node: str, pid_namespace: int) -> tuple[int, int]:
    """The simulator's clock and the GPU time so far of every process of a pid namespace, both in ns."""
    truth = json.loads(on_node(node, "tenfold-sim", "truth", "--json"))
    spent = sum(
        card["gpu_time_ns"] for process in truth["processes"] if process["pid_namespace"] == pid_namespace for card in process["cards"]
    )
    return truth["now_ns"], spent


def broken_by_shares(shares: list[Share]) -> list[str]:
    """Every pod whose share of GPU time is further from its limit than the tolerance."""
    return [
        f"pod '{share.pod}' got {share.seen_percent:.1f} % of GPU time, expected {share.limit_percent} +- {TOLERANCE_POINTS:.0f} %"
        for share in shares
        if abs(share.seen_percent - share.limit_percent) > TOLERANCE_POINTS
    ]


def watch(
    cluster: Cluster,
    namespace: str,
    node: str,
    limits_percent: Mapping[str, int],
    sleep: Callable[[float], None] = time.sleep,
    broken: Callable[[list[Share]], list[str]] = broken_by_shares,
) -> list[Share]:
    """Lets the limiter settle, then measures a window; a window that misses is measured again, twice at most.

    ``broken`` tells what a window misses. A busy host that stops a pod for tens of milliseconds gives it
    credit, which it spends later: one window may be off, the mean is not.
    """
    namespaces = pid_namespaces(cluster, namespace, limits_percent)
    sleep(SETTLE_S)
    shares: list[Share] = []
    for _ in range(WINDOWS):
        shares = _window(node, namespaces, limits_percent, sleep)
        if not broken(shares):
            break
    return shares


def _window(node: str, namespaces: dict[str, int], limits_percent: Mapping[str, int], sleep: Callable[[float], None]) -> list[Share]:
    before = {name: gpu_time_ns(node, number) for name, number in namespaces.items()}
    sleep(WINDOW_S)
    after = {name: gpu_time_ns(node, number) for name, number in namespaces.items()}
    return [
        Share(name, limits_percent[name], 100 * (after[name][1] - before[name][1]) / (after[name][0] - before[name][0]))
        for name in namespaces
    ]


def slots_at_work(node: str, requests: Sequence[scenes.PodRequest] = REQUESTS) -> dict[str, tuple[str, dict[str, Any]]]:
    """By the name of a busy pod the folder of its slot and what ``vgpuctl`` shows of its card; pods are told apart by their memory."""
    quotas = {request.memory_mib << 20: request.name for request in requests}
    found = {}
    for slot in on_node(node, "ls", "/run/tenfold/slots").split():
        folder = f"/run/tenfold/slots/{slot}"
        try:
            (gpu,) = json.loads(on_node(node, VGPUCTL, "show", "--json", folder))["gpus"]
        except subprocess.CalledProcessError:  # the slot of an earlier pod, collected since the listing; ours are missed below if not there
            continue
        name = quotas.get(gpu["memory_limit_bytes"])
        if name and gpu["gpu_time_us"]:
            found[name] = (folder, gpu)
    return found


def broken_by_told(told: Mapping[str, tuple[str, dict[str, Any]]], limits_percent: Mapping[str, int]) -> list[str]:
    """Every pod whose page lacks the node's word on its GPU time, or has an old one, or one far from its share."""
    broken = []
    for name, limit_percent in limits_percent.items():
        gpu = told[name][1] if name in told else {}
        percent, age_ms = gpu.get("host_busy_percent"), gpu.get("host_busy_age_ms", 0)
        if percent is None:
            broken.append(f"pod '{name}': the node has told nothing")
        elif age_ms > TOLD_AGE_MS or abs(percent - limit_percent) > TOLD_POINTS:
            expected = f"{limit_percent} +- {TOLD_POINTS} % within {TOLD_AGE_MS} ms"
            broken.append(f"pod '{name}': the node told {percent} % {age_ms} ms ago, expected {expected}")
    return broken


def change_limits(node: str) -> None:
    """Sets the new core limits from the host, in the pages of the slots that hold the two quotas."""
    found = slots_at_work(node)
    if set(found) != set(NEW_LIMITS_PERCENT):
        raise RuntimeError(f"{node}: found the slots of {sorted(found)} only, expected {sorted(NEW_LIMITS_PERCENT)}")
    for name, (folder, _gpu) in found.items():
        on_node(node, VGPUCTL, "set", folder, "--cores", str(NEW_LIMITS_PERCENT[name]))
