/* stream_query.c - what a stream is asked: flags, priority, id, context, device, attributes. Every call has a per-thread twin. */
#include "driver.h"

static CUresult flags_of(CUstream handle, unsigned *ret_flags)
{
    CUstream stream;
    REQUIRE(ret_flags, CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result == CUDA_SUCCESS)
        *ret_flags = stream->flags;
    return result;
}

CUDA_EXPORT cuStreamGetFlags(CUstream stream, unsigned *ret_flags)
{
    ENTER(cuStreamGetFlags);
    return flags_of(stream, ret_flags);
}

CUDA_EXPORT cuStreamGetFlags_ptsz(CUstream stream, unsigned *ret_flags)
{
    ENTER(cuStreamGetFlags_ptsz);
    return flags_of(stream_of_thread(stream), ret_flags);
}

static CUresult priority_of(CUstream handle, int *ret_priority)
{
    CUstream stream;
    REQUIRE(ret_priority, CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result == CUDA_SUCCESS)
        *ret_priority = stream->priority;
    return result;
}

CUDA_EXPORT cuStreamGetPriority(CUstream stream, int *ret_priority)
{
    ENTER(cuStreamGetPriority);
    return priority_of(stream, ret_priority);
}

CUDA_EXPORT cuStreamGetPriority_ptsz(CUstream stream, int *ret_priority)
{
    ENTER(cuStreamGetPriority_ptsz);
    return priority_of(stream_of_thread(stream), ret_priority);
}

static CUresult id_of(CUstream handle, unsigned long long *ret_id)
{
    CUstream stream;
    REQUIRE(ret_id, CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result == CUDA_SUCCESS)
        *ret_id = stream->head.id;
    return result;
}

CUDA_EXPORT cuStreamGetId(CUstream stream, unsigned long long *ret_id)
{
    ENTER(cuStreamGetId);
    return id_of(stream, ret_id);
}

CUDA_EXPORT cuStreamGetId_ptsz(CUstream stream, unsigned long long *ret_id)
{
    ENTER(cuStreamGetId_ptsz);
    return id_of(stream_of_thread(stream), ret_id);
}

static CUresult context_of(CUstream handle, CUcontext *ret_context)
{
    CUstream stream;
    REQUIRE(ret_context, CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result == CUDA_SUCCESS)
        *ret_context = stream->context;
    return result;
}

CUDA_EXPORT cuStreamGetCtx(CUstream stream, CUcontext *ret_context)
{
    ENTER(cuStreamGetCtx);
    return context_of(stream, ret_context);
}

CUDA_EXPORT cuStreamGetCtx_ptsz(CUstream stream, CUcontext *ret_context)
{
    ENTER(cuStreamGetCtx_ptsz);
    return context_of(stream_of_thread(stream), ret_context);
}

/* A stream of a green context names that, and the primary one. */
static CUresult contexts_of(CUstream handle, CUcontext *ret_context, CUgreenCtx *ret_green)
{
    CUcontext context;
    CUresult result = context_of(handle, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (ret_context)
        *ret_context = context_of_memory(context);
    if (ret_green)
        *ret_green = context->green;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuStreamGetCtx_v2(CUstream stream, CUcontext *ret_context, CUgreenCtx *ret_green)
{
    ENTER(cuStreamGetCtx_v2);
    return contexts_of(stream, ret_context, ret_green);
}

CUDA_EXPORT cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *ret_context, CUgreenCtx *ret_green)
{
    ENTER(cuStreamGetCtx_v2_ptsz);
    return contexts_of(stream_of_thread(stream), ret_context, ret_green);
}

static CUresult device_of(CUstream handle, CUdevice *ret_device)
{
    CUstream stream;
    REQUIRE(ret_device, CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result == CUDA_SUCCESS)
        *ret_device = stream->context->device;
    return result;
}

CUDA_EXPORT cuStreamGetDevice(CUstream stream, CUdevice *ret_device)
{
    ENTER(cuStreamGetDevice);
    return device_of(stream, ret_device);
}

CUDA_EXPORT cuStreamGetDevice_ptsz(CUstream stream, CUdevice *ret_device)
{
    ENTER(cuStreamGetDevice_ptsz);
    return device_of(stream_of_thread(stream), ret_device);
}

/* Kept and given back; they change no time here. */
static CUresult set_attribute(CUstream handle, int id, const void *value)
{
    CUstream stream;
    REQUIRE(value && id >= 0 && id < 16, CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result == CUDA_SUCCESS)
        memcpy(stream->attributes[id], value, sizeof stream->attributes[id]);
    return result;
}

static CUresult get_attribute(CUstream handle, int id, void *ret_value)
{
    CUstream stream;
    REQUIRE(ret_value && id >= 0 && id < 16, CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result == CUDA_SUCCESS)
        memcpy(ret_value, stream->attributes[id], sizeof stream->attributes[id]);
    return result;
}

static CUresult copy_attributes(CUstream to_handle, CUstream from_handle)
{
    CUstream to, from;
    CUresult result = stream_resolve(to_handle, &to);
    if (result == CUDA_SUCCESS)
        result = stream_resolve(from_handle, &from);
    if (result == CUDA_SUCCESS && to != from)
        memcpy(to->attributes, from->attributes, sizeof to->attributes);
    return result;
}

CUDA_EXPORT cuStreamSetAttribute(CUstream stream, int id, const void *value)
{
    ENTER(cuStreamSetAttribute);
    return set_attribute(stream, id, value);
}

CUDA_EXPORT cuStreamSetAttribute_ptsz(CUstream stream, int id, const void *value)
{
    ENTER(cuStreamSetAttribute_ptsz);
    return set_attribute(stream_of_thread(stream), id, value);
}

CUDA_EXPORT cuStreamGetAttribute(CUstream stream, int id, void *ret_value)
{
    ENTER(cuStreamGetAttribute);
    return get_attribute(stream, id, ret_value);
}

CUDA_EXPORT cuStreamGetAttribute_ptsz(CUstream stream, int id, void *ret_value)
{
    ENTER(cuStreamGetAttribute_ptsz);
    return get_attribute(stream_of_thread(stream), id, ret_value);
}

CUDA_EXPORT cuStreamCopyAttributes(CUstream to, CUstream from)
{
    ENTER(cuStreamCopyAttributes);
    return copy_attributes(to, from);
}

CUDA_EXPORT cuStreamCopyAttributes_ptsz(CUstream to, CUstream from)
{
    ENTER(cuStreamCopyAttributes_ptsz);
    return copy_attributes(stream_of_thread(to), stream_of_thread(from));
}
