/* amends.c - what prices got wrong is made good, so that the mean is NVML's, whatever the estimates do.
 *
 * Owns:    the difference between what was charged and NVML's own time for the same windows (`overcharged_us`, negative: too little), and the
 *          factor by which prices change until it is gone.
 * Smooth:  nothing is given or taken at once. A difference of what the limit earns in AMENDS_NS halves or doubles prices; one that the cuts of
 *          windows and NVML's whole percents explain changes nothing.
 * Stable:  NVML's word on a price comes 0.4 to 3 s late; prices answer slower than that.
 * Ledger:  what is more than can be made good is corrected in used_ns: NVML's word stands.
 * Trust:   the word is the tenant's to write; one that cannot be is taken for nothing, and at worst it misprices the tenant's own launches.
 * Next:    contention.c brings the windows, settle.c multiplies its prices. */
#include "limiter/amends.h"

#include "limiter/arithmetic.h"

#define AMENDS_NS UINT64_C(4000000000)
#define AMENDS_MAX 2u               /* times AMENDS_NS: prices are a third at least and three times at most */
#define BAND_NS UINT64_C(150000000) /* a difference of what the limit earns in so much time changes nothing */
#define LATE_MAX_MS 60000           /* a window that ends so long after a measurement began is garbage */

/* What the limit earns in so much time. */
static int64_t earned_us(const struct tf_limit_state *state, uint64_t wall_ns)
{
    return (int64_t)(wall_ns / 100000 * max_u64(1, min_u64(get(state->limit_seen), 100)));
}

static int64_t most_us(const struct tf_limit_state *state) { return earned_us(state, BAND_NS + AMENDS_MAX * AMENDS_NS); }

static int64_t overcharged_us(const struct tf_limit_state *state)
{
    int64_t over_us = get(state->overcharged_us), most = most_us(state);
    return over_us > most || over_us < -most ? 0 : over_us;
}

uint32_t limit_amends(const struct tf_limit_state *state)
{
    int64_t over_us = overcharged_us(state), band_us = earned_us(state, BAND_NS);
    int64_t beyond_us = (over_us < 0 ? -over_us : over_us) - band_us;
    if (beyond_us <= 0)
        return ONE;
    uint64_t more = ((uint64_t)beyond_us << 16) / (uint64_t)earned_us(state, AMENDS_NS);
    return over_us < 0 ? (uint32_t)(ONE + more) : (uint32_t)(((uint64_t)ONE << 16) / (ONE + more));
}

void limit_note_overcharge(struct tf_limit_state *state, uint64_t charged_ns, uint64_t busy_ns)
{
    int64_t over_us = overcharged_us(state) + (int64_t)(charged_ns / 1000) - (int64_t)(busy_ns / 1000);
    int64_t most = most_us(state), kept_us = over_us > most ? most : over_us < -most ? -most : over_us;
    put(state->overcharged_us, (int32_t)kept_us);
    if (over_us != kept_us)
        atomic_fetch_sub_explicit(&state->used_ns, (uint64_t)((over_us - kept_us) * 1000), relaxed);
}

void limit_note_late_charge(struct tf_limit_state *state, uint64_t from_ns, uint64_t to_ns, uint64_t charged_ns)
{
    if (get(state->contended_since_ns) == 0 || to_ns <= from_ns)
        return;
    int64_t late_ms = (int32_t)(get(state->compared_ms) - (uint32_t)(from_ns / 1000000));
    if (late_ms <= 0 || late_ms > LATE_MAX_MS)
        return;
    double part = (double)late_ms * 1e6 / (double)(to_ns - from_ns);
    limit_note_overcharge(state, part < 1 ? (uint64_t)((double)charged_ns * part) : charged_ns, 0);
}

void limit_forget_overcharge(struct tf_limit_state *state) { put(state->overcharged_us, 0); }
