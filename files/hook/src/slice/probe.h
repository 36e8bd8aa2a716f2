/* probe.h - a process of the container takes memory for a moment, only to see itself in NVML's list: nobody may be refused because of it.
 *
 * Owns:     gpus[].probe of the state: until when (CLOCK_MONOTONIC, even) a probe may run; the lowest bit is set while it runs. The word of an
 *           ended probe stays, so that whoever was refused sees that one has run meanwhile.
 * Contract: one probe on a card at a time. A refusal that met one is tried again after it. All waits are bounded, for the word belongs to the
 *           tenant, and a probe may die. */
#pragma once

#include "tenfold_region.h"

#include <stdbool.h>
#include <stdint.h>

/* A probe begins nothing more after this: a few calls of the driver and of NVML. */
#define TF_PROBE_BUDGET_NS 50000000ull

/* So long a refusal waits for a probe's end: much longer than any takes, for a prober may be held up on a busy host while its memory is taken. */
#define TF_PROBE_PATIENCE_NS 2000000000ull

/* Attempts before a refusal, each of which has met another probe. */
enum { TF_PROBE_TRIES = 64 };

/* false: another process probes. The probe's charge comes after this and goes before tf_probe_end(). */
bool tf_probe_begin(struct tenfold_state *state, uint32_t gpu, uint64_t *ret_word);
void tf_probe_end(struct tenfold_state *state, uint32_t gpu, uint64_t word);

/* The word, to be read before an attempt to charge. */
uint64_t tf_probe_seen(const struct tenfold_state *state, uint32_t gpu);

/* After an attempt that was refused: did a probe run meanwhile? If one runs still, waits for its end. A prober that died is waited for once; the
 * caller has to look for the dead before it tries again. */
bool tf_probe_overlapped(const struct tenfold_state *state, uint32_t gpu, uint64_t seen);
