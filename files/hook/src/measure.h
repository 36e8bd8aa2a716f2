/* measure.h - what launches really cost: CUDA events around them, settled by one helper thread.
 *
 * Owns:     events, the queue of stretches that are being measured, the helper thread, this process's half of the limiter (per card).
 * Contract: nothing exists before the first limited launch; functions are called only for cards with a core limit. After fork the child starts
 *           empty. Context destruction goes through tf_measure_forget().
 * Next:     limit.c decides, hooks_launch.c calls. */
#ifndef TENFOLD_MEASURE_H
#define TENFOLD_MEASURE_H

#include "container.h"
#include "driver.h"
#include "limit.h"

/* A stream as the program named it; `is_per_thread` tells what a null stream means. */
struct tf_stream {
    CUstream handle;
    bool is_per_thread;
};

/* Waits for credit and records what the limiter wants before the launch. */
struct tf_launch {
    struct tf_container *container;
    const struct tf_cuda *cuda;
    struct tf_stream stream;
    struct tf_limit_ticket ticket;
    int gpu; /* negative: neither gated nor measured */
};
void tf_launch_begin(struct tf_launch *launch, struct tf_container *container, const struct tf_cuda *cuda, uint64_t key, struct tf_stream stream);

/* Records what it wants after, or takes the charge back; returns `result`. */
CUresult tf_launch_end(struct tf_launch *launch, CUresult result);

/* The program begins its first capture: from now on each launch asks whether its stream captures. */
void tf_measure_captures(void);

/* The program is about to wait for the card: closes the stretch that is open, so that waiting time is not measured as work. */
void tf_measure_close(struct tf_container *container, const struct tf_cuda *cuda);

/* The program is about to destroy a context (0: of all contexts): nothing of it is touched afterwards. */
void tf_measure_forget(CUcontext context);

/* For a forked child, before its first call. */
void tf_measure_reset(void);

#endif
