/* stream.c - streams, and waiting for the simulated engine.
 *
 * All streams of a process feed one queue per card, in call order or each in its own (timeline.h); a stream remembers its newest ticket.
 * Waiting sleeps until the end that the timeline foretells and looks again, because another tenant may have come in between; it never spins.
 * Threads: last_ticket and events change under state_lock(). Next: capture.c for streams that capture. */
#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

#include "callback.h"
#include "context.h"
#include "graph.h"
#include "pool.h"

enum { THREAD_STREAMS = 4 };

static __thread struct {
    CUcontext context;
    uint64_t epoch;
    CUstream stream;
} t_streams[THREAD_STREAMS];
static __thread unsigned t_next_stream;

CUresult stream_create(CUcontext context, bool is_blocking, CUstream *ret_stream)
{
    CUstream stream = object_new(KIND_STREAM, sizeof *stream);
    REQUIRE(stream, CUDA_ERROR_OUT_OF_MEMORY);
    stream->context = context;
    stream->is_blocking = is_blocking;
    context_add_stream(stream);
    *ret_stream = stream;
    return CUDA_SUCCESS;
}

static CUresult stream_of_this_thread(CUcontext context, CUstream *ret_stream)
{
    for (unsigned i = 0; i < THREAD_STREAMS; i++)
        if (t_streams[i].context == context && t_streams[i].epoch == context->epoch && object_is(t_streams[i].stream, KIND_STREAM)) {
            *ret_stream = t_streams[i].stream;
            return CUDA_SUCCESS;
        }
    driver_lock();
    CUresult result = stream_create(context, true, ret_stream);
    driver_unlock();
    if (result != CUDA_SUCCESS)
        return result;
    (*ret_stream)->is_default = true;
    unsigned i = t_next_stream++ % THREAD_STREAMS;
    t_streams[i].context = context;
    t_streams[i].epoch = context->epoch;
    t_streams[i].stream = *ret_stream;
    return CUDA_SUCCESS;
}

CUresult stream_resolve(CUstream handle, CUstream *ret_stream)
{
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        CUcontext context;
        TRY(context_require(&context));
        if (handle == CU_STREAM_PER_THREAD)
            return stream_of_this_thread(context, ret_stream);
        *ret_stream = context->legacy_stream;
        return CUDA_SUCCESS;
    }
    if (!object_is(handle, KIND_STREAM)) {
        atomic_fetch_add(&g_driver.machine.state->dead_streams, 1);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    REQUIRE(handle->context->is_alive, handle->context->primary ? CUDA_ERROR_STREAM_DETACHED : CUDA_ERROR_CONTEXT_IS_DESTROYED);
    TRY(context_error(handle->context));
    *ret_stream = handle;
    return CUDA_SUCCESS;
}

