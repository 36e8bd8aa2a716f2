/* limiter.h - the compute limiter's controller: who may launch now, and what a launch cost.
 *
 * Owns:    credit in GPU nanoseconds per (container, GPU), cost estimates per kernel, the choice of what is measured.
 * Pure:    no libc, no clock, no sleep, no driver, no lock. Time, measured times and the policy are arguments.
 * Threads: every function may run in any thread of any process of the container, except where a line says otherwise.
 * Trust:   `struct tf_limit_state` is writable by the tenant. Any bytes in it are survived: bounded loops, clamped
 *          values, no wait above TF_LIMIT_WAIT_MAX_NS per call nor TF_LIMIT_DEBT_MAX_WALL_NS in all.
 * Death:   a process may die anywhere; what it held (at most one grant) is lost, nothing stays taken.
 * Files:   gate.c grants and plans, credit.c knows rates and debts, estimate.c what a launch costs, settle.c what it did cost, timeline.c when,
 *          contention.c how much of that was ours, amends.c what becomes of errors.
 *
 * The life of a launch, on the hook's side:
 *
 *     struct tf_limit_ticket ticket;
 *     uint64_t key = tf_limit_key(function, grid..., block..., shared_bytes);
 *     if (!tf_limit_enter(process, key, stream_id, &ticket))                     // fast: no clock, no shared line
 *         while (tf_limit_gate(state, process, &policy, key, stream_id, now_ns(), &ticket) == TF_LIMIT_WAIT) {
 *             // FUTEX_WAIT(&state->wake_word, ticket.wake_seen, until ticket.wait_until_ns); read the policy again
 *         }
 *     if (ticket.flags & TF_LIMIT_BEGIN) { drop an open begin event of this process and GPU; record a new one }
 *     result = real_launch(...);
 *     if (result != 0) tf_limit_cancel(process, &ticket);
 *     else if (ticket.flags & TF_LIMIT_END) { record the end event; queue {begin, end, ticket.segment} for measuring }
 *
 * BEGIN and END come together for one launch (then ticket.segment.launches == 1) or on two launches of one stream. A
 * launch on another stream or a new BEGIN makes the hook forget the open begin event. Events are recorded with timing.
 * A captured stream is never measured nor gated: call neither function, gate the graph's launch instead, with a key of
 * its CUgraphExec. A hook without a limit (tf_limit_is_off()) skips all of it.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define TF_LIMIT_STATE_BYTES 256
#define TF_LIMIT_TIMELINE 16u
#define TF_LIMIT_KEYS 1024u                         /* estimates per process and GPU, direct mapped */
#define TF_LIMIT_WAIT_MAX_NS UINT64_C(50000000)     /* one WAIT; the policy is read again after it: live change */
#define TF_LIMIT_STALL_MAX_NS UINT64_C(2000000000)  /* longest wait for work in flight, in case it waits for us */
#define TF_LIMIT_DEBT_MAX_WALL_NS UINT64_C(60000000000) /* debt above this much refill is forgiven */
#define TF_LIMIT_BANK_DEFAULT_NS UINT64_C(250000000)    /* unused credit is kept this long: bursts average out within it */

/* When the limit holds. The first three are enum tenfold_mode of the region. */
enum tf_limit_mode {
    TF_LIMIT_HARD = 0,     /* always */
    TF_LIMIT_ELASTIC = 1,  /* only while another tenant works (pressure != NONE) */
    TF_LIMIT_NEVER = 2,    /* no limit */
    TF_LIMIT_PRIORITY = 3, /* as elastic against tenants of the same priority; a quarter of it while a higher one works */
};

/* What other tenants of the GPU do, as far as the caller knows. Unknown is EQUAL: the strict side. */
enum tf_limit_pressure {
    TF_LIMIT_PRESSURE_EQUAL = 0,
    TF_LIMIT_PRESSURE_NONE = 1,
    TF_LIMIT_PRESSURE_LOWER = 2,  /* only tenants of lower priority work */
    TF_LIMIT_PRESSURE_HIGHER = 3, /* a tenant of higher priority works */
};

