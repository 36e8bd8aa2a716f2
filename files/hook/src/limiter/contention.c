/* contention.c - how much of what events measured was ours.
 *
 * Owns:    the comparison of the time line with NVML's own time, the factor from it.
 *
 * Events measure how long our work took; under time slicing that includes the slices of others. NVML says how much was ours.
 *   agreement   nobody interferes: a launch costs what was measured, to the microsecond.
 *   less        somebody does: what one segment measured says little about its cost, and NVML cannot single it out. A launch costs
 *               mostly the estimate of its key, times the factor by which NVML's time differs from all estimates of late. Both
 *               move slowly, so neighbours cannot shake each other through their measurements. Where a kernel's length jumps,
 *               estimates say nothing: such a program is charged NVML's part of what was measured.
 *
 * Trust:   the sums are the tenant's to write; they are clamped, and at worst they misprice the tenant's own launches.
 * Next:    settle.c fills the time line and prices with the factor, amends.c makes good what it got wrong. */
#include "limiter/contention.h"

#include "limiter/amends.h"
#include "limiter/arithmetic.h"
#include "limiter/timeline.h"

#define OBSERVATION_AGE_NS UINT64_C(5000000000) /* NVML's word counts so long */
#define MEMORY_NS UINT64_C(2500000000)          /* over which NVML's and our own sums are compared */
#define MEMORY_SEGMENTS 32u                     /* but at least over so many of the longest estimates */
#define CHANGE_SHARE 32u                        /* a window apart from the past by more than 3 % of its length tells of a change: */
#define CHANGE_KEEP 250u                        /* so much of the past, per mille, is then kept */
#define GIVEN_BACK_MS UINT64_C(25)              /* of the limit's rate: so much credit may come from a correction of what was charged */
#define FIRST_ESTIMATES_NS UINT64_C(1500000000) /* after NVML showed the neighbours; so long nothing is made good, and the factor is */
#define FACTOR_FIRST (ONE * 3 / 4)                  /*   at least this */
#define UNSEEN_MAX 4u                           /* windows of nothing from NVML until it counts as blind */
#define CALM_WINDOWS 10u                        /* windows of agreement until nobody interferes any more */
#define JUMP 1.6                                /* a length that changes by less is left to the factor */
#define JUMPS_AFTER_NS UINT64_C(3000000000)     /* after NVML showed the neighbours: first estimates are wrong for another reason */
#define JUMPS_WINDOWS 80u                       /* so long a program is remembered to change the length of its kernels */
#define SIBLING_NS UINT64_C(200000000)          /* a window that another process has compared so long ago is the one that the host told us as well */
#define SETTLE_NS UINT64_C(20000000) /* from the end of a segment to its settlement, at most: poll and a busy host */

/* What cuts of buckets may have put on the wrong side of a window, see cut_error_ns(): at the last cut, and left of older ones; microseconds. */
static uint64_t edges_ns(uint64_t edges) { return ((edges >> 32) + (edges & UINT32_MAX)) * 1000; }

struct limit_contention limit_read_contention(const struct tf_limit_state *state, uint64_t now_ns)
{
    struct limit_contention none = {.factor = ONE, .share = ONE, .amends = ONE};
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
    uint64_t margin = window * 6 / 1000 + min_u64(get(state->longest_ns), MEASURED_MAX_NS) / 4 + BUCKET_NS / 64;
    if (measured == 0 || estimated == 0 || apart <= margin / (get(state->contended_since_ns) != 0 ? 2 : 1) + edges_ns(get(state->edges)))
        return none;
    if (busy > measured) {
        none.factor = (uint32_t)min_u64((busy << 16) / measured, ONE + ONE / 20);
        return none;
    }
    /* the first measurements of a kernel may have been of others' work: its estimate still falls, and with it what the sums say of the factor */
    uint64_t since_ns = get(state->contended_since_ns);
    uint64_t least = since_ns != 0 && now_ns - since_ns > FIRST_ESTIMATES_NS ? FACTOR_MIN : FACTOR_FIRST;
    return (struct limit_contention){.factor = (uint32_t)max_u64(least, min_u64((busy << 16) / estimated, RATIO_MAX)),
                                     .share = (uint32_t)((busy << 16) / measured), .amends = limit_amends(state), .contended = 1,
                                     .jumps = get(state->jumps) > 0, .supervised = 1};
}

