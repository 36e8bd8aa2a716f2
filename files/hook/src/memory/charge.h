/* charge.h - what the memory hooks share: reserving on the current card, and finishing an allocation. */
#pragma once

#include "driver/nested.h"
#include "memory/pools.h"
#include "memory/reservation.h"
#include "slice/device.h"

/* As tf_memory_reserve(), on the card of the current context, which will own the memory. */
static inline CUresult tf_reserve_here(const struct tf_cuda *cuda, uint64_t bytes, struct tf_reservation *ret)
{
    struct tf_container *container = tf_container();
    if (atomic_load_explicit(&container->stance, memory_order_relaxed) == TF_NO_SLICE) {
        *ret = (struct tf_reservation){.container = container, .gpu = -1};
        return CUDA_SUCCESS;
    }
    CUcontext context;
    int gpu = tf_device_of_context(container, cuda, &context);
    CUresult result = tf_memory_try(container, gpu, bytes, ret);
    if (TF_UNLIKELY(result != CUDA_SUCCESS)) {
        tf_pools_refresh(container, cuda); /* a pool may have shrunk */
        result = tf_memory_reserve(container, gpu, bytes, ret);
    }
    ret->context = (uint64_t)(uintptr_t)context;
    return result;
}

/* The driver's call with `bytes` reserved for it on the current card; declares `reservation` and `result`. What has no place for its answer, or is
 * a call of the driver itself, goes to the driver as it is. */
#define TF_CALL_CHARGED(symbol, has_place, bytes, arguments) \
    if (!(has_place) || tf_is_nested()) \
        return cuda->symbol arguments; \
    struct tf_reservation reservation; \
    CUresult result = tf_reserve_here(cuda, bytes, &reservation); \
    if (result != CUDA_SUCCESS) \
        return result; \
    result = TF_NESTED(cuda->symbol arguments)

/* After a driver's free: given back, or (it failed) as before. Returns the driver's result. */
static inline CUresult tf_conclude_free(CUresult result, bool is_ours, const struct tf_entry *entry)
{
    if (is_ours && result == CUDA_SUCCESS)
        tf_memory_gone(tf_container(), entry);
    else if (is_ours)
        tf_memory_back(tf_container(), entry);
    return result;
}
