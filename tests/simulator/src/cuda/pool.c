/* pool.c - stream-ordered memory pools and what allocates from them (contract: pool.h). */
#include "pool.h"

#include <stdlib.h>

#include "graph.h"
#include "heap.h"

static CUmemoryPool g_pools; /* all live ones */
static _Atomic bool g_has_pools; /* false: synchronising need not look, nor lock */
static CUmemoryPool g_defaults[SIM_CARDS_MAX], g_currents[SIM_CARDS_MAX], g_graphs[SIM_CARDS_MAX];

static uint64_t stepped(uint64_t bytes)
{
    const uint64_t step_bytes = g_driver.machine.state->memory.pool_growth_bytes;
    return (bytes + step_bytes - 1) / step_bytes * step_bytes;
}

static CUmemoryPool new_pool(CUdevice device)
{
    CUmemoryPool pool = object_new(KIND_POOL, sizeof *pool);
    if (!pool)
        return NULL;
    pool->device = device;
    pool->card = driver_card_index(device);
    pool->has_pieces = g_driver.machine.state->rules.pool_has_pieces;
    pool->next = g_pools;
    g_pools = pool;
    atomic_store(&g_has_pools, true);
    return pool;
}

CUmemoryPool pool_default(CUdevice device)
{
    if (!g_defaults[device] && (g_defaults[device] = new_pool(device)))
        g_defaults[device]->is_default = true;
    return g_defaults[device];
}

CUmemoryPool pool_of_graphs(CUdevice device)
{
    if (!g_graphs[device] && (g_graphs[device] = new_pool(device))) {
        g_graphs[device]->is_graph = true;
        g_graphs[device]->has_pieces = false;
        g_graphs[device]->release_threshold_bytes = UINT64_MAX; /* kept until cuDeviceGraphMemTrim */
    }
    return g_graphs[device];
}

CUresult pool_grow(CUmemoryPool pool, uint64_t needed_bytes)
{
    const uint64_t target_bytes = stepped(needed_bytes);
    REQUIRE(!pool->max_bytes || target_bytes <= stepped(pool->max_bytes), CUDA_ERROR_OUT_OF_MEMORY);
    if (!pool->is_host)
        TRY(driver_take_memory(pool->card, target_bytes - pool->reserved_bytes));
    pool->reserved_bytes = target_bytes;
    if (target_bytes > pool->reserved_high_bytes)
        pool->reserved_high_bytes = target_bytes;
    return CUDA_SUCCESS;
}

/* What its blocks are in the books of the card. */
static void note(CUmemoryPool pool, int64_t requested_bytes, int64_t allocated_bytes)
{
    if (!pool->is_host)
        driver_settle_memory(pool->card, requested_bytes, allocated_bytes, 0);
}

CUresult pool_make_room(CUmemoryPool pool, uint64_t size_bytes)
{
    REQUIRE(size_bytes <= UINT64_MAX / 4, CUDA_ERROR_OUT_OF_MEMORY);
    return pool->used_bytes + size_bytes > pool->reserved_bytes ? pool_grow(pool, pool->used_bytes + size_bytes) : CUDA_SUCCESS;
}

CUresult pool_take(CUmemoryPool pool, uint64_t size_bytes, CUstream stream, uint64_t *ret_allocated_bytes, uint64_t *ret_address)
{
    const uint64_t granule_bytes = g_driver.machine.state->memory.granule_bytes;
    REQUIRE(size_bytes <= UINT64_MAX / 4, CUDA_ERROR_OUT_OF_MEMORY);
    const uint64_t rounded_bytes = (size_bytes + granule_bytes - 1) / granule_bytes * granule_bytes;
    *ret_address = 0;
    TRY(pool->has_pieces ? pool_piece_take(pool, rounded_bytes, stream, ret_address) : pool_make_room(pool, rounded_bytes));
    pool->used_bytes += rounded_bytes;
    if (pool->used_bytes > pool->used_high_bytes)
        pool->used_high_bytes = pool->used_bytes;
    note(pool, (int64_t)size_bytes, (int64_t)rounded_bytes);
    *ret_allocated_bytes = rounded_bytes;
    return CUDA_SUCCESS;
}

