/* limit.c - GPU time as credit: refilled by the clock, charged by estimate, settled by measurement.
 *
 * Owns:    the credit of a container on one GPU, the estimates of one process, the decision what to measure.
 * Threads: the credit is lock-free between processes; within a process a flag (`busy`) keeps threads out of the gate for
 *          the ~100 ns that one is inside; whoever finds it taken waits 50 us or retries, nobody blocks.
 * Death:   a process takes its unused grant (at most QUANTUM_NS) with it, and its unsettled launches stand as estimated.
 * Trust:   every value read from the shared state is clamped before use; loops have a bound; arithmetic cannot overflow.
 * Next:    limit.h tells the life of a launch; tests/hook/virtual_time runs this file against a discrete-event GPU.
 *
 * Why it is exact: what is charged is GPU time measured by events, so neither grid sizes nor kernel lengths bias it; a charge
 * may be wrong only until its segment is settled. Why it is smooth: nobody is granted more than QUANTUM_NS beyond one launch,
 * and a waiter knows the instant when the credit suffices. Why it is not cheated by a deep queue: at most INFLIGHT_NS (or one
 * launch) of granted work may be unfinished, so that a limit that was lowered, or a neighbour that left, shows within that. */
#include "limit.h"

#define CHUNK_NS INT64_C(500000)      /* a waiter of short kernels sleeps until so much credit is there: one wake-up per 0.5 ms of work */
#define QUANTUM_NS INT64_C(1000000)   /* largest grant that is not one launch; a killed process loses at most this */
#define SEGMENT_NS UINT64_C(500000)   /* work between two events: 2 events of ~2 us host time each are then below 1 % */
#define INFLIGHT_NS UINT64_C(8000000) /* granted but unfinished work; several 2 ms time slices, so that a slice never runs dry */
#define PROVISIONAL_NS UINT64_C(100000)      /* cost of the very first launch until it is measured */
#define PROVISIONAL_MAX_NS UINT64_C(1000000) /* cost of a later unknown launch: the mean, but not above this */
#define UNKNOWN_MAX 8u                       /* different kernels of unknown cost in flight */
#define UNKNOWN_AGE_NS UINT64_C(1000000)     /* one that is in flight longer may be long: no further unknown ones */
#define RETRY_NS UINT64_C(50000)             /* another thread is in the gate */
#define POLL_NS UINT64_C(2000000)            /* waits that a settlement ends; in case its wake-up is lost */
#define EPOCH_NS UINT64_C(64000000)          /* presence of processes is counted per epoch */
#define PROCESSES_MAX 1024u
#define CHANGE_EARN_NS UINT64_C(20000000)    /* so much of the time before a change of the limit still earns */
#define SPINS 100000                         /* for what is not on the launch path: some 100 us */
#define CAS_TRIES 16                         /* a lost race means another process did the work */
#define CLOCK_JUMP_NS UINT64_C(1000000000)   /* refill time further ahead than this is garbage, not a race */
#define OBSERVATION_AGE_NS UINT64_C(5000000000) /* NVML's word counts so long */
#define MEASURED_MAX_NS UINT64_C(600000000000)  /* a kernel above 10 minutes counts as 10 minutes */
#define MEMORY_NS UINT64_C(2500000000) /* over which NVML's and our own sums are compared */
#define MEMORY_SEGMENTS 32u            /* but at least over so many of the longest segments */
#define SUM_MAX_NS (UINT64_C(1) << 40)
#define CHANGE_SHARE 32u /* a window that is apart from the past by more than 3 % of its length tells of a change: */
#define CHANGE_KEEP 250u /* so much of the past, per mille, is then kept */
#define UNSEEN_MAX 4u
#define BUCKET_NS UINT64_C(256000000)
#define TIMELINE_NS (TF_LIMIT_TIMELINE * BUCKET_NS)
#define SETTLE_NS UINT64_C(20000000) /* from the end of a segment to its settlement, at most: poll and a busy host */
#define ALONE_NS UINT64_C(100000) /* where batches are not measured, launches above this are measured one by one */
#define ESTIMATE_FULL_NS 20e9 /* an estimate moves by 5 % per second */
#define ESTIMATE_SLOW_NS 50e9
#define ESTIMATE_STEP_NS UINT64_C(500000000)
#define FIRST_SAMPLES 8u
#define CLUSTER_SAMPLES 16u
#define RELEARN_EVERY 16u  /* so many grants between two single measurements while batches are measured */
#define BATCH_BACKOFF_MAX 8u /* 4 x 2^8 grants */
#define BATCH_GAP_SHARE 2u /* a batch is free of gaps if the host launched it in half its GPU time: it was ahead all along */
#define ONE UINT32_C(65536)
#define FACTOR_MIN (ONE / 1024)
#define RATIO_MEMORY_NS UINT64_C(4000000000) /* slower than NVML shows a neighbour */
#define INFLATION_MEMORY_NS UINT64_C(500000000)
#define USUAL_MEMORY_NS UINT64_C(1000000000)
#define LITTLE_CONTENTION (ONE * 9 / 10)
#define RATIO_MIN (ONE / 8)
#define RATIO_MAX (ONE * 8)

#define WAKE_CREDIT_NS INT64_C(100000) /* credit given back by a settlement that is worth a wake-up */
#define WAITS_FOR_WORK 1u   /* process.waiting */
#define WAITS_FOR_CREDIT 2u

#define SEGMENT_UNKNOWN 1u /* segment.flags: its launch had no estimate */

#define relaxed memory_order_relaxed
#define get(object) atomic_load_explicit(&(object), relaxed)
#define put(object, value) atomic_store_explicit(&(object), (value), relaxed)

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---------------------------------------------------------------- the critical part of a process */

static int try_enter_critical(struct tf_limit_process *process, unsigned tries)
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

static void leave_critical(struct tf_limit_process *process) { atomic_store_explicit(&process->busy, 0, memory_order_release); }

/* ---------------------------------------------------------------- policy */

/* 1..100; 100: launches pass, but are measured, so that a limit that comes into force finds estimates. */
static uint32_t effective_limit_percent(const struct tf_limit_policy *policy)
{
    uint32_t limit = policy->limit_percent;
    if (limit == 0 || limit >= 100)
        return 100;
    switch (policy->mode) {
    case TF_LIMIT_NEVER:
        return 100;
    case TF_LIMIT_ELASTIC:
        return policy->pressure == TF_LIMIT_PRESSURE_NONE ? 100 : limit;
    case TF_LIMIT_PRIORITY:
        if (policy->pressure == TF_LIMIT_PRESSURE_NONE || policy->pressure == TF_LIMIT_PRESSURE_LOWER)
            return 100;
        return policy->pressure == TF_LIMIT_PRESSURE_HIGHER ? (limit + 3) / 4 : limit;
    default:
        return limit;
    }
}

