/* arithmetic.h - what the limiter's files calculate with: constants of more than one file, words of the shared state, one critical part.
 *
 * Fixed point: factors and ratios are 16.16, ONE is 1. */
#pragma once

#include "limiter/limiter.h"

#define ONE UINT32_C(65536)
#define CHUNK_NS INT64_C(500000) /* a waiter of short kernels sleeps until so much credit is there: one wake-up per 0.5 ms of work */
#define SPINS 100000             /* for what is not on the launch path: some 100 us */
#define CAS_TRIES 16             /* a lost race means another process did the work */
#define CLOCK_JUMP_NS UINT64_C(1000000000)     /* a time further ahead than this is garbage, not a race */
#define MEASURED_MAX_NS UINT64_C(600000000000) /* a kernel above 10 minutes counts as 10 minutes */
#define SUM_MAX_NS (UINT64_C(1) << 40)         /* of what is shifted by 16 bits */
#define BUCKET_NS UINT64_C(256000000)          /* of the time line */
#define TIMELINE_NS (TF_LIMIT_TIMELINE * BUCKET_NS)
#define RATIO_MIN (ONE / 8)
#define RATIO_MAX (ONE * 256) /* a kernel whose lengths differ by so much, as one that often returns at once */
#define FACTOR_MIN (ONE / 1024)
#define FIRST_SAMPLES 8u /* the first measurements of a kernel, of which the lowest counts */

#define SEGMENT_UNKNOWN 1u  /* segment.flags: its launch had no estimate */
#define WAITS_FOR_WORK 1u   /* process.waiting */
#define WAITS_FOR_CREDIT 2u

#define relaxed memory_order_relaxed
#define get(object) atomic_load_explicit(&(object), relaxed)
#define put(object, value) atomic_store_explicit(&(object), (value), relaxed)

static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---------------------------------------------------------------- the critical part of a process */

/* 1: this thread is in. Nobody blocks: whoever fails waits 50 us at the gate, or tries again at its next poll. */
static inline int limit_enter(struct tf_limit_process *process, unsigned tries)
{
    for (;;) {
        uint32_t expected = 0;
        if (get(process->busy) == 0 &&
            atomic_compare_exchange_strong_explicit(&process->busy, &expected, 1, memory_order_acquire, relaxed))
            return 1;
        if (tries-- == 0)
            return 0;
    }
}

static inline void limit_leave(struct tf_limit_process *process) { atomic_store_explicit(&process->busy, 0, memory_order_release); }
