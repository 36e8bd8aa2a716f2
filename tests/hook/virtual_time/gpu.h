/* gpu.h - a GPU in virtual time: contexts with queues of kernels, one engine, two ways to share it.
 *
 * Owns:  what runs when, the truth of GPU time, the timestamps that events would carry.
 * Next:  host.c submits kernels and reads the events' completions; bench.c advances the clock and reads the truth.
 *
 * A context executes its kernels one after another. Between contexts:
 *   round robin  time slices of slice_ns, preemption inside a kernel, switch_ns of nobody's time at each change of context;
 *                a context without work gives its slice up. An event is reached only while its context has the GPU.
 *   fifo         kernels of all contexts in the order of submission, each to its end, no switch cost (as MPS does without
 *                overlap). An event at the head of its stream is reached at once, also while others run. */
#ifndef VT_GPU_H
#define VT_GPU_H

#include "random.h"
#include <stdint.h>

#define GPU_CONTEXTS 64
#define GPU_DEPTH 1024 /* launches that a context holds before the launch call blocks; the CUDA driver's is about this */
#define GPU_STREAMS 8
#define NEVER UINT64_MAX

enum gpu_policy { GPU_ROUND_ROBIN, GPU_FIFO };

struct gpu_kernel {
    uint64_t duration_ns;
    uint64_t left_ns;
    uint64_t submitted_ns;
    uint64_t begun_ns; /* when its begin event was reached, NEVER before */
    uint32_t stream;
    uint8_t measured_begin; /* an event before it */
    uint8_t measured_end;   /* an event after it: costs event_stall_ns of the engine */
    void *tag;              /* handed to on_complete */
};

struct gpu_context {
    struct gpu_kernel queue[GPU_DEPTH];
    uint32_t head, count, dead;
    uint64_t stream_free_ns[GPU_STREAMS]; /* end of the last kernel of each stream */
    uint64_t busy_ns;
};

struct gpu {
    enum gpu_policy policy;
    uint64_t slice_ns, switch_ns, event_stall_ns;
    /* called for each stretch of time that a context ran, and for each kernel that ended */
    void (*on_busy)(void *user, uint32_t context, uint64_t from_ns, uint64_t to_ns);
    void (*on_complete)(void *user, uint32_t context, const struct gpu_kernel *kernel, uint64_t end_ns);
    void *user;

    struct gpu_context *contexts;
    uint32_t context_count;
    uint32_t loaded;      /* context that has the engine */
    int running;          /* a kernel of `loaded` is on the engine since run_from_ns */
    uint64_t run_from_ns; /* may lie ahead: switch or stall */
    uint64_t slice_end_ns;
    uint64_t next_ns; /* next event of the engine, NEVER if idle */
    uint64_t wasted_ns; /* switches */
};

int gpu_init(struct gpu *gpu, uint32_t contexts);
void gpu_free(struct gpu *gpu);
int gpu_is_full(const struct gpu *gpu, uint32_t context);
/* Times never go backwards over calls; the caller has run all engine events before now_ns. */
void gpu_submit(struct gpu *gpu, uint32_t context, const struct gpu_kernel *kernel, uint64_t now_ns);
void gpu_advance(struct gpu *gpu, uint64_t now_ns); /* now_ns == gpu->next_ns */
void gpu_account(struct gpu *gpu, uint64_t now_ns); /* reports what ran up to now_ns */
/* The context's queue is dropped, a running kernel stops; call gpu_account() before. */
void gpu_kill(struct gpu *gpu, uint32_t context, uint64_t now_ns);

#endif
