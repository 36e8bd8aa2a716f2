/* overhead.h - memory of the card that this process holds without having allocated it: contexts, modules, what small allocations waste.
 *
 * Why:      a context takes hundreds of MiB, modules load lazily, no call tells their sizes, and the CUDA runtime makes contexts behind our
 *           back. NVML knows what a process holds; what of that is not in our books is overhead.
 * Contract: charged to the process's slot like any memory: gone with the process, never above the limit (what does not fit is tried again),
 *           at least the reserve of the page, which is charged before the first allocation. Measured by the helper thread: soon after the first
 *           allocation, then with growing pauses; a program's call waits for a measurement only where it would be refused otherwise. Where NVML
 *           is missing or does not tell who we are, the reserve is all that is charged.
 * Next:     reservation.c calls before it charges and before it refuses, hooks/context.c when a context has ended. */
#pragma once

#include "slice/container.h"

__attribute__((visibility("hidden"))) extern _Atomic uint32_t tf_overhead_watched[TENFOLD_GPUS_MAX];

/* Fast: one load. false: tf_overhead_watch() has to be called before anything is charged on the card. */
static inline bool tf_overhead_is_watched(int gpu) { return atomic_load_explicit(&tf_overhead_watched[gpu], memory_order_relaxed) != 0; }

/* Charges the reserve and begins to measure. 0, or -ENOMEM: the reserve does not fit. */
int tf_overhead_watch(struct tf_container *container, int gpu);

/* The same for calls that use a card without allocating; nothing happens where a reserve is to be charged, which is for allocations to do. */
void tf_overhead_notice_card(struct tf_container *container, int gpu);
static inline void tf_overhead_notice(struct tf_container *container, int gpu)
{
    if (gpu >= 0 && !tf_overhead_is_watched(gpu))
        tf_overhead_notice_card(container, gpu);
}

/* Before a refusal: gives back at once what is no overhead any more. */
void tf_overhead_look_again(struct tf_container *container, int gpu);

/* Something has ended that held memory: measured again soon. */
void tf_overhead_hurry(struct tf_container *container);

/* The program uses managed memory, which NVML shows only where it is resident: from now on a low reading proves nothing. */
void tf_overhead_managed(void);
