/* settle.c - what launches did cost, once their events are there.
 *
 * Owns:    the price of a measured segment, the correction of the credit, what is known to be complete.
 * Threads: the measuring thread's; within the process's critical part.
 * Next:    estimate.c learns from it, contention.c says how much of it was ours. */
#include "limiter/settle.h"

#include "limiter/amends.h"
#include "limiter/arithmetic.h"
#include "limiter/contention.h"
#include "limiter/credit.h"
#include "limiter/estimate.h"
#include "limiter/timeline.h"

#define BATCH_GAP_SHARE 2u /* a batch is free of gaps if the host launched it in half its GPU time: it was ahead all along */
#define BATCH_BACKOFF_MAX 8u /* 4 x 2^8 grants without a batch */
#define RATIO_MEMORY_NS UINT64_C(4000000000) /* slower than NVML shows a neighbour */
#define USUAL_MEMORY_NS UINT64_C(1000000000)
#define INFLATION_MEMORY_NS UINT64_C(500000000)
#define LITTLE_CONTENTION (ONE * 97 / 100)
#define WAKE_CREDIT_NS INT64_C(100000) /* credit given back by a settlement that is worth a wake-up */
#define OVERHEAD_MAX_NS UINT64_C(50000) /* more is no overhead: the GPU was busy */

void tf_limit_observe_event_overhead(struct tf_limit_process *process, uint64_t overhead_ns)
{
    if (overhead_ns > OVERHEAD_MAX_NS || !limit_enter(process, 1000))
        return;
    process->event_overhead_ns = process->has_overhead ? min_u64(process->event_overhead_ns, overhead_ns) : overhead_ns;
    process->has_overhead = 1;
    limit_leave(process);
}

void limit_stop_batches(struct tf_limit_process *process)
{
    process->batch_off = 4u << process->batch_backoff;
    process->batch_backoff = process->batch_backoff >= BATCH_BACKOFF_MAX ? BATCH_BACKOFF_MAX : process->batch_backoff + 1;
}

void limit_report(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t now_ns)
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
            uint64_t estimated_ns = limit_in_estimates(unmeasured_ns, limit_scale(process));
            uint64_t measured_ns = estimated_ns * (process->inflation == 0 ? ONE : process->inflation) >> 16;
            limit_add_work(state, process, since_ns, now_ns, (struct limit_work){{measured_ns, estimated_ns, unmeasured_ns}});
            limit_note_late_charge(state, since_ns, now_ns, unmeasured_ns);
            process->unmeasured_seen_ns += unmeasured_ns;
        }
        process->reported_at_ns = now_ns;
    }
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

/* A settled segment: what was measured, what had been estimated, and the price made of both. */
struct price {
    uint64_t busy_ns;      /* between the events, less what other segments covered */
    uint64_t estimated_ns; /* of its launches, before any factor */
    uint64_t cost_ns;
};

static struct price make_price(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_segment *segment,
                               const struct limit_contention *contention, uint64_t begin_ns, uint64_t length_ns, uint64_t now_ns)
{
    int single = segment->launches == 1;
    int clustered = single && limit_is_clustered(process, segment->key); /* before it learns: what it measured must not choose its judge */
    uint64_t overhead_ns = min_u64(process->event_overhead_ns, length_ns);
    struct price price = {.busy_ns = uncovered_ns(process, segment->stream, begin_ns + overhead_ns, begin_ns + length_ns),
                          .estimated_ns = min_u64(limit_in_estimates(segment->charged_ns, segment->scale), MEASURED_MAX_NS)};
    if (single) {
        const struct tf_limit_shape *shape = limit_learn(process, segment->key, length_ns - overhead_ns, contention->contended, now_ns);
        if (shape->samples == FIRST_SAMPLES && shape->mean_ns > 2 * shape->quantile_ns)
            limit_forget_sums(state);
        if (segment->flags & SEGMENT_UNKNOWN)
            price.estimated_ns = shape->estimate_ns;
    } else {
        process->batch_backoff = 0;
    }
    uint64_t usual_memory_ns = single && !clustered ? RATIO_MEMORY_NS : USUAL_MEMORY_NS;
    uint32_t usual = limit_learn_ratio(&process->kinds[single ? clustered : 2], price.busy_ns, price.estimated_ns, usual_memory_ns, now_ns);
    process->inflation = limit_learn_ratio(&process->any, price.busy_ns, price.estimated_ns, INFLATION_MEMORY_NS, now_ns);

    if (!contention->contended) {
        price.cost_ns = price.busy_ns * contention->factor >> 16;
        process->ratio = limit_learn_ratio(&process->calm, price.busy_ns, price.estimated_ns, RATIO_MEMORY_NS, now_ns);
    } else if (contention->jumps || (contention->share >= LITTLE_CONTENTION && !clustered)) {
        price.cost_ns = price.busy_ns * contention->share >> 16; /* no estimate knows better; or hardly more than the events' own error */
    } else {
        price.cost_ns = blend(price.estimated_ns * contention->factor >> 16, price.busy_ns * contention->factor >> 16, usual,
                              contention->share, clustered);
    }
    price.cost_ns = min_u64(price.cost_ns, SUM_MAX_NS) * contention->amends >> 16;
    return price;
}

