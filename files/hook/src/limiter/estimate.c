/* estimate.c - what a launch will probably cost, from what its like did cost.
 *
 * Owns:  per key the distribution of measured costs and the estimate made of it: a cost that neighbours' time slices within the
 *        measurements hardly move. `ratio` leads from there to the mean.
 * Next:  gate.c charges estimate x scale, settle.c brings the measurements. */
#include "limiter/estimate.h"

#define CLUSTER_SAMPLES 16u
#define ESTIMATE_FULL_NS 20e9 /* an estimate moves by 5 % per second */
#define ESTIMATE_SLOW_NS 50e9 /* under contention by 2 % */
#define ESTIMATE_STEP_NS UINT64_C(500000000)

uint32_t limit_learn_ratio(struct tf_limit_ratio *ratio, uint64_t busy_ns, uint64_t estimated_ns, uint64_t memory_ns, uint64_t now_ns)
{
    uint64_t passed_ns = now_ns > ratio->at_ns ? min_u64(now_ns - ratio->at_ns, memory_ns) : 0;
    ratio->rest_ns += passed_ns; /* short steps add up before they count, else rounding would stop the fading */
    if (ratio->rest_ns >= memory_ns / 256) {
        uint64_t keep = ONE - (min_u64(ratio->rest_ns, memory_ns) << 16) / memory_ns;
        ratio->rest_ns = 0;
        ratio->busy_ns = (ratio->busy_ns >> 16) * keep + ((ratio->busy_ns & 0xffff) * keep >> 16);
        ratio->estimated_ns = (ratio->estimated_ns >> 16) * keep + ((ratio->estimated_ns & 0xffff) * keep >> 16);
    }
    ratio->at_ns = now_ns;
    ratio->busy_ns = min_u64(ratio->busy_ns + busy_ns, SUM_MAX_NS);
    ratio->estimated_ns = min_u64(ratio->estimated_ns + estimated_ns, SUM_MAX_NS);
    return (uint32_t)max_u64(RATIO_MIN, min_u64((ratio->busy_ns << 16) / max_u64(ratio->estimated_ns, 1), RATIO_MAX));
}

/* Whether a key's costs are one value and outliers, as a kernel of constant length gives them. */
static int is_clustered(const struct tf_limit_shape *shape)
{
    if (shape->samples < CLUSTER_SAMPLES)
        return 0;
    return shape->cluster >= ONE * 6 / 10 || (shape->cluster >= ONE * 35 / 100 && shape->mean_ns * 4 >= shape->cluster_ns * 5);
}

int limit_is_clustered(const struct tf_limit_process *process, uint64_t key)
{
    const struct tf_limit_shape *shape = &process->shapes[(key >> 20) % TF_LIMIT_KEYS];
    return shape->tag == key && is_clustered(shape);
}

static uint64_t steady_ns(const struct tf_limit_shape *shape) { return is_clustered(shape) ? shape->cluster_ns : shape->quantile_ns; }

const struct tf_limit_shape *limit_learn(struct tf_limit_process *process, uint64_t key, uint64_t cost_ns, int contended, uint64_t now_ns)
{
    struct tf_limit_shape *shape = &process->shapes[(key >> 20) % TF_LIMIT_KEYS];
    cost_ns = max_u64(cost_ns, 1);
    if (shape->tag != key || shape->samples == 0)
        *shape = (struct tf_limit_shape){.tag = key, .mean_ns = cost_ns, .quantile_ns = cost_ns, .cluster_ns = cost_ns};
    shape->samples = shape->samples < 1000 ? shape->samples + 1 : 1000;
    uint64_t weight = shape->samples < 8 ? shape->samples : 8; /* the mean of the first eight, then an eighth of the way */
    shape->mean_ns = (shape->mean_ns * (weight - 1) + cost_ns + weight / 2) / weight;
    /* steps down three times those up balance where a quarter lies below; small ones once it is found */
    uint64_t step_ns = shape->quantile_ns / (shape->samples < 32 ? 20 : 50);
    uint64_t near_low = shape->quantile_ns - shape->quantile_ns / 7, near_high = shape->quantile_ns + shape->quantile_ns / 7;
    int near = cost_ns >= near_low && cost_ns <= near_high;
    if (shape->samples <= FIRST_SAMPLES) /* the first may have met others: find the low side fast */
        shape->quantile_ns = min_u64(shape->quantile_ns, cost_ns);
    else
        shape->quantile_ns = cost_ns < shape->quantile_ns ? max_u64(shape->quantile_ns - 3 * step_ns, cost_ns)
                                                          : min_u64(shape->quantile_ns + step_ns + 1, cost_ns);
    if (near)
        shape->cluster_ns = (shape->cluster_ns * 15 + cost_ns + 8) / 16;
    else if (shape->cluster_ns < near_low || shape->cluster_ns > near_high)
        shape->cluster_ns = shape->quantile_ns; /* the quantile left the old cluster */
    uint32_t memory = shape->samples < 32 ? shape->samples : 32;
    shape->cluster = shape->cluster - shape->cluster / memory + (near ? ONE / memory : 0);
    /* the factor of contention follows an estimate seconds later: so estimates move slowly, under contention all the more */
    uint64_t estimate_ns = steady_ns(shape);
    if (shape->samples > CLUSTER_SAMPLES) {
        uint64_t passed_ns = now_ns > shape->at_ns ? min_u64(now_ns - shape->at_ns, ESTIMATE_STEP_NS) : 0;
        uint64_t change_ns = (uint64_t)((double)shape->estimate_ns * (double)passed_ns / (contended ? ESTIMATE_SLOW_NS : ESTIMATE_FULL_NS));
        estimate_ns = max_u64(shape->estimate_ns - change_ns, min_u64(estimate_ns, shape->estimate_ns + change_ns));
    }
    shape->at_ns = max_u64(shape->at_ns, now_ns);
    shape->estimate_ns = max_u64(estimate_ns, 1);
    limit_put_estimate(process, key, shape->samples > 15 ? 15 : shape->samples, shape->estimate_ns);
    process->mean_ns = process->mean_ns == 0 ? cost_ns : (process->mean_ns * 15 + cost_ns) / 16;
    return shape;
}