/* The host's decision, copied from the configuration page before each gate; any values are legal. */
struct tf_limit_policy {
    uint32_t limit_percent; /* 1..99; 0 and >= 100: no limit */
    uint32_t mode;          /* enum tf_limit_mode; unknown: hard */
    uint32_t pressure;      /* enum tf_limit_pressure; unknown: equal */
    uint32_t bank_ms;       /* 0: default; at most 10,000 */
};

/* Shared by the processes of one container, per GPU. All zero is the valid start. */
struct tf_limit_state {
    _Atomic int64_t credit_ns;         /* GPU time that may be granted; negative: debt */
    _Atomic uint64_t refilled_at_ns;   /* CLOCK_MONOTONIC; 0: never */
    _Atomic uint64_t used_ns;          /* GPU time charged since the start, for the host's metrics */
    _Atomic uint32_t wake_word;        /* futex word: changes when a wait may end early; wake all on TF_LIMIT_WAKE */
    _Atomic uint32_t limit_seen;       /* limit that the bank was last clamped to, percent */
    _Atomic uint32_t epoch;            /* presence: number of the current 64 ms epoch */
    _Atomic uint32_t compared_ms;      /* end of the last window that was compared, CLOCK_MONOTONIC modulo 2^32 */
    _Atomic uint32_t present[2];       /* processes seen at the gate in an even and an odd epoch */
    _Atomic uint64_t observed_at_ns;   /* last tf_limit_observe_busy */
    _Atomic uint64_t busy_sum_ns;      /* own time by NVML, old windows fading */
    _Atomic uint64_t measured_sum_ns;  /* time between events in the same windows */
    _Atomic uint64_t estimated_sum_ns; /* estimates of the launches in the same windows */
    _Atomic uint64_t window_sum_ns;    /* wall time of the same windows */
    _Atomic uint64_t longest_ns;       /* largest estimate of late */
    _Atomic uint64_t slowest_ns;       /* longest measured segment of late, waiting included */
    _Atomic uint64_t timeline[TF_LIMIT_TIMELINE]; /* what was done in each 256 ms: timeline.c */
    _Atomic uint64_t contended_since_ns; /* 0: what was measured was charged */
    _Atomic int32_t overcharged_us;      /* charged beyond NVML's own time in the same windows and not made good; negative: too little */
    _Atomic uint8_t jumps;               /* for so many windows the length of a kernel is known to jump */
    _Atomic uint8_t unseen;              /* windows in a row in which NVML saw nothing of what we measured */
    _Atomic uint8_t differed;            /* the last window was above (1) or below (2) the past */
    _Atomic uint8_t calm;                /* windows in a row in which NVML agreed with what was measured */
    _Atomic uint64_t edges;              /* how wrong the sums may be where a bucket was cut: microseconds at the last cut | at older ones */
};
_Static_assert(sizeof(struct tf_limit_state) == TF_LIMIT_STATE_BYTES, "the state's size is part of the region");

/* Launches between two events. Plain data, copied with the events through the hook's queue. */
struct tf_limit_segment {
    uint64_t key;          /* of its first launch */
    uint64_t stream;       /* stream it was launched on */
    uint64_t charged_ns;   /* what its launches were charged */
    uint64_t mark_ns;      /* process->charged_ns at its end: what was charged up to there has been launched */
    uint64_t host_span_ns; /* wall time between the first and the last launch call */
    uint32_t launches;     /* 1, or 2 for "several" */
    uint16_t flags;        /* internal */
    uint16_t reserved;
    uint32_t scale;        /* internal: charged_ns / estimate, 16.16 */
    uint32_t reserved32;
};