/* A window ends within a bucket, and what the bucket holds is split evenly: wrong where its load is not even. Two reasons are known, each with a
 * bound. A step of the load (a changed limit, a program that begins or stops): at most what this bucket and the one before differ by. Few
 * long kernels with pauses between them: at most one of them. And in all not more than the whole bucket on one side, or all its pauses. */
static uint64_t cut_error_ns(const struct tf_limit_state *state, uint64_t cut_ns, uint64_t longest_ns)
{
    uint64_t bucket = cut_ns / BUCKET_NS, left = (cut_ns % BUCKET_NS << 16) / BUCKET_NS, right = ONE - left;
    uint64_t now_ns = limit_bucket_ns(state, WORK_MEASURED, bucket), before_ns = limit_bucket_ns(state, WORK_MEASURED, bucket - 1);
    uint64_t pauses_ns = now_ns < BUCKET_NS ? BUCKET_NS - now_ns : 0;
    uint64_t step_ns = (now_ns > before_ns ? now_ns - before_ns : before_ns - now_ns) * left;
    uint64_t kernel_ns = min_u64(longest_ns, BUCKET_NS) * max_u64(left, right);
    uint64_t most_ns = max_u64(min_u64(now_ns * right, pauses_ns * left), min_u64(now_ns * left, pauses_ns * right));
    return min_u64(max_u64(step_ns, kernel_ns), most_ns) >> 16;
}

/* Whether now / busy_now is above (1) or below (2) past / busy_past, or about the same (0). */
static int differs(uint64_t busy_now_ns, uint64_t busy_past_ns, uint64_t now_ns, uint64_t past_ns, uint64_t margin_ns)
{
    double expected_ns = (double)busy_now_ns * (double)past_ns / (double)busy_past_ns;
    double apart_ns = expected_ns - (double)now_ns;
    return apart_ns > (double)margin_ns ? 2 : -apart_ns > (double)margin_ns ? 1 : 0;
}

/* Estimates that fit kernels of one length keep their ratio to NVML's time whoever interferes. Where it jumps, a length did. */
static int is_jump(uint64_t busy_now_ns, uint64_t busy_past_ns, uint64_t estimated_now_ns, uint64_t estimated_past_ns)
{
    double expected_ns = (double)busy_now_ns * (double)estimated_past_ns / (double)busy_past_ns;
    return expected_ns > JUMP * (double)estimated_now_ns || (double)estimated_now_ns > JUMP * expected_ns;
}

static void count_jumps(struct tf_limit_state *state, int jumped, uint64_t now_ns)
{
    uint64_t since_ns = get(state->contended_since_ns);
    uint8_t jumps = get(state->jumps);
    if (jumped && since_ns != 0 && now_ns > since_ns + JUMPS_AFTER_NS)
        put(state->jumps, JUMPS_WINDOWS);
    else if (jumps > 0)
        put(state->jumps, (uint8_t)(jumps - 1));
}

/* Remembers since when others interfere. Where lengths change sums may agree by chance, so a few such windows end nothing. */
static uint64_t note_contention(struct tf_limit_state *state, int contended, uint64_t now_ns)
{
    uint64_t since_ns = get(state->contended_since_ns);
    uint8_t calm = get(state->calm);
    calm = contended ? 0 : (uint8_t)min_u64(calm + 1u, CALM_WINDOWS);
    if (calm == CALM_WINDOWS)
        since_ns = 0;
    else if (since_ns > now_ns || (contended && since_ns == 0))
        since_ns = now_ns;
    put(state->calm, calm);
    put(state->contended_since_ns, since_ns);
    return since_ns;
}

/* What was charged beyond what may be ours before NVML showed the neighbour is taken off the debt, but makes little credit: it would be used at
 * once, above the limit. */
static void give_back(struct tf_limit_state *state, uint64_t surplus_ns)
{
    int64_t most_ns = (int64_t)(GIVEN_BACK_MS * 10000 * min_u64(get(state->limit_seen), 100));
    int64_t least_ns = -(int64_t)(2 * TF_LIMIT_DEBT_MAX_WALL_NS); /* less is garbage */
    int64_t credit_ns = get(state->credit_ns);
    if (credit_ns <= least_ns || credit_ns >= most_ns)
        return;
    int64_t next_ns = credit_ns + (int64_t)min_u64(surplus_ns, 4 * TIMELINE_NS);
    atomic_compare_exchange_strong_explicit(&state->credit_ns, &credit_ns, next_ns < most_ns ? next_ns : most_ns, relaxed, relaxed);
}

