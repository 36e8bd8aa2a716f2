/* launch.c - work for the card: every way to launch it passes the gate, in both stream flavours.
 *
 * Fast:    without a core limit a launch costs a few loads; with one, no clock and no shared cache line until a grant is used up.
 * Promise: a launch that the driver refuses costs nothing; a captured stream is neither gated nor measured, its graph is.
 * Next:    measure.c. */
#include "compute/measure.h"
#include "hooks/hooks.h"
#include "memory/graphs.h"
#include "memory/overhead.h"

static bool is_limited(struct tf_container *container)
{
    tf_container_refresh(container);
    return TF_UNLIKELY(atomic_load_explicit(&container->has_core_limits, memory_order_relaxed));
}

static void begin(struct tf_launch *launch, struct tf_container *container, const struct tf_cuda *cuda, uint64_t key, CUstream stream, bool per_thread)
{
    if (!tf_launch_begin(launch, container, cuda, key, (struct tf_stream){stream, per_thread}))
        return;
    tf_overhead_notice(container, launch->gpu); /* before the event: what this takes is no work of the card */
    tf_launch_record(launch);
}

/* Three functions of one signature, each of which leaves what is not its own to the next by a tail call, so that the arguments stay where they
 * are: the exported one (no limit), one for launches within a grant, one for everything else. `key` is evaluated only for a limited launch. */
#define LAUNCH(symbol, signature, key, stream, per_thread, arguments) \
    static __attribute__((noinline)) CUresult ask_##symbol signature \
    { \
        TF_ENTER(symbol); \
        struct tf_container *container = tf_container(); \
        if (!is_limited(container)) \
            return cuda->symbol arguments; \
        struct tf_launch launch; \
        begin(&launch, container, cuda, key, stream, per_thread); \
        return tf_launch_end(&launch, cuda->symbol arguments); \
    } \
    static __attribute__((noinline)) CUresult pay_##symbol signature \
    { \
        const struct tf_cuda *cuda = atomic_load_explicit(&tf_cuda_ready, memory_order_acquire); \
        uint64_t charged_ns; \
        struct tf_limit_process *process = tf_launch_pass(key, (struct tf_stream){stream, per_thread}, &charged_ns); \
        if (TF_UNLIKELY(!process)) \
            return ask_##symbol arguments; \
        CUresult result = cuda->symbol arguments; \
        if (TF_UNLIKELY(result != CUDA_SUCCESS)) \
            tf_limit_refund(process, charged_ns); \
        return result; \
    } \
    CUresult symbol signature \
    { \
        const struct tf_cuda *cuda = atomic_load_explicit(&tf_cuda_ready, memory_order_acquire); \
        if (TF_UNLIKELY(!cuda || !cuda->symbol || !tf_container_is_settled())) \
            return ask_##symbol arguments; \
        if (TF_UNLIKELY(atomic_load_explicit(&tf_the_container.has_core_limits, memory_order_relaxed))) \
            return pay_##symbol arguments; \
        return cuda->symbol arguments; \
    }

#define SHAPE \
    CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, \
        unsigned int shared_bytes, CUstream stream, void **parameters
#define SHAPE_KEY tf_limit_key(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes)
#define SHAPE_ARGUMENTS function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters

LAUNCH(cuLaunchKernel, (SHAPE, void **extra), SHAPE_KEY, stream, false, (SHAPE_ARGUMENTS, extra))
LAUNCH(cuLaunchKernel_ptsz, (SHAPE, void **extra), SHAPE_KEY, stream, true, (SHAPE_ARGUMENTS, extra))
LAUNCH(cuLaunchCooperativeKernel, (SHAPE), SHAPE_KEY, stream, false, (SHAPE_ARGUMENTS))
LAUNCH(cuLaunchCooperativeKernel_ptsz, (SHAPE), SHAPE_KEY, stream, true, (SHAPE_ARGUMENTS))

/* A missing configuration is the driver's business. */
static const CUlaunchConfig no_config;

static inline const CUlaunchConfig *some(const CUlaunchConfig *config) { return config ? config : &no_config; }

static inline uint64_t config_key(const CUlaunchConfig *config, CUfunction function)
{
    return tf_limit_key(function, config->grid_x, config->grid_y, config->grid_z, config->block_x, config->block_y, config->block_z,
        config->shared_bytes);
}

#define CONFIG const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra
LAUNCH(cuLaunchKernelEx, (CONFIG), config_key(some(config), function), some(config)->stream, false, (config, function, parameters, extra))
LAUNCH(cuLaunchKernelEx_ptsz, (CONFIG), config_key(some(config), function), some(config)->stream, true, (config, function, parameters, extra))

