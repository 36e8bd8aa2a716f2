/* alloc.c - plain allocations: cuMemAlloc and relatives, host memory, cuMemGetInfo. Next: pool.c, physical.c, array.c for the others. */
#include <sys/mman.h>

#include "heap.h"

static CUresult allocate(CUdeviceptr *ret_address, size_t size_bytes, uint32_t kind)
{
    CUcontext context;
    REQUIRE(ret_address && size_bytes, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    result = heap_allocate(context, kind, size_bytes, ret_address);
    driver_unlock();
    driver_spend(g_driver.machine.state->time.memory_call_ns);
    return result;
}

/* Interfaces of before CUDA 3.2 have 32-bit addresses; no card of today has memory there. */
static CUresult allocate_narrow(CUdeviceptr_v1 *ret_address, unsigned size_bytes)
{
    REQUIRE(ret_address && size_bytes, CUDA_ERROR_INVALID_VALUE);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUDA_EXPORT cuMemAlloc(CUdeviceptr_v1 *ret_address, unsigned size_bytes)
{
    ENTER(cuMemAlloc);
    return allocate_narrow(ret_address, size_bytes);
}

CUDA_EXPORT cuMemAlloc_v2(CUdeviceptr *ret_address, size_t size_bytes)
{
    ENTER(cuMemAlloc_v2);
    return allocate(ret_address, size_bytes, HEAP_DEVICE);
}

CUDA_EXPORT cuMemAllocPitch_v2(CUdeviceptr *ret_address, size_t *ret_pitch, size_t width_bytes, size_t height, unsigned element_bytes)
{
    ENTER(cuMemAllocPitch_v2);
    REQUIRE(ret_pitch && width_bytes && height, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(element_bytes == 4 || element_bytes == 8 || element_bytes == 16, CUDA_ERROR_INVALID_VALUE);
    const uint64_t align_bytes = g_driver.machine.state->memory.pitch_bytes;
    REQUIRE(width_bytes <= UINT64_MAX - align_bytes, CUDA_ERROR_OUT_OF_MEMORY);
    uint64_t pitch_bytes = (width_bytes + align_bytes - 1) / align_bytes * align_bytes;
    REQUIRE(height <= UINT64_MAX / pitch_bytes, CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = allocate(ret_address, pitch_bytes * height, HEAP_DEVICE);
    if (result == CUDA_SUCCESS)
        *ret_pitch = pitch_bytes;
    return result;
}

/* Flags: 1 global, 2 host, 4 single stream (CUmemAttach_flags). The whole size is charged to the card at once. */
CUDA_EXPORT cuMemAllocManaged(CUdeviceptr *ret_address, size_t size_bytes, unsigned flags)
{
    ENTER(cuMemAllocManaged);
    REQUIRE(flags == 1 || flags == 2, CUDA_ERROR_INVALID_VALUE);
    return allocate(ret_address, size_bytes, HEAP_MANAGED);
}

static CUresult release(CUdeviceptr address)
{
    CUcontext context;
    if (address == 0)
        return CUDA_SUCCESS;
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    struct heap_entry *entry = heap_find(address, HEAP_DEVICE | HEAP_MANAGED | HEAP_POOL | HEAP_GRAPH | HEAP_EXTERNAL);
    if (entry)
        heap_release(entry);
    driver_unlock();
    driver_spend(g_driver.machine.state->time.memory_call_ns);
    return entry ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_EXPORT cuMemFree(CUdeviceptr_v1 address)
{
    ENTER(cuMemFree);
    return release(address);
}

CUDA_EXPORT cuMemFree_v2(CUdeviceptr address)
{
    ENTER(cuMemFree_v2);
    return release(address);
}

static CUresult read_info(uint64_t *ret_free_bytes, uint64_t *ret_total_bytes)
{
    CUcontext context;
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    const struct sim_card *card = &g_driver.machine.state->cards[context->card];
    *ret_free_bytes = memory_free_bytes(card); /* one aligned word: no lock */
    *ret_total_bytes = memory_total_bytes(card);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuMemGetInfo_v2(size_t *ret_free_bytes, size_t *ret_total_bytes)
{
    ENTER(cuMemGetInfo_v2);
    uint64_t free_bytes, total_bytes;
    CUresult result = read_info(&free_bytes, &total_bytes);
    if (result == CUDA_SUCCESS && ret_free_bytes)
        *ret_free_bytes = free_bytes;
    if (result == CUDA_SUCCESS && ret_total_bytes)
        *ret_total_bytes = total_bytes;
    return result;
}

CUDA_EXPORT cuMemGetInfo(unsigned *ret_free_bytes, unsigned *ret_total_bytes)
{
    ENTER(cuMemGetInfo);
    uint64_t free_bytes, total_bytes;
    CUresult result = read_info(&free_bytes, &total_bytes);
    if (result == CUDA_SUCCESS && ret_free_bytes)
        *ret_free_bytes = free_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)free_bytes;
    if (result == CUDA_SUCCESS && ret_total_bytes)
        *ret_total_bytes = total_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)total_bytes;
    return result;
}

CUDA_EXPORT cuMemGetAddressRange_v2(CUdeviceptr *ret_base, size_t *ret_bytes, CUdeviceptr address)
{
    ENTER(cuMemGetAddressRange_v2);
    driver_lock();
    struct heap_entry *entry = heap_find_inside(address, ~(uint32_t)(HEAP_RANGE | HEAP_ARRAY | HEAP_HOST | HEAP_REGISTERED));
    if (entry && ret_base)
        *ret_base = entry->address;
    if (entry && ret_bytes)
        *ret_bytes = entry->size_bytes;
    driver_unlock();
    return entry ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Host memory: real pages, known to the driver, charged to no card. */

static CUresult allocate_host(void **ret_pages, size_t size_bytes, unsigned flags)
{
    CUcontext context;
    REQUIRE(ret_pages && size_bytes && flags < 16, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    void *pages = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(pages != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    const struct heap_entry entry = {.address = (uint64_t)(uintptr_t)pages,
                                     .size_bytes = size_bytes,
                                     .allocated_bytes = size_bytes,
                                     .context = context,
                                     .card = context->card,
                                     .kind = HEAP_HOST,
                                     .flags = flags};
    CUdeviceptr address;
    driver_lock();
    result = heap_enter(&entry, 1, &address);
    driver_unlock();
    if (result == CUDA_SUCCESS)
        *ret_pages = pages;
    else
        munmap(pages, size_bytes);
    return result;
}

CUDA_EXPORT cuMemAllocHost(void **ret_pages, unsigned size_bytes)
{
    ENTER(cuMemAllocHost);
    return allocate_host(ret_pages, size_bytes, 0);
}

CUDA_EXPORT cuMemAllocHost_v2(void **ret_pages, size_t size_bytes)
{
    ENTER(cuMemAllocHost_v2);
    return allocate_host(ret_pages, size_bytes, 0);
}

CUDA_EXPORT cuMemHostAlloc(void **ret_pages, size_t size_bytes, unsigned flags)
{
    ENTER(cuMemHostAlloc);
    return allocate_host(ret_pages, size_bytes, flags);
}

static CUresult release_host(void *pages, uint32_t kind, CUresult otherwise)
{
    driver_lock();
    struct heap_entry *entry = heap_find((uint64_t)(uintptr_t)pages, kind);
    if (entry)
        heap_release(entry);
    driver_unlock();
    return entry ? CUDA_SUCCESS : otherwise;
}

CUDA_EXPORT cuMemFreeHost(void *pages)
{
    ENTER(cuMemFreeHost);
    return release_host(pages, HEAP_HOST, CUDA_ERROR_INVALID_VALUE);
}

static CUresult register_host(void *pages, size_t size_bytes, unsigned flags)
{
    CUcontext context;
    REQUIRE(pages && size_bytes && flags < 32, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    const struct heap_entry entry = {.address = (uint64_t)(uintptr_t)pages,
                                     .size_bytes = size_bytes,
                                     .context = context,
                                     .card = context->card,
                                     .kind = HEAP_REGISTERED,
                                     .flags = flags};
    CUdeviceptr address;
    driver_lock();
    if (heap_find_inside(entry.address, HEAP_REGISTERED | HEAP_HOST))
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    else
        result = heap_enter(&entry, 1, &address);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuMemHostRegister(void *pages, size_t size_bytes, unsigned flags)
{
    ENTER(cuMemHostRegister);
    return register_host(pages, size_bytes, flags);
}

CUDA_EXPORT cuMemHostRegister_v2(void *pages, size_t size_bytes, unsigned flags)
{
    ENTER(cuMemHostRegister_v2);
    return register_host(pages, size_bytes, flags);
}

CUDA_EXPORT cuMemHostUnregister(void *pages)
{
    ENTER(cuMemHostUnregister);
    return release_host(pages, HEAP_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUDA_EXPORT cuMemHostGetDevicePointer_v2(CUdeviceptr *ret_address, void *pages, unsigned flags)
{
    ENTER(cuMemHostGetDevicePointer_v2);
    REQUIRE(ret_address && flags == 0, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    bool is_known = heap_find_inside((uint64_t)(uintptr_t)pages, HEAP_HOST | HEAP_REGISTERED);
    driver_unlock();
    REQUIRE(is_known, CUDA_ERROR_INVALID_VALUE);
    *ret_address = (uint64_t)(uintptr_t)pages; /* unified addressing */
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuMemHostGetFlags(unsigned *ret_flags, void *pages)
{
    ENTER(cuMemHostGetFlags);
    REQUIRE(ret_flags, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    struct heap_entry *entry = heap_find((uint64_t)(uintptr_t)pages, HEAP_HOST | HEAP_REGISTERED);
    if (entry)
        *ret_flags = entry->flags;
    driver_unlock();
    return entry ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
