"""`python3 -m tests.demo`: tells the demo's story and exits non-zero, naming each broken promise, if one is broken.

Steps: fleet up, site.yml, scenes on the real scheduler, a pod without a slice, site.yml again. The fleet stays up. A rerun continues from
whatever an interrupted run left; two runs at once are refused.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests import ROOT
from tests.cluster import plugin_image, podman
from tests.cluster.paths import Paths
from tests.cluster.versions import Versions

from . import compute, pods, promises, scenes, table
from .observe import Cluster, WaitError

PATHS = Paths.of_user()
CACHE = PATHS.cache
KUBECONFIG = PATHS.kubeconfig
KUBECTL = PATHS.current / "bin/kubectl"
NAMESPACE = "tenfold-demo"
IMAGE = f"{plugin_image.IMAGE}:{Versions.from_file().tenfold}"
CARD_MEMORY_MIB = 81920
STEPS = 6


class DemoError(RuntimeError):
    """The demo can't go on; the message says at what and what to do."""


class Story:
    """Prints numbered steps with elapsed seconds and collects broken promises."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.number = 0
        self.broken: list[str] = []

    def say(self, text: str) -> None:
        """One line with the time since the start."""
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", flush=True)

    def step(self, text: str) -> None:
        """The heading of the next step."""
        self.number += 1
        print(flush=True)
        self.say(f"{self.number}/{STEPS} {text}")

    def judge(self, promise: str, broken: list[str]) -> None:
        """Says that a promise holds, or what broke it."""
        self.broken += broken
        self.say(f"{'BROKEN' if broken else 'holds'}: {promise}")
        for line in broken:
            print(f"           {line}", flush=True)


@contextmanager
def only_run() -> Iterator[None]:
    """Refuses a second demo at the same time; the lock goes with the process, however it ends."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "demo.lock", "a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise DemoError(f"another demo (process {lock.read().strip() or 'unknown'}) is running; wait for it or stop it") from None
        lock.seek(0)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def environment() -> dict[str, str]:
    """What ansible-playbook and podman need to find the project and their settings."""
    return {
        **os.environ,
        "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        **podman.environment(),
    }


def run(command: list[str], what: str) -> None:
    """Runs a command with its output shown; DemoError when it fails."""
    code = subprocess.run(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, check=False).returncode
    if code:
        raise DemoError(f"{what} failed with exit code {code} (above); mend it and run `make demo` again, it continues")


