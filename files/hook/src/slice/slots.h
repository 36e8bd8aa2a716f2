/* slots.h - the processes of a container: a slot each, taken once, never moved, given back by whoever notices the death.
 *
 * Contract: safe against SIGKILL at any instruction, PID reuse, and any number of processes attaching and reaping at once. Nothing waits
 *           for another process, but reaping: for one that reaps the same slot, and no longer than some 50 ms. */
#pragma once

#include "slice/process.h"
#include "tenfold_region.h"

#include <stdbool.h>
#include <stdint.h>

/* Takes a slot for this process. 0, or -ENOSPC: all slots belong to living processes. */
int tf_slots_attach(struct tenfold_state *state, const struct tf_identity *self, uint32_t *ret_slot);

/* Gives back what dead processes of our pid namespace hold, and waits for what others are giving back; returns how many were found. Ten times
 * a second at most it also looks closer at those that live but have lost their lock: another process under the same pid, or another program
 * in the same process. */
uint32_t tf_slots_reap(struct tenfold_state *state, const struct tf_identity *self);

/* Does a living process of the container, other than that of slot `except` (TENFOLD_SLOTS_MAX: none), say that NVML calls it `driver_pid`? */
bool tf_slots_claim(const struct tenfold_state *state, uint64_t driver_pid, uint32_t except);

/* Is the process of `slot` the only one of the container that uses CUDA? */
bool tf_slots_is_only(const struct tenfold_state *state, uint32_t slot);