static int64_t bank_ns(const struct tf_limit_policy *policy, uint32_t limit_percent)
{
    uint64_t wall_ns = policy->bank_ms == 0 ? TF_LIMIT_BANK_DEFAULT_NS : min_u64(policy->bank_ms, 10000) * 1000000;
    int64_t bank = (int64_t)(wall_ns * limit_percent / 100);
    return bank > 2 * CHUNK_NS ? bank : 2 * CHUNK_NS;
}

/* ---------------------------------------------------------------- credit */

static int64_t clamp_credit(int64_t credit, int64_t bank, uint32_t limit_percent)
{
    int64_t debt_max = (int64_t)(TF_LIMIT_DEBT_MAX_WALL_NS / 100 * limit_percent);
    return credit > bank ? bank : credit < -debt_max ? -debt_max : credit;
}

/* Adds to the credit within its clamps; returns the new value. */
static int64_t add_credit(struct tf_limit_state *state, int64_t amount, int64_t bank, uint32_t limit_percent)
{
    int64_t seen = get(state->credit_ns);
    int64_t next = seen;
    for (int i = 0; i < CAS_TRIES; i++) {
        next = clamp_credit(clamp_credit(seen, bank, limit_percent) + amount, bank, limit_percent);
        if (next == seen || atomic_compare_exchange_weak_explicit(&state->credit_ns, &seen, next, relaxed, relaxed))
            break;
    }
    return next;
}

/* What the clock earned since the last refill, by whoever comes first. Returns the credit. */
static int64_t refill(struct tf_limit_state *state, const struct tf_limit_policy *policy, uint32_t limit_percent, uint64_t now_ns)
{
    int64_t bank = bank_ns(policy, limit_percent);
    uint32_t seen_percent = get(state->limit_seen);
    uint32_t earn_percent = limit_percent;
    uint64_t earn_max_ns = TF_LIMIT_DEBT_MAX_WALL_NS;
    if (seen_percent != limit_percent && atomic_compare_exchange_strong_explicit(&state->limit_seen, &seen_percent, limit_percent, relaxed, relaxed)) {
        /* A new limit holds at once: what was saved under the old one would delay a lower one and exceed a higher one, and the time
         * since the last refill earns the lower of both and not for long, since nobody knows when in it the change came. */
        int64_t credit = get(state->credit_ns);
        if (credit > CHUNK_NS)
            atomic_compare_exchange_strong_explicit(&state->credit_ns, &credit, CHUNK_NS, relaxed, relaxed);
        if (seen_percent > 0 && seen_percent < limit_percent)
            earn_percent = seen_percent;
        earn_max_ns = CHANGE_EARN_NS;
    }
    uint64_t last_ns = get(state->refilled_at_ns);
    for (int i = 0; i < CAS_TRIES; i++) {
        if (last_ns == 0 || last_ns > now_ns) {
            if (last_ns != 0 && last_ns - now_ns <= CLOCK_JUMP_NS)
                break; /* another process read its clock after us */
            if (atomic_compare_exchange_weak_explicit(&state->refilled_at_ns, &last_ns, now_ns, relaxed, relaxed))
                return add_credit(state, last_ns == 0 ? CHUNK_NS : 0, bank, limit_percent);
            continue;
        }
        uint64_t passed_ns = min_u64(now_ns - last_ns, earn_max_ns);
        int64_t earned = (int64_t)(passed_ns * earn_percent / 100);
        if (earned < 1000)
            break; /* too little to be worth a shared write; it is not lost */
        if (atomic_compare_exchange_weak_explicit(&state->refilled_at_ns, &last_ns, now_ns, relaxed, relaxed))
            return add_credit(state, earned, bank, limit_percent);
    }
    return clamp_credit(get(state->credit_ns), bank, limit_percent);
}

/* ---------------------------------------------------------------- contention */

/* Events measure how long our work took; under time slicing that includes the slices of others. NVML says how much was ours.
 *   agreement   nobody interferes: a launch costs what was measured, to the microsecond.
 *   less        somebody does: what one segment measured says little about its cost, and NVML cannot single it out. A launch costs
 *               mostly the estimate of its key, times the factor by which NVML's time differs from all estimates of late. Both
 *               move slowly, so neighbours cannot shake each other through their measurements. */
struct contention {
    uint32_t factor; /* cost / estimate (contended) or cost / measured time (else), 16.16 */
    uint32_t share;  /* own time / measured time, 16.16: how much a measurement may be trusted */
    int contended;
    int supervised; /* NVML watches: what we get wrong, it will show */
};

static struct contention read_contention(const struct tf_limit_state *state, uint64_t now_ns)
{
    struct contention none = {ONE, ONE, 0, 0};
    uint64_t observed_ns = get(state->observed_at_ns);
    if (observed_ns == 0 || observed_ns > now_ns + CLOCK_JUMP_NS || (now_ns > observed_ns && now_ns - observed_ns > OBSERVATION_AGE_NS))
        return none;
    none.supervised = 1;
    uint64_t busy = min_u64(get(state->busy_sum_ns), UINT64_C(1) << 40);
    uint64_t measured = min_u64(get(state->measured_sum_ns), UINT64_C(1) << 40);
    uint64_t estimated = min_u64(get(state->estimated_sum_ns), UINT64_C(1) << 40);
    uint64_t window = min_u64(get(state->window_sum_ns), UINT64_C(1) << 40);
    uint64_t apart = busy > measured ? busy - measured : measured - busy;
    /* NVML counts whole percents: closer than about half of one is agreement. A segment that crosses the end of a window is split in
     * proportion, which is off by a part of its length */
    if (get(state->unseen) >= UNSEEN_MAX) /* NVML sees nothing of us: it looks at another process */
        return none;
    if (measured == 0 || estimated == 0 || apart <= (window * 6 / 1000 + min_u64(get(state->longest_ns), MEASURED_MAX_NS) / 4 + BUCKET_NS / 64) / (get(state->contended_since_ns) != 0 ? 2 : 1))
        return none;
    if (busy > measured)
        return (struct contention){(uint32_t)min_u64((busy << 16) / measured, ONE + ONE / 20), ONE, 0, 1};
    return (struct contention){(uint32_t)max_u64(FACTOR_MIN, min_u64((busy << 16) / estimated, 4 * ONE)), (uint32_t)((busy << 16) / measured), 1, 1};
}