struct tf_limit_ticket {
    uint32_t flags;         /* GO: TF_LIMIT_BEGIN | TF_LIMIT_END */
    uint32_t wake_seen;     /* WAIT: the futex value to wait on */
    uint64_t charged_ns;    /* GO: what this launch was charged */
    uint64_t wait_until_ns; /* WAIT: CLOCK_MONOTONIC, at most TF_LIMIT_WAIT_MAX_NS ahead */
    uint64_t wait_began_ns; /* internal; tf_limit_enter zeroes it for each launch */
    struct tf_limit_segment segment; /* valid with TF_LIMIT_END */
};
#define TF_LIMIT_BEGIN 1u /* record an event before the launch */
#define TF_LIMIT_END 2u   /* record an event after it, and settle ticket.segment when it completes */

/* How the measured costs of one key are distributed. */
struct tf_limit_shape {
    uint64_t tag;
    uint64_t mean_ns;     /* the last ones weigh more */
    uint64_t quantile_ns; /* about a quarter of them lie below */
    uint64_t cluster_ns;  /* mean of those near the quantile */
    uint32_t cluster;     /* share of those near the quantile, 16.16 */
    uint32_t samples;
    uint64_t estimate_ns; /* what a launch is expected to cost */
    uint64_t at_ns;
};

/* Two sums whose old parts fade. */
struct tf_limit_ratio {
    uint64_t busy_ns, estimated_ns, at_ns, rest_ns;
};

/* Stretch of the GPU's time line. */
struct tf_limit_interval {
    uint64_t stream;
    uint64_t begin_ns;
    uint64_t end_ns;
};
#define TF_LIMIT_INTERVALS 16u

/* What NVML said of a window. */
struct tf_limit_observation {
    uint64_t from_ns;
    uint64_t to_ns;
    uint64_t busy_ns;
    uint64_t is_certain; /* that it is of us, and of all of us */
};
#define TF_LIMIT_OBSERVATIONS 8u

/* Private to one process, per GPU. All zero is the valid start, also for a forked child. About 73 KiB. */
struct tf_limit_process {
    /* fast path: written by every launch */
    _Alignas(64) _Atomic uint64_t charged_ns; /* GPU time charged by this process since its start */
    /* fast path: read by every launch, written in the gate */
    _Alignas(64) _Atomic uint64_t boundary_ns; /* charged_ns may come near this without the gate */
    _Atomic uint64_t segment_stream;           /* stream of the open segment, launches elsewhere go to the gate; 0: none open */
    _Atomic uint32_t scale;                    /* charge = estimate x scale, 16.16 fixed point */
    _Atomic uint64_t estimates[TF_LIMIT_KEYS]; /* tag 20 bits | samples 4 bits | nanoseconds 40 bits */
    /* the rest is the gate's and the settlement's, under `busy` */
    _Alignas(64) _Atomic uint32_t busy; /* a thread is in a short critical part: no system call, no loop without a bound */
    uint32_t unknown_count;       /* launches of unknown cost in flight */
    uint64_t unknown_since_ns;
    uint64_t granted_ns;          /* charged_ns may reach this; taken from the credit */
    uint64_t reported_ns;         /* charged_ns up to which the state's sums know */
    uint64_t marked_ns;           /* charged_ns at the end of the last measured segment */
    uint64_t completed_ns;        /* charged_ns up to which work is known to be complete */
    uint64_t mean_ns;             /* mean cost of a measured launch */
    uint64_t event_overhead_ns;   /* what two events with nothing between them measure */
    int64_t entitled_ns;          /* fairness: this process's share of the credit, by right */
    uint64_t entitled_at_ns;
    uint64_t epoch_seen;
    uint32_t batch_off;           /* segments of one launch only, for so many more grants */
    uint32_t batch_backoff;
    uint32_t gates;
    uint32_t ratio;               /* measured / estimated cost while nobody interferes, 16.16 */
    uint32_t inflation;           /* the same of late, whoever interferes */
    struct tf_limit_ratio calm, any, kinds[3]; /* kinds: single launches of varying and of constant length, batches */
    uint32_t waiting;             /* a thread waits for a settlement */
    uint32_t interval_next;
    uint64_t open_before_ns;      /* the open segment: charged_ns at its begin, */
    uint64_t open_target_ns;      /*   charged_ns at which it ends, */
    uint64_t open_since_ns;       /*   when it began, 0: none is open */
    uint64_t open_first_ns;       /*   what its first launch was charged */
    struct tf_limit_segment open;
    uint64_t segmented_ns;        /* what was charged within segments; the rest of charged_ns is never measured */
    uint64_t unmeasured_seen_ns;
    uint64_t reported_at_ns;
    struct tf_limit_interval intervals[TF_LIMIT_INTERVALS]; /* charged lately: overlapping streams count once */
    struct tf_limit_observation observations[TF_LIMIT_OBSERVATIONS]; /* to be compared once all of their segments are settled */
    uint32_t observation_first, observation_count;
    struct tf_limit_shape shapes[TF_LIMIT_KEYS];
    uint32_t has_overhead; /* event_overhead_ns was measured */
    uint32_t rest_ns[3];   /* what of the work was too little for a unit of the time line */
    uint64_t told_to_ns;   /* end of the last window that the host told */
    uint64_t reserved[13];
};

