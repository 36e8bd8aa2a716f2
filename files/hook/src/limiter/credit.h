/* credit.h - the rate at which GPU time may be used, and whose turn it is. */
#pragma once

#include "limiter/limiter.h"

/* 1..100; 100: launches pass, but are measured, so that a limit that comes into force finds estimates. */
uint32_t limit_percent_in_force(const struct tf_limit_policy *policy);
int64_t limit_bank_ns(const struct tf_limit_policy *policy, uint32_t limit_percent);
/* Adds to the credit within its clamps; returns the new value. */
int64_t limit_add_credit(struct tf_limit_state *state, int64_t amount, int64_t bank, uint32_t limit_percent);
/* What the clock earned since the last refill, by whoever comes first. Returns the credit. */
int64_t limit_refill(struct tf_limit_state *state, const struct tf_limit_policy *policy, uint32_t limit_percent, uint64_t now_ns);
/* How many processes of the container came to the gate lately, at least 1; counts this one. */
uint32_t limit_count_processes(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t now_ns);
/* This process's right to the credit: an equal part of what the clock earns, less what it took. */
void limit_accrue_entitlement(struct tf_limit_process *process, uint32_t limit_percent, uint32_t processes, uint64_t now_ns);
