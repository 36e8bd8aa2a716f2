/* driver_pid.h - which process of NVML's list is this one?
 *
 * Why:      NVML names processes by pids of the host, which a container cannot see. What tells us apart is our memory: we know to the byte what
 *           we have allocated.
 * How:      a process that is alone on the card is us; else the one whose usage follows ours, when the program allocates by itself (passive) or
 *           when we take and give back a few blocks of odd sizes (a probe, see probe.h), which needs ample room.
 * Contract: for the helper thread alone, tf_driver_pid() for any. The pid is also in our slot, so that siblings know whose it is. */
#pragma once

#include "slice/nvml_client.h"

/* 0: not known (yet). */
uint32_t tf_driver_pid(void);

/* Whether that is proven, by a probe: another process cannot have been taken for us. */
bool tf_driver_pid_is_proven(void);

/* Looks for it on a card where this process has memory or work. `may_probe`: now, else only when looking has not helped several times. */
bool tf_driver_pid_find(struct tf_container *container, const struct tf_cuda *cuda, const struct tf_nvml *nvml, int gpu, bool may_probe);

/* It was the wrong one. */
void tf_driver_pid_forget(struct tf_container *container);