static inline int tf_limit_is_off(const struct tf_limit_policy *policy)
{
    return policy->limit_percent == 0 || policy->limit_percent >= 100;
}

/* Key of a launch shape. Never 0. */
static inline uint64_t tf_limit_key(const void *function, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z, uint32_t block_x,
                                    uint32_t block_y, uint32_t block_z, uint32_t shared_bytes)
{
    uint64_t a = (uint64_t)(uintptr_t)function ^ ((uint64_t)shared_bytes << 40);
    uint64_t b = ((uint64_t)grid_x << 32 | grid_y) * UINT64_C(0x9e3779b97f4a7c15);
    uint64_t c = ((uint64_t)block_x << 40 | (uint64_t)block_y << 20 | block_z) * UINT64_C(0xc2b2ae3d27d4eb4f);
    uint64_t h = (a ^ b ^ (c >> 7 | c << 57) ^ (uint64_t)grid_z << 17) * UINT64_C(0xff51afd7ed558ccd);
    return (h ^ h >> 32) | 1u;
}

/* Fast path. 1: launch now, it was charged; nothing is to be recorded. 0: ask the gate; nothing was charged. stream: any number
 * but 0 that stays the same for a stream (its handle, 1 for the default stream). A launch that then fails: tf_limit_refund(). */
static inline int tf_limit_pass(struct tf_limit_process *process, uint64_t key, uint64_t stream, uint64_t *ret_charged_ns)
{
    uint64_t word = atomic_load_explicit(&process->estimates[(key >> 20) % TF_LIMIT_KEYS], memory_order_relaxed);
    uint64_t boundary_ns = atomic_load_explicit(&process->boundary_ns, memory_order_relaxed);
    uint64_t open_stream = atomic_load_explicit(&process->segment_stream, memory_order_relaxed);
    if ((word >> 44) != (key >> 44) || (word >> 40 & 15) == 0 || (open_stream != stream && open_stream != 0))
        return 0;
    uint64_t cost_ns = (word & UINT64_C(0xffffffffff)) * atomic_load_explicit(&process->scale, memory_order_relaxed) >> 16;
    uint64_t before_ns = atomic_fetch_add_explicit(&process->charged_ns, cost_ns, memory_order_relaxed);
    *ret_charged_ns = cost_ns;
    if (before_ns + cost_ns < boundary_ns)
        return 1;
    atomic_fetch_sub_explicit(&process->charged_ns, cost_ns, memory_order_relaxed);
    return 0;
}

static inline void tf_limit_refund(struct tf_limit_process *process, uint64_t charged_ns)
{
    atomic_fetch_sub_explicit(&process->charged_ns, charged_ns, memory_order_relaxed);
}

/* The same for callers that keep a ticket. */
static inline int tf_limit_enter(struct tf_limit_process *process, uint64_t key, uint64_t stream, struct tf_limit_ticket *ticket)
{
    ticket->flags = 0;
    ticket->wait_began_ns = 0;
    return tf_limit_pass(process, key, stream, &ticket->charged_ns);
}