static void trim_to(CUmemoryPool pool, uint64_t keep_bytes)
{
    uint64_t target_bytes = stepped(pool->used_bytes > keep_bytes ? pool->used_bytes : keep_bytes);
    if (target_bytes >= pool->reserved_bytes)
        return;
    if (pool->has_pieces)
        target_bytes = pool->reserved_bytes - pool_piece_drop_chunks(pool, pool->reserved_bytes - target_bytes);
    if (!pool->is_host)
        driver_settle_memory(pool->card, 0, 0, pool->reserved_bytes - target_bytes);
    pool->reserved_bytes = target_bytes;
}

/* Destroyed and empty: whatever is still in use by queued work goes with it. */
static void forget(CUmemoryPool pool)
{
    pool_piece_forget(pool);
    pool->has_pieces = false;
    trim_to(pool, 0);
    CUmemoryPool *link = &g_pools;
    while (*link && *link != pool)
        link = &(*link)->next;
    if (*link)
        *link = pool->next;
    object_free(pool);
}

void pool_give_back(CUmemoryPool pool, uint64_t address, uint64_t size_bytes, uint64_t allocated_bytes)
{
    pool_piece_give_back(pool, address);
    pool->used_bytes -= allocated_bytes;
    note(pool, -(int64_t)size_bytes, -(int64_t)allocated_bytes);
    if (pool->is_destroyed && pool->used_bytes == 0)
        forget(pool);
}

static uint64_t threshold_steps(const struct CUmemPoolHandle_st *pool)
{
    return pool->release_threshold_bytes > UINT64_MAX / 4 ? UINT64_MAX / 4 : pool->release_threshold_bytes;
}

void pool_trim_unused(CUmemoryPool pool)
{
    trim_to(pool, 0);
}

void pool_trim_after_sync(CUcontext context)
{
    if (!atomic_load_explicit(&g_has_pools, memory_order_relaxed))
        return;
    driver_lock();
    for (CUmemoryPool pool = g_pools; pool; pool = pool->next)
        if (pool->card == context->card)
            trim_to(pool, threshold_steps(pool));
    driver_unlock();
}

void pool_drop_card(CUcontext context)
{
    for (CUmemoryPool pool = g_pools; pool; pool = pool->next)
        if (pool->card == context->card && pool->used_bytes == 0)
            trim_to(pool, 0);
}

static bool is_usable(CUmemoryPool pool)
{
    return object_is(pool, KIND_POOL) && !pool->is_destroyed;
}

