/* settle.h - what launches did cost; the measuring thread calls. */
#pragma once

#include "limiter/limiter.h"

#define TF_LIMIT_WAKE 1  /* returned: FUTEX_WAKE all waiters of state->wake_word */
#define TF_LIMIT_RETRY 2 /* returned: nothing was done, another thread is in the way; call again at the next poll */

/* A segment's events completed at begin_ns and end_ns, both on one clock of this GPU that is close to CLOCK_MONOTONIC (an
 * anchor per process will do; only differences and the overlap of segments matter). 0, TF_LIMIT_WAKE or TF_LIMIT_RETRY. */
int tf_limit_settle(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_policy *policy,
                    const struct tf_limit_segment *segment, uint64_t begin_ns, uint64_t end_ns, uint64_t now_ns);

/* A segment will never be measured (event error, context gone): its estimate stands. 0, TF_LIMIT_WAKE or TF_LIMIT_RETRY. */
int tf_limit_lose(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_segment *segment);

/* Optional: what two events with nothing between them measure, recorded behind work that was still running: on an idle stream they measure
 * how long the host took between them. The least of several counts. */
void tf_limit_observe_event_overhead(struct tf_limit_process *process, uint64_t overhead_ns);

/* --- for the limiter itself */

/* Batches do not work with these launches; they are tried again, ever more seldom. */
void limit_stop_batches(struct tf_limit_process *process);

/* Tells the shared sums what was charged since the last time. What is not within a measured segment enters the time line here. */
void limit_report(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t now_ns);
