/* launch.h - from a launch call's arguments to GPU time on a stream. */
#ifndef TENFOLD_SIM_LAUNCH_H
#define TENFOLD_SIM_LAUNCH_H

#include "driver.h"

struct launch {
    CUfunction function;
    int64_t duration_ns;
};

/* Checks shape and parameters and finds the duration; nothing is queued. */
CUresult launch_prepare(CUfunction function, const unsigned grid[3], const unsigned block[3], void **parameters, void **extra,
                        struct launch *ret_launch);

/* Queues it, or records it if the stream captures. */
CUresult launch_submit(const struct launch *launch, CUstream stream);

#endif
