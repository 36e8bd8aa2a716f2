/* neighbours.h - what the host or NVML knows of this container and of the others on a card, for the limiter.
 *
 * Why:      while several tenants work, the card is sliced between them and an event pair measures the others' slices, too. NVML's utilisation
 *           per process tells how much of the measured time was ours. The host reads it for all and tells each slot its own in the page;
 *           where it does not, or has not for three seconds, we ask NVML ourselves, and driver_pid.h tells who we are there.
 * Contract: for the helper thread alone. With neither, or before a process knows itself, the limiter is on its own (the strict side). */
#pragma once

#include "driver/driver.h"
#include "limiter/limiter.h"
#include "slice/container.h"

/* Between two looks at the host's word, which cost a copy of 64 bytes: it is weighed as soon as it can be. */
#define TF_NEIGHBOURS_LOOK_NS 100000000ull

/* Tells the limiter what was seen since the last time: looks at the page ten times a second, asks NVML twice, oftener in the beginning.
 * `has_work`: something of this process is under way on the card. */
void tf_neighbours_observe(struct tf_container *container, const struct tf_cuda *cuda, int gpu, struct tf_limit_process *process, bool has_work,
    uint64_t now_ns);

/* enum tf_limit_pressure: does another container work on the card? Unknown is equal, the strict side. */
uint32_t tf_neighbours_pressure(int gpu, uint64_t now_ns);