/* Adds to one of the container's time lines, in proportion to where [from_ns, to_ns) lies. */
static void add_timeline(_Atomic uint32_t *timeline, uint64_t from_ns, uint64_t to_ns, uint64_t amount_ns)
{
    if (to_ns <= from_ns || amount_ns == 0)
        return;
    if (to_ns - from_ns >= TIMELINE_NS) { /* only the last turn is kept */
        amount_ns = (uint64_t)((double)amount_ns * (double)(TIMELINE_NS - BUCKET_NS) / (double)(to_ns - from_ns));
        from_ns = to_ns - (TIMELINE_NS - BUCKET_NS);
    }
    uint64_t amount_us_per_1024_ns = amount_ns * 1024 / (to_ns - from_ns); /* density, 10 bits of fraction */
    for (uint64_t bucket = from_ns / BUCKET_NS; bucket * BUCKET_NS < to_ns; bucket++) {
        uint64_t low_ns = max_u64(from_ns, bucket * BUCKET_NS);
        uint64_t high_ns = min_u64(to_ns, (bucket + 1) * BUCKET_NS);
        uint32_t piece_us = (uint32_t)(((high_ns - low_ns) * amount_us_per_1024_ns / 1024 + 500) / 1000);
        uint32_t turn = (uint32_t)(bucket / TF_LIMIT_TIMELINE) << 24;
        _Atomic uint32_t *slot = &timeline[bucket % TF_LIMIT_TIMELINE];
        uint32_t seen = get(*slot);
        for (int i = 0; i < CAS_TRIES; i++) {
            uint32_t sum_us = ((seen ^ turn) >> 24 == 0 ? seen & 0xffffff : 0) + piece_us;
            if (atomic_compare_exchange_weak_explicit(slot, &seen, turn | (sum_us > 0xffffff ? 0xffffff : sum_us), relaxed, relaxed))
                break;
        }
    }
}

static uint64_t sum_timeline(const _Atomic uint32_t *timeline, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t sum_ns = 0;
    for (uint64_t bucket = from_ns / BUCKET_NS; bucket * BUCKET_NS < to_ns; bucket++) {
        uint64_t low_ns = max_u64(from_ns, bucket * BUCKET_NS);
        uint64_t high_ns = min_u64(to_ns, (bucket + 1) * BUCKET_NS);
        uint32_t seen = get(timeline[bucket % TF_LIMIT_TIMELINE]);
        if (seen >> 24 == ((uint32_t)(bucket / TF_LIMIT_TIMELINE) & 255))
            sum_ns += (uint64_t)(seen & 0xffffff) * 1000 * ((high_ns - low_ns) / 1000) / (BUCKET_NS / 1000);
    }
    return sum_ns;
}

/* Whether now / busy_now is above (1) or below (2) past / busy_past, or about the same (0). */
static int differs(uint64_t busy_now_ns, uint64_t busy_past_ns, uint64_t now_ns, uint64_t past_ns, uint64_t margin_ns)
{
    double expected_ns = (double)busy_now_ns * (double)past_ns / (double)busy_past_ns;
    double apart_ns = expected_ns - (double)now_ns;
    return apart_ns > (double)margin_ns ? 2 : -apart_ns > (double)margin_ns ? 1 : 0;
}

/* Older windows fade within MEMORY_NS, so that the factor follows a change of neighbours; long segments, which few windows hold and
 * whose splitting between windows is a guess, need a longer memory. */
static void compare(struct tf_limit_state *state, const struct tf_limit_observation *observation, uint64_t now_ns)
{
    uint64_t window_ns = observation->to_ns - observation->from_ns;
    uint64_t longest_ns = min_u64(get(state->longest_ns), MEASURED_MAX_NS);
    uint64_t slowest_ns = min_u64(get(state->slowest_ns), MEASURED_MAX_NS);
    uint64_t measured_now_ns = sum_timeline(state->measured, observation->from_ns, observation->to_ns);
    uint64_t estimated_now_ns = sum_timeline(state->estimated, observation->from_ns, observation->to_ns);
    uint64_t busy_ns = min_u64(get(state->busy_sum_ns), SUM_MAX_NS);
    uint64_t measured_ns = min_u64(get(state->measured_sum_ns), SUM_MAX_NS);
    uint64_t estimated_ns = min_u64(get(state->estimated_sum_ns), SUM_MAX_NS);

    /* nothing seen is anything below a percent; but if that goes on while we measure more, NVML looks at another process */
    uint64_t seen_ns = observation->busy_ns == 0 && measured_now_ns > 0 ? window_ns / 200 : observation->busy_ns;
    if (observation->busy_ns > 0)
        put(state->unseen, 0);
    else if (measured_now_ns > window_ns / 32)
        put(state->unseen, get(state->unseen) < UNSEEN_MAX ? get(state->unseen) + 1 : UNSEEN_MAX);

    uint64_t memory_ns = max_u64(MEMORY_NS, MEMORY_SEGMENTS * longest_ns);
    uint64_t keep = 1000 - min_u64(1000 * window_ns / memory_ns, 500); /* per mille */
    uint64_t margin_ns = window_ns / CHANGE_SHARE + longest_ns / 2;
    int side = busy_ns == 0 ? 0 : differs(seen_ns, busy_ns, measured_now_ns, measured_ns, margin_ns);
    if (side == 0 && busy_ns > 0)
        side = differs(seen_ns, busy_ns, estimated_now_ns, estimated_ns, margin_ns);
    if (side != 0 && (uint32_t)side == get(state->differed))
        keep = CHANGE_KEEP; /* twice the same way (what the cut of a bucket adds here it takes there): the old windows mislead */
    put(state->differed, (uint32_t)side);
    put(state->busy_sum_ns, seen_ns + busy_ns * keep / 1000);
    put(state->measured_sum_ns, measured_now_ns + measured_ns * keep / 1000);
    put(state->estimated_sum_ns, estimated_now_ns + estimated_ns * keep / 1000);
    put(state->window_sum_ns, window_ns + min_u64(get(state->window_sum_ns), SUM_MAX_NS) * keep / 1000);
    put(state->longest_ns, longest_ns - longest_ns / 1024 * min_u64(100 * window_ns / MEMORY_NS, 1024));
    put(state->slowest_ns, slowest_ns - slowest_ns / 1024 * min_u64(100 * window_ns / MEMORY_NS, 1024));
    put(state->observed_at_ns, now_ns);

    /* what was charged as measured before NVML showed the neighbour is given back; the next refill clamps it to the bank */
    int contended = read_contention(state, now_ns).contended;
    uint64_t since_ns = get(state->contended_since_ns);
    if (contended && since_ns == 0)
        put(state->contended_since_ns, since_ns = now_ns);
    else if (!contended && since_ns != 0)
        put(state->contended_since_ns, 0);
    uint64_t owned_ns = seen_ns + window_ns * 6 / 1000 + longest_ns / 2;
    if (contended && observation->to_ns <= since_ns && measured_now_ns > owned_ns)
        atomic_fetch_add_explicit(&state->credit_ns, (int64_t)min_u64(measured_now_ns - owned_ns, 4 * TIMELINE_NS), relaxed);
}

