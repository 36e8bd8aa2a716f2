/* pools.h - memory that the driver keeps in pools: stream-ordered pools and the pool of a card's graphs.
 *
 * Charged is what a pool reserves, not what is allocated from it. Growth can only be told by the size before and after a driver call, so those
 * calls are made with the table's lock held; pools shrink behind our back (at synchronisation), so sizes are asked again where it matters.
 * Functions marked [lock] need tf_pools_lock(). Next: growth.h, hooks/pool.c and graphs.c make the calls. */
#pragma once

#include "driver/driver.h"
#include "memory/ledger.h"
#include "slice/container.h"

struct tf_pool {
    CUmemoryPool handle; /* NULL: what graphs of `device` hold */
    CUdevice device;
    int gpu;
    uint64_t charged_bytes;
    uint64_t outstanding; /* blocks allocated and not freed */
    uint64_t mapped_bytes; /* of graphs: what they can use at once at most, if only those run that are mapped */
    uint32_t mapped_trims; /* tf_growth_graph_trims plus one, when that was last added up anew; 0: never */
    bool is_host; /* of the host's memory: known, and not charged */
    bool is_destroyed;
    bool is_used;
};

void tf_pools_lock(void);
void tf_pools_unlock(void);

/* [lock] The pool, or NULL. */
struct tf_pool *tf_pools_find(CUmemoryPool handle, CUdevice device);

/* [lock] The pool, entered if it is new and charged with what it has; NULL when there are more than can be watched. */
struct tf_pool *tf_pools_enter(struct tf_container *container, const struct tf_cuda *cuda, CUmemoryPool handle, CUdevice device, int gpu);

/* [lock] A pool of host memory, so that what comes from it is not taken for the card's. */
void tf_pools_enter_host(CUmemoryPool handle);

/* [lock] What the pool keeps (`reserved`) or what is in use of it. false: the driver does not say. */
bool tf_pools_ask(const struct tf_cuda *cuda, const struct tf_pool *pool, bool reserved, uint64_t *ret_bytes);

/* [lock] Charges what is there, even above the limit: it is gone from the card whether the limit likes it or not. Of one pool; of all. */
void tf_pools_charge_truth(struct tf_container *container, const struct tf_cuda *cuda, struct tf_pool *pool);
void tf_pools_charge_all(struct tf_container *container, const struct tf_cuda *cuda);

/* [lock] A pool that is no more: nothing is charged for it. */
void tf_pools_drop(struct tf_container *container, struct tf_pool *pool);

/* [lock] Blocks, so that a destroyed pool goes with its last one. */
void tf_pools_remember_block(struct tf_pool *pool, CUdeviceptr pointer);

/* A block leaves the table before the driver is asked to free it, for its address may be handed out again at once; then it is gone or back. */
bool tf_pools_take_block(CUdeviceptr pointer, struct tf_entry *ret_block);
void tf_pools_conclude_block(const struct tf_entry *block, bool is_gone);

/* Asks every known pool for its size and corrects the charge. Not with the lock. */
void tf_pools_refresh(struct tf_container *container, const struct tf_cuda *cuda);

/* The same, unless another thread has the lock: it may wait in the driver for what the caller does next. */
void tf_pools_take_back(struct tf_container *container, const struct tf_cuda *cuda);

/* Has this process ever used a pool? */
bool tf_pools_are_any(void);
