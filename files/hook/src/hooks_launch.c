/* hooks_launch.c - work for the card: every way to launch it passes the gate, in both stream flavours.
 *
 * Fast:    without a core limit a launch costs four loads; with one, no clock and no shared cache line until a grant is used up.
 * Promise: a launch that the driver refuses costs nothing; a captured stream is neither gated nor measured, its graph is.
 * Next:    measure.c. */
#include "graphs.h"
#include "measure.h"

static bool is_limited(struct tf_container *container)
{
    tf_container_refresh(container);
    return TF_UNLIKELY(atomic_load_explicit(&container->has_core_limits, memory_order_relaxed))
        && atomic_load_explicit(&container->stance, memory_order_relaxed) == TF_ENFORCED;
}

/* `key` is evaluated only for a limited launch. */
#define LAUNCH(symbol, key, stream, per_thread, arguments) \
    const struct tf_cuda *cuda = tf_cuda(); \
    if (TF_UNLIKELY(!cuda || !cuda->symbol)) \
        return CUDA_ERROR_NOT_INITIALIZED; \
    struct tf_container *container = tf_container(); \
    if (!is_limited(container)) \
        return cuda->symbol arguments; \
    struct tf_launch launch; \
    tf_launch_begin(&launch, container, cuda, key, (struct tf_stream){stream, per_thread}); \
    return tf_launch_end(&launch, cuda->symbol arguments)

#define KERNEL_KEY tf_limit_key(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes)
#define KERNEL_ARGUMENTS function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y,
    unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)
{
    LAUNCH(cuLaunchKernel, KERNEL_KEY, stream, false, (KERNEL_ARGUMENTS, extra));
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
    unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)
{
    LAUNCH(cuLaunchKernel_ptsz, KERNEL_KEY, stream, true, (KERNEL_ARGUMENTS, extra));
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
    unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters)
{
    LAUNCH(cuLaunchCooperativeKernel, KERNEL_KEY, stream, false, (KERNEL_ARGUMENTS));
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
    unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters)
{
    LAUNCH(cuLaunchCooperativeKernel_ptsz, KERNEL_KEY, stream, true, (KERNEL_ARGUMENTS));
}

static uint64_t config_key(const CUlaunchConfig *config, CUfunction function)
{
    return tf_limit_key(function, config->grid_x, config->grid_y, config->grid_z, config->block_x, config->block_y, config->block_z,
        config->shared_bytes);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    LAUNCH(cuLaunchKernelEx, config_key(config, function), config->stream, false, (config, function, parameters, extra));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    LAUNCH(cuLaunchKernelEx_ptsz, config_key(config, function), config->stream, true, (config, function, parameters, extra));
}

/* Interfaces of before CUDA 4: the block's shape was set on the function, so the function alone is the key. */
CUresult cuLaunch(CUfunction function) { LAUNCH(cuLaunch, tf_limit_key(function, 1, 1, 1, 0, 0, 0, 0), NULL, false, (function)); }

CUresult cuLaunchGrid(CUfunction function, int grid_x, int grid_y)
{
    LAUNCH(cuLaunchGrid, tf_limit_key(function, (uint32_t)grid_x, (uint32_t)grid_y, 1, 0, 0, 0, 0), NULL, false, (function, grid_x, grid_y));
}

CUresult cuLaunchGridAsync(CUfunction function, int grid_x, int grid_y, CUstream stream)
{
    LAUNCH(cuLaunchGridAsync, tf_limit_key(function, (uint32_t)grid_x, (uint32_t)grid_y, 1, 0, 0, 0, 0), stream, false,
        (function, grid_x, grid_y, stream));
}

/* Launches on several cards at once: gated by the first, charged by estimate on the others when they next launch alone. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count, unsigned int flags)
{
    const CUDA_LAUNCH_PARAMS none = {.function = NULL}, *first = launches && count ? launches : &none;
    LAUNCH(cuLaunchCooperativeKernelMultiDevice,
        tf_limit_key(first->function, first->grid_x, first->grid_y, first->grid_z, first->block_x, first->block_y, first->block_z, first->shared_bytes),
        first->stream, false, (launches, count, flags));
}

/* A graph is one piece of work, measured whole; memory of its nodes appears with the launch. */
static CUresult launch_graph(const struct tf_cuda *cuda, CUresult (*real)(CUgraphExec, CUstream), CUgraphExec graph, CUstream stream, bool per_thread)
{
    struct tf_container *container = tf_container();
    if (!is_limited(container))
        return tf_graphs_launch(container, cuda, real, graph, stream);
    struct tf_launch launch;
    tf_launch_begin(&launch, container, cuda, tf_limit_key(graph, 0, 0, 0, 0, 0, 0, 0), (struct tf_stream){stream, per_thread});
    return tf_launch_end(&launch, tf_graphs_launch(container, cuda, real, graph, stream));
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
    const struct tf_cuda *cuda = tf_cuda();
    return cuda && cuda->cuGraphLaunch ? launch_graph(cuda, cuda->cuGraphLaunch, graph, stream, false) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream)
{
    const struct tf_cuda *cuda = tf_cuda();
    return cuda && cuda->cuGraphLaunch_ptsz ? launch_graph(cuda, cuda->cuGraphLaunch_ptsz, graph, stream, true) : CUDA_ERROR_NOT_INITIALIZED;
}

/* A program that never captures never pays for asking. */
#define CAPTURE(symbol, arguments) \
    const struct tf_cuda *cuda = tf_cuda(); \
    if (!cuda || !cuda->symbol) \
        return CUDA_ERROR_NOT_INITIALIZED; \
    tf_measure_captures(); \
    return cuda->symbol arguments

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