void tf_limit_observe_busy(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t from_ns, uint64_t to_ns,
                           uint64_t own_busy_ns, uint64_t now_ns)
{
    if (to_ns <= from_ns || to_ns - from_ns > TIMELINE_NS / 2 || to_ns > now_ns || !try_enter_critical(process, 1000))
        return;
    if (process->observation_count == TF_LIMIT_OBSERVATIONS) {
        process->observation_first++;
        process->observation_count--;
    }
    process->observations[(process->observation_first + process->observation_count++) % TF_LIMIT_OBSERVATIONS] =
        (struct tf_limit_observation){from_ns, to_ns, min_u64(own_busy_ns, to_ns - from_ns)};
    /* a segment enters the time line when it is settled: an observation is compared when those it saw have been */
    uint64_t settled_ns = now_ns - min_u64(now_ns, min_u64(get(state->slowest_ns), TIMELINE_NS) * 3 / 2 + SETTLE_NS);
    settled_ns = max_u64(settled_ns, now_ns - min_u64(now_ns, TIMELINE_NS / 2));
    while (process->observation_count > 0) {
        struct tf_limit_observation *oldest = &process->observations[process->observation_first % TF_LIMIT_OBSERVATIONS];
        if ((oldest->to_ns / BUCKET_NS + 1) * BUCKET_NS > settled_ns) /* its last bucket still grows */
            break;
        if (now_ns - oldest->from_ns < TIMELINE_NS - BUCKET_NS)
            compare(state, oldest, now_ns);
        process->observation_first++;
        process->observation_count--;
    }
    leave_critical(process);
}

void tf_limit_observe_event_overhead(struct tf_limit_process *process, uint64_t overhead_ns)
{
    if (overhead_ns > 50000 || !try_enter_critical(process, 1000))
        return; /* 50 us: not an overhead, the GPU was busy */
    process->event_overhead_ns = process->event_overhead_ns == 0 ? overhead_ns : (process->event_overhead_ns * 7 + overhead_ns) / 8;
    leave_critical(process);
}

/* ---------------------------------------------------------------- estimates */

static uint64_t tag_of(uint64_t key) { return key >> 44; }
static _Atomic uint64_t *slot_of(struct tf_limit_process *process, uint64_t key) { return &process->estimates[(key >> 20) % TF_LIMIT_KEYS]; }
static uint32_t samples_of(uint64_t word) { return word >> 40 & 15; }
static uint64_t estimate_of(uint64_t word) { return word & UINT64_C(0xffffffffff); }

static void put_estimate(struct tf_limit_process *process, uint64_t key, uint32_t samples, uint64_t estimate_ns)
{
    put(*slot_of(process, key), tag_of(key) << 44 | (uint64_t)(samples > 15 ? 15 : samples) << 40 | min_u64(estimate_ns, UINT64_C(0xffffffffff)));
}

static uint32_t scale_of(struct tf_limit_process *process)
{
    uint32_t scale = get(process->scale);
    return scale == 0 ? ONE : scale;
}

/* Estimates are the lower side of what was measured; the mean is ratio times that. */
static uint32_t ratio_of(const struct tf_limit_process *process) { return process->ratio == 0 ? ONE : process->ratio; }

/* Measured / estimated cost over the last memory_ns, 16.16. */
static uint32_t learn_ratio(struct tf_limit_ratio *ratio, uint64_t busy_ns, uint64_t estimated_ns, uint64_t memory_ns, uint64_t now_ns)
{
    uint64_t passed_ns = now_ns > ratio->at_ns ? min_u64(now_ns - ratio->at_ns, memory_ns) : 0;
    ratio->rest_ns += passed_ns; /* short steps add up before they count, else rounding would stop the fading */
    if (ratio->rest_ns >= memory_ns / 256) {
        uint64_t keep = ONE - (min_u64(ratio->rest_ns, memory_ns) << 16) / memory_ns;
        ratio->rest_ns = 0;
        ratio->busy_ns = (ratio->busy_ns >> 16) * keep + ((ratio->busy_ns & 0xffff) * keep >> 16);
        ratio->estimated_ns = (ratio->estimated_ns >> 16) * keep + ((ratio->estimated_ns & 0xffff) * keep >> 16);
    }
    ratio->at_ns = now_ns;
    ratio->busy_ns = min_u64(ratio->busy_ns + busy_ns, SUM_MAX_NS);
    ratio->estimated_ns = min_u64(ratio->estimated_ns + estimated_ns, SUM_MAX_NS);
    return (uint32_t)max_u64(RATIO_MIN, min_u64((ratio->busy_ns << 16) / max_u64(ratio->estimated_ns, 1), RATIO_MAX));
}

/* Whether a key's costs are one value and outliers, as a kernel of constant length gives them. */
static int is_clustered(const struct tf_limit_shape *shape)
{
    if (shape->samples < CLUSTER_SAMPLES)
        return 0;
    return shape->cluster >= ONE * 6 / 10 || (shape->cluster >= ONE * 35 / 100 && shape->mean_ns * 4 >= shape->cluster_ns * 5);
}

static int was_clustered(const struct tf_limit_process *process, uint64_t key)
{
    const struct tf_limit_shape *shape = &process->shapes[(key >> 20) % TF_LIMIT_KEYS];
    return shape->tag == key && is_clustered(shape);
}