/* Corrects the charge; returns by how much, positive: more was used. */
static int64_t correct_charge(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_policy *policy,
                              const struct tf_limit_segment *segment, const struct price *price, uint32_t share, uint64_t begin_ns,
                              uint64_t length_ns, uint64_t now_ns)
{
    int64_t more_ns = (int64_t)(price->cost_ns - segment->charged_ns);
    uint32_t limit = limit_percent_in_force(policy);
    if (limit < 100) {
        /* between the processes of a container the measurement counts, which they all take alike; their estimates may differ */
        process->entitled_ns -= (int64_t)(price->busy_ns * min_u64(share, ONE) >> 16) - (int64_t)segment->charged_ns;
        limit_add_credit(state, -more_ns, limit_bank_ns(policy, limit), limit);
    }
    uint64_t own_ns = min_u64(length_ns, price->estimated_ns * limit_ratio(process) >> 16);
    if (own_ns > get(state->longest_ns))
        put(state->longest_ns, own_ns);
    if (length_ns > get(state->slowest_ns))
        put(state->slowest_ns, length_ns);
    limit_report(state, process, now_ns);
    atomic_fetch_add_explicit(&state->used_ns, (uint64_t)more_ns, relaxed);
    struct limit_work work = {{price->busy_ns, price->estimated_ns, price->cost_ns}};
    limit_add_work(state, process, begin_ns, begin_ns + length_ns, work);
    limit_note_late_charge(state, begin_ns, begin_ns + length_ns, price->cost_ns);
    return more_ns;
}

int tf_limit_settle(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_policy *policy,
                    const struct tf_limit_segment *segment, uint64_t begin_ns, uint64_t end_ns, uint64_t now_ns)
{
    if (end_ns < begin_ns || end_ns > INT64_MAX)
        return tf_limit_lose(state, process, segment);
    if (!limit_enter(process, SPINS))
        return TF_LIMIT_RETRY;

    uint64_t length_ns = min_u64(end_ns - begin_ns, MEASURED_MAX_NS);
    struct limit_contention contention = limit_read_contention(state, now_ns);
    int64_t more_ns = 0;
    if (segment->launches == 1 || segment->host_span_ns <= length_ns / BATCH_GAP_SHARE) {
        struct price price = make_price(state, process, segment, &contention, begin_ns, length_ns, now_ns);
        more_ns = correct_charge(state, process, policy, segment, &price, contention.share, begin_ns, length_ns, now_ns);
    } else { /* as if it had not been measured */
        process->segmented_ns -= min_u64(segment->charged_ns, process->segmented_ns);
        limit_stop_batches(process);
    }
    put(process->scale, (uint32_t)min_u64((uint64_t)(contention.contended ? contention.amends : limit_ratio(process)) * contention.factor >> 16, RATIO_MAX));
    int result = finish_segment(state, process, segment, more_ns < -WAKE_CREDIT_NS);
    limit_leave(process);
    return result;
}

int tf_limit_lose(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_segment *segment)
{
    if (!limit_enter(process, SPINS))
        return TF_LIMIT_RETRY;
    if (segment->flags & SEGMENT_UNKNOWN) {
        limit_learn(process, segment->key, segment->charged_ns, 0, 0);
        put(process->scale, limit_scale(process));
    }
    int result = finish_segment(state, process, segment, 0);
    limit_leave(process);
    return result;
}
