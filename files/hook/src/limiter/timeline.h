/* timeline.h - what was done when. */
#pragma once

#include "limiter/limiter.h"

/* What was done in a stretch of time, in nanoseconds: between events, by estimates, and what it was charged. */
enum limit_work_kind { WORK_MEASURED, WORK_ESTIMATED, WORK_CHARGED, WORK_KINDS };
struct limit_work {
    uint64_t ns[WORK_KINDS];
};
/* Adds to the container's time line, in proportion to where [from_ns, to_ns) lies. */
void limit_add_work(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t from_ns, uint64_t to_ns, struct limit_work work);
/* Between two times that are at most TIMELINE_NS - BUCKET_NS old; a bucket that one of them cuts is split in proportion. */
struct limit_work limit_work_in(const struct tf_limit_state *state, uint64_t from_ns, uint64_t to_ns);
uint64_t limit_bucket_ns(const struct tf_limit_state *state, enum limit_work_kind kind, uint64_t bucket);
