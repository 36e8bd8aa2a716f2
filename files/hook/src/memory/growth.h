/* growth.h - room for what a pool may grow by, around the driver's call; and for what its graphs map.
 *
 * Functions marked [lock] need tf_pools_lock(). */
#pragma once

#include "memory/pools.h"
#include "memory/reservation.h"

/* [lock] Room for what the pool may grow by when `bytes` more are taken from it; graphs that do not run give theirs away before the limit
 * says no. CUDA_ERROR_OUT_OF_MEMORY: it says no. */
CUresult tf_growth_reserve(struct tf_container *container, const struct tf_cuda *cuda, struct tf_pool *pool, uint64_t bytes, struct tf_reservation *ret);

/* How often graphs have been made to let go of memory that none of them runs with; what they had mapped before is mapped no more. */
extern _Atomic uint32_t tf_growth_graph_trims;

/* [lock] Graphs share what their pool keeps: each maps its own, and two that never run at once may have the same. true: there is room for all that
 * are mapped to run at once, so another run of one of them cannot make the pool grow. */
bool tf_growth_holds_all_graphs(struct tf_container *container, const struct tf_cuda *cuda, struct tf_pool *pool);

/* [lock] A graph that needs so much has been mapped. It counts until the next trim, even if it is destroyed: its blocks may live on. */
void tf_growth_graph_is_mapped(const struct tf_cuda *cuda, struct tf_pool *pool, uint64_t bytes);

/* [lock] After the driver's call, in which so many bytes were taken from the pool: the reservation becomes the pool's charge as far as it
 * grew, the rest is given back. false: it took more than fits under the limit, and the reservation stands. */
bool tf_growth_settle(const struct tf_cuda *cuda, struct tf_pool *pool, uint64_t taken_bytes, struct tf_reservation *reservation);
