/* credit.c - the rate: what the clock earns, what a bank keeps, what a debt forgives, and whose turn it is.
 *
 * Owns:    the credit of a container on one GPU, and each process's right to it.
 * Threads: lock-free between processes; a loop that loses every race leaves the work to the winners.
 * Trust:   what is read from the shared state is clamped before use.
 * Next:    gate.c asks before a launch, settle.c corrects after it. */
#include "limiter/credit.h"

#include "limiter/amends.h"
#include "limiter/arithmetic.h"

#define EPOCH_NS UINT64_C(64000000) /* presence of processes is counted per epoch */
#define PROCESSES_MAX 1024u
#define CHANGE_EARN_NS UINT64_C(20000000) /* so much of the time before a change of the limit still earns */

uint32_t limit_percent_in_force(const struct tf_limit_policy *policy)
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

int64_t limit_bank_ns(const struct tf_limit_policy *policy, uint32_t limit_percent)
{
    uint64_t wall_ns = policy->bank_ms == 0 ? TF_LIMIT_BANK_DEFAULT_NS : min_u64(policy->bank_ms, 10000) * 1000000;
    int64_t bank = (int64_t)(wall_ns * limit_percent / 100);
    return bank > 2 * CHUNK_NS ? bank : 2 * CHUNK_NS;
}

static int64_t clamp_credit(int64_t credit, int64_t bank, uint32_t limit_percent)
{
    int64_t debt_max = (int64_t)(TF_LIMIT_DEBT_MAX_WALL_NS / 100 * limit_percent);
    return credit > bank ? bank : credit < -debt_max ? -debt_max : credit;
}

int64_t limit_add_credit(struct tf_limit_state *state, int64_t amount, int64_t bank, uint32_t limit_percent)
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

int64_t limit_refill(struct tf_limit_state *state, const struct tf_limit_policy *policy, uint32_t limit_percent, uint64_t now_ns)
{
    int64_t bank = limit_bank_ns(policy, limit_percent);
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
        limit_forget_overcharge(state);
    }
    uint64_t last_ns = get(state->refilled_at_ns);
    for (int i = 0; i < CAS_TRIES; i++) {
        if (last_ns == 0 || last_ns > now_ns) {
            if (last_ns != 0 && last_ns - now_ns <= CLOCK_JUMP_NS)
                break; /* another process read its clock after us */
            if (atomic_compare_exchange_weak_explicit(&state->refilled_at_ns, &last_ns, now_ns, relaxed, relaxed))
                return limit_add_credit(state, last_ns == 0 ? CHUNK_NS : 0, bank, limit_percent);
            continue;
        }
        uint64_t passed_ns = min_u64(now_ns - last_ns, earn_max_ns);
        int64_t earned = (int64_t)(passed_ns * earn_percent / 100);
        if (earned < 1000)
            break; /* too little to be worth a shared write; it is not lost */
        if (atomic_compare_exchange_weak_explicit(&state->refilled_at_ns, &last_ns, now_ns, relaxed, relaxed))
            return limit_add_credit(state, earned, bank, limit_percent);
    }
    return clamp_credit(get(state->credit_ns), bank, limit_percent);
}

uint32_t limit_count_processes(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t now_ns)
{
    uint32_t epoch = (uint32_t)(now_ns / EPOCH_NS + 1); /* + 1: never the zero of a fresh process */
    uint32_t seen = get(state->epoch);
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

void limit_accrue_entitlement(struct tf_limit_process *process, uint32_t limit_percent, uint32_t processes, uint64_t now_ns)
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
