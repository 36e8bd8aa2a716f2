"""Failures on purpose: the nth call of a symbol, in whichever process it happens."""

from __future__ import annotations

from . import bench
from .bench import BLOCK, Machine, Process, out


def test_the_next_call_fails_once(machine: Machine) -> None:
    with machine.process().start() as process:
        machine.tool("inject", "call", "--symbol", "cuMemAlloc_v2", "--error", "2")
        assert process.cuda("cuMemAlloc_v2", out("u64"), 512)[0] == 2
        process.alloc(512)
        assert machine.truth()["injections"][0]["fired"] == 1


def test_the_nth_call_fails_and_the_rest_until_the_count(machine: Machine) -> None:
    with machine.process().start() as process:
        machine.tool("inject", "call", "--symbol", "cuMemAlloc_v2", "--error", "999", "--after", "2", "--times", "2")
        assert [process.cuda("cuMemAlloc_v2", out("u64"), BLOCK)[0] for _ in range(6)] == [0, 0, 999, 999, 0, 0]
        assert machine.usage(process)["reserved_bytes"] == 4 * BLOCK


def test_forever_until_cleared(machine: Machine) -> None:
    with machine.process().start() as process:
        machine.tool("inject", "call", "--symbol", "cuCtxSynchronize", "--error", "719", "--times", "forever")
        assert [process.cuda("cuCtxSynchronize")[0] for _ in range(3)] == [719] * 3
        machine.tool("inject", "clear")
        assert process.cuda("cuCtxSynchronize")[0] == 0


def test_one_process_alone(machine: Machine) -> None:
    with machine.process().start() as one, machine.process().start() as other:
        machine.tool("inject", "call", "--symbol", "cuMemAlloc_v2", "--error", "2", "--times", "forever", "--pid", str(one.child.pid))
        assert one.cuda("cuMemAlloc_v2", out("u64"), 512)[0] == 2
        other.alloc(512)


def test_only_that_symbol_not_its_siblings(machine: Machine) -> None:
    with machine.process().start() as process:
        machine.tool("inject", "call", "--symbol", "cuStreamQuery", "--error", "999", "--times", "forever")
        assert process.cuda("cuStreamQuery", 0)[0] == 999
        assert process.cuda("cuStreamQuery_ptsz", 0)[0] == 0


def test_init_can_fail(machine: Machine) -> None:
    machine.tool("inject", "call", "--symbol", "cuInit", "--error", "802")
    machine.tool("inject", "call", "--symbol", "nvmlInit_v2", "--error", "9")
    with machine.process() as process:
        assert [process.cuda("cuInit", 0)[0] for _ in range(2)] == [802, 0]
        assert [process.nvml("nvmlInit_v2")[0] for _ in range(2)] == [9, 0]


def answers(machine: Machine, process: Process, library: str, symbols: list[str], error: int) -> list[int]:
    """What each symbol answers while all are armed; called without arguments, which nobody looks at before the check."""
    codes = []
    for start in range(0, len(symbols), 60):
        batch = symbols[start : start + 60]
        machine.tool("inject", "call", "--symbol", ",".join(batch), "--error", str(error))
        codes += [process.ask(library, symbol)[0] for symbol in batch]
        machine.tool("inject", "clear")
    return codes


def test_every_cuda_call_can_fail(machine: Machine) -> None:
    always = {"cuInit", "cuGetErrorName", "cuGetErrorString"}  # done already; tables that cannot fail
    symbols = [symbol.exported for symbol in bench.symbols() if symbol.exported not in always]
    with machine.process().start() as process:
        codes = answers(machine, process, bench.CUDA, symbols, 77)
    assert [symbol for symbol, code in zip(symbols, codes) if code != 77] == []


def test_every_nvml_call_can_fail(machine: Machine) -> None:
    lines = bench.run(["nm", "-D", "--defined-only", str(machine.driver / bench.NVML)]).splitlines()
    always = {"nvmlShutdown", "nvmlErrorString"}
    symbols = [line.split()[-1] for line in lines if line.split()[-1] not in always]
    with machine.process() as process:
        process.must("nvmlInit_v2")
        codes = answers(machine, process, bench.NVML, symbols, 77)
    assert [symbol for symbol, code in zip(symbols, codes) if code != 77] == []


def test_bad_requests_say_what_is_expected(machine: Machine) -> None:
    for words, expected in (
        (["call", "--error", "2"], "needs --symbol"),
        (["call", "--symbol", "cuInit", "--error", "many"], '--error is "many"'),
        (["xid", "--card", "9", "--xid", "79"], '--card is "9", expected an index below 2'),
        (["flood"], "inject what?"),
    ):
        done = machine.tool("inject", *words, check=False)
        assert done.returncode == 2
        assert expected in done.stderr
