"""A running pod's quota on the real scheduler: grown and shrunk by the playbook, followed by the ledger of Volcano's scheduler."""

from __future__ import annotations

import json
import subprocess

from tests import ROOT
from tests.demo import pods, scenes
from tests.demo.observe import Cluster, parse_assignment

PLUGIN_NAMESPACE = "tenfold-system"


def ask(namespace: str, pod: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / ".venv/bin/ansible-playbook"), "-i", "inventories/sim", "playbooks/quota.yml", "-e", f"pod={namespace}/{pod}"]
    return subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)


def inside(cluster: Cluster, namespace: str, pod: str) -> tuple[int, int]:
    report = json.loads(cluster.kubectl("exec", "-n", namespace, pod, "--", "/usr/local/tenfold/vgpuctl", "show", "--json"))
    (gpu,) = report["gpus"]
    return gpu["memory_limit_bytes"] >> 20, gpu["core_limit_percent"]


def card_of(cluster: Cluster, namespace: str, pod: str) -> tuple[str, int, int]:
    found = cluster.core.read_namespaced_pod(pod, namespace)
    return parse_assignment((found.metadata.annotations or {}).get("volcano.sh/vgpu-ids-new", ""))


def test_the_scheduler_counts_what_the_playbook_has_changed(cluster: Cluster, namespace: str, image: str) -> None:
    """Grown, a pod leaves no room for one that would have fitted beside it; shrunk again, it does."""
    whole = [scenes.PodRequest(f"fill-{number}", None, 1024, 95, 95) for number in range(1, 4)]
    one = scenes.PodRequest("one", "small", 8192, 10, 10)
    restartable = pods.slice_pod(one, namespace, image, f"{pods.PROBE}; while [ ! -e /tmp/stop ]; do sleep 0.2; done")
    restartable["spec"]["restartPolicy"] = "Always"
    cluster.submit([*(pods.slice_pod(request, namespace, image) for request in whole), restartable])
    cluster.wait_reported(namespace, 4)
    card, *_ = card_of(cluster, namespace, "one")

    done = ask(namespace, "one", "-e", "tier=medium", "--check", "--diff")
    assert done.returncode == 0 and '"tier": "medium"' in done.stdout, done.stdout + done.stderr
    assert card_of(cluster, namespace, "one") == (card, 8192, 10)
    done = ask(namespace, "one", "-e", "tier=medium")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (card_of(cluster, namespace, "one"), inside(cluster, namespace, "one")) == ((card, 16384, 30), (16384, 30))
    assert "changed=0" in ask(namespace, "one", "-e", "tier=medium").stdout

    late = scenes.PodRequest("late", None, 1024, 80, 80)  # 10 + 80 fitted the card, 30 + 80 do not
    cluster.submit([pods.slice_pod(late, namespace, image)])
    cluster.wait(
        "the scheduler to say why pod 'late' waits",
        30,
        lambda: any(
            condition.status == "False" for condition in cluster.core.read_namespaced_pod("late", namespace).status.conditions or []
        ),
        lambda: "nothing said",
    )
    assert card_of(cluster, namespace, "late") == ("", 0, 0)

    refused = ask(namespace, "one", "-e", "memory_mib=90000")
    assert refused.returncode != 0 and "81920 MiB free, 90000 claimed" in refused.stdout, refused.stdout
    assert inside(cluster, namespace, "one") == (16384, 30)

    cluster.kubectl("exec", "-n", namespace, "one", "--", "touch", "/tmp/stop")
    cluster.wait(
        "the container of pod 'one' to start again and report",
        60,
        lambda: any(view.name == "one" and view.restarts == 1 and view.inside for view in cluster.views(namespace)),
        lambda: str(cluster.views(namespace)),
    )
    (one_now,) = (view for view in cluster.views(namespace) if view.name == "one")
    assert one_now.inside is not None and [each["cuda_total_bytes"] for each in one_now.inside.cards] == [16384 << 20]

    cluster.core.delete_collection_namespaced_pod(PLUGIN_NAMESPACE, label_selector="app.kubernetes.io/name=tenfold-device-plugin")
    done = ask(namespace, "one", "-e", "tier=small")
    assert done.returncode == 0, done.stdout + done.stderr
    cluster.wait(
        "pod 'late' to take the freed share",
        60,
        lambda: any(view.name == "late" and view.inside for view in cluster.views(namespace)),
        lambda: str(cluster.views(namespace)),
    )
    assert (card_of(cluster, namespace, "late"), card_of(cluster, namespace, "one")) == ((card, 1024, 80), (card, 8192, 10))
    assert inside(cluster, namespace, "one") == (8192, 10)
    assert sorted(view.restarts for view in cluster.views(namespace)) == [0, 0, 0, 0, 1]
