/* context_settings.c - what can be asked of and set on a context: flags, limits, cache and bank configuration, peers. Kept and given back;
 * none of it changes time or memory here. */
#include "context.h"

CUDA_EXPORT cuCtxGetFlags(unsigned *ret_flags)
{
    ENTER(cuCtxGetFlags);
    CUcontext context;
    REQUIRE(ret_flags, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_require(&context);
    if (result == CUDA_SUCCESS)
        *ret_flags = context->flags;
    return result;
}

CUDA_EXPORT cuCtxSetFlags(unsigned flags)
{
    ENTER(cuCtxSetFlags);
    CUcontext context;
    CUresult result = context_require(&context);
    if (result == CUDA_SUCCESS)
        context->flags = flags;
    return result;
}

CUDA_EXPORT cuCtxGetId(CUcontext context, unsigned long long *ret_id)
{
    ENTER(cuCtxGetId);
    REQUIRE(ret_id, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_resolve(context, &context);
    if (result == CUDA_SUCCESS)
        *ret_id = context->head.id;
    return result;
}

CUDA_EXPORT cuCtxGetApiVersion(CUcontext context, unsigned *ret_version)
{
    ENTER(cuCtxGetApiVersion);
    REQUIRE(ret_version, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_resolve(context, &context);
    if (result == CUDA_SUCCESS)
        *ret_version = 3020; /* what drivers have answered since CUDA 3.2 */
    return result;
}

CUDA_EXPORT cuCtxGetLimit(size_t *ret_value, int limit)
{
    ENTER(cuCtxGetLimit);
    CUcontext context;
    REQUIRE(ret_value && limit >= 0 && limit < 10, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_require(&context);
    if (result == CUDA_SUCCESS)
        *ret_value = context->limits[limit];
    return result;
}

CUDA_EXPORT cuCtxSetLimit(int limit, size_t value)
{
    ENTER(cuCtxSetLimit);
    CUcontext context;
    REQUIRE(limit >= 0 && limit < 10, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_require(&context);
    if (result == CUDA_SUCCESS)
        context->limits[limit] = value;
    return result;
}

CUDA_EXPORT cuCtxGetCacheConfig(int *ret_config)
{
    ENTER(cuCtxGetCacheConfig);
    CUcontext context;
    REQUIRE(ret_config, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_require(&context);
    if (result == CUDA_SUCCESS)
        *ret_config = context->cache_config;
    return result;
}

CUDA_EXPORT cuCtxSetCacheConfig(int config)
{
    ENTER(cuCtxSetCacheConfig);
    CUcontext context;
    CUresult result = context_require(&context);
    if (result == CUDA_SUCCESS)
        context->cache_config = config;
    return result;
}

CUDA_EXPORT cuCtxGetSharedMemConfig(int *ret_config)
{
    ENTER(cuCtxGetSharedMemConfig);
    CUcontext context;
    REQUIRE(ret_config, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_require(&context);
    if (result == CUDA_SUCCESS)
        *ret_config = context->shared_config;
    return result;
}

CUDA_EXPORT cuCtxSetSharedMemConfig(int config)
{
    ENTER(cuCtxSetSharedMemConfig);
    CUcontext context;
    CUresult result = context_require(&context);
    if (result == CUDA_SUCCESS)
        context->shared_config = config;
    return result;
}

CUDA_EXPORT cuCtxGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
    ENTER(cuCtxGetStreamPriorityRange);
    CUcontext context;
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (ret_least)
        *ret_least = 0;
    if (ret_greatest)
        *ret_greatest = -5;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuCtxResetPersistingL2Cache(void)
{
    ENTER(cuCtxResetPersistingL2Cache);
    CUcontext context;
    return context_require(&context);
}

CUDA_EXPORT cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    ENTER(cuCtxEnablePeerAccess);
    CUcontext context;
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(peer, KIND_CONTEXT) && peer->is_alive && peer != context, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(peer->device != context->device, CUDA_ERROR_INVALID_DEVICE);
    const uint32_t bit = 1u << peer->device;
    REQUIRE(!(context->peers & bit), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    context->peers |= bit;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuCtxDisablePeerAccess(CUcontext peer)
{
    ENTER(cuCtxDisablePeerAccess);
    CUcontext context;
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(object_is(peer, KIND_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(context->peers & (1u << peer->device), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    context->peers &= ~(1u << peer->device);
    return CUDA_SUCCESS;
}
