/* context.c - the end of a context: the driver frees its memory and its events without telling anybody.
 *
 * Promise: what the context held is given back once, and no event of it is used again. Pools and physical handles outlive contexts.
 * Next:    ledger.c knows the context of each entry, measure.c its events. */
#include "compute/measure.h"
#include "driver/nested.h"
#include "hooks/hooks.h"
#include "memory/charge.h"
#include "memory/overhead.h"
#include "memory/pools.h"

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
    tf_overhead_hurry(container); /* its own memory has gone, too */
}

/* NULL destroys nothing; the driver says so. */
static CUresult destroy(const struct tf_cuda *cuda, CUresult (*real)(CUcontext), CUcontext context)
{
    if (!context || tf_is_nested())
        return real(context);
    tf_measure_end(context);
    CUresult result = TF_NESTED(real(context));
    if (result == CUDA_SUCCESS)
        context_is_gone(cuda, context);
    return result;
}

#define DESTROY(symbol) \
    TF_ENTER(symbol); \
    return destroy(cuda, cuda->symbol, context)

CUresult cuCtxDestroy(CUcontext context) { DESTROY(cuCtxDestroy); }
CUresult cuCtxDestroy_v2(CUcontext context) { DESTROY(cuCtxDestroy_v2); }

/* Of before CUDA 4: a context has users, and ends with the last. Where somebody has ever attached, who is the last is the driver's secret:
 * what the context had then stays charged until the process ends. */
static _Atomic bool has_attached;

CUresult cuCtxAttach(CUcontext *context, unsigned int flags)
{
    TF_ENTER(cuCtxAttach);
    atomic_store(&has_attached, true);
    return cuda->cuCtxAttach(context, flags);
}

CUresult cuCtxDetach(CUcontext context)
{
    TF_ENTER(cuCtxDetach);
    if (!context || tf_is_nested() || !atomic_load(&has_attached))
        return destroy(cuda, cuda->cuCtxDetach, context);
    tf_measure_end(context); /* maybe */
    return TF_NESTED(cuda->cuCtxDetach(context));
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

static CUresult (*release_of(const struct tf_cuda *cuda))(CUdevice)
{
    return cuda->cuDevicePrimaryCtxRelease_v2 ? cuda->cuDevicePrimaryCtxRelease_v2 : cuda->cuDevicePrimaryCtxRelease;
}

static CUresult end_primary(const struct tf_cuda *cuda, CUresult (*real)(CUdevice), CUdevice device, bool is_reset)
{
    if (tf_is_nested())
        return real(device);
    CUcontext context = primary_of(cuda, release_of(cuda), device);
    if (!context)
        return TF_NESTED(real(device));
    if (is_reset)
        tf_measure_end(context);
    else
        tf_measure_hold(context); /* others may hold it, too: their work, and ours, goes on */
    CUresult result = TF_NESTED(real(device));
    bool has_ended = result == CUDA_SUCCESS && (is_reset || !is_primary_active(cuda, device));
    if (!is_reset)
        tf_measure_resume(context, has_ended);
    if (has_ended)
        context_is_gone(cuda, context);
    return result;
}

#define END_PRIMARY(symbol, is_reset) \
    TF_ENTER(symbol); \
    return end_primary(cuda, cuda->symbol, device, is_reset)

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { END_PRIMARY(cuDevicePrimaryCtxRelease, false); }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { END_PRIMARY(cuDevicePrimaryCtxRelease_v2, false); }
CUresult cuDevicePrimaryCtxReset(CUdevice device) { END_PRIMARY(cuDevicePrimaryCtxReset, true); }
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { END_PRIMARY(cuDevicePrimaryCtxReset_v2, true); }

/* --- green contexts ------------------------------------------------------------------------------------------------------------------ */

static bool device_of(const struct tf_cuda *cuda, CUcontext context, CUdevice *ret_device)
{
    CUcontext popped;
    if (cuda->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return false;
    bool is_known = cuda->cuCtxGetDevice(ret_device) == CUDA_SUCCESS;
    cuda->cuCtxPopCurrent_v2(&popped);
    return is_known;
}

struct heirs {
    CUcontext from, to;
};

static void hand_over(struct tf_entry *entry, void *context)
{
    const struct heirs *heirs = context;
    if (entry->context == (uint64_t)(uintptr_t)heirs->from)
        entry->context = (uint64_t)(uintptr_t)heirs->to;
}

/* A part of a card's multiprocessors, which holds the primary context as long as it lives: its memory is the primary's, its events are not. */
CUresult cuGreenCtxDestroy(void *green)
{
    TF_ENTER(cuGreenCtxDestroy);
    CUcontext context = NULL;
    CUdevice device = 0;
    if (!green || tf_is_nested() || !cuda->cuCtxFromGreenCtx || cuda->cuCtxFromGreenCtx(&context, green) != CUDA_SUCCESS)
        return cuda->cuGreenCtxDestroy(green);
    bool is_known = device_of(cuda, context, &device);
    CUcontext primary = is_known ? primary_of(cuda, release_of(cuda), device) : NULL;
    tf_measure_end(context);
    if (primary)
        tf_measure_hold(primary);
    CUresult result = TF_NESTED(cuda->cuGreenCtxDestroy(green));
    bool has_ended = result == CUDA_SUCCESS && primary && !is_primary_active(cuda, device);
    if (primary)
        tf_measure_resume(primary, has_ended);
    if (result == CUDA_SUCCESS && primary)
        tf_ledger_visit(hand_over, &(struct heirs){context, primary});
    if (has_ended)
        context_is_gone(cuda, primary);
    return result;
}
