/* context.c - contexts: primary ones per card, created ones, and each thread's stack of current contexts.
 *
 * A process's first context on a card opens its channel there and is charged context_bytes; its last one gives both back. Memory
 * belongs to a context and goes with it (heap.h). */
#include "context.h"

#include "graph.h"
#include "heap.h"
#include "module.h"
#include "pool.h"

enum { CONTEXT_STACK_MAX = 32 };

static __thread CUcontext t_stack[CONTEXT_STACK_MAX];
static __thread unsigned t_depth;

static CUcontext g_primary[SIM_CARDS_MAX]; /* by ordinal; made once, alive while retained */
static unsigned g_primary_flags[SIM_CARDS_MAX];
static CUstream g_streams; /* of every context, through head.next */

CUcontext context_current(void)
{
    return t_depth ? t_stack[t_depth - 1] : NULL;
}

CUresult context_require(CUcontext *ret_context)
{
    CUcontext context = context_current();
    REQUIRE(context, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(object_is(context, KIND_CONTEXT) && context->is_alive, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    *ret_context = context;
    return CUDA_SUCCESS;
}

void context_add_stream(CUstream stream)
{
    stream->head.next = (struct object *)g_streams;
    g_streams = stream;
}

void context_remove_stream(CUstream stream)
{
    CUstream *link = &g_streams;
    while (*link && *link != stream)
        link = (CUstream *)&(*link)->head.next;
    if (*link)
        *link = (CUstream)stream->head.next;
}

void context_visit_streams(CUcontext context, void (*visit)(CUstream))
{
    for (CUstream stream = g_streams, next; stream; stream = next) {
        next = (CUstream)stream->head.next;
        if (!context || stream->context == context)
            visit(stream);
    }
}

enum { MODE_PROHIBITED = 2, MODE_EXCLUSIVE_PROCESS = 3 }; /* CUcomputemode */

/* With the state lock. */
static CUresult may_enter(uint32_t card_index)
{
    struct sim_machine *machine = &g_driver.machine;
    const struct sim_card *card = &machine->state->cards[card_index];
    REQUIRE(!card->lost && card->compute_mode != MODE_PROHIBITED, CUDA_ERROR_NO_DEVICE);
    if (card->compute_mode != MODE_EXCLUSIVE_PROCESS)
        return CUDA_SUCCESS;
    state_reap(machine);
    for (uint32_t i = 0; i < machine->state->slot_ceiling; i++)
        REQUIRE(i == machine->slot_index || !machine->state->slots[i].live || !machine->state->slots[i].usage[card_index].contexts,
                CUDA_ERROR_DEVICE_UNAVAILABLE);
    return CUDA_SUCCESS;
}

/* Opens this process's channel on the card with its first context there. */
static CUresult occupy_card(CUcontext context)
{
    struct sim_machine *machine = &g_driver.machine;
    struct sim_state *state = machine->state;
    struct sim_card *card = &state->cards[context->card];
    struct sim_usage *usage = &machine->slot->usage[context->card];
    state_lock(machine);
    CUresult result = may_enter(context->card);
    if (result == CUDA_SUCCESS && usage->contexts == 0) {
        timeline_advance(state, context->card, state_now_ns());
        uint32_t channel;
        result = driver_error(memory_reserve(machine, context->card, state->memory.context_bytes));
        if (result == CUDA_SUCCESS && timeline_open_channel(state, machine->slot_index, context->card, &channel) < 0) {
            memory_unreserve(machine, context->card, state->memory.context_bytes);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (result == CUDA_SUCCESS)
            usage->context_bytes = state->memory.context_bytes;
    }
    if (result == CUDA_SUCCESS) {
        usage->contexts++;
        card->contexts_ever++;
        context->channel = usage->channel - 1;
    }
    state_unlock(machine);
    return result;
}

static void leave_card(CUcontext context)
{
    struct sim_machine *machine = &g_driver.machine;
    struct sim_usage *usage = &machine->slot->usage[context->card];
    state_lock(machine);
    if (--usage->contexts == 0) {
        timeline_advance(machine->state, context->card, state_now_ns());
        timeline_close_channel(machine->state, usage->channel - 1);
        memory_unreserve(machine, context->card, usage->context_bytes);
        usage->context_bytes = 0;
    }
    state_unlock(machine);
}

static CUresult open_context(CUcontext context, CUdevice device, unsigned flags)
{
    static const size_t default_limits[] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0}; /* stack, printf, heap, sync depth, launches, L2 */
    context->device = device;
    context->card = driver_card_index(device);
    context->flags = flags;
    context->last_ticket = 0;
    context->epoch++;
    memcpy(context->limits, default_limits, sizeof default_limits);
    CUresult result = occupy_card(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = stream_create(context, 0, 0, &context->legacy_stream);
    if (result != CUDA_SUCCESS) {
        leave_card(context);
        return result;
    }
    context->legacy_stream->is_default = true;
    context->is_alive = true;
    return CUDA_SUCCESS;
}

static void drop_stream(CUstream stream)
{
    graph_forget_stream(stream);
    context_remove_stream(stream);
    object_free(stream);
}

/* Waits for nothing: what is queued is dropped with the channel, as a destroyed context's work is. */
static void close_context(CUcontext context)
{
    context->is_alive = false;
    heap_free_all(context);
    module_drop_context(context);
    pool_drop_card(context);
    context_visit_streams(context, drop_stream);
    context->legacy_stream = NULL;
    leave_card(context);
}

static CUresult retain_primary(CUdevice device, CUcontext *ret_context)
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
        CUresult result = open_context(context, device, g_primary_flags[device]);
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
    CUresult result = retain_primary(device, ret_context);
    driver_unlock();
    return result;
}

static CUresult release_primary(CUdevice device)
{
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    driver_lock();
    CUcontext context = g_primary[device];
    bool is_held = context && context->is_alive && context->users > 0;
    if (is_held && --context->users == 0)
        close_context(context);
    driver_unlock();
    return is_held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
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
        close_context(context);
        result = open_context(context, device, g_primary_flags[device]);
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

static CUresult create_context(CUcontext *ret_context, unsigned flags, CUdevice device)
{
    REQUIRE(ret_context, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(t_depth < CONTEXT_STACK_MAX, CUDA_ERROR_OUT_OF_MEMORY);
    driver_lock();
    CUcontext context = object_new(KIND_CONTEXT, sizeof *context);
    CUresult result = context ? open_context(context, device, flags) : CUDA_ERROR_OUT_OF_MEMORY;
    driver_unlock();
    if (result != CUDA_SUCCESS) {
        object_free(context);
        return result;
    }
    t_stack[t_depth++] = context;
    *ret_context = context;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuCtxCreate(CUcontext *ret_context, unsigned flags, CUdevice device)
{
    ENTER(cuCtxCreate);
    return create_context(ret_context, flags, device);
}

CUDA_EXPORT cuCtxCreate_v2(CUcontext *ret_context, unsigned flags, CUdevice device)
{
    ENTER(cuCtxCreate_v2);
    return create_context(ret_context, flags, device);
}

CUDA_EXPORT cuCtxCreate_v3(CUcontext *ret_context, const void *affinity, int affinity_count, unsigned flags, CUdevice device)
{
    ENTER(cuCtxCreate_v3);
    REQUIRE(!affinity && affinity_count == 0, CUDA_ERROR_NOT_SUPPORTED); /* execution affinity exists under MPS only */
    return create_context(ret_context, flags, device);
}

CUDA_EXPORT cuCtxCreate_v4(CUcontext *ret_context, const void *parameters, unsigned flags, CUdevice device)
{
    ENTER(cuCtxCreate_v4);
    (void)parameters; /* affinity and graphics interoperation: no effect here */
    return create_context(ret_context, flags, device);
}

static CUresult destroy_context(CUcontext context)
{
    REQUIRE(object_is(context, KIND_CONTEXT) && context->is_alive && !context->is_primary, CUDA_ERROR_INVALID_CONTEXT);
    driver_lock();
    close_context(context);
    driver_unlock();
    if (context_current() == context)
        t_depth--;
    return CUDA_SUCCESS; /* the record stays: other threads may have it current, and must be told that it is gone */
}

CUDA_EXPORT cuCtxDestroy(CUcontext context)
{
    ENTER(cuCtxDestroy);
    return destroy_context(context);
}

CUDA_EXPORT cuCtxDestroy_v2(CUcontext context)
{
    ENTER(cuCtxDestroy_v2);
    return destroy_context(context);
}

static CUresult push_context(CUcontext context)
{
    REQUIRE(object_is(context, KIND_CONTEXT) && context->is_alive, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(t_depth < CONTEXT_STACK_MAX, CUDA_ERROR_OUT_OF_MEMORY);
    t_stack[t_depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult pop_context(CUcontext *ret_context)
{
    REQUIRE(t_depth, CUDA_ERROR_INVALID_CONTEXT);
    CUcontext context = t_stack[--t_depth];
    if (ret_context)
        *ret_context = context;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuCtxPushCurrent(CUcontext context)
{
    ENTER(cuCtxPushCurrent);
    return push_context(context);
}

CUDA_EXPORT cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER(cuCtxPushCurrent_v2);
    return push_context(context);
}

CUDA_EXPORT cuCtxPopCurrent(CUcontext *ret_context)
{
    ENTER(cuCtxPopCurrent);
    return pop_context(ret_context);
}

CUDA_EXPORT cuCtxPopCurrent_v2(CUcontext *ret_context)
{
    ENTER(cuCtxPopCurrent_v2);
    return pop_context(ret_context);
}

CUDA_EXPORT cuCtxSetCurrent(CUcontext context)
{
    ENTER(cuCtxSetCurrent);
    if (!context) {
        if (t_depth)
            t_depth--;
        return CUDA_SUCCESS;
    }
    REQUIRE(object_is(context, KIND_CONTEXT) && context->is_alive, CUDA_ERROR_INVALID_CONTEXT);
    if (t_depth == 0)
        t_depth = 1;
    t_stack[t_depth - 1] = context;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuCtxGetCurrent(CUcontext *ret_context)
{
    ENTER(cuCtxGetCurrent);
    REQUIRE(ret_context, CUDA_ERROR_INVALID_VALUE);
    *ret_context = context_current();
    return CUDA_SUCCESS;
}

/* The context named, or the current one for NULL. */
static CUresult context_or_current(CUcontext context, CUcontext *ret_context)
{
    if (!context)
        return context_require(ret_context);
    REQUIRE(object_is(context, KIND_CONTEXT) && context->is_alive, CUDA_ERROR_INVALID_CONTEXT);
    *ret_context = context;
    return CUDA_SUCCESS;
}

static CUresult context_device(CUdevice *ret_device, CUcontext context)
{
    REQUIRE(ret_device, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_or_current(context, &context);
    if (result == CUDA_SUCCESS)
        *ret_device = context->device;
    return result;
}

CUDA_EXPORT cuCtxGetDevice(CUdevice *ret_device)
{
    ENTER(cuCtxGetDevice);
    return context_device(ret_device, NULL);
}

CUDA_EXPORT cuCtxGetDevice_v2(CUdevice *ret_device, CUcontext context)
{
    ENTER(cuCtxGetDevice_v2);
    return context_device(ret_device, context);
}

static CUresult synchronize_context(CUcontext context)
{
    CUresult result = context_or_current(context, &context);
    if (result != CUDA_SUCCESS)
        return result;
    result = stream_wait_ticket(context, context->last_ticket);
    pool_trim_after_sync(context);
    return result;
}

CUDA_EXPORT cuCtxSynchronize(void)
{
    ENTER(cuCtxSynchronize);
    return synchronize_context(NULL);
}

CUDA_EXPORT cuCtxSynchronize_v2(CUcontext context)
{
    ENTER(cuCtxSynchronize_v2);
    return synchronize_context(context);
}

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
    CUresult result = context_or_current(context, &context);
    if (result == CUDA_SUCCESS)
        *ret_id = context->head.id;
    return result;
}

CUDA_EXPORT cuCtxGetApiVersion(CUcontext context, unsigned *ret_version)
{
    ENTER(cuCtxGetApiVersion);
    REQUIRE(ret_version, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_or_current(context, &context);
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

/* Usage counts of contexts, as before CUDA 4: attach takes a reference on the current one, detach gives it back. */
CUDA_EXPORT cuCtxAttach(CUcontext *ret_context, unsigned flags)
{
    ENTER(cuCtxAttach);
    REQUIRE(ret_context && flags == 0, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_require(ret_context);
    if (result == CUDA_SUCCESS)
        (*ret_context)->users++;
    return result;
}

CUDA_EXPORT cuCtxDetach(CUcontext context)
{
    ENTER(cuCtxDetach);
    REQUIRE(object_is(context, KIND_CONTEXT) && context->is_alive && !context->is_primary, CUDA_ERROR_INVALID_CONTEXT);
    if (context->users) {
        context->users--;
        return CUDA_SUCCESS;
    }
    return destroy_context(context);
}
