/* timeline.c - what the container did when: time between events, estimates and charges, in buckets of 256 ms.
 *
 * Owns:    the words of the time line: turn 7 bits | three fields of 19 bits in units of 16 us, in the order of enum limit_work_kind.
 * Threads: lock-free between processes; a loop that loses every race drops what it wanted to add.
 * Trust:   any words are legal: a field is at most 8.4 s.
 * Next:    settle.c fills it, contention.c compares its sums with NVML's windows. */
#include "limiter/timeline.h"

#include "limiter/arithmetic.h"

#define UNIT_NS UINT64_C(16000)
#define FIELD_BITS 19u
#define FIELD_MAX ((UINT64_C(1) << FIELD_BITS) - 1)
#define TURN_SHIFT (FIELD_BITS * WORK_KINDS)
#define TURNS 128u /* a bucket that was not written for nine minutes may be taken for a new one */
_Static_assert(TURNS - 1 == UINT64_MAX >> TURN_SHIFT, "a word holds a turn and its fields");

static uint64_t turn_of(uint64_t bucket) { return bucket / TF_LIMIT_TIMELINE % TURNS; }
static uint64_t field_of(uint64_t word, unsigned kind) { return word >> FIELD_BITS * kind & FIELD_MAX; }

/* In units; what is too little for one waits in the process for the next piece, so that short ones add up. */
static uint64_t take_units(uint32_t *rest_ns, double piece_ns)
{
    uint64_t whole_ns = (uint64_t)piece_ns + *rest_ns;
    *rest_ns = (uint32_t)(whole_ns % UNIT_NS);
    return min_u64(whole_ns / UNIT_NS, FIELD_MAX);
}

static void add_to_bucket(struct tf_limit_state *state, uint64_t bucket, const uint64_t units[WORK_KINDS])
{
    _Atomic uint64_t *slot = &state->timeline[bucket % TF_LIMIT_TIMELINE];
    uint64_t seen = get(*slot);
    for (int i = 0; i < CAS_TRIES; i++) {
        uint64_t kept = seen >> TURN_SHIFT == turn_of(bucket) ? seen : 0, next = turn_of(bucket) << TURN_SHIFT;
        for (unsigned kind = 0; kind < WORK_KINDS; kind++)
            next |= min_u64(field_of(kept, kind) + units[kind], FIELD_MAX) << FIELD_BITS * kind;
        if (atomic_compare_exchange_weak_explicit(slot, &seen, next, relaxed, relaxed))
            break;
    }
}

void limit_add_work(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t from_ns, uint64_t to_ns, struct limit_work work)
{
    if (to_ns <= from_ns)
        return;
    double length_ns = (double)(to_ns - from_ns);
    from_ns = max_u64(from_ns, to_ns - min_u64(to_ns, TIMELINE_NS - BUCKET_NS)); /* only the last turn is kept */
    for (uint64_t bucket = from_ns / BUCKET_NS; bucket * BUCKET_NS < to_ns; bucket++) {
        uint64_t low_ns = max_u64(from_ns, bucket * BUCKET_NS);
        uint64_t high_ns = min_u64(to_ns, (bucket + 1) * BUCKET_NS);
        double part = (double)(high_ns - low_ns) / length_ns;
        uint64_t units[WORK_KINDS];
        for (unsigned kind = 0; kind < WORK_KINDS; kind++)
            units[kind] = take_units(&process->rest_ns[kind], (double)work.ns[kind] * part);
        add_to_bucket(state, bucket, units);
    }
}

uint64_t limit_bucket_ns(const struct tf_limit_state *state, enum limit_work_kind kind, uint64_t bucket)
{
    uint64_t seen = get(state->timeline[bucket % TF_LIMIT_TIMELINE]);
    return seen >> TURN_SHIFT == turn_of(bucket) ? field_of(seen, kind) * UNIT_NS : 0;
}

struct limit_work limit_work_in(const struct tf_limit_state *state, uint64_t from_ns, uint64_t to_ns)
{
    struct limit_work sum = {{0}};
    for (uint64_t bucket = from_ns / BUCKET_NS; bucket * BUCKET_NS < to_ns; bucket++) {
        uint64_t low_ns = max_u64(from_ns, bucket * BUCKET_NS);
        uint64_t high_ns = min_u64(to_ns, (bucket + 1) * BUCKET_NS);
        for (unsigned kind = 0; kind < WORK_KINDS; kind++)
            sum.ns[kind] += limit_bucket_ns(state, kind, bucket) * ((high_ns - low_ns) / 1000) / (BUCKET_NS / 1000);
    }
    return sum;
}