/* A cost that others' slices within the measurements hardly move. */
static uint64_t steady_ns(const struct tf_limit_shape *shape) { return is_clustered(shape) ? shape->cluster_ns : shape->quantile_ns; }

/* One more measured cost of a key; sets its estimate. */
static struct tf_limit_shape *learn(struct tf_limit_process *process, uint64_t key, uint64_t cost_ns, int contended, uint64_t now_ns)
{
    struct tf_limit_shape *shape = &process->shapes[(key >> 20) % TF_LIMIT_KEYS];
    cost_ns = max_u64(cost_ns, 1);
    if (shape->tag != key || shape->samples == 0)
        *shape = (struct tf_limit_shape){.tag = key, .mean_ns = cost_ns, .quantile_ns = cost_ns, .cluster_ns = cost_ns};
    shape->samples = shape->samples < 1000 ? shape->samples + 1 : 1000;
    uint64_t weight = shape->samples < 8 ? shape->samples : 8; /* the mean of the first eight, then an eighth of the way */
    shape->mean_ns = (shape->mean_ns * (weight - 1) + cost_ns + weight / 2) / weight;
    /* steps down three times those up balance where a quarter lies below; small ones once it is found */
    uint64_t step_ns = shape->quantile_ns / (shape->samples < 32 ? 20 : 50);
    uint64_t near_low = shape->quantile_ns - shape->quantile_ns / 7, near_high = shape->quantile_ns + shape->quantile_ns / 7;
    int near = cost_ns >= near_low && cost_ns <= near_high;
    if (shape->samples <= FIRST_SAMPLES) /* the first may have met others: find the low side fast */
        shape->quantile_ns = min_u64(shape->quantile_ns, cost_ns);
    else
        shape->quantile_ns = cost_ns < shape->quantile_ns ? max_u64(shape->quantile_ns - 3 * step_ns, cost_ns)
                                                          : min_u64(shape->quantile_ns + step_ns + 1, cost_ns);
    if (near)
        shape->cluster_ns = (shape->cluster_ns * 15 + cost_ns + 8) / 16;
    else if (shape->cluster_ns < near_low || shape->cluster_ns > near_high)
        shape->cluster_ns = shape->quantile_ns; /* the quantile left the old cluster */
    uint32_t memory = shape->samples < 32 ? shape->samples : 32;
    shape->cluster = shape->cluster - shape->cluster / memory + (near ? ONE / memory : 0);
    /* the factor of contention follows an estimate seconds later: so estimates move slowly, under contention all the more */
    uint64_t estimate_ns = steady_ns(shape);
    if (shape->samples > CLUSTER_SAMPLES) {
        uint64_t passed_ns = now_ns > shape->at_ns ? min_u64(now_ns - shape->at_ns, ESTIMATE_STEP_NS) : 0;
        uint64_t change_ns = (uint64_t)((double)shape->estimate_ns * (double)passed_ns / (contended ? ESTIMATE_SLOW_NS : ESTIMATE_FULL_NS));
        estimate_ns = max_u64(shape->estimate_ns - change_ns, min_u64(estimate_ns, shape->estimate_ns + change_ns));
    }
    shape->at_ns = max_u64(shape->at_ns, now_ns);
    shape->estimate_ns = max_u64(estimate_ns, 1);
    put_estimate(process, key, shape->samples > 15 ? 15 : shape->samples, shape->estimate_ns);
    process->mean_ns = process->mean_ns == 0 ? cost_ns : (process->mean_ns * 15 + cost_ns) / 16;
    return shape;
}

/* What was charged at a scale, in estimates. */
static uint64_t in_estimates(uint64_t charged_ns, uint32_t scale) { return (min_u64(charged_ns, MEASURED_MAX_NS) << 16) / max_u64(scale, FACTOR_MIN); }

/* ---------------------------------------------------------------- bookkeeping of one process */

/* Tells the shared sums what was charged since the last time. What is not within a measured segment enters the time line here. */
static void report(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t now_ns)
{
    uint64_t charged_ns = get(process->charged_ns);
    uint64_t delta_ns = charged_ns - process->reported_ns;
    if (delta_ns > MEASURED_MAX_NS) /* a launch was cancelled: the next report catches up */
        return;
    process->reported_ns = charged_ns;
    if (delta_ns > 0)
        atomic_fetch_add_explicit(&state->used_ns, delta_ns, relaxed);
    if (process->open_since_ns == 0) {
        uint64_t unmeasured_ns = charged_ns - process->segmented_ns - process->unmeasured_seen_ns;
        if (unmeasured_ns > 0 && unmeasured_ns < MEASURED_MAX_NS) {
            uint64_t since_ns = max_u64(process->reported_at_ns, now_ns - min_u64(now_ns, BUCKET_NS));
            uint64_t estimated_ns = in_estimates(unmeasured_ns, scale_of(process));
            add_timeline(state->measured, since_ns, now_ns, estimated_ns * (process->inflation == 0 ? ONE : process->inflation) >> 16);
            add_timeline(state->estimated, since_ns, now_ns, estimated_ns);
            process->unmeasured_seen_ns += unmeasured_ns;
        }
        process->reported_at_ns = now_ns;
    }
}

/* How many processes of the container came to the gate lately; counts this one. */
static uint32_t count_processes(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t now_ns)
{
    uint64_t epoch = now_ns / EPOCH_NS + 1; /* + 1: never the zero of a fresh process */
    uint64_t seen = get(state->epoch);
    if (seen != epoch && atomic_compare_exchange_strong_explicit(&state->epoch, &seen, epoch, relaxed, relaxed)) {
        put(state->present[epoch & 1], 0);
        if (seen + 1 != epoch)
            put(state->present[~epoch & 1], 0);
    }
    if (process->epoch_seen != epoch) {
        process->epoch_seen = epoch;
        atomic_fetch_add_explicit(&state->present[epoch & 1], 1, relaxed);
    }
    uint32_t now = get(state->present[epoch & 1]);
    uint32_t before = get(state->present[~epoch & 1]);
    uint32_t count = now > before ? now : before;
    return count < 1 ? 1 : count > PROCESSES_MAX ? PROCESSES_MAX : count;
}

