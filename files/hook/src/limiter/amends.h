/* amends.h - what prices got wrong, and by how much they must differ until it is made good. */
#pragma once

#include "limiter/limiter.h"

/* A window of NVML's while others interfere: what its work was charged, and what NVML says it took. */
void limit_note_overcharge(struct tf_limit_state *state, uint64_t charged_ns, uint64_t busy_ns);
/* Work that was settled after windows that hold a part of it had been compared: that part counts now, else it never would. */
void limit_note_late_charge(struct tf_limit_state *state, uint64_t from_ns, uint64_t to_ns, uint64_t charged_ns);
/* Nobody interferes any more, or the limit changed: what was charged stays. */
void limit_forget_overcharge(struct tf_limit_state *state);
/* By how much prices must differ from what they would be, 16.16. */
uint32_t limit_amends(const struct tf_limit_state *state);
