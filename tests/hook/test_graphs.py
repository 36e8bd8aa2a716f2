"""Memory of graphs: refused where it can never fit, charged when the driver maps it, at a launch, an upload or with the flag for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.hook import scripts
from tests.hook.workshop import Slot

OOM = 2
NODES = ("cuGraphAddMemAllocNode", "cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphAddNode_v3")
STREAMS = ("", "_ptsz")

PRELUDE = """
class Allocation(c.Structure):
    _fields_ = [("pool", PoolProps), ("access", c.c_void_p), ("count", c.c_size_t), ("bytes", c.c_size_t), ("pointer", c.c_uint64)]
class AnyNode(c.Structure):
    _fields_ = [("type", c.c_int), ("reserved", c.c_int * 3), ("allocation", Allocation),
                ("rest", c.c_ubyte * (232 - c.sizeof(Allocation))), ("last", c.c_longlong)]
class Instantiation(c.Structure):
    _fields_ = [("flags", c.c_uint64), ("stream", c.c_void_p), ("node", c.c_void_p), ("result", c.c_int)]
UPLOAD = 2

def allocation(mib):
    return Allocation(PoolProps(1, 0, Location(1, 0)), None, 0, int(mib * MIB), 0)

def add(graph, mib, symbol="cuGraphAddMemAllocNode"):
    "(result, node, address)"
    node, what = c.c_void_p(), allocation(mib)
    any_node = AnyNode(10, (c.c_int * 3)(), what)
    words = [c.byref(node), graph, None]
    if symbol == "cuGraphAddMemAllocNode":
        return cuda.cuGraphAddMemAllocNode(*words, 0, c.byref(what)), node, what.pointer
    if symbol != "cuGraphAddNode":
        words.append(None)
    return getattr(cuda, symbol)(*words, 0, c.byref(any_node)), node, any_node.allocation.pointer

def graph_of(*mibs):
    "A graph that takes these one after the other and gives each back before it ends."
    graph = c.c_void_p()
    assert cuda.cuGraphCreate(c.byref(graph), c.c_uint(0)) == 0
    for mib in mibs:
        result, node, address = add(graph, mib)
        assert result == 0
        assert cuda.cuGraphAddMemFreeNode(c.byref(c.c_void_p()), graph, c.byref(node), 1, address) == 0
    return graph

def executable_of(graph):
    executable = c.c_void_p()
    assert cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, 0) == 0
    return executable

def parent_of(child):
    graph = c.c_void_p()
    assert cuda.cuGraphCreate(c.byref(graph), c.c_uint(0)) == 0
    assert cuda.cuGraphAddChildGraphNode(c.byref(c.c_void_p()), graph, None, 0, child) == 0
    return graph

def free():
    return cuda.info()[0] // MIB

cuda.start()
"""


def run(slot: Slot, body: str) -> dict[str, Any]:
    return scripts.run(slot, PRELUDE + body)


@pytest.mark.parametrize("symbol", NODES)
def test_a_node_that_can_never_fit_is_refused_when_it_is_added(make_slot: Callable[..., Slot], symbol: str) -> None:
    seen = run(
        make_slot(memory_mib=96),
        f"""
graph = graph_of()
say(fits=add(graph, 96, {symbol!r})[0], past=add(graph, 98, {symbol!r})[0], free=free())
""",
    )
    assert seen == {"fits": 0, "past": OOM, "free": 96}


@pytest.mark.parametrize("levels", [0, 1, 3])
def test_a_launch_is_charged_and_refused_past_the_limit_however_deep_its_nodes_lie(make_slot: Callable[..., Slot], levels: int) -> None:
    slot = make_slot(memory_mib=96)
    seen = run(
        slot,
        f"""
small, large = graph_of(64), graph_of(64, 64)
for _ in range({levels}):
    small, large = parent_of(small), parent_of(large)
small, large = executable_of(small), executable_of(large)
say(small=cuda.cuGraphLaunch(small, None), after=free(), large=cuda.cuGraphLaunch(large, None))
say(trim=cuda.cuDeviceGraphMemTrim(0), end=free())
""",
    )
    assert seen == {"small": 0, "after": 32, "large": OOM, "trim": 0, "end": 96}


def test_a_graph_at_the_limit_runs_again_and_again(make_slot: Callable[..., Slot]) -> None:
    """Its memory stays mapped, and counts as used in the driver's books: a second launch needs no more."""
    seen = run(
        make_slot(memory_mib=96),
        """
one = executable_of(graph_of(64))
say(results=[cuda.cuGraphLaunch(one, None) for _ in range(5)], free=free())
cuda.cuDeviceGraphMemTrim(0)
say(trimmed=free(), again=cuda.cuGraphLaunch(one, None), then=free())
""",
    )
    assert seen == {"results": [0] * 5, "free": 32, "trimmed": 96, "again": 0, "then": 32}


