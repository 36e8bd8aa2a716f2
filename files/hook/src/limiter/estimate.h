/* estimate.h - what a launch will probably cost. */
#pragma once

#include "limiter/arithmetic.h"

/* One more measured cost of a key; sets its estimate. */
const struct tf_limit_shape *limit_learn(struct tf_limit_process *process, uint64_t key, uint64_t cost_ns, int contended, uint64_t now_ns);
/* Whether a key's costs are one value and outliers, as a kernel of constant length gives them. */
int limit_is_clustered(const struct tf_limit_process *process, uint64_t key);
/* Measured / estimated cost over the last memory_ns. */
uint32_t limit_learn_ratio(struct tf_limit_ratio *ratio, uint64_t busy_ns, uint64_t estimated_ns, uint64_t memory_ns, uint64_t now_ns);

static inline _Atomic uint64_t *limit_slot(struct tf_limit_process *process, uint64_t key)
{
    return &process->estimates[(key >> 20) % TF_LIMIT_KEYS];
}

/* samples 0: the key is known, its cost is not. */
static inline void limit_put_estimate(struct tf_limit_process *process, uint64_t key, uint32_t samples, uint64_t estimate_ns)
{
    put(*limit_slot(process, key),
        key >> 44 << 44 | (uint64_t)(samples > 15 ? 15 : samples) << 40 | min_u64(estimate_ns, UINT64_C(0xffffffffff)));
}

static inline uint32_t limit_scale(struct tf_limit_process *process)
{
    uint32_t scale = get(process->scale);
    return scale == 0 ? ONE : scale;
}

/* Estimates are the lower side of what was measured; the mean is ratio times that. */
static inline uint32_t limit_ratio(const struct tf_limit_process *process) { return process->ratio == 0 ? ONE : process->ratio; }

/* What was charged at a scale, in estimates. */
static inline uint64_t limit_in_estimates(uint64_t charged_ns, uint32_t scale)
{
    return (min_u64(charged_ns, MEASURED_MAX_NS) << 16) / max_u64(scale, FACTOR_MIN);
}
