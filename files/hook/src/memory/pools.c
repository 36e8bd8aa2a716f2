/* pools.c - memory that the driver keeps in pools (contract: pools.h).
 *
 * Owns: a table of pools with what is charged for each, and its lock. Next: growth.c reserves what they may grow by, account.c keeps the sums. */
#include "memory/pools.h"

#include "base/parts.h"
#include "driver/nested.h"
#include "memory/ledger.h"
#include "slice/account.h"

#include <string.h>

enum { POOLS_MAX = 256 };

static struct tf_pool pools[POOLS_MAX];
static _Atomic uint32_t pool_count;
static struct tf_lock lock;

void tf_pools_lock(void) { tf_lock_acquire(&lock); }
void tf_pools_unlock(void) { tf_lock_release(&lock); }

static void forget(void)
{
    memset(pools, 0, sizeof pools);
    atomic_store(&pool_count, 0);
    atomic_store(&lock.word, 0);
}

TF_PART(.forget = forget);

struct tf_pool *tf_pools_find(CUmemoryPool handle, CUdevice device)
{
    for (uint32_t index = 0; index < atomic_load(&pool_count); index++) {
        struct tf_pool *pool = &pools[index];
        if (pool->is_used && !pool->is_destroyed && pool->handle == handle && (handle || pool->device == device))
            return pool;
    }
    return NULL;
}

bool tf_pools_ask(const struct tf_cuda *cuda, const struct tf_pool *pool, bool reserved, uint64_t *ret_bytes)
{
    CUresult result = -1;
    uint64_t bytes = 0;
    if (pool->is_destroyed)
        return false;
    if (pool->handle && cuda->cuMemPoolGetAttribute)
        result = cuda->cuMemPoolGetAttribute(pool->handle, reserved ? CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT : CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes);
    else if (!pool->handle && cuda->cuDeviceGetGraphMemAttribute)
        result = cuda->cuDeviceGetGraphMemAttribute(
            pool->device, reserved ? CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT : CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &bytes);
    if (result == CUDA_SUCCESS)
        *ret_bytes = bytes;
    return result == CUDA_SUCCESS;
}

static void charge(struct tf_container *container, struct tf_pool *pool, uint64_t bytes)
{
    if (pool->is_host)
        return;
    if (bytes > pool->charged_bytes)
        tf_account_charge(container->state, container->slot, (uint32_t)pool->gpu, bytes - pool->charged_bytes, 0);
    else if (bytes < pool->charged_bytes)
        tf_account_release(container->state, container->slot, (uint32_t)pool->gpu, pool->charged_bytes - bytes);
    pool->charged_bytes = bytes;
}

void tf_pools_charge_truth(struct tf_container *container, const struct tf_cuda *cuda, struct tf_pool *pool)
{
    uint64_t bytes;
    if (pool->is_used && tf_pools_ask(cuda, pool, true, &bytes))
        charge(container, pool, bytes);
}

static struct tf_pool *enter(const struct tf_pool *fresh)
{
    for (uint32_t index = 0; index < POOLS_MAX; index++) {
        if (pools[index].is_used)
            continue;
        pools[index] = *fresh;
        if (index >= atomic_load(&pool_count))
            atomic_store(&pool_count, index + 1);
        return &pools[index];
    }
    return NULL;
}

struct tf_pool *tf_pools_enter(struct tf_container *container, const struct tf_cuda *cuda, CUmemoryPool handle, CUdevice device, int gpu)
{
    struct tf_pool *pool = tf_pools_find(handle, device);
    if (pool)
        return pool;
    pool = enter(&(struct tf_pool){.handle = handle, .device = device, .gpu = gpu, .is_used = true});
    if (pool)
        tf_pools_charge_truth(container, cuda, pool);
    return pool;
}

void tf_pools_enter_host(CUmemoryPool handle)
{
    enter(&(struct tf_pool){.handle = handle, .is_host = true, .is_used = true});
}

void tf_pools_charge_all(struct tf_container *container, const struct tf_cuda *cuda)
{
    for (uint32_t index = 0; index < atomic_load(&pool_count); index++)
        tf_pools_charge_truth(container, cuda, &pools[index]);
}

void tf_pools_drop(struct tf_container *container, struct tf_pool *pool)
{
    charge(container, pool, 0);
    *pool = (struct tf_pool){.is_used = false};
}

static void forget_block(const struct tf_entry *block)
{
    struct tf_pool *pool = &pools[block->extra % POOLS_MAX];
    if (pool->is_used && pool->outstanding && --pool->outstanding == 0 && pool->is_destroyed)
        tf_pools_drop(tf_container(), pool);
}

void tf_pools_remember_block(struct tf_pool *pool, CUdeviceptr pointer)
{
    struct tf_entry entry = {.key = pointer, .extra = (uint64_t)(pool - pools), .kind = TF_KIND_POOL, .gpu = (uint8_t)pool->gpu}, replaced;
    if (tf_ledger_add(&entry, &replaced) != 0)
        return; /* a destroyed pool then stays charged until the process ends */
    pool->outstanding++;
    if (replaced.kind)
        forget_block(&replaced);
}

bool tf_pools_take_block(CUdeviceptr pointer, struct tf_entry *ret_block)
{
    return atomic_load_explicit(&pool_count, memory_order_relaxed) && tf_ledger_take(TF_KIND_POOL, pointer, ret_block);
}

void tf_pools_conclude_block(const struct tf_entry *block, bool is_gone)
{
    struct tf_entry replaced;
    if (!is_gone && tf_ledger_add(block, &replaced) == 0)
        return;
    tf_pools_lock();
    forget_block(block);
    tf_pools_unlock();
}

bool tf_pools_are_any(void) { return atomic_load_explicit(&pool_count, memory_order_relaxed) != 0; }

void tf_pools_refresh(struct tf_container *container, const struct tf_cuda *cuda)
{
    if (!atomic_load_explicit(&pool_count, memory_order_relaxed) || atomic_load(&container->stance) != TF_ENFORCED || tf_is_nested())
        return;
    tf_pools_lock();
    tf_pools_charge_all(container, cuda);
    tf_pools_unlock();
}

void tf_pools_take_back(struct tf_container *container, const struct tf_cuda *cuda)
{
    if (atomic_load(&container->stance) != TF_ENFORCED || tf_is_nested() || !tf_lock_try(&lock))
        return;
    tf_pools_charge_all(container, cuda);
    tf_pools_unlock();
}
