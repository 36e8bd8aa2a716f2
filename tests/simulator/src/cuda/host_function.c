/* host_function.c - cuLaunchHostFunc and cuStreamAddCallback: to the caller's thread, or into the graph of a stream that captures. */
#include "callback.h"
#include "graph.h"

static CUresult host_function(CUstream handle, CUhostFn function, CUstreamCallback old, void *user_data)
{
    CUstream stream;
    REQUIRE(function || old, CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    bool is_captured = false;
    if (function)
        result = graph_capture_host(stream, function, user_data, &is_captured);
    REQUIRE(!(old && stream->capture), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return is_captured || result != CUDA_SUCCESS ? result : callback_submit(stream, function, old, user_data);
}

CUDA_EXPORT cuLaunchHostFunc(CUstream stream, CUhostFn function, void *user_data)
{
    ENTER(cuLaunchHostFunc);
    return host_function(stream, function, NULL, user_data);
}

CUDA_EXPORT cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *user_data)
{
    ENTER(cuLaunchHostFunc_ptsz);
    return host_function(stream_of_thread(stream), function, NULL, user_data);
}

/* The mode says how the caller's thread waits, which changes nothing here. */
CUDA_EXPORT cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void *user_data, unsigned mode)
{
    ENTER(cuLaunchHostFunc_v2);
    (void)mode;
    return host_function(stream, function, NULL, user_data);
}

CUDA_EXPORT cuLaunchHostFunc_v2_ptsz(CUstream stream, CUhostFn function, void *user_data, unsigned mode)
{
    ENTER(cuLaunchHostFunc_v2_ptsz);
    (void)mode;
    return host_function(stream_of_thread(stream), function, NULL, user_data);
}

CUDA_EXPORT cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *user_data, unsigned flags)
{
    ENTER(cuStreamAddCallback);
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    return host_function(stream, NULL, callback, user_data);
}

CUDA_EXPORT cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *user_data, unsigned flags)
{
    ENTER(cuStreamAddCallback_ptsz);
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    return host_function(stream_of_thread(stream), NULL, callback, user_data);
}
