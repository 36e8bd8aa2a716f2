/* neighbours.h - what NVML knows of this container and of the others on a card, for the limiter.
 *
 * Why:      while several tenants work, the card is sliced between them and an event pair measures the others' slices, too. NVML's utilisation
 *           per process tells how much of the measured time was ours; driver_pid.h tells who we are there.
 * Contract: for the helper thread alone. Without NVML, or before a process knows itself, the limiter is on its own (the strict side). */
#ifndef TENFOLD_NEIGHBOURS_H
#define TENFOLD_NEIGHBOURS_H

#include "container.h"
#include "driver.h"
#include "limit.h"

/* Twice a second at most, oftener in the beginning: tells the limiter what NVML saw since the last time. */
void tf_neighbours_observe(struct tf_container *container, const struct tf_cuda *cuda, int gpu, struct tf_limit_process *process, uint64_t now_ns);

/* enum tf_limit_pressure: does another container work on the card? Unknown is equal, the strict side. */
uint32_t tf_neighbours_pressure(int gpu, uint64_t now_ns);

/* In a forked child: nothing is known. */
void tf_neighbours_reset(void);

#endif
