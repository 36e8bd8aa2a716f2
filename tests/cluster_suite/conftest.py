"""Fixtures of the suite: the API server, a namespace of its own, the nodes as testinfra hosts.

The suite goes on with the fleet that the demo leaves: sliced and judged, without a pod in its namespace.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import testinfra
from testinfra.host import Host

from tests.cluster import podman
from tests.demo.__main__ import IMAGE, KUBECONFIG, KUBECTL
from tests.demo.observe import Cluster

NODES = ("tenfold-gpu-1", "tenfold-gpu-2")


@pytest.fixture(scope="session", autouse=True)
def podman_settings() -> None:
    os.environ.update(podman.environment())


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    if not Path(KUBECONFIG).exists():
        pytest.fail(f"no fleet: '{KUBECONFIG}' is not there; run `make demo` first")
    return Cluster(KUBECONFIG, KUBECTL)


@pytest.fixture(scope="session")
def image() -> str:
    return IMAGE


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    name = "tenfold-suite"
    cluster.make_namespace(name)
    cluster.clear(name)
    yield name
    cluster.clear(name)


@pytest.fixture(scope="session", params=NODES)
def node(request: pytest.FixtureRequest) -> Host:
    return testinfra.get_host(f"podman://{request.param}")
