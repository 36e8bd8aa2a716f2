/* gate.c - the gate: GPU time is granted before a launch, and what must be measured is decided with it.
 *
 * Owns:    grants, charges, the plan of what lies between two events.
 * Threads: the credit is lock-free between processes; within a process a flag (`busy`) keeps threads out of the gate for
 *          the ~100 ns that one is inside; whoever finds it taken waits 50 us or retries, nobody blocks.
 * Death:   a process takes its unused grant (at most QUANTUM_NS) with it, and its unsettled launches stand as estimated.
 * Trust:   every value read from the shared state is clamped before use; loops have a bound; arithmetic cannot overflow.
 * Next:    limiter.h tells the life of a launch, credit.c the rate, settle.c the price; tests/hook/virtual_time runs
 *          them against a discrete-event GPU.
 *
 * Why it is exact: what is charged is GPU time measured by events, so neither grid sizes nor kernel lengths bias it; a charge
 * may be wrong only until its segment is settled. Why it is smooth: nobody is granted more than QUANTUM_NS beyond one launch,
 * and a waiter knows the instant when the credit suffices. Why it is not cheated by a deep queue: at most INFLIGHT_NS (or one
 * launch) of granted work may be unfinished, so that a limit that was lowered, or a neighbour that left, shows within that. */
#include "limiter/gate.h"

#include "limiter/arithmetic.h"
#include "limiter/credit.h"
#include "limiter/estimate.h"
#include "limiter/settle.h"

#define QUANTUM_NS INT64_C(1000000)   /* largest grant that is not one launch; a killed process loses at most this */
#define SEGMENT_NS UINT64_C(500000)   /* work between two events: 2 events of ~2 us host time each are then below 1 % */
#define ALONE_NS UINT64_C(100000)     /* where batches are not measured, launches above this are measured one by one */
#define INFLIGHT_NS UINT64_C(8000000) /* granted but unfinished work; several 2 ms time slices, so that a slice never runs dry */
#define PROVISIONAL_NS UINT64_C(100000)      /* cost of the very first launch until it is measured */
#define PROVISIONAL_MAX_NS UINT64_C(1000000) /* cost of a later unknown launch: the mean, but not above this */
#define UNKNOWN_MAX 8u                       /* different kernels of unknown cost in flight */
#define UNKNOWN_AGE_NS UINT64_C(1000000)     /* one that is in flight longer may be long: no further unknown ones */
#define CLOSE_SPINS 10000u                   /* some 10 us */
#define RETRY_NS UINT64_C(50000)             /* another thread is in the gate */
#define POLL_NS UINT64_C(2000000)            /* waits that a settlement ends; in case its wake-up is lost */
#define RELEARN_EVERY 16u                    /* so many grants between two single measurements while batches are measured */

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
    uint32_t limit = limit_percent_in_force(policy);
    if (overdrawn > 0) {
        process->granted_ns = charged_ns;
        if (limit < 100) {
            process->entitled_ns -= overdrawn;
            limit_add_credit(state, -overdrawn, limit_bank_ns(policy, limit), limit);
        }
    }
    return overdrawn;
}

/* Takes credit until granted_ns exceeds charged_ns, or says how long to wait. */
static enum tf_limit_verdict take_grant(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_policy *policy,
                                        uint64_t cost_ns, uint64_t waited_ns, uint64_t now_ns, struct tf_limit_ticket *ticket)
{
    uint32_t limit = limit_percent_in_force(policy);
    int64_t credit = limit_refill(state, policy, limit, now_ns);
    uint32_t processes = limit_count_processes(state, process, now_ns);
    limit_accrue_entitlement(process, limit, processes, now_ns);
    limit_report(state, process, now_ns);

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
    if (processes > 1 && process->entitled_ns < 0 && credit < surplus)
        return wait_until(ticket, now_ns, min_u64(time_to_earn(-process->entitled_ns, limit) * processes, POLL_NS));

    int64_t taken = credit < QUANTUM_NS ? credit : QUANTUM_NS;
    limit_add_credit(state, -taken, limit_bank_ns(policy, limit), limit);
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
    ret_segment->scale = limit_scale(process);
    process->segmented_ns += ret_segment->charged_ns;
    process->marked_ns = charged_ns;
    put(process->segment_stream, 0);
}

/* Decides what is measured around a launch that goes: alone if it is unknown or long, else as part of a batch of SEGMENT_NS, else
 * (where batches have gaps: a launch here, a pause, a launch there) alone once per grant. */
static void plan_measurement(struct tf_limit_process *process, uint64_t key, uint64_t stream, int known, uint64_t cost_ns,
                             uint64_t before_ns, uint64_t now_ns, struct tf_limit_ticket *ticket)
{
    uint64_t after_ns = before_ns + cost_ns;
    if (process->open_since_ns != 0 && (process->open.stream != stream || !known)) {
        if (process->open.stream != stream)
            limit_stop_batches(process); /* several streams: what lies between two events is not theirs alone */
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
    if (!limit_enter(process, 64)) {
        if (waited_ns >= TF_LIMIT_STALL_MAX_NS)
            return TF_LIMIT_GO; /* the thread inside was stopped there: better one launch unmeasured than a hang */
        return wait_until(ticket, now_ns, RETRY_NS);
    }

    uint64_t word = get(*limit_slot(process, key));
    int same = (word >> 44) == (key >> 44);
    int known = same && (word >> 40 & 15) > 0;
    uint64_t cost_ns = known ? (word & UINT64_C(0xffffffffff)) * get(process->scale) >> 16 : min_u64(process->mean_ns, PROVISIONAL_MAX_NS);
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
            limit_put_estimate(process, key, 0, 0);
            if (process->unknown_count++ == 0)
                process->unknown_since_ns = now_ns;
        }
        ticket->charged_ns = cost_ns;
    }
    limit_leave(process);
    return verdict;
}

void tf_limit_cancel(struct tf_limit_process *process, const struct tf_limit_ticket *ticket)
{
    atomic_fetch_sub_explicit(&process->charged_ns, ticket->charged_ns, relaxed); /* always; the rest only if nobody is in the way */
    if (ticket->flags == 0 || !limit_enter(process, SPINS))
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
    limit_leave(process);
}

int tf_limit_close(struct tf_limit_process *process, uint64_t now_ns, struct tf_limit_segment *ret_segment)
{
    /* the program is about to wait anyway: patience for who settles meanwhile, else what it waits for would be measured as work */
    if (get(process->segment_stream) == 0 || !limit_enter(process, CLOSE_SPINS))
        return 0;
    int open = process->open_since_ns != 0;
    if (open) {
        fill_segment(process, get(process->charged_ns), now_ns, ret_segment);
        put(process->boundary_ns, 0);
    }
    limit_leave(process);
    return open;
}
