/* probe.h - a process of the container takes memory for a moment, only to see itself in NVML's list: nobody may be refused because of it.
 *
 * Owns:     gpus[].probe of the state: until when (CLOCK_MONOTONIC, even) a probe may run; the lowest bit is set while it runs. The word of an
 *           ended probe stays, so that whoever was refused sees that one has run meanwhile.
 * Contract: one probe on a card at a time. A refusal that met one is tried again after it. All waits are bounded, for the word belongs to the
 *           tenant, and a probe may die. */
#ifndef TENFOLD_PROBE_H
#define TENFOLD_PROBE_H

#include "tenfold_region.h"

#include <stdbool.h>
#include <stdint.h>

/* The longest that a probe may last, and that a refusal waits for it: a few calls of the driver and of NVML, on a host that is busy. */
#define TF_PROBE_MAX_NS 200000000ull

/* Attempts before a refusal, each of which has met another probe. */
enum { TF_PROBE_TRIES = 64 };

/* false: another process probes. The probe's charge comes after this and goes before tf_probe_end(). */
bool tf_probe_begin(struct tenfold_state *state, uint32_t gpu, uint64_t now_ns, uint64_t *ret_word);
void tf_probe_end(struct tenfold_state *state, uint32_t gpu, uint64_t word);

/* The word, to be read before an attempt to charge. */
uint64_t tf_probe_seen(const struct tenfold_state *state, uint32_t gpu);

/* After an attempt that was refused: did a probe run meanwhile? If one runs still, waits for its end. */
bool tf_probe_overlapped(const struct tenfold_state *state, uint32_t gpu, uint64_t seen);

#endif
