/* neighbours.h - what NVML knows of this container and of the others on a card, for the limiter.
 *
 * Why:      while several tenants work, the card is sliced between them and an event pair measures the others' slices, too. NVML's utilisation
 *           per process tells how much of the measured time was ours. It names processes by pids of the host, which a container cannot see,
 *           so a process finds its own by a signature: it takes and gives back memory of odd sizes and looks whose usage followed.
 * Contract: for the helper thread alone. Without NVML, or before the signature succeeds, the limiter is on its own (the strict side). */
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
