/* sync.c - before the program or a stream waits, the stretch that is being measured ends; else waiting would be charged as work. So it does
 * before its stream goes: a driver may crash over the handle of a stream that is gone.
 *
 * Fast: without a core limit four loads, as in hooks/launch.c. Next: measure.c, pools.c. */
#include "compute/measure.h"
#include "driver/nested.h"
#include "hooks/hooks.h"
#include "memory/pools.h"

static void close_stretch(const struct tf_cuda *cuda)
{
    struct tf_container *container = tf_container();
    if (TF_UNLIKELY(atomic_load_explicit(&container->has_core_limits, memory_order_relaxed)) && !tf_is_nested())
        tf_measure_close(container, cuda);
}

#define SYNC(symbol, arguments) \
    TF_ENTER(symbol); \
    close_stretch(cuda); \
    return cuda->symbol arguments

/* Pools give back what was freed in stream order when the program has waited for it. */
#define SYNC_POOLS(symbol, arguments) \
    TF_ENTER(symbol); \
    close_stretch(cuda); \
    CUresult result = cuda->symbol arguments; \
    if (TF_UNLIKELY(tf_pools_are_any())) \
        tf_pools_take_back(tf_container(), cuda); \
    return result

CUresult cuCtxSynchronize(void) { SYNC_POOLS(cuCtxSynchronize, ()); }
CUresult cuCtxSynchronize_v2(CUcontext context) { SYNC_POOLS(cuCtxSynchronize_v2, (context)); }
CUresult cuStreamSynchronize(CUstream stream) { SYNC_POOLS(cuStreamSynchronize, (stream)); }
CUresult cuStreamSynchronize_ptsz(CUstream stream) { SYNC_POOLS(cuStreamSynchronize_ptsz, (stream)); }
CUresult cuEventSynchronize(CUevent event) { SYNC_POOLS(cuEventSynchronize, (event)); }
CUresult cuMemcpyDtoH_v2(void *host, CUdeviceptr source, size_t bytes) { SYNC(cuMemcpyDtoH_v2, (host, source, bytes)); }
CUresult cuMemcpyDtoH_v2_ptds(void *host, CUdeviceptr source, size_t bytes) { SYNC(cuMemcpyDtoH_v2_ptds, (host, source, bytes)); }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) { SYNC(cuStreamWaitEvent, (stream, event, flags)); }
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) { SYNC(cuStreamWaitEvent_ptsz, (stream, event, flags)); }

static CUresult destroy(const struct tf_cuda *cuda, CUresult (*real)(CUstream), CUstream stream)
{
    close_stretch(cuda);
    struct tf_container *container = tf_container();
    if (TF_UNLIKELY(atomic_load_explicit(&container->has_core_limits, memory_order_relaxed)))
        tf_measure_leave_stream(container, cuda, stream);
    return real(stream);
}

#define DESTROY(symbol) \
    CUresult symbol(CUstream stream) \
    { \
        TF_ENTER(symbol); \
        return destroy(cuda, cuda->symbol, stream); \
    }

DESTROY(cuStreamDestroy)
DESTROY(cuStreamDestroy_v2)

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, void *operations, unsigned int flags)
{
    SYNC(cuStreamBatchMemOp, (stream, count, operations, flags));
}

CUresult cuStreamBatchMemOp_ptsz(CUstream stream, unsigned int count, void *operations, unsigned int flags)
{
    SYNC(cuStreamBatchMemOp_ptsz, (stream, count, operations, flags));
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, void *operations, unsigned int flags)
{
    SYNC(cuStreamBatchMemOp_v2, (stream, count, operations, flags));
}

CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned int count, void *operations, unsigned int flags)
{
    SYNC(cuStreamBatchMemOp_v2_ptsz, (stream, count, operations, flags));
}

CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data) { SYNC(cuLaunchHostFunc, (stream, function, data)); }
CUresult cuLaunchHostFunc_ptsz(CUstream stream, void (*function)(void *), void *data) { SYNC(cuLaunchHostFunc_ptsz, (stream, function, data)); }

CUresult cuLaunchHostFunc_v2(CUstream stream, void (*function)(void *), void *data, unsigned int mode)
{
    SYNC(cuLaunchHostFunc_v2, (stream, function, data, mode));
}

CUresult cuLaunchHostFunc_v2_ptsz(CUstream stream, void (*function)(void *), void *data, unsigned int mode)
{
    SYNC(cuLaunchHostFunc_v2_ptsz, (stream, function, data, mode));
}

CUresult cuStreamAddCallback(CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data, unsigned int flags)
{
    SYNC(cuStreamAddCallback, (stream, callback, data, flags));
}

CUresult cuStreamAddCallback_ptsz(CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data, unsigned int flags)
{
    SYNC(cuStreamAddCallback_ptsz, (stream, callback, data, flags));
}

#define WAIT_VALUE(symbol, type) \
    CUresult symbol(CUstream stream, CUdeviceptr address, type value, unsigned int flags) { SYNC(symbol, (stream, address, value, flags)); }

WAIT_VALUE(cuStreamWaitValue32, uint32_t)
WAIT_VALUE(cuStreamWaitValue32_ptsz, uint32_t)
WAIT_VALUE(cuStreamWaitValue32_v2, uint32_t)
WAIT_VALUE(cuStreamWaitValue32_v2_ptsz, uint32_t)
WAIT_VALUE(cuStreamWaitValue64, uint64_t)
WAIT_VALUE(cuStreamWaitValue64_ptsz, uint64_t)
WAIT_VALUE(cuStreamWaitValue64_v2, uint64_t)
WAIT_VALUE(cuStreamWaitValue64_v2_ptsz, uint64_t)

CUresult cuWaitExternalSemaphoresAsync(const void *semaphores, const void *parameters, unsigned int count, CUstream stream)
{
    SYNC(cuWaitExternalSemaphoresAsync, (semaphores, parameters, count, stream));
}

CUresult cuWaitExternalSemaphoresAsync_ptsz(const void *semaphores, const void *parameters, unsigned int count, CUstream stream)
{
    SYNC(cuWaitExternalSemaphoresAsync_ptsz, (semaphores, parameters, count, stream));
}

CUresult cuCtxWaitEvent(CUcontext context, CUevent event) { SYNC(cuCtxWaitEvent, (context, event)); }
CUresult cuGreenCtxWaitEvent(void *green, CUevent event) { SYNC(cuGreenCtxWaitEvent, (green, event)); }
