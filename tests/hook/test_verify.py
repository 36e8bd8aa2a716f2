"""cuda_hook_verify passes a good hook and fails every broken one, saying what was expected and what was seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import hook_verify, region

from tests.hook import workshop
from tests.hook.workshop import MIB, Machine, Slot

FUNCTIONAL = "functional run"

pytestmark = pytest.mark.timing  # the functional run measures a throttled program


@pytest.fixture
def verify(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., hook_verify.Report]:
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)

    def run(folder: Path, **request: object) -> hook_verify.Report:
        defaults = {"machine": "x86_64", "slots": tmp_path / "slots", "functional": "required"}
        return hook_verify.verify(hook_verify.VerifyRequest(folder, **{**defaults, **request}))  # type: ignore[arg-type]

    return run


def test_a_good_hook_passes_within_256_mib_and_two_seconds_of_the_card(
    hook: Path, verify: Callable[..., hook_verify.Report], machine: Machine
) -> None:
    report = verify(hook)
    assert [str(check) for check in report.failures] == []
    assert report.functional == "passed"
    assert report.card == machine.uuids[0]
    truth = machine.truth()
    peak = max(usage["peak_reserved_bytes"] for ended in truth["ended"] for usage in ended["cards"])
    assert peak <= 256 * MIB
    assert truth["cards"][0]["busy_ns"] < 2e9
    assert truth["cards"][0]["used_bytes"] == 0


# name -> (file, what is replaced, by what, checks of which one must fail)
MUTATIONS = {
    "no limit": (
        "slice/account.c",
        "if (used_bytes > limit_bytes || bytes > limit_bytes - used_bytes)",
        "if (used_bytes == 1 && limit_bytes == 1)",
        r"bytes allocated until the refusal: expected \d+, seen 268435456",
    ),
    "no throttle": (
        "hooks/launch.c",
        "return TF_UNLIKELY(atomic_load_explicit(&container->has_core_limits, memory_order_relaxed))",
        "return container == NULL",
        r"share of the card at a limit of 25 %: expected 25 \+- 10 %, seen \d+",
    ),
    "wrong abi name": (
        "hooks/resolve.c",
        "            return cuda_hooks[index].function;",
        '            return strcmp(cuda_hooks[index].symbol, "cuMemGetInfo_v2") ? cuda_hooks[index].function : (void *)cuMemGetInfo;',
        r"entry points of another ABI: expected none, seen cuMemGetInfo_v2",
    ),
    "leaking free": (
        "memory/reservation.c",
        "    if (entry->bytes)\n",
        "    if (entry->bytes == 1)\n",
        r"free_bytes \(empty again\): expected \d+, seen 0",
    ),
    "no live change": (
        "slice/container.c",
        "    if (copy.generation > atomic_load(&self->generation))",
        "    if (copy.generation == 0)",
        r"total_bytes \(shrunk below use\): expected \d+, seen \d+",
    ),
    "no view": (
        "hooks/view.c",
        "        *bytes = as(total);",
        "        *bytes += 0 * total;",
        r"device_total_bytes \(fresh\): expected 67108864, seen \d+",
    ),
    "not exported": (
        "abi/hooks.def",
        'CUDA_HOOK(cuMemGetInfo_v2, "cuMemGetInfo", 3020, view, ',
        "CUDA_REAL(cuMemGetInfo_v2, ",
        r"missing symbols: expected none, seen cuMemGetInfo_v2",
    ),
}


def mutant(name: str, tmp_path: Path) -> Path:
    """The hook built from sources with one thing changed."""
    file, old, new, _message = MUTATIONS[name]

    def damage(sources: Path) -> None:
        text = (sources / file).read_text()
        assert text.count(old) >= 1, f"{file} has no {old!r} any more: adapt the mutation"
        (sources / file).write_text(text.replace(old, new))

    return workshop.build_broken_hook(tmp_path, damage, EXTRA_CFLAGS="-Wno-error")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "no limit" else [pytest.mark.full]) for name in MUTATIONS])
def test_a_broken_hook_fails(hook: Path, verify: Callable[..., hook_verify.Report], tmp_path: Path, name: str) -> None:
    good_symbols = hook_verify.expected_symbols((hook / "symbols.txt").read_text())
    report = verify(mutant(name, tmp_path), symbols=good_symbols)
    failures = "\n".join(map(str, report.failures))
    assert re.search(MUTATIONS[name][3], failures), failures


class TestAroundTheFunctionalRun:
    def test_a_busy_card_is_left_alone_and_said_so(self, hook: Path, verify: Callable[..., hook_verify.Report], slot: Slot) -> None:
        with slot.session() as session:
            session.ask(f"alloc {MIB}")
            launches = slot.machine.truth()["cards"][0]["busy_ns"]
            report = verify(hook, functional="auto")
            assert report.functional == "not run: no card is idle (1 looked at)"
            assert report.failures == []
            assert slot.machine.truth()["cards"][0]["busy_ns"] == launches

    def test_required_fails_where_no_card_is_idle(self, hook: Path, verify: Callable[..., hook_verify.Report], slot: Slot) -> None:
        with slot.session():
            failures = verify(hook).failures
        assert [check.name for check in failures] == [FUNCTIONAL]

    def test_a_node_without_a_driver_is_said_so(
        self, hook: Path, verify: Callable[..., hook_verify.Report], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("LD_LIBRARY_PATH")
        monkeypatch.delenv("TENFOLD_SIM_STATE")
        report = verify(hook, functional="auto")
        assert report.functional.startswith("not run: ")
        assert "NVML cannot be used" in report.functional

    def test_slots_of_another_abi_are_a_failure(self, hook: Path, verify: Callable[..., hook_verify.Report], tmp_path: Path) -> None:
        folder = tmp_path / "slots" / ("ab" * 16)
        quota = region.GpuQuota("GPU-00000000-0000-0000-0000-000000000000", 1 << 30, 10)
        region.create_slot(folder, [quota], library=hook / "libtenfold_page.so")
        assert verify(hook, functional="never").failures == []
        with (folder / "config").open("r+b") as stream:
            stream.seek(8)
            stream.write(b"\x07\0\0\0")
        [failure] = verify(hook, functional="never").failures
        assert (failure.expected, failure.seen) == ("1", "7")