/* This process's right to the credit: an equal part of what the clock earns, less what it took. */
static void accrue_entitlement(struct tf_limit_process *process, uint32_t limit_percent, uint32_t processes, uint64_t now_ns)
{
    uint64_t passed_ns = now_ns > process->entitled_at_ns ? min_u64(now_ns - process->entitled_at_ns, 2 * CLOCK_JUMP_NS) : 0;
    process->entitled_at_ns = now_ns;
    if (processes == 1) {
        process->entitled_ns = 0;
        return;
    }
    int64_t rate_ms = (int64_t)limit_percent * 10000 / processes; /* GPU ns per wall ms */
    process->entitled_ns += (int64_t)(passed_ns / 1000) * rate_ms / 1000;
    if (process->entitled_ns > rate_ms * 50 + CHUNK_NS) /* idle time is not saved for long, others used it */
        process->entitled_ns = rate_ms * 50 + CHUNK_NS;
    if (process->entitled_ns < -rate_ms * 2000)
        process->entitled_ns = -rate_ms * 2000;
}

/* ---------------------------------------------------------------- the gate */

static enum tf_limit_verdict wait_until(struct tf_limit_ticket *ticket, uint64_t now_ns, uint64_t wait_ns)
{
    ticket->wait_until_ns = now_ns + max_u64(1000, min_u64(wait_ns, TF_LIMIT_WAIT_MAX_NS));
    return TF_LIMIT_WAIT;
}

/* Wall time until so much more credit is earned. */
static uint64_t time_to_earn(int64_t missing, uint32_t limit_percent)
{
    return missing <= 0 ? 0 : min_u64((uint64_t)missing, TF_LIMIT_DEBT_MAX_WALL_NS) * 100 / limit_percent + 1000;
}

/* A launch may be larger than its grant: the rest becomes debt. Returns it, or the negative rest of the grant. */
static int64_t pay_overdraft(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_policy *policy)
{
    uint64_t charged_ns = get(process->charged_ns);
    int64_t overdrawn = (int64_t)(charged_ns - process->granted_ns);
    uint32_t limit = effective_limit_percent(policy);
    if (overdrawn > 0) {
        process->granted_ns = charged_ns;
        if (limit < 100) {
            process->entitled_ns -= overdrawn;
            add_credit(state, -overdrawn, bank_ns(policy, limit), limit);
        }
    }
    return overdrawn;
}

/* Takes credit until granted_ns exceeds charged_ns, or says how long to wait. */
static enum tf_limit_verdict take_grant(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_policy *policy,
                                        uint64_t cost_ns, uint64_t waited_ns, uint64_t now_ns, struct tf_limit_ticket *ticket)
{
    uint32_t limit = effective_limit_percent(policy);
    int64_t credit = refill(state, policy, limit, now_ns);
    uint32_t processes = count_processes(state, process, now_ns);
    accrue_entitlement(process, limit, processes, now_ns);
    report(state, process, now_ns);

    int64_t overdrawn = pay_overdraft(state, process, policy);
    if (overdrawn > 0 && limit < 100)
        credit -= overdrawn;
    if (overdrawn < 0)
        return TF_LIMIT_GO; /* still within the last grant */

    uint64_t inflight_ns = process->marked_ns > process->completed_ns ? process->marked_ns - process->completed_ns : 0;
    if (inflight_ns > max_u64(INFLIGHT_NS, cost_ns) && waited_ns < TF_LIMIT_STALL_MAX_NS) {
        process->waiting |= WAITS_FOR_WORK;
        return wait_until(ticket, now_ns, POLL_NS);
    }
    if (limit == 100) {
        process->granted_ns += QUANTUM_NS;
        return TF_LIMIT_GO;
    }

    int64_t wanted = cost_ns < (uint64_t)CHUNK_NS ? CHUNK_NS : 1;
    if (credit < wanted) {
        process->waiting |= WAITS_FOR_CREDIT;
        return wait_until(ticket, now_ns, time_to_earn(wanted - credit, limit));
    }
    int64_t surplus = 2 * CHUNK_NS + (int64_t)limit * 100000; /* so much lies unclaimed only when others do not want it: 10 ms of refill */
    if (process->entitled_ns < 0 && credit < surplus)
        return wait_until(ticket, now_ns, min_u64(time_to_earn(-process->entitled_ns, limit) * processes, POLL_NS));

    int64_t taken = credit < QUANTUM_NS ? credit : QUANTUM_NS;
    add_credit(state, -taken, bank_ns(policy, limit), limit);
    process->entitled_ns -= taken;
    process->granted_ns += (uint64_t)taken;
    return TF_LIMIT_GO;
}

static void fill_segment(struct tf_limit_process *process, uint64_t charged_ns, uint64_t now_ns, struct tf_limit_segment *ret_segment)
{
    *ret_segment = process->open;
    ret_segment->charged_ns = charged_ns - min_u64(process->open_before_ns, charged_ns); /* less, if a launch was cancelled */
    ret_segment->mark_ns = charged_ns;
    ret_segment->launches = ret_segment->charged_ns > process->open_first_ns ? 2 : 1;
    ret_segment->host_span_ns = ret_segment->launches == 1 || now_ns < process->open_since_ns ? 0 : now_ns - process->open_since_ns;
    process->open_since_ns = 0;
    ret_segment->scale = scale_of(process);
    process->segmented_ns += ret_segment->charged_ns;
    process->marked_ns = charged_ns;
    put(process->segment_stream, 0);
}

/* Batches do not work with these launches; they are tried again, ever more seldom. */
static void stop_batches(struct tf_limit_process *process)
{
    process->batch_off = 4u << process->batch_backoff;
    process->batch_backoff = process->batch_backoff >= BATCH_BACKOFF_MAX ? BATCH_BACKOFF_MAX : process->batch_backoff + 1;
}

/* Decides what is measured around a launch that goes: alone if it is unknown or long, else as part of a batch of SEGMENT_NS, else
 * (where batches have gaps: a launch here, a pause, a launch there) alone once per grant. */
