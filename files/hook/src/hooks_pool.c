/* hooks_pool.c - stream-ordered allocation and memory of graphs.
 *
 * Owns:    a table of pools with what is charged for each. One lock serialises it with the driver's call, because growth can only be told by
 *          the pool's size before and after.
 * Promise: room for the growth is reserved before the driver is asked; what it really took is charged after. A pool that took more than fits
 *          gives the block back; what it then still keeps is charged even above the limit, because it is gone from the card.
 * Graphs:  memory nodes are checked against the limit when they are added and charged from the driver's graph counter after a launch.
 * Next:    memory.c, account.c. */
#include "account.h"
#include "charge.h"
#include "nested.h"
#include "pools.h"

#include <string.h>

enum { POOLS_MAX = 256 };
#define GROWTH_BYTES (32ull << 20) /* the step in which drivers grow a pool */
#define BLOCK_BYTES (2ull << 20)

struct pool {
    CUmemoryPool handle; /* NULL: the graphs' memory of `device` */
    CUdevice device;
    int gpu;
    uint64_t charged_bytes;
    uint64_t outstanding; /* blocks allocated and not freed */
    bool is_destroyed;
    bool is_used;
};

static struct pool pools[POOLS_MAX];
static uint32_t pool_count;
static struct tf_lock lock;
static _Atomic bool has_graphs;

bool tf_pools_has_graphs(void) { return atomic_load_explicit(&has_graphs, memory_order_relaxed); }

void tf_pools_reset(void)
{
    memset(pools, 0, sizeof pools);
    pool_count = 0;
    atomic_store(&lock.word, 0);
    atomic_store(&has_graphs, false);
}

/* --- with the lock -------------------------------------------------------------------------------------------------------------- */

static struct pool *find(CUmemoryPool handle, CUdevice device)
{
    for (uint32_t index = 0; index < pool_count; index++) {
        struct pool *pool = &pools[index];
        if (pool->is_used && !pool->is_destroyed && pool->handle == handle && (handle || pool->device == device))
            return pool;
    }
    return NULL;
}

static struct pool *add(CUmemoryPool handle, CUdevice device, int gpu)
{
    struct pool *pool = find(handle, device);
    for (uint32_t index = 0; !pool && index < POOLS_MAX; index++)
        if (!pools[index].is_used) {
            pool = &pools[index];
            pool_count = index >= pool_count ? index + 1 : pool_count;
            *pool = (struct pool){.handle = handle, .device = device, .gpu = gpu, .is_used = true};
        }
    return pool;
}

static bool reserved_bytes(const struct tf_cuda *cuda, const struct pool *pool, uint64_t *ret_bytes)
{
    CUresult result = -1;
    uint64_t bytes = 0;
    if (pool->is_destroyed)
        return false;
    if (pool->handle && cuda->cuMemPoolGetAttribute)
        result = cuda->cuMemPoolGetAttribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    else if (!pool->handle && cuda->cuDeviceGetGraphMemAttribute)
        result = cuda->cuDeviceGetGraphMemAttribute(pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes);
    if (result == CUDA_SUCCESS)
        *ret_bytes = bytes;
    return result == CUDA_SUCCESS;
}

/* The memory is there whether the limit likes it or not. */
static void charge_truth(struct tf_container *container, struct pool *pool, uint64_t bytes)
{
    if (bytes > pool->charged_bytes)
        tf_account_charge(container->state, container->slot, (uint32_t)pool->gpu, bytes - pool->charged_bytes, 0);
    else if (bytes < pool->charged_bytes)
        tf_account_release(container->state, container->slot, (uint32_t)pool->gpu, pool->charged_bytes - bytes);
    pool->charged_bytes = bytes;
}

static void refresh(struct tf_container *container, const struct tf_cuda *cuda, struct pool *pool)
{
    uint64_t bytes;
    if (pool->is_used && reserved_bytes(cuda, pool, &bytes))
        charge_truth(container, pool, bytes);
}

static void refresh_all(struct tf_container *container, const struct tf_cuda *cuda)
{
    for (uint32_t index = 0; index < pool_count; index++)
        refresh(container, cuda, &pools[index]);
}

/* How much the pool will grow at most for one more block. */
static uint64_t expected_growth(const struct tf_cuda *cuda, const struct pool *pool, uint64_t bytes, uint64_t step_bytes)
{
    uint64_t used_bytes = 0, needed_bytes;
    if (!cuda->cuMemPoolGetAttribute || cuda->cuMemPoolGetAttribute(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes) != CUDA_SUCCESS)
        used_bytes = pool->charged_bytes;
    if (bytes > TENFOLD_BYTES_MASK)
        return UINT64_MAX;
    needed_bytes = (used_bytes + bytes + step_bytes - 1) / step_bytes * step_bytes;
    return needed_bytes > pool->charged_bytes ? needed_bytes - pool->charged_bytes : 0;
}

