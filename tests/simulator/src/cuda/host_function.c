/* host_function.c - cuLaunchHostFunc and cuStreamAddCallback: to the caller's thread, or into the graph of a stream that captures. */
#include "callback.h"
#include "graph.h"

static CUresult host_function(CUstream stream, CUhostFn function, CUstreamCallback old, void *user_data, unsigned flags)
{
    bool is_captured = false;
    REQUIRE((function || old) && flags == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_resolve(stream, &stream));
    REQUIRE(!(old && stream->capture), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (function)
        TRY(graph_capture_host(stream, function, user_data, &is_captured));
    return is_captured ? CUDA_SUCCESS : callback_submit(stream, function, old, user_data);
}

STREAM_ENTRY(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *user_data), host_function(stream, function, NULL, user_data, 0))
/* The mode says how the caller's thread waits, which changes nothing here. */
STREAM_ENTRY(cuLaunchHostFunc_v2, (CUstream stream, CUhostFn function, void *user_data, unsigned mode),
             ((void)mode, host_function(stream, function, NULL, user_data, 0)))
STREAM_ENTRY(cuStreamAddCallback, (CUstream stream, CUstreamCallback callback, void *user_data, unsigned flags),
             host_function(stream, NULL, callback, user_data, flags))
