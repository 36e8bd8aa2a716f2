/* managed.c - hints about managed memory. All of it is charged to its card from the start, so that hints are checked and change nothing. */
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

/* Ordinals below 0 name the host. */
static CUresult check_location(CUmemLocation location)
{
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return driver_card(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    return location.type >= CU_MEM_LOCATION_TYPE_HOST && location.type <= 4 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUmemLocation location_of(CUdevice device)
{
    return (CUmemLocation){.type = device < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

static CUresult advise(CUdeviceptr address, size_t bytes, int advice, CUmemLocation location)
{
    REQUIRE(advice >= 1 && advice <= 6, CUDA_ERROR_INVALID_VALUE);
    if (advice >= 3) { /* preferred location and accessed-by name a place; read-mostly does not */
        CUresult result = advice == 4 ? CUDA_SUCCESS : check_location(location);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return check_range(address, bytes);
}

CUDA_EXPORT cuMemAdvise(CUdeviceptr address, size_t bytes, int advice, CUdevice device)
{
    ENTER(cuMemAdvise);
    return advise(address, bytes, advice, location_of(device));
}

CUDA_EXPORT cuMemAdvise_v2(CUdeviceptr address, size_t bytes, int advice, CUmemLocation location)
{
    ENTER(cuMemAdvise_v2);
    return advise(address, bytes, advice, location);
}

static CUresult prefetch(CUdeviceptr address, size_t bytes, CUmemLocation location, CUstream handle)
{
    CUstream stream;
    bool is_captured = false;
    CUresult result = check_location(location);
    if (result == CUDA_SUCCESS)
        result = check_range(address, bytes);
    if (result == CUDA_SUCCESS)
        result = stream_resolve(handle, &stream);
    if (result == CUDA_SUCCESS)
        result = graph_capture_marker(stream, CU_GRAPH_NODE_TYPE_EMPTY, &is_captured);
    return result == CUDA_SUCCESS && !is_captured ? stream_submit(stream, 0, NULL, false) : result;
}

CUDA_EXPORT cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream)
{
    ENTER(cuMemPrefetchAsync);
    return prefetch(address, bytes, location_of(device), stream);
}

CUDA_EXPORT cuMemPrefetchAsync_ptsz(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream)
{
    ENTER(cuMemPrefetchAsync_ptsz);
    return prefetch(address, bytes, location_of(device), stream_of_thread(stream));
}

CUDA_EXPORT cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream)
{
    ENTER(cuMemPrefetchAsync_v2);
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    return prefetch(address, bytes, location, stream);
}

CUDA_EXPORT cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream)
{
    ENTER(cuMemPrefetchAsync_v2_ptsz);
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    return prefetch(address, bytes, location, stream_of_thread(stream));
}

static CUresult attach(CUstream handle, CUdeviceptr address, size_t bytes, unsigned flags)
{
    CUstream stream;
    REQUIRE(flags == 1 || flags == 2 || flags == 4, CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    return result == CUDA_SUCCESS ? check_range(address, bytes ? bytes : 1) : result;
}

CUDA_EXPORT cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags)
{
    ENTER(cuStreamAttachMemAsync);
    return attach(stream, address, bytes, flags);
}

CUDA_EXPORT cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags)
{
    ENTER(cuStreamAttachMemAsync_ptsz);
    return attach(stream_of_thread(stream), address, bytes, flags);
}