static CUresult reserve_growth(struct tf_container *container, const struct tf_cuda *cuda, struct pool *pool, uint64_t bytes, struct tf_reservation *ret)
{
    CUresult result = tf_memory_try(container, pool->gpu, expected_growth(cuda, pool, bytes, GROWTH_BYTES), ret);
    if (result == CUDA_SUCCESS)
        return result;
    refresh_all(container, cuda);
    result = tf_memory_try(container, pool->gpu, expected_growth(cuda, pool, bytes, GROWTH_BYTES), ret);
    /* this driver may grow in smaller steps: what it really takes is checked after the call */
    return result == CUDA_SUCCESS ? result : tf_memory_reserve(container, pool->gpu, expected_growth(cuda, pool, bytes, BLOCK_BYTES), ret);
}

/* The reservation becomes the pool's charge, as far as it grew. false: it took more than fits. */
static bool settle_growth(const struct tf_cuda *cuda, struct pool *pool, struct tf_reservation *reservation)
{
    uint64_t bytes = pool->charged_bytes, growth;
    if (!reserved_bytes(cuda, pool, &bytes))
        bytes = pool->charged_bytes + reservation->bytes;
    growth = bytes > pool->charged_bytes ? bytes - pool->charged_bytes : 0;
    if (tf_memory_adjust(reservation, growth) != CUDA_SUCCESS)
        return false;
    pool->charged_bytes += growth;
    return true;
}

static void drop(struct tf_container *container, struct pool *pool)
{
    charge_truth(container, pool, 0);
    *pool = (struct pool){.is_used = false};
}

/* --- allocation ----------------------------------------------------------------------------------------------------------------- */

typedef CUresult allocate_from(const struct tf_cuda *cuda, CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);

struct request {
    CUdeviceptr *pointer;
    size_t bytes;
    CUmemoryPool pool; /* NULL: the device's current one */
    CUstream stream;
    bool is_per_thread;
    allocate_from *allocate;
};

