/* account.h - bytes charged against each card's limit, exact even if a process dies at any instruction.
 *
 * Contract: lock-free between processes; never above the limit, not even for an instant; no system call in a thread's usual operation. 0 or
 *           negative errno. How a death is told apart: tenfold_region.h, "Tagged word".
 * Next:     slots.c gives a process its slot and calls account_reap() for dead ones. */
#pragma once

#include "tenfold_region.h"

#include <stdbool.h>
#include <stdint.h>

/* Reserves `bytes` under `limit_bytes` (0: no limit). 0, or -ENOMEM: nothing changed. */
int tf_account_charge(struct tenfold_state *state, uint32_t slot, uint32_t gpu, uint64_t bytes, uint64_t limit_bytes);

/* Gives back what was charged. Clamped at zero: a region that somebody scribbled on never wraps. */
void tf_account_release(struct tenfold_state *state, uint32_t slot, uint32_t gpu, uint64_t bytes);

/* Bytes in use on a card by the whole container, and by one slot. */
uint64_t tf_account_used(const struct tenfold_state *state, uint32_t gpu);
uint64_t tf_account_slot_used(const struct tenfold_state *state, uint32_t slot, uint32_t gpu);

/* The slot's tagged word for a card: while it stands still and no operation is under way, nothing has been charged or given back. */
uint64_t tf_account_word(const struct tenfold_state *state, uint32_t slot, uint32_t gpu);
bool tf_account_is_quiet(const struct tenfold_state *state, uint32_t slot, uint32_t gpu, uint64_t word);

/* Completes or undoes what a dead process had in flight and gives back all that it held. The caller has made sure that the process is
 * dead and that nobody else reaps it (slots.c); it may itself die at any instruction and be replaced by another caller. */
void tf_account_reap(struct tenfold_state *state, uint32_t slot);
