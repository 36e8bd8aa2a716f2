"""The device plugin's word moves the limit of a running program: elastic and priority slices follow who works beside them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region

from tenfold_device_plugin.clock import SystemClock
from tenfold_device_plugin.neighbourhood import Neighbourhood
from tenfold_device_plugin.pages import Pages
from tests.hook import scripts
from tests.hook.workshop import Machine, Session, Slot

pytestmark = pytest.mark.timing

LOW, HIGH = "1" * 32, "2" * 32


@pytest.fixture
def plugin_rounds(hook: Path, tmp_path: Path) -> Iterator[None]:
    """Once a second, as in the plugin, over real slot folders; the domain here is the plugin's own copy."""
    version = tmp_path / "hook" / "current"
    version.mkdir(parents=True)
    for name in ("libtenfold.so", "libtenfold_page.so"):
        (version / name).symlink_to(hook / name)
    (version / "ld.so.preload").touch()
    neighbourhood = Neighbourhood(Pages(tmp_path / "slots", tmp_path / "hook"), SystemClock(), dict)
    ended = threading.Event()

    def rounds() -> None:
        while not ended.wait(1.0):
            neighbourhood.tell([LOW, HIGH])

    thread = threading.Thread(target=rounds)
    thread.start()
    yield
    ended.set()
    thread.join()


def works_until(session: Session, slot: Slot, word: str, seconds: float = 12) -> None:
    """Launches kernels until the page says so, and for as long as a program needs to follow."""
    deadline = time.monotonic() + seconds
    while region.read_config(slot.folder).gpus[0].pressure != word:
        assert time.monotonic() < deadline, f"the page does not say {word!r}"
        session.share_percent(milliseconds=200)
    session.share_percent(milliseconds=600)


def shares(session: Session) -> list[float]:
    """In order: a busy host moves single windows both ways."""
    return sorted(round(session.share_percent(milliseconds=600), 1) for _ in range(5))


@pytest.mark.full
@pytest.mark.parametrize(("mode", "held_percent"), [("elastic", 40), ("priority", 10)])
@pytest.mark.usefixtures("plugin_rounds")
def test_a_limit_holds_while_a_slot_of_higher_priority_works(
    hook: Path, machine: Machine, tmp_path: Path, mode: str, held_percent: int
) -> None:
    quota = region.GpuQuota(machine.uuids[0], 64 << 20, 40, mode, 5)
    low = Slot(tmp_path / "slots" / LOW, hook, machine, [quota]).create()
    high = Slot(tmp_path / "slots" / HIGH, hook, machine, [region.GpuQuota(machine.uuids[0], 64 << 20, 30)]).create()
    with low.session() as session:
        works_until(session, low, "none")
        assert session.has_the_card()
        neighbour = high.start(scripts.spinner(1000))
        works_until(session, low, "higher")
        beside = shares(session)
        neighbour.kill()
        neighbour.communicate()
        works_until(session, low, "none")
        assert session.has_the_card()
    assert beside[2] == pytest.approx(held_percent, abs=6), beside
