/* managed.c - moving managed memory ahead of its use. All of it is on its card from the start, so that a move changes nothing; or, with the
 * model's managed_on_touch, what was moved there or filled is. */
#include "graph.h"
#include "heap.h"

static CUresult check_range(CUdeviceptr address, size_t bytes)
{
    REQUIRE(bytes, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    const struct heap_entry *entry = heap_find_inside(address, HEAP_MANAGED);
    bool is_inside = entry && bytes <= entry->allocated_bytes - (address - entry->address);
    driver_unlock();
    return is_inside ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_location(CUmemLocation location)
{
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return driver_card(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    return location.type >= CU_MEM_LOCATION_TYPE_HOST && location.type <= 4 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Ordinals below 0 name the host. */
static CUmemLocation location_of(CUdevice device)
{
    return (CUmemLocation){.type = device < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

static CUresult prefetch(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream)
{
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(check_location(location));
    TRY(check_range(address, bytes));
    heap_move_managed(address, bytes, location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    return graph_mark(stream, CU_GRAPH_NODE_TYPE_EMPTY);
}

STREAM_ENTRY(cuMemPrefetchAsync, (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream),
             prefetch(address, bytes, location_of(device), 0, stream))
STREAM_ENTRY(cuMemPrefetchAsync_v2, (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream),
             prefetch(address, bytes, location, flags, stream))
