/* limit_internal.h - what the limiter's files share: constants of more than one file, words of the shared state, one critical part.
 *
 * Owns:  nothing at run time. limit.c grants and plans, limit_credit.c knows rates and debts, limit_estimate.c what a launch costs,
 *        limit_settle.c what it did cost, limit_timeline.c when, limit_nvml.c how much of that was ours, limit_amends.c what becomes of errors.
 * Fixed point: factors and ratios are 16.16, ONE is 1. */
#ifndef TENFOLD_LIMIT_INTERNAL_H
#define TENFOLD_LIMIT_INTERNAL_H

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

/* ---------------------------------------------------------------- limit.c */

/* Batches do not work with these launches; they are tried again, ever more seldom. */
void limit_stop_batches(struct tf_limit_process *process);

/* ---------------------------------------------------------------- limit_credit.c */

/* 1..100; 100: launches pass, but are measured, so that a limit that comes into force finds estimates. */
uint32_t limit_percent_in_force(const struct tf_limit_policy *policy);
int64_t limit_bank_ns(const struct tf_limit_policy *policy, uint32_t limit_percent);
/* Adds to the credit within its clamps; returns the new value. */
int64_t limit_add_credit(struct tf_limit_state *state, int64_t amount, int64_t bank, uint32_t limit_percent);
/* What the clock earned since the last refill, by whoever comes first. Returns the credit. */
int64_t limit_refill(struct tf_limit_state *state, const struct tf_limit_policy *policy, uint32_t limit_percent, uint64_t now_ns);
/* How many processes of the container came to the gate lately, at least 1; counts this one. */
uint32_t limit_count_processes(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t now_ns);
/* This process's right to the credit: an equal part of what the clock earns, less what it took. */
void limit_accrue_entitlement(struct tf_limit_process *process, uint32_t limit_percent, uint32_t processes, uint64_t now_ns);

/* ---------------------------------------------------------------- limit_timeline.c */

/* What was done in a stretch of time, in nanoseconds: between events, by estimates, and what it was charged. */
enum limit_work_kind { WORK_MEASURED, WORK_ESTIMATED, WORK_CHARGED, WORK_KINDS };
struct limit_work {
    uint64_t ns[WORK_KINDS];
};
/* Adds to the container's time line, in proportion to where [from_ns, to_ns) lies. */
void limit_add_work(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t from_ns, uint64_t to_ns, struct limit_work work);
/* Between two times that are at most TIMELINE_NS - BUCKET_NS old; a bucket that one of them cuts is split in proportion. */
struct limit_work limit_work_in(const struct tf_limit_state *state, uint64_t from_ns, uint64_t to_ns);
uint64_t limit_bucket_ns(const struct tf_limit_state *state, enum limit_work_kind kind, uint64_t bucket);

/* ---------------------------------------------------------------- limit_amends.c */

/* A window of NVML's while others interfere: what its work was charged, and what NVML says it took. */
void limit_note_overcharge(struct tf_limit_state *state, uint64_t charged_ns, uint64_t busy_ns);
/* Work that was settled after windows that hold a part of it had been compared: that part counts now, else it never would. */
void limit_note_late_charge(struct tf_limit_state *state, uint64_t from_ns, uint64_t to_ns, uint64_t charged_ns);
/* Nobody interferes any more, or the limit changed: what was charged stays. */
void limit_forget_overcharge(struct tf_limit_state *state);
/* By how much prices must differ from what they would be, 16.16. */
uint32_t limit_amends(const struct tf_limit_state *state);

/* ---------------------------------------------------------------- limit_nvml.c */

struct limit_contention {
    uint32_t factor; /* cost / estimate (contended) or cost / measured time (else) */
    uint32_t share;  /* own time / measured time: how much a measurement may be trusted */
    uint32_t amends; /* times this is a price under contention: makes good what earlier ones got wrong */
    int contended;
    int jumps;       /* lengths of kernels change again and again: estimates say nothing */
    int supervised;  /* NVML watches: what we get wrong, it will show */
};
struct limit_contention limit_read_contention(const struct tf_limit_state *state, uint64_t now_ns);
/* The sums were made of estimates that turned out wrong: begin anew. */
void limit_forget_sums(struct tf_limit_state *state);

/* ---------------------------------------------------------------- limit_estimate.c */

/* One more measured cost of a key; sets its estimate. */
const struct tf_limit_shape *limit_learn(struct tf_limit_process *process, uint64_t key, uint64_t cost_ns, int contended, uint64_t now_ns);
/* Whether a key's costs are one value and outliers, as a kernel of constant length gives them. */
int limit_is_clustered(const struct tf_limit_process *process, uint64_t key);
/* Measured / estimated cost over the last memory_ns. */
uint32_t limit_learn_ratio(struct tf_limit_ratio *ratio, uint64_t busy_ns, uint64_t estimated_ns, uint64_t memory_ns, uint64_t now_ns);

static inline _Atomic uint64_t *limit_slot(struct tf_limit_process *process, uint64_t key)
{
    return &process->estimates[(key >> 20) % TF_LIMIT_KEYS];
}

/* samples 0: the key is known, its cost is not. */
static inline void limit_put_estimate(struct tf_limit_process *process, uint64_t key, uint32_t samples, uint64_t estimate_ns)
{
    put(*limit_slot(process, key),
        key >> 44 << 44 | (uint64_t)(samples > 15 ? 15 : samples) << 40 | min_u64(estimate_ns, UINT64_C(0xffffffffff)));
}

static inline uint32_t limit_scale(struct tf_limit_process *process)
{
    uint32_t scale = get(process->scale);
    return scale == 0 ? ONE : scale;
}

/* Estimates are the lower side of what was measured; the mean is ratio times that. */
static inline uint32_t limit_ratio(const struct tf_limit_process *process) { return process->ratio == 0 ? ONE : process->ratio; }

/* What was charged at a scale, in estimates. */
static inline uint64_t limit_in_estimates(uint64_t charged_ns, uint32_t scale)
{
    return (min_u64(charged_ns, MEASURED_MAX_NS) << 16) / max_u64(scale, FACTOR_MIN);
}

/* ---------------------------------------------------------------- limit_settle.c */

/* Tells the shared sums what was charged since the last time. What is not within a measured segment enters the time line here. */
void limit_report(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t now_ns);

#endif
