/* contention.h - how much of what events measured was ours; who hears NVML or the host calls. */
#pragma once

#include "limiter/limiter.h"

/* Optional, about once a second, from any process that can see it: the container's own busy time on this GPU between from_ns and
 * to_ns (CLOCK_MONOTONIC; the bounds of NVML's samples, not of the reading), from NVML's process utilisation: percent x window,
 * with half a percent added to what is not 0, since NVML cuts it off. With several processes one of them suffices. If it is not certain that
 * all processes of the container are in it, and no others in their place, nothing seen for long is taken for a mistake. */
void tf_limit_observe_busy(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t from_ns, uint64_t to_ns,
                           uint64_t own_busy_ns, int is_certain, uint64_t now_ns);

/* The same where the host, which knows whose each process is, tells all processes of the container alike: each calls it some ten times a
 * second with the last window that was told, old or new, and who comes first weighs it for all. */
void tf_limit_observe_told(struct tf_limit_state *state, struct tf_limit_process *process, uint64_t from_ns, uint64_t to_ns,
                           uint64_t own_busy_ns, uint64_t now_ns);

/* --- for the limiter itself */

struct limit_contention {
    uint32_t factor; /* cost / estimate (contended) or cost / measured time (else) */
    uint32_t share;  /* own time / measured time: how much a measurement may be trusted */
    uint32_t amends; /* times this is a price under contention: makes good what earlier ones got wrong */
    int contended;
    int jumps;       /* lengths of kernels change again and again: estimates say nothing */
    int supervised;  /* NVML watches: what we get wrong, it will show */
};
struct limit_contention limit_read_contention(const struct tf_limit_state *state, uint64_t now_ns);
/* The sums were made of estimates that turned out wrong: begin anew. */
void limit_forget_sums(struct tf_limit_state *state);