static void plan_measurement(struct tf_limit_process *process, uint64_t key, uint64_t stream, int known, uint64_t cost_ns,
                             uint64_t before_ns, uint64_t now_ns, struct tf_limit_ticket *ticket)
{
    uint64_t after_ns = before_ns + cost_ns;
    if (process->open_since_ns != 0 && (process->open.stream != stream || !known)) {
        if (process->open.stream != stream)
            stop_batches(process); /* several streams: what lies between two events is not theirs alone */
        process->open_since_ns = 0; /* the hook forgets its begin event at the BEGIN below */
    }
    if (process->open_since_ns == 0) {
        int alone = !known || cost_ns >= SEGMENT_NS || process->batch_off > 0 || ++process->gates % RELEARN_EVERY == 0;
        process->open = (struct tf_limit_segment){.key = key, .stream = stream, .flags = known ? 0 : SEGMENT_UNKNOWN};
        process->open_before_ns = before_ns;
        process->open_first_ns = cost_ns;
        process->open_since_ns = max_u64(now_ns, 1);
        process->open_target_ns = alone ? 0 : min_u64(process->granted_ns, before_ns + SEGMENT_NS);
        ticket->flags |= TF_LIMIT_BEGIN;
    }
    if (after_ns >= process->open_target_ns) {
        fill_segment(process, after_ns, now_ns, &ticket->segment);
        ticket->flags |= TF_LIMIT_END;
        int unmeasured = process->batch_off > 0 && cost_ns < ALONE_NS;
        if (process->batch_off > 0)
            process->batch_off--;
        put(process->boundary_ns, unmeasured ? process->granted_ns : 0); /* 0: the next launch begins a segment */
    } else {
        put(process->segment_stream, stream);
        put(process->boundary_ns, process->open_target_ns);
    }
}

enum tf_limit_verdict tf_limit_gate(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_policy *policy,
                                    uint64_t key, uint64_t stream, uint64_t now_ns, struct tf_limit_ticket *ticket)
{
    ticket->flags = 0;
    ticket->charged_ns = 0;
    if (ticket->wait_began_ns == 0)
        ticket->wait_began_ns = max_u64(now_ns, 1);
    uint64_t waited_ns = now_ns > ticket->wait_began_ns ? now_ns - ticket->wait_began_ns : 0;
    ticket->wake_seen = atomic_load_explicit(&state->wake_word, memory_order_acquire);
    if (!try_enter_critical(process, 64)) {
        if (waited_ns >= TF_LIMIT_STALL_MAX_NS)
            return TF_LIMIT_GO; /* the thread inside was stopped there: better one launch unmeasured than a hang */
        return wait_until(ticket, now_ns, RETRY_NS);
    }

    uint64_t word = get(*slot_of(process, key));
    int same = (word >> 44) == tag_of(key);
    int known = same && samples_of(word) > 0;
    uint64_t cost_ns = known ? estimate_of(word) * get(process->scale) >> 16 : min_u64(process->mean_ns, PROVISIONAL_MAX_NS);
    if (!known && process->mean_ns == 0)
        cost_ns = PROVISIONAL_NS;

    enum tf_limit_verdict verdict = TF_LIMIT_GO;
    if (!known && process->unknown_count > 0 && waited_ns < TF_LIMIT_STALL_MAX_NS) {
        uint64_t age_ns = now_ns > process->unknown_since_ns ? now_ns - process->unknown_since_ns : 0;
        if (same || process->unknown_count >= UNKNOWN_MAX || age_ns > UNKNOWN_AGE_NS) { /* same: this kernel's first launch still runs */
            process->waiting |= WAITS_FOR_WORK;
            verdict = wait_until(ticket, now_ns, POLL_NS);
        }
    }
    if (verdict == TF_LIMIT_GO)
        verdict = take_grant(state, process, policy, cost_ns, waited_ns, now_ns, ticket);
    if (verdict == TF_LIMIT_GO) {
        uint64_t before_ns = atomic_fetch_add_explicit(&process->charged_ns, cost_ns, relaxed);
        plan_measurement(process, key, stream, known, cost_ns, before_ns, now_ns, ticket);
        if (cost_ns > (uint64_t)CHUNK_NS) /* at once: while a long kernel runs its debt must not hide behind a full bank */
            pay_overdraft(state, process, policy);
        if (!known) {
            put_estimate(process, key, 0, 0);
            if (process->unknown_count++ == 0)
                process->unknown_since_ns = now_ns;
        }
        ticket->charged_ns = cost_ns;
    }
    leave_critical(process);
    return verdict;
}

void tf_limit_cancel(struct tf_limit_process *process, const struct tf_limit_ticket *ticket)
{
    atomic_fetch_sub_explicit(&process->charged_ns, ticket->charged_ns, relaxed); /* always; the rest only if nobody is in the way */
    if (ticket->flags == 0 || !try_enter_critical(process, SPINS))
        return;
    if (ticket->flags & TF_LIMIT_END) { /* as if its segment had been completed and never measured */
        process->completed_ns = max_u64(process->completed_ns, process->marked_ns);
        process->segmented_ns -= min_u64(process->segmented_ns, ticket->segment.charged_ns);
        if ((ticket->segment.flags & SEGMENT_UNKNOWN) && process->unknown_count > 0)
            process->unknown_count--;
    } else {
        process->open_since_ns = 0;
        put(process->segment_stream, 0);
    }
    leave_critical(process);
}

int tf_limit_close(struct tf_limit_process *process, uint64_t now_ns, struct tf_limit_segment *ret_segment)
{
    if (get(process->segment_stream) == 0 || !try_enter_critical(process, 64))
        return 0;
    int open = process->open_since_ns != 0;
    if (open) {
        fill_segment(process, get(process->charged_ns), now_ns, ret_segment);
        put(process->boundary_ns, 0);
    }
    leave_critical(process);
    return open;
}

/* ---------------------------------------------------------------- settlement */

static void forget_sums(struct tf_limit_state *state)
{
    put(state->busy_sum_ns, 0);
    put(state->measured_sum_ns, 0);
    put(state->estimated_sum_ns, 0);
    put(state->window_sum_ns, 0);
    put(state->longest_ns, 0);
}

/* The part of [begin, end) that no earlier segment covered; remembers it. */
static uint64_t uncovered_ns(struct tf_limit_process *process, uint64_t stream, uint64_t begin_ns, uint64_t end_ns)
{
    uint64_t covered_ns = 0;
    for (unsigned i = 0; i < TF_LIMIT_INTERVALS; i++) {
        if (process->intervals[i].stream == stream)
            continue; /* a stream does one thing at a time: what seems to overlap is the events' error */
        uint64_t from = max_u64(begin_ns, process->intervals[i].begin_ns);
        uint64_t to = min_u64(end_ns, process->intervals[i].end_ns);
        if (to > from)
            covered_ns += to - from;
    }
    /* intervals may overlap each other: what two of them cover is counted twice, bounded by the length */
    uint64_t length_ns = end_ns - begin_ns;
    struct tf_limit_interval *newest = &process->intervals[process->interval_next % TF_LIMIT_INTERVALS];
    if (newest->stream == stream && newest->end_ns >= begin_ns && newest->begin_ns <= begin_ns && end_ns >= newest->end_ns) {
        newest->end_ns = end_ns; /* the usual case: it continues the last one */
    } else {
        process->interval_next++;
        process->intervals[process->interval_next % TF_LIMIT_INTERVALS] = (struct tf_limit_interval){stream, begin_ns, end_ns};
    }
    return length_ns - min_u64(covered_ns, length_ns);
}

