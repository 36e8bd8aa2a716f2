"""Memory: every way to get it is charged as the driver reserves it, refused past the limit, and given back once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.tenfold.vgpu.plugins.module_utils.tenfold import region

from tests.hook import scripts
from tests.hook.workshop import MIB, Machine, Slot

OOM = 2

# What takes `mib` MiB of the card and returns (result, undo).
KINDS = {
    "linear": """
def take(mib):
    result, pointer = cuda.alloc(mib * MIB)
    return result, lambda: cuda.cuMemFree_v2(pointer)
""",
    "managed": """
def take(mib):
    result, pointer = cuda.alloc(mib * MIB, "cuMemAllocManaged", 1)
    return result, lambda: cuda.cuMemFree_v2(pointer)
""",
    "pitch": """
def take(mib):
    pointer, pitch = c.c_uint64(), c.c_size_t()
    result = cuda.cuMemAllocPitch_v2(c.byref(pointer), c.byref(pitch), 4, mib * MIB // 512, c.c_uint(4))
    return result, lambda: cuda.cuMemFree_v2(pointer)
""",
    "array": """
def take(mib):
    array = c.c_void_p()
    result = cuda.cuArray3DCreate_v2(c.byref(array), c.byref(Array3D(1024, mib * 1024 // 4, 0, 0x20, 1, 0)))
    return result, lambda: cuda.cuArrayDestroy(array)
""",
    "physical": """
def take(mib):
    handle = c.c_uint64()
    result = cuda.cuMemCreate(c.byref(handle), mib * MIB, c.byref(AllocationProp(1, 0, Location(1, 0))), 0)
    return result, lambda: cuda.cuMemRelease(handle)
""",
    "async": """
def take(mib):
    result, pointer = cuda.alloc(mib * MIB, "cuMemAllocAsync", 0)
    def undo():
        freed = cuda.cuMemFreeAsync(c.c_uint64(pointer), None)
        return freed or cuda.cuCtxSynchronize()
    return result, undo
""",
    "async per thread": """
def take(mib):
    result, pointer = cuda.alloc(mib * MIB, "cuMemAllocAsync_ptsz", 0)
    def undo():
        freed = cuda.cuMemFreeAsync_ptsz(c.c_uint64(pointer), None)
        return freed or cuda.cuCtxSynchronize()
    return result, undo
""",
    "pool": """
pool = c.c_void_p()
def take(mib):
    if not pool:
        assert cuda.cuMemPoolCreate(c.byref(pool), c.byref(PoolProps(1, 0, Location(1, 0)))) == 0
    pointer = c.c_uint64()
    result = cuda.cuMemAllocFromPoolAsync(c.byref(pointer), mib * MIB, pool, None)
    def undo():
        freed = cuda.cuMemFreeAsync(pointer, None)
        return freed or cuda.cuCtxSynchronize()
    return result, undo
""",
}


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    def test_is_refused_at_exactly_the_limit_and_given_back_once(self, make_slot: Callable[..., Slot], kind: str) -> None:
        slot = make_slot(memory_mib=256)
        seen = scripts.run(
            slot,
            KINDS[kind]
            + """
cuda.start()
results, undos = [], []
while True:
    result, undo = take(32)
    results.append(result)
    if result:
        break
    undos.append(undo)
say(results=results, full=cuda.info(), freed=[undo() for undo in undos], empty=cuda.info())
results = [take(32)[0] for _ in range(8)]
say(again=results, past=take(32)[0])
""",
        )
        assert seen["results"] == [0] * 8 + [OOM]
        assert seen["full"] == [0, 256 * MIB]
        assert seen["freed"] == [0] * 8
        assert seen["empty"] == [256 * MIB, 256 * MIB]
        assert (seen["again"], seen["past"]) == ([0] * 8, OOM)

    def test_is_gone_with_its_process(self, make_slot: Callable[..., Slot], kind: str) -> None:
        slot = make_slot(memory_mib=256)
        scripts.run(slot, KINDS[kind] + "cuda.start(); assert take(32)[0] == 0; os.kill(os.getpid(), 9) if os.fork() == 0 else os.wait()")
        assert scripts.run(slot, "cuda.start(); say(free=cuda.alloc(256 * MIB)[0])") == {"free": 0}

    def test_a_failure_of_the_driver_charges_nothing(self, make_slot: Callable[..., Slot], kind: str) -> None:
        slot = make_slot(memory_mib=256)
        symbol = {
            "linear": "cuMemAlloc_v2",
            "managed": "cuMemAllocManaged",
            "pitch": "cuMemAllocPitch_v2",
            "array": "cuArray3DCreate_v2",
            "physical": "cuMemCreate",
            "async": "cuMemAllocAsync",
            "async per thread": "cuMemAllocAsync_ptsz",
            "pool": "cuMemAllocFromPoolAsync",
        }[kind]
        slot.machine.tool("inject", "call", "--symbol", symbol, "--error", "700", "--times", "3")
        seen = scripts.run(slot, KINDS[kind] + "cuda.start(); say(results=[take(32)[0] for _ in range(4)], info=cuda.info())")
        assert seen["results"] == [700, 700, 700, 0]
        assert seen["info"] == [224 * MIB, 256 * MIB]


class TestSizes:
    def test_bytes_are_exact_in_the_steps_of_the_driver(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            """
cuda.start()
p = [cuda.alloc(size) for size in (1, 512, 513, MIB - 1, MIB, 3 * MIB)]
say(free=cuda.info()[0], results=[result for result, _ in p])
""",
        )
        assert seen["results"] == [0] * 6
        assert 64 * MIB - seen["free"] == 512 + 512 + 1024 + MIB + 2 * MIB + 4 * MIB
        assert slot.machine.truth()["cards"][0]["used_bytes"] == 0

    def test_absurd_sizes_are_out_of_memory_and_wrap_nothing(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            """
cuda.start()
sizes = (2**64 - 1, 2**64 - 512, 2**63, 2**42, 2**41, 64 * MIB + 1)
say(linear=[cuda.alloc(size)[0] for size in sizes], asynchronous=[cuda.alloc(size, "cuMemAllocAsync", 0)[0] for size in sizes])
pitch, p = c.c_size_t(), c.c_uint64()
say(pitch=cuda.cuMemAllocPitch_v2(c.byref(p), c.byref(pitch), 2**40, 2**40, c.c_uint(4)))
a = c.c_void_p()
say(array=cuda.cuArray3DCreate_v2(c.byref(a), c.byref(Array3D(2**40, 2**40, 2**40, 0x20, 4, 0))), info=cuda.info())
""",
        )
        assert seen["linear"] == [OOM] * 6
        assert seen["asynchronous"] == [OOM] * 6
        assert (seen["pitch"], seen["array"]) == (OOM, OOM)
        assert seen["info"] == [64 * MIB, 64 * MIB]

    def test_zero_bytes_and_null_outputs_are_the_drivers_business(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            """
cuda.start()
say(zero=cuda.alloc(0)[0], null=cuda.cuMemAlloc_v2(None, 512), no_array=cuda.cuArray3DCreate_v2(None, None),
    no_handle=cuda.cuMemCreate(None, 2 * MIB, None, 0), free=cuda.info()[0])
""",
        )
        assert seen == {"zero": 1, "null": 1, "no_array": 1, "no_handle": 1, "free": 64 * MIB}


class TestForeignPointers:
    def test_an_unknown_pointer_goes_to_the_driver(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            """
cuda.start()
say(free=cuda.cuMemFree_v2(0x123400), null=cuda.cuMemFree_v2(0), asynchronous=cuda.cuMemFreeAsync(c.c_uint64(0x123400), None),
    array=cuda.cuArrayDestroy(c.c_void_p()), info=cuda.info())
""",
        )
        assert seen["free"] == seen["asynchronous"] == 1
        assert seen["null"] == 0
        assert seen["info"] == [64 * MIB, 64 * MIB]

    def test_a_double_free_gives_back_once(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            """
cuda.start()
keep, gone = cuda.alloc(2 * MIB)[1], cuda.alloc(2 * MIB)[1]
say(first=cuda.cuMemFree_v2(gone), second=cuda.cuMemFree_v2(gone), free=cuda.info()[0])
""",
        )
        assert seen == {"first": 0, "second": 1, "free": 62 * MIB}

    def test_a_failed_free_keeps_the_charge(self, slot: Slot) -> None:
        slot.machine.tool("inject", "call", "--symbol", "cuMemFree_v2", "--error", "700", "--times", "1")
        seen = scripts.run(
            slot,
            """
cuda.start(); p = cuda.alloc(2 * MIB)[1]
say(failed=cuda.cuMemFree_v2(p), kept=cuda.info()[0], done=cuda.cuMemFree_v2(p), free=cuda.info()[0])
""",
        )
        assert seen == {"failed": 700, "kept": 62 * MIB, "done": 0, "free": 64 * MIB}


class TestVirtualMemory:
    SETUP = """
cuda.start()
address, handle = c.c_uint64(), c.c_uint64()
assert cuda.cuMemAddressReserve(c.byref(address), 8 * MIB, 0, 0, 0) == 0
assert cuda.cuMemCreate(c.byref(handle), 4 * MIB, c.byref(AllocationProp(1, 0, Location(1, 0))), 0) == 0
used = lambda: 64 - cuda.info()[0] // MIB
"""

    def test_a_mapping_keeps_a_released_handle(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            self.SETUP
            + """
say(map=cuda.cuMemMap(address, 4 * MIB, 0, handle, 0), release=cuda.cuMemRelease(handle), mapped=used())
say(unmap=cuda.cuMemUnmap(address, 4 * MIB), end=used())
""",
        )
        assert seen == {"map": 0, "release": 0, "mapped": 4, "unmap": 0, "end": 0}

    def test_a_retained_handle_is_charged_once_and_lives_until_its_last_reference(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            self.SETUP
            + """
again = c.c_uint64()
cuda.cuMemMap(address, 4 * MIB, 0, handle, 0)
say(retain=cuda.cuMemRetainAllocationHandle(c.byref(again), c.c_void_p(address.value)), same=again.value == handle.value, one=used())
cuda.cuMemUnmap(address, 4 * MIB); cuda.cuMemRelease(handle)
say(held=used(), release=cuda.cuMemRelease(again), end=used())
""",
        )
        assert seen == {"retain": 0, "same": True, "one": 4, "held": 4, "release": 0, "end": 0}

    def test_one_unmap_may_span_several_mappings(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            self.SETUP
            + """
other = c.c_uint64()
cuda.cuMemCreate(c.byref(other), 4 * MIB, c.byref(AllocationProp(1, 0, Location(1, 0))), 0)
cuda.cuMemMap(address, 4 * MIB, 0, handle, 0); cuda.cuMemMap(address.value + 4 * MIB, 4 * MIB, 0, other, 0)
cuda.cuMemRelease(handle); cuda.cuMemRelease(other)
say(mapped=used(), unmap=cuda.cuMemUnmap(address, 8 * MIB), end=used())
""",
        )
        assert seen == {"mapped": 8, "unmap": 0, "end": 0}

    def test_host_memory_is_not_charged(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            """
cuda.start()
page = c.c_void_p()
say(host=cuda.cuMemHostAlloc(c.byref(page), 128 * MIB, c.c_uint(0)), free=cuda.info()[0])
""",
        )
        assert seen == {"host": 0, "free": 64 * MIB}


class TestTiles:
    """Sparse arrays: what a tile is mapped to lives as long as the mapping, whoever holds the handle."""

    SETUP = """
SPARSE, MAP, UNMAP = 0x40, 1, 2
class MapInfo(c.Structure):
    _fields_ = [("resource_type", c.c_int), ("resource", c.c_uint64), ("kind", c.c_int), ("place", c.c_uint64 * 4), ("operation", c.c_int),
                ("handle_type", c.c_int), ("handle", c.c_uint64), ("offset", c.c_uint64), ("devices", c.c_uint), ("rest", c.c_uint * 3)]
cuda.start()
def physical(mib):
    handle = c.c_uint64()
    assert cuda.cuMemCreate(c.byref(handle), mib * MIB, c.byref(AllocationProp(1, 0, Location(1, 0))), 0) == 0
    return handle.value
def sparse():
    array = c.c_void_p()
    assert cuda.cuArray3DCreate_v2(c.byref(array), c.byref(Array3D(4096, 4096, 0, 0x20, 1, SPARSE))) == 0
    return array
def change(array, *tiles):
    infos = (MapInfo * len(tiles))()
    for info, (operation, x, handle) in zip(infos, tiles):
        info.resource, info.operation, info.handle, info.devices = array.value, operation, handle, 1
        info.place[1:] = [x, 128 << 32, 1 << 32 | 128]  # offsets and extents, two to a word
    return cuda.MAP_SYMBOL(infos, c.c_uint(len(tiles)), None)
def used():
    free, total = cuda.info()
    return (total - free) // MIB
"""

    @pytest.mark.parametrize("symbol", ["cuMemMapArrayAsync", "cuMemMapArrayAsync_ptsz"])
    def test_a_released_handle_stays_charged_until_its_last_tile_goes(self, make_slot: Callable[..., Slot], symbol: str) -> None:
        slot = make_slot(memory_mib=64)
        seen = scripts.run(
            slot,
            self.SETUP.replace("MAP_SYMBOL", symbol)
            + """
array, one, two = sparse(), physical(16), physical(32)
say(map=change(array, (MAP, 0, one), (MAP, 128, two), (MAP, 256, two)), released=[cuda.cuMemRelease(handle) for handle in (one, two)])
say(mapped=used(), blocked=cuda.alloc(18 * MIB)[0])
say(first=change(array, (UNMAP, 0, 0)), after_first=used(), second=change(array, (MAP, 128, 0)), after_second=used())
say(last=change(array, (UNMAP, 256, 0)), end=used(), all=cuda.alloc(64 * MIB)[0])
""",
        )
        assert seen == {
            **{"map": 0, "released": [0, 0], "mapped": 48, "blocked": OOM},
            **{"first": 0, "after_first": 32, "second": 0, "after_second": 32, "last": 0, "end": 0, "all": 0},
        }

    def test_an_array_takes_its_tiles_with_it_and_a_new_mapping_its_old_one(self, make_slot: Callable[..., Slot]) -> None:
        slot = make_slot(memory_mib=64)
        seen = scripts.run(
            slot,
            self.SETUP.replace("MAP_SYMBOL", "cuMemMapArrayAsync")
            + """
array, other, one, two, three = sparse(), sparse(), physical(8), physical(16), physical(4)
change(array, (MAP, 0, one), (MAP, 128, three)); change(other, (MAP, 0, three))
say(instead=change(array, (MAP, 0, two)), released=[cuda.cuMemRelease(handle) for handle in (one, two, three)], replaced=used())
say(destroyed=cuda.cuArrayDestroy(array), left=used(), last=cuda.cuArrayDestroy(other), end=used())
""",
        )
        assert seen == {"instead": 0, "released": [0, 0, 0], "replaced": 20, "destroyed": 0, "left": 4, "last": 0, "end": 0}
        assert slot.machine.allocated_bytes() == 0

    def test_a_failure_of_the_driver_changes_nothing(self, make_slot: Callable[..., Slot]) -> None:
        slot = make_slot(memory_mib=64)
        for symbol in ("cuMemMapArrayAsync", "cuArrayDestroy"):
            slot.machine.tool(
                "inject", "call", "--symbol", symbol, "--error", "700", "--after", str(int(symbol == "cuMemMapArrayAsync")), "--times", "1"
            )
        seen = scripts.run(
            slot,
            self.SETUP.replace("MAP_SYMBOL", "cuMemMapArrayAsync")
            + """
array, one = sparse(), physical(8)
say(map=change(array, (MAP, 0, one)), released=cuda.cuMemRelease(one), unmap=change(array, (UNMAP, 0, 0)), still=used())
say(destroy=cuda.cuArrayDestroy(array), yet=used(), again=cuda.cuArrayDestroy(array), end=used())
""",
        )
        assert seen == {"map": 0, "released": 0, "unmap": 700, "still": 8, "destroy": 700, "yet": 8, "again": 0, "end": 0}


class TestPools:
    def test_a_pool_of_host_memory_is_not_charged(self, make_slot: Callable[..., Slot]) -> None:
        seen = scripts.run(
            make_slot(memory_mib=64),
            """
HOST = 2
cuda.start()
pool, pointer = c.c_void_p(), c.c_uint64()
assert cuda.cuMemPoolCreate(c.byref(pool), c.byref(PoolProps(1, 0, Location(HOST, 0)))) == 0
say(result=cuda.cuMemAllocFromPoolAsync(c.byref(pointer), 256 * MIB, pool, None), free=cuda.info()[0])
say(freed=cuda.cuMemFreeAsync(pointer, None), destroyed=cuda.cuMemPoolDestroy(pool), card=cuda.alloc(64 * MIB)[0])
""",
        )
        assert seen == {"result": 0, "free": 64 * MIB, "freed": 0, "destroyed": 0, "card": 0}

    @pytest.mark.parametrize("step", [2, 32, 64, 96, 256])
    @pytest.mark.parametrize("pieces", [0, 1])
    def test_room_is_kept_for_the_steps_in_which_this_driver_grows_pools(
        self, make_slot: Callable[..., Slot], step: int, pieces: int
    ) -> None:
        """40 MiB are left when a pool, the old one or a new one, has to grow: a step that is larger is refused before it is taken."""
        slot = make_slot(memory_mib=512)
        slot.machine.tool("set", f"pool_growth_bytes={step * MIB}", f"pool_has_pieces={pieces}")
        seen = scripts.run(
            slot,
            KINDS["pool"]
            + f"""
STEP = {step}
cuda.start()
def grown():
    reserved = c.c_uint64()
    assert cuda.cuMemPoolGetAttribute(pool, c.c_int(5), c.byref(reserved)) == 0
    return reserved.value // MIB
def used(): return 512 - cuda.info()[0] // MIB
say(first=take(STEP // 2)[0], second=take(STEP // 2)[0], grown=grown(), used=used())
f = cuda.spin()
assert cuda.alloc((512 - STEP - 40) * MIB)[0] == cuda.launch(f, 300000) == 0  # what is freed behind work on its stream is not gone at once
say(left=cuda.info()[0] // MIB, old=take(1)[0], old_grown=grown(), old_used=used())
pool = c.c_void_p()
say(new=take(1)[0], new_grown=grown(), new_used=used())
""",
        )
        assert (seen["first"], seen["second"], seen["grown"], seen["used"], seen["left"]) == (0, 0, step, step, 40)
        fits = step <= 40
        assert (seen["old"], seen["old_grown"], seen["old_used"]) == (0 if fits else OOM, step + fits * step, 472 + fits * step)
        fits_again = 2 * step <= 40
        assert (seen["new"], seen["new_grown"]) == (0 if fits_again else OOM, fits_again * step)
        assert seen["new_used"] == 472 + fits * step + fits_again * step

    def test_a_first_step_that_was_larger_than_the_room_is_given_back(self, make_slot: Callable[..., Slot]) -> None:
        slot = make_slot(memory_mib=512)
        slot.machine.tool("set", f"pool_growth_bytes={64 * MIB}")
        seen = scripts.run(
            slot,
            "cuda.start(); assert cuda.alloc(472 * MIB)[0] == 0; say(result=cuda.alloc(1, 'cuMemAllocAsync', 0)[0], left=cuda.info()[0])",
        )
        assert seen == {"result": OOM, "left": 40 * MIB}

    @pytest.mark.parametrize("wait", ["cuStreamSynchronize(None)", "cuEventSynchronize(e)", "cuCtxSynchronize()"])
    def test_what_was_freed_in_stream_order_is_given_back_when_its_stream_is_waited_for(
        self, make_slot: Callable[..., Slot], wait: str
    ) -> None:
        """The books are right then, not only when the program asks or is refused: siblings and the node read them, too."""
        slot = make_slot(memory_mib=512)
        slot.machine.tool("set", "pool_has_pieces=1")
        process = slot.start(
            scripts.program(
                f"""
cuda.start()
f, e = cuda.spin(), c.c_void_p()
assert cuda.cuEventCreate(c.byref(e), c.c_uint(0)) == 0
result, pointer = cuda.alloc(96 * MIB, "cuMemAllocAsync", 0)
assert result == cuda.launch(f, 50000) == cuda.cuMemFreeAsync(pointer, None) == cuda.cuEventRecord(e, None) == cuda.{wait} == 0
say()
sys.stdin.readline()
"""
            )
        )
        assert process.stdout is not None
        process.stdout.readline()
        left_bytes = slot.used_bytes
        process.communicate("\n")
        assert (process.returncode, left_bytes) == (0, 0)

    def test_an_empty_pool_of_a_process_that_rests_refuses_no_sibling(self, make_slot: Callable[..., Slot]) -> None:
        slot = make_slot(memory_mib=512)
        slot.machine.tool("set", "pool_has_pieces=1")
        process = slot.start(
            scripts.program(
                """
cuda.start()
f = cuda.spin()
result, pointer = cuda.alloc(480 * MIB, "cuMemAllocAsync", 0)
time.sleep(3)  # the helper looks less and less often
assert result == cuda.launch(f, 50000) == cuda.cuMemFreeAsync(pointer, None) == cuda.cuStreamSynchronize(None) == 0
say()
sys.stdin.readline()
"""
            )
        )
        assert process.stdout is not None
        process.stdout.readline()
        seen = scripts.run(slot, "cuda.start(); say(free=cuda.info()[0], result=cuda.alloc(400 * MIB)[0])")
        process.communicate("\n")
        assert (process.returncode, seen) == (0, {"free": 512 * MIB, "result": 0})

    def test_a_pool_that_the_driver_will_not_name_gives_out_nothing(self, make_slot: Callable[..., Slot]) -> None:
        """It would stay with the pool after the block is freed, charged to nobody."""
        slot = make_slot(memory_mib=512)
        slot.machine.tool("inject", "call", "--symbol", "cuDeviceGetMemPool", "--error", "999", "--times", "2")
        seen = scripts.run(
            slot,
            """
cuda.start()
say(result=cuda.alloc(256 * MIB, "cuMemAllocAsync", 0)[0], left=cuda.info()[0])
pool, reserved = c.c_void_p(), c.c_uint64()
assert cuda.cuDeviceGetMemPool(c.byref(pool), 0) == cuda.cuMemPoolGetAttribute(pool, c.c_int(5), c.byref(reserved)) == 0
say(reserved=reserved.value)
""",
        )
        assert seen == {"result": OOM, "left": 512 * MIB, "reserved": 0}


class TestContexts:
    def test_a_context_that_its_last_user_leaves_gives_everything_back(self, make_slot: Callable[..., Slot]) -> None:
        """The way of before CUDA 4. Where somebody has attached, the last user is the driver's secret: nothing is given back too early."""
        seen = scripts.run(
            make_slot(memory_mib=64),
            """
assert cuda.cuInit(0) == 0
def fill():
    context = c.c_void_p()
    assert cuda.cuCtxCreate_v2(c.byref(context), c.c_uint(0), 0) == 0
    return context, cuda.alloc(64 * MIB)[0], cuda.alloc(512)[0]
context, *results = fill()
say(results=results, detached=cuda.cuCtxDetach(context))
context, *again = fill()
attached = c.c_void_p()
say(again=again, attached=cuda.cuCtxAttach(c.byref(attached), c.c_uint(0)), left=cuda.cuCtxDetach(context), still=cuda.alloc(512)[0])
""",
        )
        assert seen == {"results": [0, OOM], "detached": 0, "again": [0, OOM], "attached": 0, "left": 0, "still": OOM}

    def test_a_destroyed_context_gives_back_what_it_held_and_no_more(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            """
cuda.start()
keep = cuda.alloc(2 * MIB)[1]
other = c.c_void_p()
assert cuda.cuCtxCreate_v2(c.byref(other), c.c_uint(0), 0) == 0
held = cuda.alloc(8 * MIB)[1]
before = cuda.info()[0] // MIB
say(destroy=cuda.cuCtxDestroy_v2(other))
cuda.start()
say(before=before, after=cuda.info()[0] // MIB)
""",
        )
        assert seen == {"destroy": 0, "before": 54, "after": 62}

    def test_a_primary_context_gives_back_with_its_last_reference_or_a_reset(self, slot: Slot) -> None:
        seen = scripts.run(
            slot,
            """
cuda.start(); cuda.start()
cuda.alloc(2 * MIB)
cuda.cuDevicePrimaryCtxRelease_v2(0)
still = cuda.info()[0] // MIB
cuda.cuDevicePrimaryCtxRelease_v2(0)
cuda.start()
gone = cuda.info()[0] // MIB
cuda.alloc(2 * MIB)
say(reset=cuda.cuDevicePrimaryCtxReset_v2(0))
cuda.start()
say(still=still, gone=gone, after_reset=cuda.info()[0] // MIB)
""",
        )
        assert seen == {"reset": 0, "still": 62, "gone": 64, "after_reset": 64}


class TestTwoCards:
    def test_each_card_has_its_own_limit_though_page_and_cuda_order_them_differently(
        self, simulator: Path, hook: Path, tmp_path: Path
    ) -> None:
        machine = Machine.make(simulator, tmp_path, cards=3)
        gpus = [region.GpuQuota(machine.uuids[2], 32 * MIB, 100), region.GpuQuota(machine.uuids[1], 16 * MIB, 100)]
        slot = Slot(tmp_path / "slot", hook, machine, gpus).create()
        seen = scripts.run(
            slot,
            """
totals = []
cuda.cuInit(0)
for device in range(3):
    cuda.start(device)
    totals.append([cuda.info()[1] // MIB, cuda.alloc(16 * MIB)[0], cuda.alloc(2 * MIB)[0]])
say(totals=totals)
""",
        )
        # a card that the page does not name gives out nothing, though its size is no secret
        assert seen["totals"] == [[81920, OOM, OOM], [16, 0, OOM], [32, 0, 0]]
        assert [gpu.refusals for gpu in slot.state().gpus] == [0, 1]

    @pytest.mark.parametrize("by_uuid", [False, True])
    def test_limits_follow_the_card_through_cuda_visible_devices(self, simulator: Path, hook: Path, tmp_path: Path, by_uuid: bool) -> None:
        machine = Machine.make(simulator, tmp_path, cards=3)
        gpus = [region.GpuQuota(machine.uuids[1], 16 * MIB, 100), region.GpuQuota(machine.uuids[2], 32 * MIB, 100)]
        slot = Slot(tmp_path / "slot", hook, machine, gpus).create()
        visible = ",".join([machine.uuids[2], machine.uuids[1]] if by_uuid else ["2", "1"])
        seen = scripts.run(
            slot,
            """
nvml = Driver("libnvidia-ml.so.1"); nvml.nvmlInit_v2()
def nvml_total(index):
    card, memory = c.c_void_p(), NvmlMemory()
    nvml.nvmlDeviceGetHandleByIndex_v2(c.c_uint(index), c.byref(card)); nvml.nvmlDeviceGetMemoryInfo(card, c.byref(memory))
    return memory.total // MIB
cuda.cuInit(0)
totals = []
for device in range(2):
    cuda.start(device)
    totals.append([cuda.info()[1] // MIB, cuda.alloc(16 * MIB)[0], cuda.alloc(2 * MIB)[0]])
say(totals=totals, nvml=[nvml_total(index) for index in range(3)])
""",
            CUDA_VISIBLE_DEVICES=visible,
        )
        assert seen["totals"] == [[32, 0, 0], [16, 0, OOM]]
        assert seen["nvml"] == [81920, 16, 32], "NVML numbers cards by itself"

    def test_a_physical_handle_is_charged_to_the_card_that_it_lives_on(self, simulator: Path, hook: Path, tmp_path: Path) -> None:
        machine = Machine.make(simulator, tmp_path, cards=2)
        slot = Slot(tmp_path / "slot", hook, machine, [region.GpuQuota(uuid, 64 * MIB, 100) for uuid in machine.uuids]).create()
        seen = scripts.run(
            slot,
            """
cuda.start(0)
handle = c.c_uint64()
say(create=cuda.cuMemCreate(c.byref(handle), 4 * MIB, c.byref(AllocationProp(1, 0, Location(1, 1))), 0), here=cuda.info()[0] // MIB)
cuda.start(1)
say(there=cuda.info()[0] // MIB)
""",
        )
        assert seen == {"create": 0, "here": 64, "there": 60}
