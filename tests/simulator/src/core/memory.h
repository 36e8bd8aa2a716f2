/* memory.h - bytes of a card, charged to the process that holds them.
 *
 * Two books are kept: allocated_bytes (each allocation rounded by itself) and reserved_bytes (what is gone from the card). They differ
 * because small allocations share blocks; which allocations share is decided in the process (cuda/heap.c), not here.
 * All functions need state_lock(). */
#ifndef TENFOLD_SIM_MEMORY_H
#define TENFOLD_SIM_MEMORY_H

#include "state.h"

/* Size of one allocation by itself: small ones are multiples of the granule, others of the block. 0 if it overflows. */
uint64_t memory_rounded(const struct sim_memory_model *model, uint64_t size_bytes);

/* Takes reserve_bytes off the card. 0, or -ENOMEM: nothing changed. Looks for dead holders before it refuses. */
int memory_reserve(struct sim_machine *machine, uint32_t card, uint64_t reserve_bytes);
void memory_unreserve(struct sim_machine *machine, uint32_t card, uint64_t reserve_bytes);

/* Books what a program asked for and what it got; no capacity is touched. Negative values give back. */
void memory_note(struct sim_machine *machine, uint32_t card, int64_t requested_bytes, int64_t allocated_bytes);

/* What CUDA calls total and free. */
uint64_t memory_total_bytes(const struct sim_card *card);
uint64_t memory_free_bytes(const struct sim_card *card);

#endif
