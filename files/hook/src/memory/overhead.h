/* overhead.h - memory of the card that this process holds without having allocated it: contexts, modules, what small allocations waste.
 *
 * Why:      a context takes hundreds of MiB, modules load lazily, no call tells their sizes, and the CUDA runtime makes contexts behind our
 *           back. NVML knows what a process holds; what of that is not in our books is overhead.
 * Contract: charged to the process's slot like any memory: gone with the process, never above the limit (what does not fit is tried again),
 *           at least the reserve of the page, which is charged before the first allocation. Measured by the helper thread with growing pauses;
 *           a program's call waits for it the first time that it asks for memory or what is left of it, and where it would be refused otherwise.
 *           Where NVML is missing or does not tell who we are, the reserve is all that is charged.
 * Next:     reservation.c calls before it charges and before it refuses, hooks/context.c when a context has ended. */
#pragma once

#include "slice/container.h"

__attribute__((visibility("hidden"))) extern _Atomic uint32_t tf_overhead_watched[TENFOLD_GPUS_MAX];

enum { TF_OVERHEAD_BEGUN = 1, TF_OVERHEAD_KNOWN = 2 };

/* Before anything is charged on the card, or its memory shown. The first time the reserve is charged, and the caller waits until the helper has
 * found out what contexts and modules hold by now, or cannot. Not with a lock that the helper may want. 0, or -ENOMEM: the reserve does not fit. */
int tf_overhead_find_out(struct tf_container *container, int gpu);
static inline int tf_overhead_know(struct tf_container *container, int gpu)
{
    bool is_known = atomic_load_explicit(&tf_overhead_watched[gpu], memory_order_relaxed) == TF_OVERHEAD_KNOWN;
    return __builtin_expect(is_known, 1) ? 0 : tf_overhead_find_out(container, gpu);
}

/* For calls that use a card and no memory: measuring begins, and nobody waits. Nothing happens where a reserve is to be charged. */
void tf_overhead_begin(struct tf_container *container, int gpu);
static inline void tf_overhead_notice(struct tf_container *container, int gpu)
{
    if (atomic_load_explicit(&tf_overhead_watched[gpu], memory_order_relaxed) == 0)
        tf_overhead_begin(container, gpu);
}

/* Before a refusal: gives back at once what is no overhead any more. */
void tf_overhead_look_again(struct tf_container *container, int gpu);

/* Something has ended that held memory: measured again soon. */
void tf_overhead_hurry(struct tf_container *container);

/* Managed memory, which is charged in full and which NVML shows only where it is: before its allocation, and (negative) after its free. */
void tf_overhead_managed(int gpu, int64_t bytes);
