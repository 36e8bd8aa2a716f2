/* hooks_context.c - the end of a context: the driver frees its memory and its events without telling anybody.
 *
 * Promise: what the context held is given back once, and no event of it is used again. Pools and physical handles outlive contexts.
 * Next:    ledger.c knows the context of each entry, measure.c its events. */
#include "charge.h"
#include "measure.h"
#include "nested.h"
#include "pools.h"

static bool is_of_context(const struct tf_entry *entry, void *context)
{
    return entry->context == (uint64_t)(uintptr_t)context && (entry->kind == TF_KIND_POINTER || entry->kind == TF_KIND_ARRAY || entry->kind == TF_KIND_MIPMAP);
}

static void give_back(const struct tf_entry *entry, void *context)
{
    (void)context;
    tf_memory_gone(tf_container(), entry);
}

static void context_is_gone(const struct tf_cuda *cuda, CUcontext context)
{
    struct tf_container *container = tf_container();
    if (atomic_load(&container->stance) != TF_ENFORCED)
        return;
    tf_ledger_sweep(is_of_context, give_back, context);
    tf_pools_refresh(container, cuda);
}

/* NULL destroys nothing; the driver says so. */
static CUresult destroy(const struct tf_cuda *cuda, CUresult (*real)(CUcontext), CUcontext context)
{
    if (!context || tf_is_nested())
        return real(context);
    tf_measure_forget(context);
    CUresult result = TF_NESTED(real(context));
    if (result == CUDA_SUCCESS)
        context_is_gone(cuda, context);
    return result;
}

CUresult cuCtxDestroy(CUcontext context)
{
    const struct tf_cuda *cuda = tf_cuda();
    return cuda && cuda->cuCtxDestroy ? destroy(cuda, cuda->cuCtxDestroy, context) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    const struct tf_cuda *cuda = tf_cuda();
    return cuda && cuda->cuCtxDestroy_v2 ? destroy(cuda, cuda->cuCtxDestroy_v2, context) : CUDA_ERROR_NOT_INITIALIZED;
}

static bool is_primary_active(const struct tf_cuda *cuda, CUdevice device)
{
    unsigned int flags;
    int active = 0;
    return cuda->cuDevicePrimaryCtxGetState && cuda->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* The handle of the device's primary context if it is alive: one more reference tells it, and goes again at once. */
static CUcontext primary_of(const struct tf_cuda *cuda, CUresult (*release)(CUdevice), CUdevice device)
{
    CUcontext context = NULL;
    if (!is_primary_active(cuda, device) || !cuda->cuDevicePrimaryCtxRetain || !release
        || cuda->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
        return NULL;
    release(device);
    return context;
}

static CUresult end_primary(const struct tf_cuda *cuda, CUresult (*real)(CUdevice), CUdevice device, bool is_reset)
{
    CUresult (*release)(CUdevice) = cuda->cuDevicePrimaryCtxRelease_v2 ? cuda->cuDevicePrimaryCtxRelease_v2 : cuda->cuDevicePrimaryCtxRelease;
    if (tf_is_nested())
        return real(device);
    CUcontext context = primary_of(cuda, release, device);
    if (context)
        tf_measure_forget(context);
    CUresult result = TF_NESTED(real(device));
    if (result == CUDA_SUCCESS && context && (is_reset || !is_primary_active(cuda, device)))
        context_is_gone(cuda, context);
    return result;
}

#define END_PRIMARY(symbol, is_reset) \
    const struct tf_cuda *cuda = tf_cuda(); \
    return cuda && cuda->symbol ? end_primary(cuda, cuda->symbol, device, is_reset) : CUDA_ERROR_NOT_INITIALIZED

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { END_PRIMARY(cuDevicePrimaryCtxRelease, false); }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { END_PRIMARY(cuDevicePrimaryCtxRelease_v2, false); }
CUresult cuDevicePrimaryCtxReset(CUdevice device) { END_PRIMARY(cuDevicePrimaryCtxReset, true); }
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { END_PRIMARY(cuDevicePrimaryCtxReset_v2, true); }