/* Interfaces of before CUDA 4: the block's shape was set on the function, so the function alone is the key. */
LAUNCH(cuLaunch, (CUfunction function), tf_limit_key(function, 1, 1, 1, 0, 0, 0, 0), NULL, false, (function))
LAUNCH(cuLaunchGrid, (CUfunction function, int grid_x, int grid_y), tf_limit_key(function, (uint32_t)grid_x, (uint32_t)grid_y, 1, 0, 0, 0, 0), NULL,
    false, (function, grid_x, grid_y))
LAUNCH(cuLaunchGridAsync, (CUfunction function, int grid_x, int grid_y, CUstream stream),
    tf_limit_key(function, (uint32_t)grid_x, (uint32_t)grid_y, 1, 0, 0, 0, 0), stream, false, (function, grid_x, grid_y, stream))

/* Launches on several cards at once: gated by the first, charged by estimate on the others when they next launch alone. */
static const CUDA_LAUNCH_PARAMS no_launch;

static inline const CUDA_LAUNCH_PARAMS *first_of(const CUDA_LAUNCH_PARAMS *launches, unsigned int count)
{
    return launches && count ? launches : &no_launch;
}

static inline uint64_t launch_key(const CUDA_LAUNCH_PARAMS *launch)
{
    return tf_limit_key(launch->function, launch->grid_x, launch->grid_y, launch->grid_z, launch->block_x, launch->block_y, launch->block_z,
        launch->shared_bytes);
}

LAUNCH(cuLaunchCooperativeKernelMultiDevice, (CUDA_LAUNCH_PARAMS *launches, unsigned int count, unsigned int flags),
    launch_key(first_of(launches, count)), first_of(launches, count)->stream, false, (launches, count, flags))

/* A graph is one piece of work, measured whole; memory of its nodes appears with the launch. */
static CUresult launch_graph(const struct tf_cuda *cuda, CUresult (*real)(CUgraphExec, CUstream), CUgraphExec graph, CUstream stream, bool per_thread)
{
    struct tf_container *container = tf_container();
    if (!is_limited(container))
        return tf_graphs_launch(container, cuda, real, graph, stream);
    struct tf_launch launch;
    begin(&launch, container, cuda, tf_limit_key(graph, 0, 0, 0, 0, 0, 0, 0), stream, per_thread);
    return tf_launch_end(&launch, tf_graphs_launch(container, cuda, real, graph, stream));
}

#define LAUNCH_GRAPH(symbol, per_thread) \
    TF_ENTER(symbol); \
    return launch_graph(cuda, cuda->symbol, graph, stream, per_thread)

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) { LAUNCH_GRAPH(cuGraphLaunch, false); }
CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) { LAUNCH_GRAPH(cuGraphLaunch_ptsz, true); }

/* A program that captures nothing now does not pay for asking. */
#define CAPTURE(symbol, arguments) \
    TF_ENTER(symbol); \
    tf_capture_begin(tf_container(), cuda); \
    return tf_capture_begun(cuda->symbol arguments)

CUresult cuStreamBeginCapture(CUstream stream) { CAPTURE(cuStreamBeginCapture, (stream)); }
CUresult cuStreamBeginCapture_ptsz(CUstream stream) { CAPTURE(cuStreamBeginCapture_ptsz, (stream)); }
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) { CAPTURE(cuStreamBeginCapture_v2, (stream, mode)); }
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) { CAPTURE(cuStreamBeginCapture_v2_ptsz, (stream, mode)); }

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count, int mode)
{
    CAPTURE(cuStreamBeginCaptureToGraph, (stream, graph, dependencies, edges, count, mode));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count, int mode)
{
    CAPTURE(cuStreamBeginCaptureToGraph_ptsz, (stream, graph, dependencies, edges, count, mode));
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, void *callback, void *data)
{
    CAPTURE(cuStreamBeginRecaptureToGraph, (stream, mode, graph, callback, data));
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, CUgraph graph, void *callback, void *data)
{
    CAPTURE(cuStreamBeginRecaptureToGraph_ptsz, (stream, mode, graph, callback, data));
}

CUresult cuStreamBeginCaptureToCig(CUstream stream, void *parameters) { CAPTURE(cuStreamBeginCaptureToCig, (stream, parameters)); }
CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, void *parameters) { CAPTURE(cuStreamBeginCaptureToCig_ptsz, (stream, parameters)); }

#define END_CAPTURE(symbol, per_thread, arguments) \
    TF_ENTER(symbol); \
    struct tf_stream ending = {stream, per_thread}; \
    bool has_captured = tf_stream_captures(cuda, ending); \
    return tf_capture_ended(cuda, ending, has_captured, cuda->symbol arguments)

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) { END_CAPTURE(cuStreamEndCapture, false, (stream, graph)); }
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) { END_CAPTURE(cuStreamEndCapture_ptsz, true, (stream, graph)); }
CUresult cuStreamEndCaptureToCig(CUstream stream) { END_CAPTURE(cuStreamEndCaptureToCig, false, (stream)); }
CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream) { END_CAPTURE(cuStreamEndCaptureToCig_ptsz, true, (stream)); }
