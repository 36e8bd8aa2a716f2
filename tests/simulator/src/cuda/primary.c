/* primary.c - the primary context of each card, which all users of a card in a process share and count.
 *
 * The record is made once and lives on, so that a thread that still has it current learns that it was released. Next: context.c. */
#include "context.h"

static CUcontext g_primary[SIM_CARDS_MAX]; /* by ordinal; made once, alive while retained */

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
        TRY(context_open(context, device));
        context->users = 0;
    }
    context->users++;
    *ret_context = context;
    return CUDA_SUCCESS;
}

CUresult primary_release(CUdevice device)
{
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    CUcontext context = g_primary[device];
    REQUIRE(context && context->is_alive && context->users > 0, CUDA_ERROR_INVALID_CONTEXT);
    if (--context->users == 0)
        context_close(context);
    return CUDA_SUCCESS;
}

/* Everything in it goes. Whoever still holds it finds an empty one that works again, or, with reset_deactivates, none until the next retain. */
static CUresult reset(CUdevice device)
{
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    CUcontext context = g_primary[device];
    if (!context || !context->is_alive)
        return CUDA_SUCCESS;
    uint32_t users = context->users;
    context_close(context);
    if (g_driver.machine.state->rules.reset_deactivates)
        return CUDA_SUCCESS;
    CUresult result = context_open(context, device);
    context->users = users;
    return result;
}

static CUresult locked(CUresult (*call)(CUdevice), CUdevice device)
{
    driver_lock();
    CUresult result = call(device);
    driver_unlock();
    return result;
}

ENTRY(cuDevicePrimaryCtxRelease, (CUdevice device), locked(primary_release, device))
ENTRY(cuDevicePrimaryCtxRelease_v2, (CUdevice device), locked(primary_release, device))
ENTRY(cuDevicePrimaryCtxReset, (CUdevice device), locked(reset, device))
ENTRY(cuDevicePrimaryCtxReset_v2, (CUdevice device), locked(reset, device))

CUDA_EXPORT cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRetain);
    REQUIRE(ret_context, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    CUresult result = primary_retain(device, ret_context);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuDevicePrimaryCtxGetState(CUdevice device, unsigned *ret_flags, int *ret_active)
{
    ENTER(cuDevicePrimaryCtxGetState);
    REQUIRE(ret_flags && ret_active, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    driver_lock();
    *ret_flags = 0; /* nobody can set any */
    *ret_active = g_primary[device] && g_primary[device]->is_alive;
    driver_unlock();
    return CUDA_SUCCESS;
}