static bool is_capturing(const struct tf_cuda *cuda, const struct request *request)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult (*ask)(CUstream, int *) = request->is_per_thread && cuda->cuStreamIsCapturing_ptsz ? cuda->cuStreamIsCapturing_ptsz : cuda->cuStreamIsCapturing;
    return ask && ask(request->stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* A node's memory must fit, though nothing is taken yet. */
static CUresult check_node(struct tf_container *container, int gpu, uint64_t bytes)
{
    struct tf_reservation reservation;
    CUresult result = tf_memory_reserve(container, gpu, tf_memory_rounded(bytes), &reservation);
    if (result == CUDA_SUCCESS)
        tf_memory_undo(&reservation);
    return result;
}

static void remember_block(struct pool *pool, CUdeviceptr pointer)
{
    struct tf_entry entry = {.key = pointer, .extra = (uint64_t)(pool - pools), .kind = TF_KIND_POOL, .gpu = (uint8_t)pool->gpu}, replaced;
    if (tf_ledger_add(&entry, &replaced) == 0 && !replaced.kind)
        pool->outstanding++;
}

static CUresult allocate_charged(struct tf_container *container, const struct tf_cuda *cuda, const struct request *request, struct pool *pool)
{
    struct tf_reservation reservation;
    CUresult result = reserve_growth(container, cuda, pool, request->bytes, &reservation);
    if (result != CUDA_SUCCESS)
        return result;
    result = TF_NESTED(request->allocate(cuda, request->pointer, request->bytes, request->pool, request->stream));
    if (result != CUDA_SUCCESS) {
        tf_memory_undo(&reservation);
        refresh(container, cuda, pool);
        return result;
    }
    if (settle_growth(cuda, pool, &reservation)) {
        remember_block(pool, *request->pointer);
        return result;
    }
    cuda->cuMemFreeAsync(*request->pointer, request->stream);
    if (cuda->cuMemPoolTrimTo)
        cuda->cuMemPoolTrimTo(pool->handle, 0);
    tf_memory_undo(&reservation);
    refresh(container, cuda, pool);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_with_lock(struct tf_container *container, const struct tf_cuda *cuda, const struct request *request)
{
    CUdevice device = 0;
    CUmemoryPool handle = request->pool;
    if (cuda->cuCtxGetDevice(&device) != CUDA_SUCCESS || (!handle && (!cuda->cuDeviceGetMemPool || cuda->cuDeviceGetMemPool(&handle, device) != CUDA_SUCCESS)))
        return request->allocate(cuda, request->pointer, request->bytes, request->pool, request->stream); /* it will say what is wrong */
    struct pool *pool = find(handle, device);
    int gpu = tf_device_of_ordinal(container, cuda, device);
    if (!pool && gpu >= 0 && (pool = add(handle, device, gpu)) != NULL)
        refresh(container, cuda, pool);
    if (!pool) {
        struct tf_reservation unlisted;
        CUresult result = tf_memory_reserve(container, gpu, request->bytes, &unlisted);
        if (result != CUDA_SUCCESS)
            return result;
        tf_memory_undo(&unlisted);
        return gpu >= 0 ? CUDA_ERROR_OUT_OF_MEMORY /* more pools than we can watch */
                        : request->allocate(cuda, request->pointer, request->bytes, request->pool, request->stream);
    }
    if (!is_capturing(cuda, request))
        return allocate_charged(container, cuda, request, pool);
    CUresult result = check_node(container, gpu, request->bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = TF_NESTED(request->allocate(cuda, request->pointer, request->bytes, request->pool, request->stream));
    if (result == CUDA_SUCCESS && add(NULL, device, gpu))
        atomic_store(&has_graphs, true);
    return result;
}

static CUresult allocate(const struct tf_cuda *cuda, const struct request *request)
{
    struct tf_container *container = tf_container();
    int stance = atomic_load_explicit(&container->stance, memory_order_relaxed);
    if (stance == TF_CLOSED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (stance != TF_ENFORCED || !request->pointer || tf_is_nested())
        return request->allocate(cuda, request->pointer, request->bytes, request->pool, request->stream);
    tf_lock_acquire(&lock);
    CUresult result = allocate_with_lock(container, cuda, request);
    tf_lock_release(&lock);
    return result;
}

#define ALLOCATOR(symbol, ...) \
    static CUresult driver_##symbol(const struct tf_cuda *cuda, CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) \
    { \
        (void)pool; \
        return cuda->symbol(__VA_ARGS__); \
    }
ALLOCATOR(cuMemAllocAsync, pointer, bytes, stream)
ALLOCATOR(cuMemAllocAsync_ptsz, pointer, bytes, stream)
ALLOCATOR(cuMemAllocFromPoolAsync, pointer, bytes, pool, stream)
ALLOCATOR(cuMemAllocFromPoolAsync_ptsz, pointer, bytes, pool, stream)

#define ALLOCATE(symbol, pool, per_thread) \
    const struct tf_cuda *cuda = tf_cuda(); \
    if (!cuda || !cuda->symbol) \
        return CUDA_ERROR_NOT_INITIALIZED; \
    return allocate(cuda, &(struct request){pointer, bytes, pool, stream, per_thread, driver_##symbol})

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) { ALLOCATE(cuMemAllocAsync, NULL, false); }
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) { ALLOCATE(cuMemAllocAsync_ptsz, NULL, true); }

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    ALLOCATE(cuMemAllocFromPoolAsync, pool, false);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    ALLOCATE(cuMemAllocFromPoolAsync_ptsz, pool, true);
}

/* --- free ------------------------------------------------------------------------------------------------------------------------ */

static void forget_block(const struct tf_entry *entry)
{
    tf_lock_acquire(&lock);
    struct pool *pool = &pools[entry->extra % POOLS_MAX];
    if (pool->is_used && pool->outstanding && --pool->outstanding == 0 && pool->is_destroyed)
        drop(tf_container(), pool);
    tf_lock_release(&lock);
}

void tf_pools_freed(CUdeviceptr pointer)
{
    struct tf_entry entry;
    if (tf_ledger_take(TF_KIND_POOL, pointer, &entry))
        forget_block(&entry);
}

/* Either kind of pointer may come here; a block goes out of the ledger before the driver can hand its address out again. */
static CUresult free_async(CUresult (*real)(CUdeviceptr, CUstream), CUdeviceptr pointer, CUstream stream)
{
    struct tf_entry plain, block;
    tf_container();
    if (tf_is_nested())
        return real(pointer, stream);
    bool is_plain = tf_memory_take(TF_KIND_POINTER, pointer, &plain);
    bool is_block = !is_plain && tf_ledger_take(TF_KIND_POOL, pointer, &block);
    CUresult result = TF_NESTED(real(pointer, stream));
    if (is_block && result == CUDA_SUCCESS) {
        forget_block(&block);
    } else if (is_block) {
        struct tf_entry replaced;
        tf_ledger_add(&block, &replaced);
    }
    return tf_conclude_free(result, is_plain, &plain);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    const struct tf_cuda *cuda = tf_cuda();
    return cuda && cuda->cuMemFreeAsync ? free_async(cuda->cuMemFreeAsync, pointer, stream) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    const struct tf_cuda *cuda = tf_cuda();
    return cuda && cuda->cuMemFreeAsync_ptsz ? free_async(cuda->cuMemFreeAsync_ptsz, pointer, stream) : CUDA_ERROR_NOT_INITIALIZED;
}

/* --- pools themselves ------------------------------------------------------------------------------------------------------------- */

static bool is_enforced(struct tf_container *container) { return atomic_load_explicit(&container->stance, memory_order_relaxed) == TF_ENFORCED; }

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    const struct tf_cuda *cuda = tf_cuda();
    if (!cuda || !cuda->cuMemPoolCreate)
        return CUDA_ERROR_NOT_INITIALIZED;
    struct tf_container *container = tf_container();
    CUresult result = TF_NESTED(cuda->cuMemPoolCreate(pool, properties));
    if (result != CUDA_SUCCESS || !is_enforced(container) || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return result;
    int gpu = tf_device_of_ordinal(container, cuda, properties->location.id);
    tf_lock_acquire(&lock);
    if (gpu >= 0)
        add(*pool, properties->location.id, gpu);
    tf_lock_release(&lock);
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    const struct tf_cuda *cuda = tf_cuda();
    if (!cuda || !cuda->cuMemPoolDestroy)
        return CUDA_ERROR_NOT_INITIALIZED;
    struct tf_container *container = tf_container();
    tf_lock_acquire(&lock);
    struct pool *known = is_enforced(container) && pool ? find(pool, 0) : NULL;
    if (known)
        refresh(container, cuda, known);
    CUresult result = TF_NESTED(cuda->cuMemPoolDestroy(pool));
    if (known && result == CUDA_SUCCESS) {
        known->is_destroyed = true; /* blocks that are still allocated keep its memory */
        if (!known->outstanding)
            drop(container, known);
    }
    tf_lock_release(&lock);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
    const struct tf_cuda *cuda = tf_cuda();
    if (!cuda || !cuda->cuMemPoolTrimTo)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = TF_NESTED(cuda->cuMemPoolTrimTo(pool, keep_bytes));
    tf_pools_refresh(tf_container(), cuda);
    return result;
}

void tf_pools_refresh(struct tf_container *container, const struct tf_cuda *cuda)
{
    if (!pool_count || !is_enforced(container) || tf_is_nested())
        return;
    tf_lock_acquire(&lock);
    refresh_all(container, cuda);
    tf_lock_release(&lock);
}

/* --- graphs ------------------------------------------------------------------------------------------------------------------------ */

void tf_pools_note_graph(struct tf_container *container, const struct tf_cuda *cuda, CUdevice device)
{
    int gpu = tf_device_of_ordinal(container, cuda, device);
    tf_lock_acquire(&lock);
    if (gpu >= 0 && add(NULL, device, gpu))
        atomic_store(&has_graphs, true);
    tf_lock_release(&lock);
}

/* Before the driver adds a memory node. */
static CUresult check_graph_node(const struct tf_cuda *cuda, const CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    struct tf_container *container = tf_container();
    if (!parameters || parameters->pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !is_enforced(container))
        return CUDA_SUCCESS;
    CUdevice device = parameters->pool.location.id;
    CUresult result = check_node(container, tf_device_of_ordinal(container, cuda, device), parameters->bytes);
    if (result == CUDA_SUCCESS)
        tf_pools_note_graph(container, cuda, device);
    return result;
}

static CUresult check_any_node(const struct tf_cuda *cuda, const CUgraphNodeParams *parameters)
{
    return parameters && parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? check_graph_node(cuda, &parameters->allocation) : CUDA_SUCCESS;
}

#define ADD_NODE(symbol, check, arguments) \
    const struct tf_cuda *cuda = tf_cuda(); \
    if (!cuda || !cuda->symbol) \
        return CUDA_ERROR_NOT_INITIALIZED; \
    CUresult result = check; \
    return result == CUDA_SUCCESS ? TF_NESTED(cuda->symbol arguments) : result

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    ADD_NODE(cuGraphAddMemAllocNode, check_graph_node(cuda, parameters), (node, graph, dependencies, count, parameters));
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraphNodeParams *parameters)
{
    ADD_NODE(cuGraphAddNode, check_any_node(cuda, parameters), (node, graph, dependencies, count, parameters));
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count, CUgraphNodeParams *parameters)
{
    ADD_NODE(cuGraphAddNode_v2, check_any_node(cuda, parameters), (node, graph, dependencies, edges, count, parameters));
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    const struct tf_cuda *cuda = tf_cuda();
    if (!cuda || !cuda->cuDeviceGraphMemTrim)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = TF_NESTED(cuda->cuDeviceGraphMemTrim(device));
    tf_pools_refresh(tf_container(), cuda);
    return result;
}
