/* pool.c - stream-ordered allocation.
 *
 * Promise: room for a pool's growth is reserved before the driver is asked; what it really took is charged after. A pool that took more than
 *          fits gives the block back; what it then still keeps is charged even above the limit, because it is gone from the card.
 * Next:    pools.c keeps the table, growth.c reserves; graphs.c has the memory of graphs. */
#include "driver/nested.h"
#include "hooks/hooks.h"
#include "memory/charge.h"
#include "memory/graphs.h"
#include "memory/growth.h"
#include "memory/overhead.h"

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

static CUresult allocate_charged(struct tf_container *container, const struct tf_cuda *cuda, const struct request *request, struct tf_pool *pool)
{
    struct tf_reservation reservation;
    CUresult result = tf_growth_reserve(container, cuda, pool, request->bytes, &reservation);
    if (result != CUDA_SUCCESS)
        return result;
    result = TF_NESTED(request->allocate(cuda, request->pointer, request->bytes, request->pool, request->stream));
    if (result != CUDA_SUCCESS) {
        tf_memory_undo(&reservation);
        return result;
    }
    if (tf_growth_settle(cuda, pool, request->bytes, &reservation)) {
        tf_pools_remember_block(pool, *request->pointer);
        return result;
    }
    cuda->cuMemFreeAsync(*request->pointer, request->stream);
    if (cuda->cuMemPoolTrimTo)
        cuda->cuMemPoolTrimTo(pool->handle, 0);
    tf_memory_undo(&reservation);
    tf_pools_charge_truth(container, cuda, pool);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A pool of a card of ours that the driver will not name, or more than we can watch, gives out nothing: what it took would stay with it. Of no card,
 * the driver may say why it fails, and must not succeed. */
static CUresult allocate_blind(struct tf_container *container, const struct tf_cuda *cuda, const struct request *request, int gpu)
{
    struct tf_reservation reservation;
    CUresult result = tf_memory_reserve(container, gpu, request->bytes, &reservation);
    tf_memory_undo(&reservation);
    if (result != CUDA_SUCCESS || reservation.gpu >= 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = request->allocate(cuda, request->pointer, request->bytes, request->pool, request->stream);
    if (result != CUDA_SUCCESS || !reservation.is_blind)
        return result;
    cuda->cuMemFreeAsync(*request->pointer, request->stream);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The pool of the device, asked twice: a failure may be one of the moment. */
static bool current_pool(const struct tf_cuda *cuda, CUdevice device, CUmemoryPool *ret_pool)
{
    return cuda->cuDeviceGetMemPool
        && (cuda->cuDeviceGetMemPool(ret_pool, device) == CUDA_SUCCESS || cuda->cuDeviceGetMemPool(ret_pool, device) == CUDA_SUCCESS);
}

static CUresult allocate_with_lock(struct tf_container *container, const struct tf_cuda *cuda, const struct request *request, CUdevice device,
    int gpu)
{
    CUmemoryPool handle = request->pool;
    struct tf_pool *pool = NULL;
    if (gpu >= 0 && (handle || current_pool(cuda, device, &handle)))
        pool = tf_pools_enter(container, cuda, handle, device, gpu);
    if (!pool)
        return allocate_blind(container, cuda, request, gpu);
    if (pool->is_host)
        return TF_NESTED(request->allocate(cuda, request->pointer, request->bytes, request->pool, request->stream));
    if (!is_capturing(cuda, request))
        return allocate_charged(container, cuda, request, pool);
    CUresult result = tf_graphs_check_node(container, gpu, request->bytes);
    return result == CUDA_SUCCESS ? TF_NESTED(request->allocate(cuda, request->pointer, request->bytes, request->pool, request->stream)) : result;
}

static CUresult allocate(const struct tf_cuda *cuda, const struct request *request)
{
    struct tf_container *container = tf_container();
    int stance = atomic_load_explicit(&container->stance, memory_order_relaxed);
    if (stance == TF_CLOSED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (stance != TF_ENFORCED || !request->pointer || tf_is_nested())
        return request->allocate(cuda, request->pointer, request->bytes, request->pool, request->stream);
    CUdevice device = 0;
    int gpu = tf_device_ordinal(cuda, &device) ? tf_device_of_ordinal(container, cuda, device) : TF_DEVICE_UNKNOWN;
    if (gpu >= 0)
        tf_overhead_know(container, gpu); /* before the lock; an error is one of the charge, too */
    tf_pools_lock();
    CUresult result = allocate_with_lock(container, cuda, request, device, gpu);
    tf_pools_unlock();
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
    TF_ENTER(symbol); \
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

/* Either kind of pointer may come here. */
static CUresult free_async(CUresult (*real)(CUdeviceptr, CUstream), CUdeviceptr pointer, CUstream stream)
{
    struct tf_entry plain, block;
    tf_container();
    if (tf_is_nested())
        return real(pointer, stream);
    bool is_plain = tf_ledger_take(TF_KIND_POINTER, pointer, &plain);
    bool is_block = !is_plain && tf_pools_take_block(pointer, &block);
    CUresult result = TF_NESTED(real(pointer, stream));
    if (is_block)
        tf_pools_conclude_block(&block, result == CUDA_SUCCESS);
    return tf_conclude_free(result, is_plain, &plain);
}

#define FREE(symbol) \
    TF_ENTER(symbol); \
    return free_async(cuda->symbol, pointer, stream)

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) { FREE(cuMemFreeAsync); }
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) { FREE(cuMemFreeAsync_ptsz); }

/* --- pools themselves ------------------------------------------------------------------------------------------------------------- */

static bool is_enforced(struct tf_container *container) { return atomic_load_explicit(&container->stance, memory_order_relaxed) == TF_ENFORCED; }

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    TF_ENTER(cuMemPoolCreate);
    struct tf_container *container = tf_container();
    CUresult result = TF_NESTED(cuda->cuMemPoolCreate(pool, properties));
    if (result != CUDA_SUCCESS || !is_enforced(container))
        return result;
    /* managed memory of no place is charged to the card that allocates it, as cuMemAllocManaged is */
    bool is_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    bool is_host = properties->location.type > CU_MEM_LOCATION_TYPE_DEVICE && properties->alloc_type == CU_MEM_ALLOCATION_TYPE_PINNED;
    int gpu = is_device ? tf_device_of_ordinal(container, cuda, properties->location.id) : TF_DEVICE_UNKNOWN;
    tf_pools_lock();
    if (is_host)
        tf_pools_enter_host(*pool);
    else if (gpu >= 0)
        tf_pools_enter(container, cuda, *pool, properties->location.id, gpu);
    tf_pools_unlock();
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    TF_ENTER(cuMemPoolDestroy);
    struct tf_container *container = tf_container();
    tf_pools_lock();
    struct tf_pool *known = is_enforced(container) && pool ? tf_pools_find(pool, 0) : NULL;
    if (known)
        tf_pools_charge_truth(container, cuda, known);
    CUresult result = TF_NESTED(cuda->cuMemPoolDestroy(pool));
    if (known && result == CUDA_SUCCESS) {
        known->is_destroyed = true; /* blocks that are still allocated keep its memory */
        if (!known->outstanding)
            tf_pools_drop(container, known);
    }
    tf_pools_unlock();
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
    TF_ENTER(cuMemPoolTrimTo);
    CUresult result = TF_NESTED(cuda->cuMemPoolTrimTo(pool, keep_bytes));
    tf_pools_refresh(tf_container(), cuda);
    return result;
}
