/* measure.h - what launches really cost: CUDA events around them, settled by one helper thread.
 *
 * Owns:     events, the queue of stretches that are being measured, the helper thread, this process's half of the limiter (per card).
 * Contract: nothing exists before the first limited launch; functions are called only for cards with a core limit. After fork the child starts
 *           empty. The end of a context goes through tf_measure_end(), or tf_measure_hold() and tf_measure_resume().
 * Next:     the limiter decides, hooks/launch.c calls. */
#pragma once

#include "driver/driver.h"
#include "driver/nested.h"
#include "limiter/limiter.h"
#include "slice/container.h"
#include "slice/device.h"

/* A stream as the program named it; `is_per_thread` tells what a null stream means. */
struct tf_stream {
    CUstream handle;
    bool is_per_thread;
};

/* This process's half of the limiter, per card. */
extern struct tf_limit_process tf_limit_processes[TENFOLD_GPUS_MAX];

/* Captures that the program has begun and not ended: while there are any, each launch asks whether its stream captures. One that the program never
 * ends, as by destroying its stream, counts for good: then launches cost more, and nothing is wrong. */
extern _Atomic uint32_t tf_open_captures;

/* The default stream of the calling thread, which no other thread can name: events of two threads on "it" are on two streams. */
static inline bool tf_stream_is_threads_own(struct tf_stream stream)
{
    return (uintptr_t)stream.handle == 2 || (!stream.handle && stream.is_per_thread);
}

static inline uint64_t tf_stream_number(struct tf_stream stream)
{
    if (tf_stream_is_threads_own(stream))
        return (uint64_t)(uintptr_t)&tf_nesting; /* a word of this thread */
    return (uintptr_t)stream.handle > 2 ? (uint64_t)(uintptr_t)stream.handle : 1;
}

/* The usual limited launch: on the only card, of a known kernel, within what was granted. Nothing is recorded, no lock, no clock, no shared
 * cache line. NULL: it has to go through tf_launch_begin(); else whom to give *ret_charged_ns back to if the driver refuses the launch. */
__attribute__((always_inline)) static inline struct tf_limit_process *tf_launch_pass(uint64_t key, struct tf_stream stream, uint64_t *ret_charged_ns)
{
    int gpu = tf_device_only();
    if (TF_UNLIKELY(gpu < 0 || atomic_load_explicit(&tf_open_captures, memory_order_relaxed) || tf_is_nested()))
        return NULL;
    struct tf_limit_process *process = &tf_limit_processes[gpu];
    return TF_LIKELY(tf_limit_pass(process, key, tf_stream_number(stream), ret_charged_ns)) ? process : NULL;
}

struct tf_launch {
    struct tf_container *container;
    const struct tf_cuda *cuda;
    struct tf_stream stream;
    CUcontext context; /* the current one; NULL: none */
    struct tf_limit_ticket ticket;
    uint64_t stretch; /* number of the one that this launch began */
    int gpu; /* negative: neither gated nor measured */
};

/* Waits for credit. true: the limiter wants a stretch to begin with this launch, by tf_launch_record(). */
bool tf_launch_begin(struct tf_launch *launch, struct tf_container *container, const struct tf_cuda *cuda, uint64_t key, struct tf_stream stream);
void tf_launch_record(struct tf_launch *launch);

/* Records what it wants after the driver's call, or takes the charge back; returns `result`. */
CUresult tf_launch_end(struct tf_launch *launch, CUresult result);

/* The program is about to wait for the card: closes the stretch that is open, so that waiting time is not measured as work. */
void tf_measure_close(struct tf_container *container, const struct tf_cuda *cuda);

/* Around the driver's begin and end of a capture; the second and the last return its `result`. A stretch ends before: an event that is recorded on
 * a stream that captures becomes a part of the capture, and asking for it breaks that. */
void tf_capture_begin(struct tf_container *container, const struct tf_cuda *cuda);
CUresult tf_capture_begun(CUresult result);
bool tf_stream_captures(const struct tf_cuda *cuda, struct tf_stream stream);
CUresult tf_capture_ended(const struct tf_cuda *cuda, struct tf_stream stream, bool has_captured, CUresult result);

/* The program is about to destroy a stream: where its stretch could not be closed, it is lost, and the stream is not touched again. */
void tf_measure_leave_stream(struct tf_container *container, const struct tf_cuda *cuda, CUstream stream);

/* The program is about to destroy a context: waits, up to a bound, until its work is measured; nothing of it is touched afterwards. */
void tf_measure_end(CUcontext context);

/* The program makes a call that may destroy a context, or not: measures what is done by now; nothing of it is touched until tf_measure_resume(). */
void tf_measure_hold(CUcontext context);
void tf_measure_resume(CUcontext context, bool has_ended);
