/* capture.c - stream capture: turning calls on a stream into nodes of a graph (contract: graph.h).
 *
 * A stream that captures has a struct capture and a tail, the nodes that its next node comes after. An event recorded there carries
 * the tail to other streams, which join the capture by waiting for it.
 * Strict: whatever would cross the border of a capture fails and breaks it (CUDA programming guide, Creating a Graph Using Stream Capture,
 * "Prohibited and Unhandled Operations" and "Invalidation"; rule capture_is_strict of the model). */
#include <stdlib.h>

#include "context.h"
#include "graph.h"
#include "heap.h"

static uint64_t g_next_capture_id = 1;

static CUresult set_tail(CUgraphNode **tail, size_t *count, const CUgraphNode *nodes, size_t node_count)
{
    CUgraphNode *copy = malloc((node_count + 1) * sizeof *copy);
    REQUIRE(copy, CUDA_ERROR_OUT_OF_MEMORY);
    if (node_count)
        memcpy(copy, nodes, node_count * sizeof *copy);
    free(*tail);
    *tail = copy;
    *count = node_count;
    return CUDA_SUCCESS;
}

static bool is_strict(void)
{
    return g_driver.machine.state->rules.capture_is_strict;
}

/* The capture fails with this error where the rules are strict; else nothing happens. */
static CUresult break_capture(struct capture *capture, CUresult error)
{
    if (!is_strict())
        return CUDA_SUCCESS;
    capture->is_broken = true;
    return error;
}

static bool is_in_live_capture(CUevent event)
{
    return event->capture && event->capture->graph && event->capture->id == event->capture_id;
}