/* Older windows fade within MEMORY_NS, so that the factor follows a change of neighbours; long segments, which few windows hold and
 * whose splitting between windows is a guess, need a longer memory. */
static void compare(struct tf_limit_state *state, const struct tf_limit_observation *observation, uint64_t now_ns)
{
    uint64_t window_ns = observation->to_ns - observation->from_ns;
    uint64_t longest_ns = min_u64(get(state->longest_ns), MEASURED_MAX_NS);
    uint64_t slowest_ns = min_u64(get(state->slowest_ns), MEASURED_MAX_NS);
    struct limit_work work = limit_work_in(state, observation->from_ns, observation->to_ns);
    uint64_t measured_now_ns = work.ns[WORK_MEASURED], estimated_now_ns = work.ns[WORK_ESTIMATED];
    uint64_t busy_ns = min_u64(get(state->busy_sum_ns), SUM_MAX_NS);
    uint64_t measured_ns = min_u64(get(state->measured_sum_ns), SUM_MAX_NS);
    uint64_t estimated_ns = min_u64(get(state->estimated_sum_ns), SUM_MAX_NS);

    /* nothing seen is anything below a percent; but if that goes on while it must be more, NVML may look at another process. Where it does not,
     * all that is measured is waiting, and so is all that the estimates know: a short kernel that met slow ones from its first launch on */
    uint64_t seen_ns = observation->busy_ns == 0 && measured_now_ns > 0 ? window_ns / 200 : observation->busy_ns;
    if (observation->busy_ns > 0 || observation->is_certain)
        put(state->unseen, 0);
    else if (min_u64(measured_now_ns, estimated_now_ns) > window_ns / 32)
        put(state->unseen, (uint8_t)(get(state->unseen) < UNSEEN_MAX ? get(state->unseen) + 1u : UNSEEN_MAX));

    uint64_t memory_ns = max_u64(MEMORY_NS, MEMORY_SEGMENTS * longest_ns);
    uint64_t keep = 1000 - min_u64(1000 * window_ns / memory_ns, 500); /* per mille */
    uint64_t margin_ns = window_ns / CHANGE_SHARE + longest_ns / 2;
    int side = 0, jumped = 0;
    if (busy_ns > 0) {
        int estimated_side = differs(seen_ns, busy_ns, estimated_now_ns, estimated_ns, margin_ns);
        side = differs(seen_ns, busy_ns, measured_now_ns, measured_ns, margin_ns);
        side = side != 0 ? side : estimated_side;
        jumped = estimated_side != 0 && is_jump(seen_ns, busy_ns, estimated_now_ns, estimated_ns);
    }
    count_jumps(state, jumped, now_ns);
    if (side != 0 && (uint32_t)side == get(state->differed))
        keep = CHANGE_KEEP; /* twice the same way (what the cut of a bucket adds here it takes there): the old windows mislead */
    put(state->differed, (uint8_t)side);
    put(state->busy_sum_ns, seen_ns + busy_ns * keep / 1000);
    put(state->measured_sum_ns, measured_now_ns + measured_ns * keep / 1000);
    put(state->estimated_sum_ns, estimated_now_ns + estimated_ns * keep / 1000);
    put(state->window_sum_ns, window_ns + min_u64(get(state->window_sum_ns), SUM_MAX_NS) * keep / 1000);
    /* what a cut takes from one window it gives to the next: of the errors of older cuts the fading alone is left */
    uint64_t from_us = cut_error_ns(state, observation->from_ns, longest_ns) / 1000;
    uint64_t to_us = cut_error_ns(state, observation->to_ns, longest_ns) / 1000;
    uint64_t older_us = busy_ns == 0 ? from_us : ((get(state->edges) & UINT32_MAX) * keep + from_us * (1000 - keep)) / 1000;
    put(state->edges, to_us << 32 | min_u64(older_us, UINT32_MAX));
    put(state->longest_ns, longest_ns - longest_ns / 1024 * min_u64(100 * window_ns / MEMORY_NS, 1024));
    put(state->slowest_ns, slowest_ns - slowest_ns / 1024 * min_u64(100 * window_ns / MEMORY_NS, 1024));
    put(state->observed_at_ns, now_ns);

    int contended = limit_read_contention(state, now_ns).contended;
    uint64_t since_ns = note_contention(state, contended, now_ns);
    uint64_t owned_ns = seen_ns + window_ns * 6 / 1000 + longest_ns / 2 + (from_us + to_us) * 1000;
    put(state->compared_ms, (uint32_t)(observation->to_ns / 1000000));
    if (since_ns == 0)
        limit_forget_overcharge(state);
    else if (observation->to_ns > since_ns + FIRST_ESTIMATES_NS)
        limit_note_overcharge(state, work.ns[WORK_CHARGED], seen_ns);
    else if (contended && observation->to_ns <= since_ns && measured_now_ns > owned_ns)
        give_back(state, measured_now_ns - owned_ns);
}