/* The more others interfered, the less a measurement says, and the more the estimate counts. Of kernels of varying length even a
 * disturbed measurement says much, of those of constant length nothing new. What counts is by how much it is longer than others of
 * its kind (`usual`, measured / estimated): so it moves single charges, never their sum, which the factor has from NVML. */
static uint64_t blend(uint64_t expected_ns, uint64_t measured_ns, uint32_t usual, uint32_t share, int clustered)
{
    uint64_t trust = share > ONE ? ONE : share;
    if (clustered)
        trust = trust * trust >> 16, trust = trust * trust >> 16;
    return (expected_ns * (ONE - trust) >> 16) + (measured_ns * trust) / max_u64(usual, 1);
}

static int finish_segment(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_segment *segment,
                          int credit_returned)
{
    if ((segment->flags & SEGMENT_UNKNOWN) && process->unknown_count > 0)
        process->unknown_count--;
    process->completed_ns = max_u64(process->completed_ns, min_u64(segment->mark_ns, process->marked_ns));
    if (!(process->waiting & WAITS_FOR_WORK) && !((process->waiting & WAITS_FOR_CREDIT) && credit_returned))
        return 0;
    process->waiting = 0;
    atomic_fetch_add_explicit(&state->wake_word, 1, memory_order_release);
    return TF_LIMIT_WAKE;
}

int tf_limit_settle(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_policy *policy,
                    const struct tf_limit_segment *segment, uint64_t begin_ns, uint64_t end_ns, uint64_t now_ns)
{
    if (end_ns < begin_ns)
        return tf_limit_lose(state, process, segment);
    if (!try_enter_critical(process, SPINS))
        return TF_LIMIT_RETRY;

    uint64_t length_ns = min_u64(end_ns - begin_ns, MEASURED_MAX_NS);
    uint64_t overhead_ns = min_u64(process->event_overhead_ns, length_ns);
    struct contention contention = read_contention(state, now_ns);
    int valid = segment->launches == 1 || segment->host_span_ns <= length_ns / BATCH_GAP_SHARE;
    int clustered = 0;
    int64_t more_ns = 0;
    if (valid) {
        uint64_t busy_ns = uncovered_ns(process, segment->stream, begin_ns + overhead_ns, begin_ns + length_ns);
        uint64_t estimated_ns = in_estimates(segment->charged_ns, segment->scale);
        uint64_t cost_ns = busy_ns * contention.factor >> 16;
        if (segment->launches == 1) {
            clustered = was_clustered(process, segment->key); /* before this one: what it measured must not choose how it is judged */
            const struct tf_limit_shape *shape = learn(process, segment->key, length_ns - overhead_ns, contention.contended, now_ns);
            if (shape->samples == FIRST_SAMPLES && shape->mean_ns > 2 * shape->quantile_ns)
                forget_sums(state); /* they were made of estimates that turned out too high */
            if (segment->flags & SEGMENT_UNKNOWN)
                estimated_ns = shape->estimate_ns;
        } else {
            process->batch_backoff = 0;
        }
        struct tf_limit_ratio *kind = &process->kinds[segment->launches > 1 ? 2 : clustered];
        uint32_t usual = learn_ratio(kind, busy_ns, estimated_ns, segment->launches == 1 && !clustered ? RATIO_MEMORY_NS : USUAL_MEMORY_NS, now_ns);
        if (contention.contended && contention.share >= LITTLE_CONTENTION && !clustered) {
            cost_ns = busy_ns * contention.share >> 16; /* hardly more than the events' own error */
        } else if (contention.contended) {
            cost_ns = blend(estimated_ns * contention.factor >> 16, busy_ns * contention.factor >> 16, usual, contention.share, clustered);
        } else {
            /* A kernel of constant length took far longer: a neighbour that NVML has not shown yet, or its length is not so constant.
             * The estimate stands; the ratio, slower than NVML, gets the mean of either right. */
            if (contention.supervised && clustered && cost_ns > segment->charged_ns + segment->charged_ns / 4)
                cost_ns = segment->charged_ns;
            process->ratio = learn_ratio(&process->calm, busy_ns, estimated_ns, RATIO_MEMORY_NS, now_ns);
        }
        process->inflation = learn_ratio(&process->any, busy_ns, estimated_ns, INFLATION_MEMORY_NS, now_ns);
        more_ns = (int64_t)(cost_ns - segment->charged_ns);
        uint32_t limit = effective_limit_percent(policy);
        if (limit < 100) {
            process->entitled_ns -= more_ns;
            add_credit(state, -more_ns, bank_ns(policy, limit), limit);
        }
        uint64_t own_ns = min_u64(length_ns, estimated_ns * ratio_of(process) >> 16);
        if (own_ns > get(state->longest_ns))
            put(state->longest_ns, own_ns);
        if (length_ns > get(state->slowest_ns))
            put(state->slowest_ns, length_ns);
        report(state, process, now_ns);
        atomic_fetch_add_explicit(&state->used_ns, (uint64_t)more_ns, relaxed);
        add_timeline(state->measured, begin_ns, begin_ns + length_ns, busy_ns);
        add_timeline(state->estimated, begin_ns, begin_ns + length_ns, estimated_ns);
    } else {
        process->segmented_ns -= min_u64(segment->charged_ns, process->segmented_ns); /* as if it had not been measured */
        stop_batches(process);
    }
    put(process->scale, contention.contended ? contention.factor : (uint32_t)((uint64_t)ratio_of(process) * contention.factor >> 16));
    int result = finish_segment(state, process, segment, more_ns < -WAKE_CREDIT_NS);
    leave_critical(process);
    return result;
}

int tf_limit_lose(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_segment *segment)
{
    if (!try_enter_critical(process, SPINS))
        return TF_LIMIT_RETRY;
    if (segment->flags & SEGMENT_UNKNOWN) {
        learn(process, segment->key, segment->charged_ns, 0, 0);
        put(process->scale, scale_of(process));
    }
    int result = finish_segment(state, process, segment, 0);
    leave_critical(process);
    return result;
}