CUresult graph_refuse_event(CUevent event)
{
    if (!event->capture_id || !is_strict())
        return CUDA_SUCCESS;
    driver_lock();
    if (is_in_live_capture(event))
        event->capture->is_broken = true;
    driver_unlock();
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult graph_refuse_wait(CUstream stream)
{
    if (!stream->capture)
        return CUDA_SUCCESS;
    driver_lock();
    break_capture(stream->capture, 0);
    driver_unlock();
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult g_legacy_refused;

static void refuse_legacy(CUstream stream)
{
    if (stream->capture && stream->is_blocking)
        g_legacy_refused = break_capture(stream->capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

/* Work on the legacy stream would wait for all blocking streams, also for those that capture. Under driver_lock(). */
static CUresult check_legacy(CUstream stream)
{
    if (stream != stream->context->legacy_stream)
        return CUDA_SUCCESS;
    g_legacy_refused = CUDA_SUCCESS;
    context_visit_streams(stream->context, refuse_legacy);
    return g_legacy_refused;
}

static void join_capture(CUstream stream, struct capture *capture)
{
    if (!stream->capture)
        atomic_fetch_add(&g_driver.streams_capturing, 1);
    stream->capture = capture;
}

static void leave_capture(CUstream stream)
{
    if (stream->capture)
        atomic_fetch_sub(&g_driver.streams_capturing, 1);
    free(stream->tail);
    stream->tail = NULL;
    stream->tail_count = 0;
    stream->capture = NULL;
}

void graph_forget_stream(CUstream stream)
{
    if (stream->capture && stream->capture->origin == stream)
        stream->capture->is_broken = true;
    leave_capture(stream);
}

void graph_forget_event(CUevent event)
{
    driver_lock();
    free(event->tail);
    event->tail = NULL;
    event->capture = NULL;
    driver_unlock();
}

/* The node of the graph that is captured again which the next node must equal; NULL: there is none. */
static CUgraphNode expected_node(const struct capture *capture)
{
    const size_t index = capture->graph->node_count;
    return index < capture->recaptured->node_count ? capture->recaptured->nodes[index] : NULL;
}

/* The new node at the end of a capturing stream. Under driver_lock(). */
static CUresult record_node(CUstream stream, int type, CUgraphNode *ret_node)
{
    struct capture *capture = stream->capture;
    REQUIRE(!capture->is_broken, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    const CUgraphNode expected = capture->recaptured ? expected_node(capture) : NULL;
    if (capture->recaptured && (!expected || expected->type != type || expected->dependency_count != stream->tail_count)) {
        capture->is_broken = true;
        return CUDA_ERROR_GRAPH_RECAPTURE_FAILURE;
    }
    CUresult result = graph_add(capture->graph, type, stream->tail, stream->tail_count, ret_node);
    if (result == CUDA_SUCCESS)
        (*ret_node)->origin = expected;
    if (result == CUDA_SUCCESS)
        result = set_tail(&stream->tail, &stream->tail_count, ret_node, 1);
    return result;
}

CUresult graph_capture(CUstream stream, int type, CUgraphNode *ret_node)
{
    *ret_node = NULL;
    if (!atomic_load_explicit(&g_driver.streams_capturing, memory_order_relaxed))
        return CUDA_SUCCESS;
    driver_lock();
    CUresult result = stream->capture ? record_node(stream, type, ret_node) : check_legacy(stream);
    driver_unlock();
    return result;
}

CUresult graph_mark(CUstream stream, int node_type)
{
    CUgraphNode node;
    TRY(stream_resolve(stream, &stream));
    TRY(graph_capture(stream, node_type, &node));
    return node ? CUDA_SUCCESS : stream_submit(stream, 0, NULL, false);
}

CUresult graph_capture_allocate(CUstream stream, uint64_t size_bytes, CUdeviceptr *ret_address, bool *ret_is_captured)
{
    CUgraphNode node;
    CUresult result = graph_capture(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &node);
    if (node && node->origin && node->origin->size_bytes != size_bytes) {
        stream->capture->is_broken = true;
        result = CUDA_ERROR_GRAPH_RECAPTURE_FAILURE;
    } else if (node) {
        node->size_bytes = size_bytes;
        node->device = stream->context->device;
        driver_lock();
        *ret_address = node->address = node->origin ? node->origin->address : heap_new_address(size_bytes);
        driver_unlock();
    }
    *ret_is_captured = node != NULL;
    return result;
}

/* No node: the event remembers where the stream stands. */
CUresult graph_capture_event_record(CUstream stream, CUevent event, bool *ret_is_captured)
{
    *ret_is_captured = stream->capture != NULL;
    driver_lock();
    event->capture = stream->capture;
    event->capture_id = stream->capture ? stream->capture->id : 0;
    CUresult result = stream->capture ? set_tail(&event->tail, &event->tail_count, stream->tail, stream->tail_count) : check_legacy(stream);
    driver_unlock();
    return result;
}

static CUresult join(CUstream stream, CUevent event)
{
    join_capture(stream, stream->capture ? stream->capture : event->capture);
    if (stream->capture != event->capture) {
        break_capture(stream->capture, 0);
        break_capture(event->capture, 0);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    CUgraphNode *both = malloc((stream->tail_count + event->tail_count + 1) * sizeof *both);
    REQUIRE(both, CUDA_ERROR_OUT_OF_MEMORY);
    size_t count = 0;
    for (size_t i = 0; i < stream->tail_count; i++)
        both[count++] = stream->tail[i];
    for (size_t i = 0; i < event->tail_count; i++)
        both[count++] = event->tail[i];
    CUresult result = set_tail(&stream->tail, &stream->tail_count, both, count);
    free(both);
    return result;
}

CUresult graph_capture_event_wait(CUstream stream, CUevent event)
{
    driver_lock();
    CUresult result = CUDA_SUCCESS;
    if (is_in_live_capture(event))
        result = join(stream, event);
    else if (stream->capture && (event->is_recorded || event->capture_id)) /* work that the graph knows nothing of */
        result = break_capture(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    driver_unlock();
    return result;
}

/* Modes: 0 global, 1 thread-local, 2 relaxed. *handle becomes the stream that it stands for. */
static CUresult begin(CUstream *handle, CUgraph graph, int mode)
{
    REQUIRE(mode >= 0 && mode <= 2, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(*handle && *handle != CU_STREAM_LEGACY, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    TRY(stream_resolve(*handle, handle));
    REQUIRE(!(*handle)->capture, CUDA_ERROR_ILLEGAL_STATE);
    struct capture *capture = object_new(KIND_CAPTURE, sizeof *capture);
    if (capture && !graph)
        graph = graph_new();
    if (!capture || !graph) {
        object_free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->graph = graph;
    capture->origin = *handle;
    capture->mode = mode;
    driver_lock();
    capture->id = g_next_capture_id++;
    join_capture(*handle, capture);
    capture_mode_opened(capture);
    driver_unlock();
    return CUDA_SUCCESS;
}

STREAM_ENTRY(cuStreamBeginCapture, (CUstream stream), begin(&stream, NULL, 0))
STREAM_ENTRY(cuStreamBeginCapture_v2, (CUstream stream, int mode), begin(&stream, NULL, mode))

static CUresult begin_in_graph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, size_t count, int mode)
{
    REQUIRE(object_is(graph, KIND_GRAPH) && (dependencies || count == 0), CUDA_ERROR_INVALID_VALUE);
    TRY(begin(&stream, graph, mode));
    return count ? set_tail(&stream->tail, &stream->tail_count, dependencies, count) : CUDA_SUCCESS;
}

STREAM_ENTRY(cuStreamBeginCaptureToGraph,
             (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count, int mode),
             ((void)edges, begin_in_graph(stream, graph, dependencies, count, mode)))

/* The same nodes in the same order; other parameters are taken over, and nobody is asked about them. */
static CUresult begin_again(CUstream stream, CUgraph graph, int mode)
{
    REQUIRE(object_is(graph, KIND_GRAPH), CUDA_ERROR_INVALID_VALUE);
    TRY(begin(&stream, NULL, mode));
    stream->capture->recaptured = graph;
    return CUDA_SUCCESS;
}

STREAM_ENTRY(cuStreamBeginRecaptureToGraph, (CUstream stream, int mode, CUgraph graph, void *callback, void *user_data),
             ((void)callback, (void)user_data, begin_again(stream, graph, mode)))

/* Into a command list of a graphics interface: launches do not run, and their way to the card is not ours. */
static CUresult begin_for_graphics(CUstream stream, const void *parameters)
{
    REQUIRE(parameters, CUDA_ERROR_INVALID_VALUE);
    TRY(begin(&stream, NULL, 2));
    stream->capture->is_for_graphics = true;
    return CUDA_SUCCESS;
}

STREAM_ENTRY(cuStreamBeginCaptureToCig, (CUstream stream, void *parameters), begin_for_graphics(stream, parameters))

/* What was captured again becomes the content of the graph it was captured for. Under driver_lock(). */
static CUresult replace_nodes(CUgraph graph, CUgraph fresh)
{
    const bool is_complete = fresh->node_count == graph->node_count;
    if (is_complete) {
        const struct CUgraph_st old = *graph;
        graph->nodes = fresh->nodes;
        graph->node_count = fresh->node_count;
        fresh->nodes = old.nodes;
        fresh->node_count = old.node_count;
        for (size_t i = 0; i < graph->node_count; i++) {
            graph->nodes[i]->graph = graph;
            graph->nodes[i]->origin = NULL;
        }
    }
    graph_destroy(fresh);
    return is_complete ? CUDA_SUCCESS : (CUresult)CUDA_ERROR_GRAPH_RECAPTURE_FAILURE;
}

static struct capture *g_ending;

static void leave_if_ending(CUstream stream)
{
    if (stream->capture == g_ending)
        leave_capture(stream);
}

static CUresult end(CUstream stream, bool is_for_graphics, CUgraph *ret_graph)
{
    REQUIRE(ret_graph, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_resolve(stream, &stream));
    REQUIRE(stream->capture && stream->capture->is_for_graphics == is_for_graphics, CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(stream->capture->origin == stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    driver_lock();
    struct capture *capture = stream->capture;
    capture_mode_closed(capture);
    g_ending = capture;
    context_visit_streams(NULL, leave_if_ending);
    *ret_graph = capture->is_broken ? NULL : capture->recaptured ? capture->recaptured : capture->graph;
    CUresult result = capture->is_broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    if (capture->recaptured && !capture->is_broken)
        result = replace_nodes(capture->recaptured, capture->graph);
    capture->graph = NULL; /* events that still point here see that it is over */
    object_free(capture);
    driver_unlock();
    return result;
}

STREAM_ENTRY(cuStreamEndCapture, (CUstream stream, CUgraph *ret_graph), end(stream, false, ret_graph))

static CUresult end_for_graphics(CUstream stream)
{
    CUgraph graph;
    TRY(end(stream, true, &graph));
    driver_lock();
    graph_destroy(graph);
    driver_unlock();
    return CUDA_SUCCESS;
}

STREAM_ENTRY(cuStreamEndCaptureToCig, (CUstream stream), end_for_graphics(stream))

/* Status: 0 none, 1 active, 2 invalidated. The other outputs may be NULL; edges wait for completion and have no data. */
static CUresult capture_info(CUstream stream, int *ret_status, uint64_t *ret_id, CUgraph *ret_graph, const CUgraphNode **ret_tail,
                             const void **ret_edges, size_t *ret_count)
{
    REQUIRE(ret_status, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_resolve(stream, &stream));
    *ret_status = !stream->capture ? 0 : stream->capture->is_broken ? 2 : 1;
    if (!stream->capture)
        return CUDA_SUCCESS;
    if (ret_id)
        *ret_id = stream->capture->id;
    if (ret_graph)
        *ret_graph = stream->capture->graph;
    if (ret_tail)
        *ret_tail = stream->tail;
    if (ret_edges)
        *ret_edges = NULL;
    if (ret_count)
        *ret_count = stream->tail_count;
    return CUDA_SUCCESS;
}

STREAM_ENTRY(cuStreamIsCapturing, (CUstream stream, int *ret_status), capture_info(stream, ret_status, NULL, NULL, NULL, NULL, NULL))
STREAM_ENTRY(cuStreamGetCaptureInfo, (CUstream stream, int *ret_status, uint64_t *ret_id),
             capture_info(stream, ret_status, ret_id, NULL, NULL, NULL, NULL))
STREAM_ENTRY(cuStreamGetCaptureInfo_v2,
             (CUstream stream, int *ret_status, uint64_t *ret_id, CUgraph *ret_graph, const CUgraphNode **ret_tail, size_t *ret_count),
             capture_info(stream, ret_status, ret_id, ret_graph, ret_tail, NULL, ret_count))
STREAM_ENTRY(cuStreamGetCaptureInfo_v3,
             (CUstream stream, int *ret_status, uint64_t *ret_id, CUgraph *ret_graph, const CUgraphNode **ret_tail,
              const void **ret_edges, size_t *ret_count),
             capture_info(stream, ret_status, ret_id, ret_graph, ret_tail, ret_edges, ret_count))
