/* alloc.c - plain allocations: cuMemAlloc and relatives, host memory, cuMemGetInfo. Next: pool.c, physical.c, array.c for the others. */
#include "heap.h"

static CUresult allocate(CUdeviceptr *ret_address, size_t size_bytes, uint32_t kind)
{
    CUcontext context;
    REQUIRE(ret_address && size_bytes, CUDA_ERROR_INVALID_VALUE);
    TRY(context_require(&context));
    driver_lock();
    CUresult result = heap_allocate(context, kind, size_bytes, ret_address);
    driver_unlock();
    driver_spend(g_driver.machine.state->time.memory_call_ns);
    return result;
}

/* The interface of before CUDA 3.2 has 32-bit addresses; no card of today has memory there. */
ENTRY(cuMemAlloc, (CUdeviceptr_v1 *ret_address, unsigned size_bytes),
      ret_address && size_bytes ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE)
ENTRY(cuMemAlloc_v2, (CUdeviceptr *ret_address, size_t size_bytes), allocate(ret_address, size_bytes, HEAP_DEVICE))

CUDA_EXPORT cuMemAllocPitch_v2(CUdeviceptr *ret_address, size_t *ret_pitch, size_t width_bytes, size_t height, unsigned element_bytes)
{
    ENTER(cuMemAllocPitch_v2);
    REQUIRE(ret_pitch && width_bytes && height, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(element_bytes == 4 || element_bytes == 8 || element_bytes == 16, CUDA_ERROR_INVALID_VALUE);
    const uint64_t align_bytes = g_driver.machine.state->memory.pitch_bytes;
    REQUIRE(width_bytes <= UINT64_MAX - align_bytes, CUDA_ERROR_OUT_OF_MEMORY);
    uint64_t pitch_bytes = (width_bytes + align_bytes - 1) / align_bytes * align_bytes;
    REQUIRE(height <= UINT64_MAX / pitch_bytes, CUDA_ERROR_OUT_OF_MEMORY);
    TRY(allocate(ret_address, pitch_bytes * height, HEAP_DEVICE));
    *ret_pitch = pitch_bytes;
    return CUDA_SUCCESS;
}

/* Flags: 1 global, 2 host, 4 single stream (CUmemAttach_flags). The whole size is charged to the card at once. */
CUDA_EXPORT cuMemAllocManaged(CUdeviceptr *ret_address, size_t size_bytes, unsigned flags)
{
    ENTER(cuMemAllocManaged);
    REQUIRE(flags == 1 || flags == 2, CUDA_ERROR_INVALID_VALUE);
    return allocate(ret_address, size_bytes, HEAP_MANAGED);
}

/* Memory that was not allocated in stream order may be in use by work that is queued. */
static CUresult wait_before_free(CUcontext context, CUdeviceptr address)
{
    if (!g_driver.machine.state->rules.free_waits)
        return CUDA_SUCCESS;
    driver_lock();
    const bool must_wait = heap_find(address, HEAP_DEVICE | HEAP_MANAGED);
    driver_unlock();
    return must_wait ? stream_wait_context(context) : CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr address)
{
    CUcontext context;
    if (address == 0)
        return CUDA_SUCCESS;
    TRY(context_require(&context));
    TRY(wait_before_free(context, address));
    const bool is_freed = heap_free(address, HEAP_DEVICE | HEAP_MANAGED | HEAP_POOL | HEAP_GRAPH | HEAP_EXTERNAL);
    driver_spend(g_driver.machine.state->time.memory_call_ns);
    return is_freed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuMemFree, (CUdeviceptr_v1 address), release(address))
ENTRY(cuMemFree_v2, (CUdeviceptr address), release(address))

static CUresult read_info(uint64_t *ret_free_bytes, uint64_t *ret_total_bytes)
{
    CUcontext context;
    TRY(context_require(&context));
    const struct sim_card *card = &g_driver.machine.state->cards[context->card];
    *ret_free_bytes = memory_free_bytes(card); /* one aligned word: no lock */
    *ret_total_bytes = memory_total_bytes(card);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuMemGetInfo_v2(size_t *ret_free_bytes, size_t *ret_total_bytes)
{
    ENTER(cuMemGetInfo_v2);
    uint64_t free_bytes, total_bytes;
    TRY(read_info(&free_bytes, &total_bytes));
    if (ret_free_bytes)
        *ret_free_bytes = free_bytes;
    if (ret_total_bytes)
        *ret_total_bytes = total_bytes;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuMemGetInfo(unsigned *ret_free_bytes, unsigned *ret_total_bytes)
{
    ENTER(cuMemGetInfo);
    uint64_t free_bytes, total_bytes;
    TRY(read_info(&free_bytes, &total_bytes));
    if (ret_free_bytes)
        *ret_free_bytes = free_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)free_bytes;
    if (ret_total_bytes)
        *ret_total_bytes = total_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)total_bytes;
    return CUDA_SUCCESS;
}

/* Host memory: real pages, known to the driver, charged to no card. */
static CUresult allocate_host(void **ret_pages, size_t size_bytes, unsigned flags)
{
    CUcontext context;
    CUdeviceptr address;
    REQUIRE(ret_pages && size_bytes && flags < 16, CUDA_ERROR_INVALID_VALUE);
    TRY(context_require(&context));
    driver_lock();
    CUresult result = heap_enter_pages(context, size_bytes, &address);
    driver_unlock();
    if (result == CUDA_SUCCESS)
        *ret_pages = (void *)(uintptr_t)address;
    return result;
}

ENTRY(cuMemAllocHost_v2, (void **ret_pages, size_t size_bytes), allocate_host(ret_pages, size_bytes, 0))
ENTRY(cuMemHostAlloc, (void **ret_pages, size_t size_bytes, unsigned flags), allocate_host(ret_pages, size_bytes, flags))

ENTRY(cuMemFreeHost, (void *pages), heap_free((uintptr_t)pages, HEAP_HOST) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)