def run_site() -> dict[str, int]:
    """Runs site.yml on the simulated fleet; changed tasks per host, as the recap says."""
    process = subprocess.Popen(
        ["ansible-playbook", "-i", "inventories/sim", "site.yml"],
        cwd=ROOT,
        env={**environment(), "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    changed: dict[str, int] = {}
    for line in process.stdout:
        print("    " + line, end="", flush=True)
        recap = re.match(r"(\S+)\s+: ok=\d+\s+changed=(\d+)", line)
        if recap:
            changed[recap[1]] = int(recap[2])
    if process.wait():
        raise DemoError("site.yml failed (above); mend it and run `make demo` again, it continues")
    return changed


def play_scene(story: Story, cluster: Cluster, scene: scenes.Scene, image: str) -> None:
    """Submits a scene wave by wave, shows its table and judges it; the pods of the last scene stay."""
    cluster.clear(NAMESPACE)
    count = 0
    views = []
    for wave in scene.waves:
        cluster.submit(pods.slice_pod(request, NAMESPACE, image) for request in wave)
        count += len(wave)
        views = cluster.wait_reported(NAMESPACE, count)
    print(table.card_table(views, promises.requests_of(scene), CARD_MEMORY_MIB), flush=True)
    story.judge(scene.title, promises.broken_by_scene(scene, views))


def play_bare_pods(story: Story, cluster: Cluster, image: str, node: str) -> None:
    """Pods that ask for no slice, under the default runtime and under the NVIDIA runtime, see no card."""
    cluster.clear(NAMESPACE)
    cluster.submit(
        pods.bare_pod(f"bare-{name}", NAMESPACE, image, node, runtime_class)
        for name, runtime_class in (("runc", None), ("nvidia", "nvidia"))
    )
    views = cluster.wait_reported(NAMESPACE, 2)
    story.judge("a CUDA pod without a slice sees no card", [line for view in views for line in promises.broken_by_bare_pod(view)])


def play_compute(story: Story, cluster: Cluster, image: str) -> None:
    """A 30 % and a 60 % slice side by side on one card, then both quotas changed from the host while they run."""
    cluster.clear(NAMESPACE)
    node = compute.start(cluster, NAMESPACE, image)
    limits = {request.name: request.limit_cores_percent for request in compute.REQUESTS}
    for title, wanted in (
        ("slices run at their share of GPU time", limits),
        ("a live change takes effect in both", compute.NEW_LIMITS_PERCENT),
    ):
        if wanted is not limits:
            compute.change_limits(node)
        shares = compute.watch(cluster, NAMESPACE, node, wanted)
        for share in shares:
            print(f"    {share.pod:<9} limit {share.limit_percent:>3} %  got {share.seen_percent:5.1f} % of GPU time", flush=True)
        story.judge(title, compute.broken_by_shares(shares))
    restarts = [view for view in cluster.views(NAMESPACE) if view.restarts]
    story.judge("without a restart", [f"pod '{view.name}' restarted {view.restarts} times" for view in restarts])


def closing(image: str) -> str:
    """The commands with which a person looks around."""
    kubectl = f"{KUBECTL} --kubeconfig {KUBECONFIG}"
    return "\n".join(
        (
            "The fleet stays up. Look around:",
            f"  {kubectl} get pods -A -o wide",
            f"  {kubectl} apply -f examples/small-pod.yaml    # a pod of your own tier (image {image})",
            f"  {kubectl} exec -it small -- sh -c 'nvidia-smi; exec sh'    # a shell in its slice",
            "`make demo-down` removes all of it, and nothing else.",
        )
    )


def tell(story: Story) -> None:
    """The whole story; broken promises are collected in *story*."""
    story.step("bring up the simulated fleet: one control plane, two GPU nodes with two A800-80GB each")
    run([sys.executable, "-m", "tests.cluster", "up"], "bringing up the fleet")

    story.step("ansible-playbook -i inventories/sim site.yml")
    run_site()

    story.step("submit pods to the real scheduler and compare what each sees with what it was given")
    cluster = Cluster(KUBECONFIG, KUBECTL)
    cluster.make_namespace(NAMESPACE)
    for scene in scenes.SCENES:
        play_scene(story, cluster, scene, IMAGE)

    story.step("submit CUDA pods without a slice")
    play_bare_pods(story, cluster, IMAGE, "tenfold-gpu-1")

    story.step("run two slices of one card side by side, then change both quotas from the host")
    play_compute(story, cluster, IMAGE)
    cluster.clear(NAMESPACE)

    story.step("run site.yml again: nothing to change")
    changed = {host: count for host, count in run_site().items() if count}
    story.judge("a second site.yml changes nothing", [f"{host}: changed={count}, expected 0" for host, count in sorted(changed.items())])
    print("\n" + closing(IMAGE), flush=True)


def main() -> int:
    """0 if every promise holds, 1 if one is broken, 2 if the demo could not be told to its end, 130 if interrupted."""
    story = Story()
    try:
        with only_run():
            tell(story)
    except (DemoError, WaitError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ndemo: interrupted; `make demo` continues, `make demo-down` removes what is there", file=sys.stderr)
        return 130
    print()
    story.say(f"{len(story.broken)} broken promises" if story.broken else "every promise holds")
    for line in story.broken:
        print(f"  broken: {line}", file=sys.stderr)
    return int(bool(story.broken))


if __name__ == "__main__":
    sys.exit(main())
