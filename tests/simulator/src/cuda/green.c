/* green.c - green contexts: a part of a card's multiprocessors with streams of its own, in the memory of the card's primary context.
 *
 * A green context holds the primary one as long as it lives. Its handle as a CUcontext is a record beside the primary's, so that threads can
 * have it current; memory and modules go to the primary (context_of_memory). Its streams outlive it, detached. Parts can be had twice: who
 * has which multiprocessors is not simulated, and their work takes turns. Next: primary.c, context.c. */
#include "context.h"

#include "graph.h"

struct CUdevResourceDesc_st {
    struct object head;
    CUdevice device;
    unsigned multiprocessors;
};

struct CUgreenCtx_st {
    struct object head;
    CUcontext context;
    unsigned multiprocessors;
};

static CUgreenCtx g_greens; /* through head.next */

/* --- parts of a card --------------------------------------------------------------------------------------------------------------- */

static CUresult resource_of(CUdevice device, unsigned multiprocessors, int type, CUdevResource *ret_resource)
{
    REQUIRE(ret_resource, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
    *ret_resource = (CUdevResource){.type = type, .device = device, .multiprocessors = multiprocessors};
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceGetDevResource(CUdevice device, CUdevResource *ret_resource, int type)
{
    ENTER(cuDeviceGetDevResource);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    return resource_of(device, driver_card(device)->multiprocessors, type, ret_resource);
}

CUDA_EXPORT cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *ret_resource, int type)
{
    ENTER(cuGreenCtxGetDevResource);
    REQUIRE(object_is(green, KIND_GREEN), CUDA_ERROR_INVALID_CONTEXT);
    return resource_of(green->context->device, green->multiprocessors, type, ret_resource);
}

/* Smallest part and step by compute capability (CUDA driver API, cuDevSmResourceSplitByCount). */
static unsigned part_of(const struct sim_card *card, unsigned wanted)
{
    unsigned step = card->compute_major >= 9 ? 8 : 2, least = card->compute_major == 8 ? 4 : step;
    wanted = wanted < least ? least : wanted;
    return (wanted + step - 1) / step * step;
}

CUDA_EXPORT cuDevSmResourceSplitByCount(CUdevResource *ret_parts, unsigned *parts, const CUdevResource *whole, CUdevResource *ret_rest,
                                        unsigned flags, unsigned least)
{
    ENTER(cuDevSmResourceSplitByCount);
    REQUIRE(parts && whole && flags < 4 && driver_card(whole->device), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(whole->type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
    CUdevResource part = *whole, rest = *whole;
    part.multiprocessors = part_of(driver_card(whole->device), least);
    unsigned most = whole->multiprocessors / part.multiprocessors;
    REQUIRE(most, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    if (!ret_parts || *parts > most)
        *parts = most;
    for (unsigned index = 0; ret_parts && index < *parts; index++)
        ret_parts[index] = part;
    rest.multiprocessors -= *parts * part.multiprocessors;
    rest.type = rest.multiprocessors ? CU_DEV_RESOURCE_TYPE_SM : CU_DEV_RESOURCE_TYPE_INVALID;
    if (ret_rest)
        *ret_rest = rest;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDevResourceGenerateDesc(CUdevResourceDesc *ret_descriptor, const CUdevResource *resources, unsigned count)
{
    ENTER(cuDevResourceGenerateDesc);
    REQUIRE(ret_descriptor && resources && count, CUDA_ERROR_INVALID_VALUE);
    unsigned multiprocessors = 0;
    for (unsigned index = 0; index < count; index++) {
        REQUIRE(resources[index].type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
        REQUIRE(resources[index].device == resources[0].device, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        multiprocessors += resources[index].multiprocessors;
    }
    CUdevResourceDesc descriptor = object_new(KIND_DESCRIPTOR, sizeof *descriptor);
    REQUIRE(descriptor, CUDA_ERROR_OUT_OF_MEMORY);
    descriptor->device = resources[0].device;
    descriptor->multiprocessors = multiprocessors;
    *ret_descriptor = descriptor;
    return CUDA_SUCCESS;
}

/* --- life; under driver_lock() ------------------------------------------------------------------------------------------------------ */

static CUresult open_beside(CUcontext primary, CUgreenCtx green)
{
    CUcontext context = object_new(KIND_CONTEXT, sizeof *context);
    REQUIRE(context, CUDA_ERROR_OUT_OF_MEMORY);
    context->device = primary->device;
    context->card = primary->card;
    context->channel = primary->channel;
    context->primary = primary;
    context->epoch = 1;
    CUresult result = stream_create(context, true, &context->legacy_stream);
    if (result != CUDA_SUCCESS) {
        object_free(context);
        return result;
    }
    context->legacy_stream->is_default = true;
    context->is_alive = true;
    green->context = context;
    green->head.next = (struct object *)g_greens;
    g_greens = green;
    return CUDA_SUCCESS;
}

/* The record stays: threads may have it current, and streams name it. */
static void close_context(CUcontext context)
{
    if (!context->is_alive)
        return;
    context->is_alive = false;
    context_visit_streams(context, graph_forget_stream);
    context_remove_stream(context->legacy_stream);
    object_free(context->legacy_stream);
    context->legacy_stream = NULL;
}

void green_primary_closed(CUcontext primary)
{
    for (CUgreenCtx green = g_greens; green; green = (CUgreenCtx)green->head.next)
        if (green->context->primary == primary)
            close_context(green->context);
}

static void forget(CUgreenCtx green)
{
    CUgreenCtx *link = &g_greens;
    while (*link != green)
        link = (CUgreenCtx *)&(*link)->head.next;
    *link = (CUgreenCtx)green->head.next;
    object_free(green);
}

static CUresult create(CUdevResourceDesc descriptor, CUgreenCtx *ret_green)
{
    CUcontext primary;
    TRY(primary_retain(descriptor->device, &primary));
    CUgreenCtx green = object_new(KIND_GREEN, sizeof *green);
    CUresult result = green ? open_beside(primary, green) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        object_free(green);
        primary_release(descriptor->device);
        return result;
    }
    green->multiprocessors = descriptor->multiprocessors;
    *ret_green = green;
    return CUDA_SUCCESS;
}

/* --- calls --------------------------------------------------------------------------------------------------------------------------- */

CUDA_EXPORT cuGreenCtxCreate(CUgreenCtx *ret_green, CUdevResourceDesc descriptor, CUdevice device, unsigned flags)
{
    ENTER(cuGreenCtxCreate);
    REQUIRE(ret_green && object_is(descriptor, KIND_DESCRIPTOR) && flags <= 1, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(descriptor->device == device, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    CUresult result = create(descriptor, ret_green);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuGreenCtxDestroy(CUgreenCtx green)
{
    ENTER(cuGreenCtxDestroy);
    REQUIRE(object_is(green, KIND_GREEN), CUDA_ERROR_INVALID_CONTEXT);
    driver_lock();
    CUdevice device = green->context->device;
    close_context(green->context);
    forget(green);
    CUresult result = primary_release(device);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuCtxFromGreenCtx(CUcontext *ret_context, CUgreenCtx green)
{
    ENTER(cuCtxFromGreenCtx);
    REQUIRE(ret_context, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(green, KIND_GREEN), CUDA_ERROR_INVALID_CONTEXT);
    *ret_context = green->context;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGreenCtxStreamCreate(CUstream *ret_stream, CUgreenCtx green, unsigned flags, int priority)
{
    ENTER(cuGreenCtxStreamCreate);
    (void)priority;
    REQUIRE(ret_stream && flags == 1 /* CU_STREAM_NON_BLOCKING */, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(green, KIND_GREEN) && green->context->is_alive, CUDA_ERROR_INVALID_CONTEXT);
    driver_lock();
    CUresult result = stream_create(green->context, false, ret_stream);
    driver_unlock();
    return result;
}

/* All that is in the card's one queue by now. */
CUDA_EXPORT cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event)
{
    ENTER(cuGreenCtxRecordEvent);
    REQUIRE(object_is(green, KIND_GREEN) && green->context->is_alive, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(object_is(event, KIND_EVENT), CUDA_ERROR_INVALID_HANDLE);
    return stream_submit(green->context->legacy_stream, 0, event, false);
}

/* What comes later comes later in the queue. */
CUDA_EXPORT cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event)
{
    ENTER(cuGreenCtxWaitEvent);
    REQUIRE(object_is(green, KIND_GREEN) && green->context->is_alive, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(object_is(event, KIND_EVENT), CUDA_ERROR_INVALID_HANDLE);
    return CUDA_SUCCESS;
}
