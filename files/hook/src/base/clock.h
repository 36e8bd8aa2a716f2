/* clock.h - the one clock of the hook: CLOCK_MONOTONIC in nanoseconds, the same in all processes of a machine. */
#pragma once

#include <stdint.h>
#include <time.h>

static inline uint64_t tf_now_ns(void)
{
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