def test_graphs_that_fit_one_at_a_time_take_turns(make_slot: Callable[..., Slot]) -> None:
    """Before the limit says no, those that do not run give theirs away."""
    slot = make_slot(memory_mib=96)
    seen = run(
        slot,
        """
one, two = executable_of(graph_of(64)), executable_of(graph_of(80))
say(results=[cuda.cuGraphLaunch(graph, None) for graph in (one, two) * 3])
""",
    )
    assert seen == {"results": [0] * 6}


def test_a_mapped_graph_whose_room_another_has_taken_needs_room_again(make_slot: Callable[..., Slot]) -> None:
    """Graphs that do not run at once share memory: that one of them is mapped does not mean that the pool can hold it once more."""
    slot = make_slot(memory_mib=128)
    seen = run(
        slot,
        """
one, staying = executable_of(graph_of(64)), c.c_void_p()
assert cuda.cuGraphCreate(c.byref(staying), c.c_uint(0)) == 0
result, node, address = add(staying, 64)
staying = executable_of(staying)
say(one=cuda.cuGraphLaunch(one, None), staying=cuda.cuGraphLaunch(staying, None), between=free(), plain=cuda.alloc(64 * MIB)[0])
say(full=free(), again=cuda.cuGraphLaunch(one, None), still=free())
say(gone=cuda.cuMemFree_v2(c.c_uint64(address)), then=cuda.cuGraphLaunch(one, None))
""",
    )
    assert seen == {"one": 0, "staying": 0, "between": 64, "plain": 0, "full": 0, "again": OOM, "still": 0, "gone": 0, "then": 0}


def test_taking_turns_spoils_no_capture(make_slot: Callable[..., Slot]) -> None:
    """A trim is a call that an open capture of the strictest mode forbids; the program made none."""
    seen = run(
        make_slot(memory_mib=96),
        """
one, two, s, graph = executable_of(graph_of(64)), executable_of(graph_of(80)), c.c_void_p(), c.c_void_p()
assert cuda.cuStreamCreate(c.byref(s), c.c_uint(1)) == 0
assert cuda.cuStreamBeginCapture_v2(s, c.c_int(0)) == 0
say(results=[cuda.cuGraphLaunch(graph, c.c_void_p(2)) for graph in (one, two, one)], end=cuda.cuStreamEndCapture(s, c.byref(graph)))
""",
    )
    assert seen == {"results": [0] * 3, "end": 0}


@pytest.mark.parametrize("flavour", STREAMS)
class TestUpload:
    """An upload maps the memory without running anything."""

    def test_it_is_charged_and_refused_past_the_limit(self, make_slot: Callable[..., Slot], flavour: str) -> None:
        seen = run(
            make_slot(memory_mib=96),
            f"""
small, large = executable_of(graph_of(64)), executable_of(graph_of(64, 64))
upload = cuda.cuGraphUpload{flavour}
say(large=upload(large, None), before=free(), small=upload(small, None), after=free(), blocked=cuda.alloc(34 * MIB)[0])
say(run=cuda.cuGraphLaunch(small, None), still=free())
""",
        )
        assert seen == {"large": OOM, "before": 96, "small": 0, "after": 32, "blocked": OOM, "run": 0, "still": 32}

    def test_so_is_an_instantiation_that_uploads(self, make_slot: Callable[..., Slot], flavour: str) -> None:
        seen = run(
            make_slot(memory_mib=96),
            f"""
def instantiate(graph, flags):
    executable, what = c.c_void_p(), Instantiation(flags)
    return cuda.cuGraphInstantiateWithParams{flavour}(c.byref(executable), graph, c.byref(what)), executable
say(large=instantiate(graph_of(64, 64), UPLOAD)[0], before=free(), without=instantiate(graph_of(64, 64), 0)[0], plain=free())
result, executable = instantiate(graph_of(64), UPLOAD)
say(small=result, after=free(), run=cuda.cuGraphLaunch(executable, None), still=free())
""",
        )
        assert seen == {"large": OOM, "before": 96, "without": 0, "plain": 96, "small": 0, "after": 32, "run": 0, "still": 32}
