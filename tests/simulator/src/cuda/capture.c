/* capture.c - stream capture: turning calls on a stream into nodes of a graph (contract: graph.h).
 *
 * A stream that captures has a struct capture and a tail, the nodes that its next node comes after. An event recorded there carries
 * the tail to other streams, which join the capture by waiting for it. */
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

static void leave_capture(CUstream stream)
{
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

/* Everything but the kind of node is the caller's. *ret_node stays NULL if the stream does not capture. */
static CUresult record(CUstream stream, int type, CUgraphNode *ret_node)
{
    *ret_node = NULL;
    if (!stream->capture)
        return CUDA_SUCCESS;
    driver_lock();
    CUresult result = record_node(stream, type, ret_node);
    driver_unlock();
    return result;
}

CUresult graph_capture_marker(CUstream stream, int node_type, bool *ret_is_captured)
{
    CUgraphNode node;
    CUresult result = record(stream, node_type, &node);
    *ret_is_captured = node != NULL;
    return result;
}

CUresult graph_capture_kernel(CUstream stream, const struct launch *launch, bool *ret_is_captured)
{
    CUgraphNode node;
    CUresult result = record(stream, CU_GRAPH_NODE_TYPE_KERNEL, &node);
    if (node) {
        node->launch = *launch;
        node->shape = (CUDA_KERNEL_NODE_PARAMS_v2){.function = launch->function, .grid_x = 1, .grid_y = 1, .grid_z = 1, .block_x = 1,
                                                   .block_y = 1, .block_z = 1};
    }
    *ret_is_captured = node != NULL;
    return result;
}

CUresult graph_capture_host(CUstream stream, CUhostFn function, void *user_data, bool *ret_is_captured)
{
    CUgraphNode node;
    CUresult result = record(stream, CU_GRAPH_NODE_TYPE_HOST, &node);
    if (node)
        node->host = (CUDA_HOST_NODE_PARAMS){.function = function, .user_data = user_data};
    *ret_is_captured = node != NULL;
    return result;
}

CUresult graph_capture_allocate(CUstream stream, uint64_t size_bytes, CUdeviceptr *ret_address, bool *ret_is_captured)
{
    CUgraphNode node;
    CUresult result = record(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &node);
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

CUresult graph_capture_free(CUstream stream, CUdeviceptr address, bool *ret_is_captured)
{
    CUgraphNode node;
    CUresult result = record(stream, CU_GRAPH_NODE_TYPE_MEM_FREE, &node);
    if (node)
        node->address = address;
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
    CUresult result = stream->capture ? set_tail(&event->tail, &event->tail_count, stream->tail, stream->tail_count) : CUDA_SUCCESS;
    driver_unlock();
    return result;
}

static CUresult join(CUstream stream, CUevent event)
{
    if (!stream->capture)
        stream->capture = event->capture;
    REQUIRE(stream->capture == event->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
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

CUresult graph_capture_event_wait(CUstream stream, CUevent event, bool *ret_is_captured)
{
    driver_lock();
    bool is_in_capture = event->capture && event->capture->graph && event->capture->id == event->capture_id;
    *ret_is_captured = is_in_capture || stream->capture;
    CUresult result = is_in_capture ? join(stream, event) : CUDA_SUCCESS;
    driver_unlock();
    return result;
}

/* Modes: 0 global, 1 thread-local, 2 relaxed. */
static CUresult begin(CUstream handle, CUgraph graph, int mode)
{
    CUstream stream;
    REQUIRE(mode >= 0 && mode <= 2, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(handle && handle != CU_STREAM_LEGACY, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUresult result = stream_resolve(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(!stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    struct capture *capture = object_new(KIND_CAPTURE, sizeof *capture);
    if (capture && !graph)
        graph = graph_new();
    if (!capture || !graph) {
        object_free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->graph = graph;
    capture->origin = stream;
    capture->mode = mode;
    driver_lock();
    capture->id = g_next_capture_id++;
    stream->capture = capture;
    capture_mode_opened(capture);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuStreamBeginCapture(CUstream stream)
{
    ENTER(cuStreamBeginCapture);
    return begin(stream, NULL, 0);
}

CUDA_EXPORT cuStreamBeginCapture_ptsz(CUstream stream)
{
    ENTER(cuStreamBeginCapture_ptsz);
    return begin(stream_of_thread(stream), NULL, 0);
}

CUDA_EXPORT cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    ENTER(cuStreamBeginCapture_v2);
    return begin(stream, NULL, mode);
}

CUDA_EXPORT cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
    ENTER(cuStreamBeginCapture_v2_ptsz);
    return begin(stream_of_thread(stream), NULL, mode);
}

static CUresult begin_in_graph(CUstream handle, CUgraph graph, const CUgraphNode *dependencies, size_t count, int mode)
{
    CUstream stream;
    REQUIRE(object_is(graph, KIND_GRAPH) && (dependencies || count == 0), CUDA_ERROR_INVALID_VALUE);
    CUresult result = begin(handle, graph, mode);
    if (result == CUDA_SUCCESS && (result = stream_resolve(handle, &stream)) == CUDA_SUCCESS && count)
        result = set_tail(&stream->tail, &stream->tail_count, dependencies, count);
    return result;
}

CUDA_EXPORT cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count,
                                        int mode)
{
    ENTER(cuStreamBeginCaptureToGraph);
    (void)edges;
    return begin_in_graph(stream, graph, dependencies, count, mode);
}

CUDA_EXPORT cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const void *edges,
                                             size_t count, int mode)
{
    ENTER(cuStreamBeginCaptureToGraph_ptsz);
    (void)edges;
    return begin_in_graph(stream_of_thread(stream), graph, dependencies, count, mode);
}

/* The same nodes in the same order; other parameters are taken over, and nobody is asked about them. */
static CUresult begin_again(CUstream handle, CUgraph graph, int mode)
{
    CUstream stream;
    REQUIRE(object_is(graph, KIND_GRAPH), CUDA_ERROR_INVALID_VALUE);
    CUresult result = begin(handle, NULL, mode);
    if (result == CUDA_SUCCESS && (result = stream_resolve(handle, &stream)) == CUDA_SUCCESS)
        stream->capture->recaptured = graph;
    return result;
}

CUDA_EXPORT cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, void *callback, void *user_data)
{
    ENTER(cuStreamBeginRecaptureToGraph);
    (void)callback, (void)user_data;
    return begin_again(stream, graph, mode);
}

CUDA_EXPORT cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, CUgraph graph, void *callback, void *user_data)
{
    ENTER(cuStreamBeginRecaptureToGraph_ptsz);
    (void)callback, (void)user_data;
    return begin_again(stream_of_thread(stream), graph, mode);
}

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

/* Into a command list of a graphics interface: launches do not run, and their way to the card is not ours. */
static CUresult begin_for_graphics(CUstream handle, const void *parameters)
{
    CUstream stream;
    REQUIRE(parameters, CUDA_ERROR_INVALID_VALUE);
    CUresult result = begin(handle, NULL, 2);
    if (result == CUDA_SUCCESS && (result = stream_resolve(handle, &stream)) == CUDA_SUCCESS)
        stream->capture->is_for_graphics = true;
    return result;
}

CUDA_EXPORT cuStreamBeginCaptureToCig(CUstream stream, void *parameters)
{
    ENTER(cuStreamBeginCaptureToCig);
    return begin_for_graphics(stream, parameters);
}

CUDA_EXPORT cuStreamBeginCaptureToCig_ptsz(CUstream stream, void *parameters)
{
    ENTER(cuStreamBeginCaptureToCig_ptsz);
    return begin_for_graphics(stream_of_thread(stream), parameters);
}

static struct capture *g_ending;

static void leave_if_ending(CUstream stream)
{
    if (stream->capture == g_ending)
        leave_capture(stream);
}

static CUresult end(CUstream handle, bool is_for_graphics, CUgraph *ret_graph)
{
    CUstream stream;
    REQUIRE(ret_graph, CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(stream->capture && stream->capture->is_for_graphics == is_for_graphics, CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(stream->capture->origin == stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    driver_lock();
    struct capture *capture = stream->capture;
    capture_mode_closed(capture);
    g_ending = capture;
    context_visit_streams(NULL, leave_if_ending);
    *ret_graph = capture->is_broken ? NULL : capture->recaptured ? capture->recaptured : capture->graph;
    result = capture->is_broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    if (capture->recaptured && !capture->is_broken)
        result = replace_nodes(capture->recaptured, capture->graph);
    capture->graph = NULL; /* events that still point here see that it is over */
    object_free(capture);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuStreamEndCapture(CUstream stream, CUgraph *ret_graph)
{
    ENTER(cuStreamEndCapture);
    return end(stream, false, ret_graph);
}

CUDA_EXPORT cuStreamEndCapture_ptsz(CUstream stream, CUgraph *ret_graph)
{
    ENTER(cuStreamEndCapture_ptsz);
    return end(stream_of_thread(stream), false, ret_graph);
}

static CUresult end_for_graphics(CUstream stream)
{
    CUgraph graph;
    CUresult result = end(stream, true, &graph);
    driver_lock();
    if (result == CUDA_SUCCESS)
        graph_destroy(graph);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuStreamEndCaptureToCig(CUstream stream)
{
    ENTER(cuStreamEndCaptureToCig);
    return end_for_graphics(stream);
}

CUDA_EXPORT cuStreamEndCaptureToCig_ptsz(CUstream stream)
{
    ENTER(cuStreamEndCaptureToCig_ptsz);
    return end_for_graphics(stream_of_thread(stream));
}

/* Status: 0 none, 1 active, 2 invalidated. */
static int status_of(CUstream stream)
{
    return !stream->capture ? 0 : stream->capture->is_broken ? 2 : 1;
}

static CUresult is_capturing(CUstream handle, int *ret_status)
{
    CUstream stream;
    REQUIRE(ret_status, CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result == CUDA_SUCCESS)
        *ret_status = status_of(stream);
    return result;
}

CUDA_EXPORT cuStreamIsCapturing(CUstream stream, int *ret_status)
{
    ENTER(cuStreamIsCapturing);
    return is_capturing(stream, ret_status);
}

CUDA_EXPORT cuStreamIsCapturing_ptsz(CUstream stream, int *ret_status)
{
    ENTER(cuStreamIsCapturing_ptsz);
    return is_capturing(stream_of_thread(stream), ret_status);
}

static CUresult capture_info(CUstream handle, int *ret_status, uint64_t *ret_id, CUgraph *ret_graph, const CUgraphNode **ret_tail,
                             size_t *ret_count)
{
    CUstream stream;
    REQUIRE(ret_status, CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    *ret_status = status_of(stream);
    if (!stream->capture)
        return CUDA_SUCCESS;
    if (ret_id)
        *ret_id = stream->capture->id;
    if (ret_graph)
        *ret_graph = stream->capture->graph;
    if (ret_tail)
        *ret_tail = stream->tail;
    if (ret_count)
        *ret_count = stream->tail_count;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuStreamGetCaptureInfo(CUstream stream, int *ret_status, uint64_t *ret_id)
{
    ENTER(cuStreamGetCaptureInfo);
    return capture_info(stream, ret_status, ret_id, NULL, NULL, NULL);
}

CUDA_EXPORT cuStreamGetCaptureInfo_ptsz(CUstream stream, int *ret_status, uint64_t *ret_id)
{
    ENTER(cuStreamGetCaptureInfo_ptsz);
    return capture_info(stream_of_thread(stream), ret_status, ret_id, NULL, NULL, NULL);
}

CUDA_EXPORT cuStreamGetCaptureInfo_v2(CUstream stream, int *ret_status, uint64_t *ret_id, CUgraph *ret_graph,
                                      const CUgraphNode **ret_tail, size_t *ret_count)
{
    ENTER(cuStreamGetCaptureInfo_v2);
    return capture_info(stream, ret_status, ret_id, ret_graph, ret_tail, ret_count);
}

CUDA_EXPORT cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, int *ret_status, uint64_t *ret_id, CUgraph *ret_graph,
                                           const CUgraphNode **ret_tail, size_t *ret_count)
{
    ENTER(cuStreamGetCaptureInfo_v2_ptsz);
    return capture_info(stream_of_thread(stream), ret_status, ret_id, ret_graph, ret_tail, ret_count);
}

CUDA_EXPORT cuStreamGetCaptureInfo_v3(CUstream stream, int *ret_status, uint64_t *ret_id, CUgraph *ret_graph,
                                      const CUgraphNode **ret_tail, const void **ret_edges, size_t *ret_count)
{
    ENTER(cuStreamGetCaptureInfo_v3);
    if (ret_edges)
        *ret_edges = NULL;
    return capture_info(stream, ret_status, ret_id, ret_graph, ret_tail, ret_count);
}

CUDA_EXPORT cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, int *ret_status, uint64_t *ret_id, CUgraph *ret_graph,
                                           const CUgraphNode **ret_tail, const void **ret_edges, size_t *ret_count)
{
    ENTER(cuStreamGetCaptureInfo_v3_ptsz);
    if (ret_edges)
        *ret_edges = NULL;
    return capture_info(stream_of_thread(stream), ret_status, ret_id, ret_graph, ret_tail, ret_count);
}

/* Flags: 0 add to the tail, 1 replace it. */
static CUresult update_tail(CUstream handle, CUgraphNode *nodes, size_t count, unsigned flags)
{
    CUstream stream;
    REQUIRE((nodes || count == 0) && flags <= 1, CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    driver_lock();
    struct CUevent_st carrier = {.capture = stream->capture, .tail = nodes, .tail_count = count};
    result = flags == 1 ? set_tail(&stream->tail, &stream->tail_count, nodes, count) : join(stream, &carrier);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags)
{
    ENTER(cuStreamUpdateCaptureDependencies);
    return update_tail(stream, nodes, count, flags);
}

CUDA_EXPORT cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags)
{
    ENTER(cuStreamUpdateCaptureDependencies_ptsz);
    return update_tail(stream_of_thread(stream), nodes, count, flags);
}

CUDA_EXPORT cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes, const void *edges, size_t count, unsigned flags)
{
    ENTER(cuStreamUpdateCaptureDependencies_v2);
    (void)edges;
    return update_tail(stream, nodes, count, flags);
}

CUDA_EXPORT cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode *nodes, const void *edges, size_t count,
                                                      unsigned flags)
{
    ENTER(cuStreamUpdateCaptureDependencies_v2_ptsz);
    (void)edges;
    return update_tail(stream_of_thread(stream), nodes, count, flags);
}