/* Whether a window can be compared at all, now or soon. */
static int is_usable(uint64_t from_ns, uint64_t to_ns, uint64_t now_ns)
{
    return to_ns > from_ns && to_ns - from_ns <= TIMELINE_NS / 2 && to_ns <= now_ns && now_ns <= INT64_MAX;
}

static void keep_observation(struct tf_limit_process *process, uint64_t from_ns, uint64_t to_ns, uint64_t own_busy_ns, int is_certain)
{
    if (process->observation_count == TF_LIMIT_OBSERVATIONS) {
        process->observation_first++;
        process->observation_count--;
    }
    process->observations[(process->observation_first + process->observation_count++) % TF_LIMIT_OBSERVATIONS] =
        (struct tf_limit_observation){from_ns, to_ns, min_u64(own_busy_ns, to_ns - from_ns), (uint64_t)is_certain};
}

/* A segment enters the time line when it is settled: an observation is compared when those it saw have been. */
static void compare_settled(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t now_ns, int by_sibling)
{
    uint64_t settled_ns = now_ns - min_u64(now_ns, min_u64(get(state->slowest_ns), TIMELINE_NS) * 3 / 2 + SETTLE_NS);
    settled_ns = max_u64(settled_ns, now_ns - min_u64(now_ns, TIMELINE_NS / 2));
    while (process->observation_count > 0) {
        struct tf_limit_observation *oldest = &process->observations[process->observation_first % TF_LIMIT_OBSERVATIONS];
        if ((oldest->to_ns / BUCKET_NS + 1) * BUCKET_NS > settled_ns) /* its last bucket still grows */
            break;
        if (!by_sibling && now_ns - oldest->from_ns < TIMELINE_NS - BUCKET_NS)
            compare(state, oldest, now_ns);
        process->observation_first++;
        process->observation_count--;
    }
}

void tf_limit_observe_busy(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t from_ns, uint64_t to_ns,
                           uint64_t own_busy_ns, int is_certain, uint64_t now_ns)
{
    if (!is_usable(from_ns, to_ns, now_ns) || !limit_enter(process, 1000))
        return;
    keep_observation(process, from_ns, to_ns, own_busy_ns, is_certain);
    compare_settled(state, process, now_ns, 0);
    limit_leave(process);
}

void tf_limit_observe_told(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t from_ns, uint64_t to_ns,
                           uint64_t own_busy_ns, uint64_t now_ns)
{
    if (!is_usable(from_ns, to_ns, now_ns) || !limit_enter(process, 1000))
        return;
    if (to_ns != process->told_to_ns)
        keep_observation(process, from_ns, to_ns, own_busy_ns, 1);
    process->told_to_ns = to_ns;
    uint64_t observed_ns = get(state->observed_at_ns);
    compare_settled(state, process, now_ns, observed_ns <= now_ns && now_ns - observed_ns < SIBLING_NS);
    limit_leave(process);
}

void limit_forget_sums(struct tf_limit_state *state)
{
    put(state->busy_sum_ns, 0);
    put(state->measured_sum_ns, 0);
    put(state->estimated_sum_ns, 0);
    put(state->window_sum_ns, 0);
    put(state->longest_ns, 0);
    put(state->edges, 0);
}