CUDA_EXPORT cuMemPoolCreate(CUmemoryPool *ret_pool, const CUmemPoolProps *properties)
{
    ENTER(cuMemPoolCreate);
    REQUIRE(ret_pool && properties, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(properties->allocation_type == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE);
    const bool is_host = properties->location.type == CU_MEM_LOCATION_TYPE_HOST;
    REQUIRE(is_host || properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(is_host || driver_card(properties->location.id), CUDA_ERROR_INVALID_DEVICE);
    driver_lock();
    CUmemoryPool pool = new_pool(is_host ? 0 : properties->location.id);
    if (pool) {
        pool->is_host = is_host;
        pool->has_pieces = pool->has_pieces && !is_host;
        pool->max_bytes = properties->max_bytes;
        *ret_pool = pool;
    }
    driver_unlock();
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_EXPORT cuMemPoolDestroy(CUmemoryPool pool)
{
    ENTER(cuMemPoolDestroy);
    REQUIRE(is_usable(pool) && !pool->is_default && !pool->is_graph, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    for (int device = 0; device < driver_device_count(); device++)
        if (g_currents[device] == pool)
            g_currents[device] = NULL;
    pool->is_destroyed = true; /* its allocations live on */
    if (pool->used_bytes == 0)
        forget(pool);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
    ENTER(cuMemPoolTrimTo);
    REQUIRE(is_usable(pool), CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    trim_to(pool, keep_bytes > UINT64_MAX / 4 ? UINT64_MAX / 4 : keep_bytes);
    driver_unlock();
    return CUDA_SUCCESS;
}

/* Whether and how freed memory is used again early is not simulated: those attributes are invalid. */
CUDA_EXPORT cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *ret_value)
{
    ENTER(cuMemPoolGetAttribute);
    REQUIRE(is_usable(pool) && ret_value, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(attribute >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && attribute <= CU_MEMPOOL_ATTR_USED_MEM_HIGH, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    const uint64_t values[] = {pool->release_threshold_bytes, pool->reserved_bytes, pool->reserved_high_bytes, pool->used_bytes,
                               pool->used_high_bytes};
    driver_unlock();
    *(uint64_t *)ret_value = values[attribute - CU_MEMPOOL_ATTR_RELEASE_THRESHOLD];
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    ENTER(cuMemPoolSetAttribute);
    REQUIRE(is_usable(pool) && value && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    pool->release_threshold_bytes = *(uint64_t *)value;
    driver_unlock();
    return CUDA_SUCCESS;
}

static CUmemoryPool current_pool(CUdevice device)
{
    return g_currents[device] ? g_currents[device] : pool_default(device);
}

static CUresult give_pool(CUmemoryPool *ret_pool, CUdevice device, CUmemoryPool (*find)(CUdevice))
{
    REQUIRE(ret_pool, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    driver_lock();
    *ret_pool = find(device);
    driver_unlock();
    return *ret_pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

ENTRY(cuDeviceGetDefaultMemPool, (CUmemoryPool *ret_pool, CUdevice device), give_pool(ret_pool, device, pool_default))
ENTRY(cuDeviceGetMemPool, (CUmemoryPool *ret_pool, CUdevice device), give_pool(ret_pool, device, current_pool))

CUDA_EXPORT cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    ENTER(cuDeviceSetMemPool);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(is_usable(pool) && pool->device == device && !pool->is_host, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    g_currents[device] = pool;
    driver_unlock();
    return CUDA_SUCCESS;
}

/* The device's current pool unless is_from_pool. */
static CUresult allocate_async(CUdeviceptr *ret_address, size_t size_bytes, CUmemoryPool pool, bool is_from_pool, CUstream stream)
{
    bool is_captured = false;
    REQUIRE(!is_from_pool || is_usable(pool), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(ret_address && size_bytes, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_resolve(stream, &stream));
    TRY(graph_capture_allocate(stream, size_bytes, ret_address, &is_captured));
    if (is_captured)
        return CUDA_SUCCESS;
    driver_lock();
    if (!pool)
        pool = current_pool(stream->context->device);
    uint64_t allocated_bytes = 0, address = 0;
    CUresult result = pool ? pool_take(pool, size_bytes, stream, &allocated_bytes, &address) : (CUresult)CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        const struct heap_entry entry = {.address = address,
                                         .size_bytes = size_bytes,
                                         .allocated_bytes = allocated_bytes,
                                         .context = stream->context,
                                         .card = pool->card,
                                         .kind = HEAP_POOL,
                                         .owner = pool};
        result = heap_enter(&entry, g_driver.machine.state->memory.granule_bytes, ret_address);
        if (result != CUDA_SUCCESS)
            pool_give_back(pool, address, size_bytes, allocated_bytes);
    }
    driver_unlock();
    return result;
}

STREAM_ENTRY(cuMemAllocAsync, (CUdeviceptr *ret_address, size_t size_bytes, CUstream stream),
             allocate_async(ret_address, size_bytes, NULL, false, stream))
STREAM_ENTRY(cuMemAllocFromPoolAsync, (CUdeviceptr *ret_address, size_t size_bytes, CUmemoryPool pool, CUstream stream),
             allocate_async(ret_address, size_bytes, pool, true, stream))

static CUresult free_async(CUdeviceptr address, CUstream stream)
{
    CUgraphNode node;
    TRY(stream_resolve(stream, &stream));
    TRY(graph_capture(stream, CU_GRAPH_NODE_TYPE_MEM_FREE, &node));
    if (node) {
        node->address = address;
        return CUDA_SUCCESS;
    }
    driver_lock();
    const struct heap_entry *entry = heap_find(address, HEAP_POOL);
    if (entry)
        pool_piece_freed_by(entry->owner, address, stream);
    driver_unlock();
    return heap_free(address, HEAP_POOL | HEAP_GRAPH | HEAP_DEVICE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

STREAM_ENTRY(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), free_async(address, stream))
