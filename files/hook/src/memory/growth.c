/* growth.c - what a pool may grow by, and what it did (contract: growth.h).
 *
 * Owns: the steps of pools, what graphs have mapped. Next: pools.c has the pools, reservation.c asks the limit. */
#include "memory/growth.h"

#include "driver/nested.h"

_Atomic uint32_t tf_growth_graph_trims;

/* --- steps; all with the lock ------------------------------------------------------------------------------------------------------- */

/* In which the driver grows the pools of a card, and what its graphs hold there: as last seen, by whichever pool. */
#define STEP_FIRST_BYTES (32ull << 20) /* what most drivers do; the first growth of a process corrects it */

static uint64_t steps[TENFOLD_GPUS_MAX][2];

static uint64_t *step_of(const struct tf_pool *pool)
{
    uint64_t *step = &steps[pool->gpu][!pool->handle];
    *step = *step ? *step : STEP_FIRST_BYTES;
    return step;
}

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b)
{
    for (uint64_t rest; b; a = b, b = rest)
        rest = a % b;
    return a;
}

/* It grew by so much, when `bytes` were taken for which `expected_bytes` seemed enough. All that it grows by are whole steps. What is more than
 * expected is the fewest steps, none of them idle, that hold what was taken; else the step divides all that was seen. */
static void learn_step(const struct tf_pool *pool, uint64_t bytes, uint64_t expected_bytes, uint64_t growth_bytes)
{
    uint64_t *step = step_of(pool);
    uint64_t count = bytes < growth_bytes ? growth_bytes / (growth_bytes - bytes) : 1;
    if (growth_bytes <= expected_bytes) {
        *step = greatest_common_divisor(*step, growth_bytes);
        return;
    }
    while (growth_bytes % count != 0 || (count > 1 && growth_bytes / count <= growth_bytes - bytes))
        count--;
    *step = growth_bytes / count;
}

static uint64_t expected_growth(const struct tf_cuda *cuda, const struct tf_pool *pool, uint64_t bytes)
{
    uint64_t used_bytes = 0;
    if (bytes > TENFOLD_BYTES_MASK)
        return UINT64_MAX;
    if (!tf_pools_ask(cuda, pool, false, &used_bytes))
        used_bytes = pool->charged_bytes;
    uint64_t step_bytes = *step_of(pool), needed_bytes = (used_bytes + bytes + step_bytes - 1) / step_bytes * step_bytes;
    return needed_bytes > pool->charged_bytes ? needed_bytes - pool->charged_bytes : 0;
}

/* The program did not ask for it, so it must not break a capture of the program's, as calls that may synchronise do. */
static void trim_graphs(const struct tf_cuda *cuda, CUdevice device)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (!cuda->cuDeviceGraphMemTrim || !cuda->cuThreadExchangeStreamCaptureMode || cuda->cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
        return;
    TF_NESTED(cuda->cuDeviceGraphMemTrim(device));
    cuda->cuThreadExchangeStreamCaptureMode(&mode);
    atomic_fetch_add(&tf_growth_graph_trims, 1);
}

CUresult tf_growth_reserve(struct tf_container *container, const struct tf_cuda *cuda, struct tf_pool *pool, uint64_t bytes, struct tf_reservation *ret)
{
    if (tf_memory_try(container, pool->gpu, expected_growth(cuda, pool, bytes), ret) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    if (!pool->handle)
        trim_graphs(cuda, pool->device);
    tf_pools_charge_all(container, cuda);
    return tf_memory_reserve(container, pool->gpu, expected_growth(cuda, pool, bytes), ret);
}

/* After a trim only what runs, and blocks that outlive their graphs, are in use: those count on top of all graphs mapped since. */
static void add_up_anew(const struct tf_cuda *cuda, struct tf_pool *pool)
{
    uint32_t trims = atomic_load(&tf_growth_graph_trims) + 1;
    if (pool->mapped_trims == trims)
        return;
    pool->mapped_trims = trims;
    if (!tf_pools_ask(cuda, pool, false, &pool->mapped_bytes))
        pool->mapped_bytes = TENFOLD_BYTES_MASK; /* no answer: never room for all */
}

bool tf_growth_holds_all_graphs(struct tf_container *container, const struct tf_cuda *cuda, struct tf_pool *pool)
{
    add_up_anew(cuda, pool);
    tf_pools_charge_truth(container, cuda, pool);
    return pool->mapped_bytes <= pool->charged_bytes;
}

void tf_growth_graph_is_mapped(const struct tf_cuda *cuda, struct tf_pool *pool, uint64_t bytes)
{
    add_up_anew(cuda, pool);
    pool->mapped_bytes += pool->mapped_bytes < TENFOLD_BYTES_MASK ? bytes : 0;
}

bool tf_growth_settle(const struct tf_cuda *cuda, struct tf_pool *pool, uint64_t taken_bytes, struct tf_reservation *reservation)
{
    uint64_t bytes = pool->charged_bytes;
    if (!tf_pools_ask(cuda, pool, true, &bytes))
        bytes = pool->charged_bytes + reservation->bytes; /* no answer: what was expected */
    uint64_t growth_bytes = bytes > pool->charged_bytes ? bytes - pool->charged_bytes : 0;
    if (growth_bytes)
        learn_step(pool, taken_bytes, reservation->bytes, growth_bytes);
    if (tf_memory_adjust(reservation, growth_bytes) != CUDA_SUCCESS)
        return false;
    pool->charged_bytes += growth_bytes;
    return true;
}