/* The kernel rounds a sleep up by the thread's timer slack, 50 us by default, which is longer than many kernels: not while we sleep. */
static void sleep_until(int64_t at_ns)
{
    const int slack_ns = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    const struct timespec until = {.tv_sec = at_ns / 1000000000, .tv_nsec = at_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
    prctl(PR_SET_TIMERSLACK, slack_ns, 0, 0, 0);
}

/* With the state lock: another tenant's queue must not go on when its process is gone. */
static void bury_dead_tenants(uint32_t card)
{
    struct sim_state *state = g_driver.machine.state;
    struct sim_timeline *timeline = &state->cards[card].timeline;
    for (uint32_t i = 0; i < timeline->channels;) {
        uint32_t slot = state->channels[timeline->order[i]].slot;
        if (slot != g_driver.machine.slot_index && !state_is_slot_alive(&g_driver.machine, slot)) {
            state_release_slot(state, slot, true);
            i = 0;
        } else {
            i++;
        }
    }
}

bool stream_is_ticket_done(CUcontext context, uint64_t ticket_after)
{
    if (ticket_after == 0)
        return true;
    struct sim_state *state = g_driver.machine.state;
    state_lock(&g_driver.machine);
    timeline_advance(state, context->card, state_now_ns());
    bool is_done = timeline_is_done(state, context->channel, ticket_after - 1);
    state_unlock(&g_driver.machine);
    return is_done;
}

/* For one piece, or for all up to it. */
static CUresult wait_for(CUcontext context, uint64_t ticket_after, bool is_all)
{
    struct sim_state *state = g_driver.machine.state;
    while (ticket_after) {
        state_lock(&g_driver.machine);
        if (!context->is_alive) {
            state_unlock(&g_driver.machine);
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        }
        timeline_advance(state, context->card, state_now_ns());
        const uint64_t completed = state->channels[context->channel].completed;
        const uint64_t ticket = is_all && timeline_has_streams(state) && completed < ticket_after ? completed : ticket_after - 1;
        bool is_done = timeline_is_done(state, context->channel, ticket);
        if (!is_done)
            bury_dead_tenants(context->card);
        int64_t end_ns = is_done ? 0 : timeline_expected_end_ns(state, context->channel, ticket);
        CUresult error = context_error(context);
        state_unlock(&g_driver.machine);
        if (error != CUDA_SUCCESS)
            return error;
        if (is_done)
            break;
        sleep_until(end_ns);
    }
    return CUDA_SUCCESS;
}

CUresult stream_wait_ticket(CUcontext context, uint64_t ticket_after)
{
    return wait_for(context, ticket_after, false);
}

CUresult stream_wait_context(CUcontext context)
{
    return wait_for(context, context->last_ticket, true);
}

bool stream_has_own_order(void)
{
    return timeline_has_streams(g_driver.machine.state);
}

/* With the state lock. *ret_ticket: the work's, or the one to wait for. */
static int submit(CUstream stream, const struct sim_item *work, CUevent event, uint64_t *ret_ticket)
{
    struct sim_state *state = g_driver.machine.state;
    CUcontext context = stream->context;
    uint64_t evicted_cookie;
    int64_t evicted_end_ns;
    timeline_advance(state, context->card, state_now_ns());
    int error = timeline_submit(state, context->channel, work, ret_ticket, &evicted_cookie, &evicted_end_ns);
    if (error)
        return error;
    const uint64_t ticket = *ret_ticket;
    if (evicted_cookie)
        event_keep_end(evicted_cookie, context->channel, ticket - SIM_RING_ITEMS, evicted_end_ns);
    stream->last_ticket = ticket + 1;
    context->last_ticket = ticket + 1;
    if (event) {
        event_leave_queue(event); /* of an earlier record */
        event->context = context_of_memory(context); /* it outlives a green context */
        event->epoch = event->context->epoch;
        event->channel = context->channel;
        event->ticket = ticket;
        event->has_end = false;
        event->is_recorded = true;
    }
    return 0;
}

static CUresult submit_or_wait(CUstream stream, struct sim_item *work, CUevent event, bool is_launch)
{
    CUcontext context = stream->context;
    work->cookie = (uint64_t)(uintptr_t)event;
    work->stream = (uint32_t)(stream->head.id % SIM_STREAMS_MAX);
    work->is_legacy = stream == context->legacy_stream;
    work->is_blocking = stream->is_blocking && !work->is_legacy;
    for (;;) {
        uint64_t ticket;
        state_lock(&g_driver.machine);
        if (!context->is_alive || context_error(context) != CUDA_SUCCESS) {
            state_unlock(&g_driver.machine);
            return context->is_alive ? context_error(context) : (CUresult)CUDA_ERROR_CONTEXT_IS_DESTROYED;
        }
        int error = submit(stream, work, event, &ticket);
        if (!error && is_launch)
            g_driver.machine.slot->launches[context->card]++;
        state_unlock(&g_driver.machine);
        if (!error)
            return CUDA_SUCCESS;
        TRY(stream_wait_ticket(context, ticket + 1)); /* the queue is full: room comes with its oldest piece */
    }
}

CUresult stream_submit(CUstream stream, int64_t duration_ns, CUevent event, bool is_launch)
{
    return submit_or_wait(stream, &(struct sim_item){.remaining_ns = duration_ns}, event, is_launch);
}

CUresult stream_submit_waiting(CUstream stream, uint64_t after, bool is_held)
{
    return submit_or_wait(stream, &(struct sim_item){.after = after, .is_held = is_held}, NULL, false);
}

void stream_release(CUcontext context, uint64_t epoch, uint64_t ticket_after)
{
    struct sim_state *state = g_driver.machine.state;
    state_lock(&g_driver.machine);
    if (context->is_alive && context->epoch == epoch) {
        timeline_advance(state, context->card, state_now_ns());
        timeline_release(state, context->channel, ticket_after - 1);
    }
    state_unlock(&g_driver.machine);
}

/* Flags: 1, it does not wait for the legacy stream. Priorities change nothing here. */
static CUresult create(CUstream *ret_stream, unsigned flags)
{
    CUcontext context;
    REQUIRE(ret_stream && flags <= 1, CUDA_ERROR_INVALID_VALUE);
    TRY(context_require(&context));
    driver_lock();
    CUresult result = stream_create(context, flags == 0, ret_stream);
    driver_unlock();
    return result;
}

ENTRY(cuStreamCreate, (CUstream *ret_stream, unsigned flags), create(ret_stream, flags))
ENTRY(cuStreamCreateWithPriority, (CUstream *ret_stream, unsigned flags, int priority), ((void)priority, create(ret_stream, flags)))

/* Its work goes on; only the handle dies. */
static CUresult destroy(CUstream stream)
{
    REQUIRE(object_is(stream, KIND_STREAM) && !stream->is_default, CUDA_ERROR_INVALID_HANDLE);
    driver_lock();
    graph_forget_stream(stream);
    context_remove_stream(stream);
    object_free(stream);
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuStreamDestroy, (CUstream stream), destroy(stream))
ENTRY(cuStreamDestroy_v2, (CUstream stream), destroy(stream))

static CUresult synchronize(CUstream stream)
{
    TRY(stream_resolve(stream, &stream));
    TRY(graph_refuse_wait(stream));
    CUcontext context = stream->context;
    if (stream_has_own_order() && stream == context->legacy_stream)
        TRY(stream_submit(stream, 0, NULL, false)); /* comes after all that the legacy stream waits for */
    CUresult result = stream_wait_ticket(context, stream->last_ticket);
    callback_wait(stream);
    pool_trim_after_sync(context);
    return result;
}

STREAM_ENTRY(cuStreamSynchronize, (CUstream stream), synchronize(stream))

static CUresult query(CUstream stream)
{
    TRY(stream_resolve(stream, &stream));
    TRY(graph_refuse_wait(stream));
    bool is_done = stream_is_ticket_done(stream->context, stream->last_ticket) && !callback_is_pending(stream);
    return is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

STREAM_ENTRY(cuStreamQuery, (CUstream stream), query(stream))
