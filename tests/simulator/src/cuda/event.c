/* event.c - events: markers in a stream's queue and the time at which the engine passed them.
 *
 * The time sits in the ring of the channel until the ring comes round; then event_keep_end() saves it into the event. Event fields
 * change under state_lock(), so that recording costs one lock. */
#include "driver.h"
#include "graph.h"
#include "pool.h"

void event_keep_end(uint64_t cookie, uint32_t channel, uint64_t ticket, int64_t end_ns)
{
    CUevent event = (CUevent)(uintptr_t)cookie;
    if (!object_is(event, KIND_EVENT) || !event->is_recorded || event->channel != channel || event->ticket != ticket)
        return; /* recorded again or destroyed since */
    event->end_ns = end_ns;
    event->has_end = true;
}

void event_leave_queue(CUevent event)
{
    if (!event->is_recorded || !event->context->is_alive || event->context->epoch != event->epoch)
        return;
    struct sim_channel *channel = &g_driver.machine.state->channels[event->channel];
    struct sim_item *item = &channel->items[event->ticket % SIM_RING_ITEMS];
    if (channel->submitted - event->ticket <= SIM_RING_ITEMS && item->cookie == (uint64_t)(uintptr_t)event)
        item->cookie = 0;
}

/* With the state lock. A destroyed context's events count as done. */
static bool is_passed(CUevent event)
{
    if (!event->is_recorded || event->has_end)
        return true;
    struct sim_state *state = g_driver.machine.state;
    if (!event->context->is_alive || event->context->epoch != event->epoch)
        return true;
    timeline_advance(state, event->context->card, state_now_ns());
    if (!timeline_is_done(state, event->channel, event->ticket))
        return false;
    event->end_ns = timeline_end_ns(state, event->channel, event->ticket);
    event->has_end = true;
    return true;
}

CUDA_EXPORT cuEventCreate(CUevent *ret_event, unsigned flags)
{
    ENTER(cuEventCreate);
    CUcontext context;
    REQUIRE(ret_event && flags < 8, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!(flags & CU_EVENT_INTERPROCESS) || (flags & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_VALUE);
    TRY(context_require(&context));
    CUevent event = object_new(KIND_EVENT, sizeof *event);
    REQUIRE(event, CUDA_ERROR_OUT_OF_MEMORY);
    event->context = context;
    event->flags = flags;
    *ret_event = event;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuEventDestroy_v2(CUevent event)
{
    ENTER(cuEventDestroy_v2);
    REQUIRE(object_is(event, KIND_EVENT), CUDA_ERROR_INVALID_HANDLE);
    state_lock(&g_driver.machine);
    event_leave_queue(event);
    event->is_recorded = false;
    state_unlock(&g_driver.machine);
    graph_forget_event(event);
    object_free(event);
    return CUDA_SUCCESS;
}

/* Flags: 1 makes it a node of its own in a capture, which it never is here. */
static CUresult record(CUevent event, CUstream stream, unsigned flags)
{
    bool is_captured = false;
    REQUIRE(flags <= 1, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(event, KIND_EVENT), CUDA_ERROR_INVALID_HANDLE);
    TRY(stream_resolve(stream, &stream));
    TRY(graph_capture_event_record(stream, event, &is_captured));
    if (is_captured)
        return CUDA_SUCCESS;
    REQUIRE(!event->context->is_alive || event->context->device == stream->context->device, CUDA_ERROR_INVALID_HANDLE);
    return stream_submit(stream, 0, event, false);
}

STREAM_ENTRY(cuEventRecord, (CUevent event, CUstream stream), record(event, stream, 0))
STREAM_ENTRY(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags), record(event, stream, flags))

CUDA_EXPORT cuEventQuery(CUevent event)
{
    ENTER(cuEventQuery);
    REQUIRE(object_is(event, KIND_EVENT), CUDA_ERROR_INVALID_HANDLE);
    TRY(graph_refuse_event(event));
    state_lock(&g_driver.machine);
    bool has_passed = is_passed(event);
    state_unlock(&g_driver.machine);
    return has_passed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUDA_EXPORT cuEventSynchronize(CUevent event)
{
    ENTER(cuEventSynchronize);
    REQUIRE(object_is(event, KIND_EVENT), CUDA_ERROR_INVALID_HANDLE);
    TRY(graph_refuse_event(event));
    state_lock(&g_driver.machine);
    bool has_passed = is_passed(event);
    CUcontext context = event->context;
    uint64_t ticket = event->ticket;
    state_unlock(&g_driver.machine);
    if (has_passed)
        return CUDA_SUCCESS;
    CUresult result = stream_wait_ticket(context, ticket + 1);
    pool_trim_after_sync(context);
    return result;
}

static CUresult elapsed(float *ret_ms, CUevent start, CUevent end)
{
    REQUIRE(ret_ms, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(start, KIND_EVENT) && object_is(end, KIND_EVENT), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(!((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_HANDLE);
    TRY(graph_refuse_event(start));
    TRY(graph_refuse_event(end));
    REQUIRE(start->is_recorded && end->is_recorded, CUDA_ERROR_INVALID_HANDLE);
    state_lock(&g_driver.machine);
    bool have_both = is_passed(start) && is_passed(end);
    int64_t between_ns = end->end_ns - start->end_ns;
    const struct sim_time_model *model = &g_driver.machine.state->time;
    between_ns += between_ns > 0 || (between_ns == 0 && start != end) ? model->event_error_ns : 0;
    state_unlock(&g_driver.machine);
    REQUIRE(have_both, CUDA_ERROR_NOT_READY);
    *ret_ms = (float)((double)between_ns / 1e6);
    return CUDA_SUCCESS;
}

ENTRY(cuEventElapsedTime, (float *ret_ms, CUevent start, CUevent end), elapsed(ret_ms, start, end))
ENTRY(cuEventElapsedTime_v2, (float *ret_ms, CUevent start, CUevent end), elapsed(ret_ms, start, end))

/* With one queue for all streams, what was recorded earlier is passed earlier anyway. An event of another card is not waited for. */
static CUresult wait_in_stream(CUstream stream, CUevent event)
{
    if (!stream_has_own_order() || stream->capture)
        return CUDA_SUCCESS;
    state_lock(&g_driver.machine);
    const bool must_wait = !is_passed(event) && event->channel == stream->context->channel;
    const uint64_t after = event->ticket + 1;
    state_unlock(&g_driver.machine);
    return must_wait ? stream_submit_waiting(stream, after, false) : CUDA_SUCCESS;
}

static CUresult wait_event(CUstream stream, CUevent event, unsigned flags)
{
    REQUIRE(flags <= 1, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(event, KIND_EVENT), CUDA_ERROR_INVALID_HANDLE);
    TRY(stream_resolve(stream, &stream));
    TRY(graph_capture_event_wait(stream, event));
    return wait_in_stream(stream, event);
}

STREAM_ENTRY(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), wait_event(stream, event, flags))

CUDA_EXPORT cuCtxRecordEvent(CUcontext context, CUevent event)
{
    ENTER(cuCtxRecordEvent);
    REQUIRE(object_is(context, KIND_CONTEXT) && context->is_alive, CUDA_ERROR_INVALID_CONTEXT);
    return record(event, context->legacy_stream, 0);
}

CUDA_EXPORT cuCtxWaitEvent(CUcontext context, CUevent event)
{
    ENTER(cuCtxWaitEvent);
    REQUIRE(object_is(context, KIND_CONTEXT) && context->is_alive, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(object_is(event, KIND_EVENT), CUDA_ERROR_INVALID_HANDLE);
    return wait_in_stream(context->legacy_stream, event);
}
