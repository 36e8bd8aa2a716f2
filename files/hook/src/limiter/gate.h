/* gate.h - who may launch now; the launch entries call. */
#pragma once

#include "limiter/limiter.h"

enum tf_limit_verdict { TF_LIMIT_GO = 0, TF_LIMIT_WAIT = 1 };

/* Slow path. GO: launch, ticket says what to record. WAIT: sleep until ticket->wait_until_ns or a change of wake_word,
 * then ask again with the same ticket. */
enum tf_limit_verdict tf_limit_gate(struct tf_limit_state *state, struct tf_limit_process *process, const struct tf_limit_policy *policy,
                                    uint64_t key, uint64_t stream, uint64_t now_ns, struct tf_limit_ticket *ticket);

/* The launch failed: gives its charge back. The hook drops the begin event it may have recorded. */
void tf_limit_cancel(struct tf_limit_process *process, const struct tf_limit_ticket *ticket);

/* The program is about to wait for the GPU (cuStreamSynchronize, cuCtxSynchronize, cuEventSynchronize, a blocking copy), or the
 * gate returned WAIT. 1: record the end event on ret_segment->stream now and queue *ret_segment as after END. 0: nothing to do. */
int tf_limit_close(struct tf_limit_process *process, uint64_t now_ns, struct tf_limit_segment *ret_segment);
