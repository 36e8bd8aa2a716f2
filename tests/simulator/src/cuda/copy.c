/* copy.c - copies and fills. No bytes move unless both ends are this process's own pages (host or managed memory); device memory has
 * no content here. Each call checks its handles, takes its place in the stream's queue and, at copy_bytes_per_us > 0, GPU time.
 *
 * Synchronous calls wait for the stream. The names differ in argument types only. */
#include "graph.h"
#include "heap.h"

static int64_t duration_ns(uint64_t bytes)
{
    const int64_t rate = g_driver.machine.state->time.copy_bytes_per_us;
    return rate > 0 ? (int64_t)(bytes * 1000 / (uint64_t)rate) : 0;
}

static CUresult move(CUstream stream, uint64_t bytes, int node_type, bool is_async)
{
    CUgraphNode node;
    TRY(stream_resolve(stream, &stream));
    REQUIRE(!stream->capture || is_async, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    TRY(graph_capture(stream, node_type, &node));
    if (node)
        return CUDA_SUCCESS;
    TRY(stream_submit(stream, duration_ns(bytes), NULL, false));
    return is_async ? CUDA_SUCCESS : stream_wait_ticket(stream->context, stream->last_ticket);
}

static bool is_own_page(uint64_t address)
{
    return !heap_is_number(address);
}

static CUresult copy(uint64_t destination, uint64_t source, size_t bytes, CUstream stream, bool is_async)
{
    REQUIRE(bytes == 0 || (destination && source), CUDA_ERROR_INVALID_VALUE);
    TRY(move(stream, bytes, CU_GRAPH_NODE_TYPE_MEMCPY, is_async));
    heap_move_managed(destination, bytes, true);
    if (bytes && is_own_page(destination) && is_own_page(source))
        memmove((void *)(uintptr_t)destination, (const void *)(uintptr_t)source, bytes);
    return CUDA_SUCCESS;
}

/* count times the value, element_bytes each. */
static CUresult fill(uint64_t address, unsigned value, unsigned element_bytes, size_t count, CUstream stream, bool is_async)
{
    REQUIRE(address, CUDA_ERROR_INVALID_VALUE);
    TRY(move(stream, count * element_bytes, CU_GRAPH_NODE_TYPE_MEMSET, is_async));
    heap_move_managed(address, count * element_bytes, true);
    for (size_t i = 0; is_own_page(address) && i < count; i++)
        memcpy((char *)(uintptr_t)address + i * element_bytes, &value, element_bytes);
    return CUDA_SUCCESS;
}

DEFAULT_STREAM_ENTRY(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), copy(to, (uintptr_t)from, bytes, stream, false))
DEFAULT_STREAM_ENTRY(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), copy((uintptr_t)to, from, bytes, stream, false))
STREAM_ENTRY(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), copy(to, (uintptr_t)from, bytes, stream, true))
STREAM_ENTRY(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), copy((uintptr_t)to, from, bytes, stream, true))
DEFAULT_STREAM_ENTRY(cuMemsetD8_v2, (CUdeviceptr address, unsigned char value, size_t count), fill(address, value, 1, count, stream, false))
DEFAULT_STREAM_ENTRY(cuMemsetD32_v2, (CUdeviceptr address, unsigned value, size_t count), fill(address, value, 4, count, stream, false))
STREAM_ENTRY(cuMemsetD8Async, (CUdeviceptr address, unsigned char value, size_t count, CUstream stream), fill(address, value, 1, count, stream, true))
STREAM_ENTRY(cuMemsetD32Async, (CUdeviceptr address, unsigned value, size_t count, CUstream stream), fill(address, value, 4, count, stream, true))
