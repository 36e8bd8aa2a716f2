/* primary.c - the primary context of each card, which all users of a card in a process share and count.
 *
 * The record is made once and lives on, so that a thread that still has it current learns that it was released. Next: context.c. */
#include "context.h"

static CUcontext g_primary[SIM_CARDS_MAX]; /* by ordinal; made once, alive while retained */
static unsigned g_primary_flags[SIM_CARDS_MAX];

CUresult primary_retain(CUdevice device, CUcontext *ret_context)
{
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    CUcontext context = g_primary[device];
    if (!context) {
        context = object_new(KIND_CONTEXT, sizeof *context);
        REQUIRE(context, CUDA_ERROR_OUT_OF_MEMORY);
        context->is_primary = true;
        g_primary[device] = context;
    }
    if (!context->is_alive) {
        CUresult result = context_open(context, device, g_primary_flags[device]);
        if (result != CUDA_SUCCESS)
            return result;
        context->users = 0;
    }
    context->users++;
    *ret_context = context;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRetain);
    REQUIRE(ret_context, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    CUresult result = primary_retain(device, ret_context);
    driver_unlock();
    return result;
}

CUresult primary_release(CUdevice device)
{
    CUcontext context = g_primary[device];
    REQUIRE(context && context->is_alive && context->users > 0, CUDA_ERROR_INVALID_CONTEXT);
    if (--context->users == 0)
        context_close(context);
    return CUDA_SUCCESS;
}

static CUresult release_primary(CUdevice device)
{
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    driver_lock();
    CUresult result = primary_release(device);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuDevicePrimaryCtxRelease(CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRelease);
    return release_primary(device);
}

CUDA_EXPORT cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRelease_v2);
    return release_primary(device);
}

/* Everything in it goes; whoever still holds it finds an empty one that works again. */
static CUresult reset_primary(CUdevice device)
{
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    driver_lock();
    CUcontext context = g_primary[device];
    CUresult result = CUDA_SUCCESS;
    if (context && context->is_alive) {
        uint32_t users = context->users;
        context_close(context);
        result = context_open(context, device, g_primary_flags[device]);
        context->users = users;
    }
    driver_unlock();
    return result;
}

CUDA_EXPORT cuDevicePrimaryCtxReset(CUdevice device)
{
    ENTER(cuDevicePrimaryCtxReset);
    return reset_primary(device);
}

CUDA_EXPORT cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    ENTER(cuDevicePrimaryCtxReset_v2);
    return reset_primary(device);
}

CUDA_EXPORT cuDevicePrimaryCtxGetState(CUdevice device, unsigned *ret_flags, int *ret_active)
{
    ENTER(cuDevicePrimaryCtxGetState);
    REQUIRE(ret_flags && ret_active, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    driver_lock();
    *ret_flags = g_primary_flags[device];
    *ret_active = g_primary[device] && g_primary[device]->is_alive;
    driver_unlock();
    return CUDA_SUCCESS;
}

static CUresult set_primary_flags(CUdevice device, unsigned flags)
{
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    driver_lock();
    g_primary_flags[device] = flags;
    if (g_primary[device])
        g_primary[device]->flags = flags;
    driver_unlock();
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    ENTER(cuDevicePrimaryCtxSetFlags);
    return set_primary_flags(device, flags);
}

CUDA_EXPORT cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    ENTER(cuDevicePrimaryCtxSetFlags_v2);
    return set_primary_flags(device, flags);
}
