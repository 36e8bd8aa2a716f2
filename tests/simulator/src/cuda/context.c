/* context.c - contexts: their life, and each thread's stack of current ones (contract: context.h).
 *
 * A process's first context on a card opens its channel there and is charged context_bytes; its last one gives both back. Memory
 * belongs to a context and goes with it (heap.h). Next: primary.c for the one that a card's users share. */
#include "context.h"

#include "graph.h"
#include "heap.h"
#include "pool.h"

enum { CONTEXT_STACK_MAX = 32 };

static __thread CUcontext t_stack[CONTEXT_STACK_MAX];
static __thread unsigned t_depth;

static CUstream g_streams; /* of every context, through head.next */

CUcontext context_current(void)
{
    return t_depth ? t_stack[t_depth - 1] : NULL;
}

static bool is_alive(CUcontext context)
{
    return object_is(context, KIND_CONTEXT) && context->is_alive;
}

CUresult context_require(CUcontext *ret_context)
{
    CUcontext context = context_current();
    REQUIRE(context, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(is_alive(context), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    *ret_context = context;
    return CUDA_SUCCESS;
}

CUresult context_resolve(CUcontext context, CUcontext *ret_context)
{
    if (!context)
        return context_require(ret_context);
    REQUIRE(is_alive(context), CUDA_ERROR_INVALID_CONTEXT);
    *ret_context = context;
    return CUDA_SUCCESS;
}

CUresult context_error(CUcontext context)
{
    const int error = context_of_memory(context)->error;
    if (error)
        return error;
    return g_driver.machine.state->cards[context->card].lost ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult context_check_call(const char *symbol)
{
    static const char *const needless[] = {"cuCtxCreate", "cuCtxDestroy", "cuCtxDetach", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent",
                                           "cuCtxGetCurrent", "cuCtxGetDevice", "cuDevicePrimaryCtx", "cuDeviceGet", "cuDriverGetVersion",
                                           "cuGetProcAddress", "cuGetError"}; /* beginnings of names */
    const CUcontext context = context_current();
    for (unsigned i = 0; i < sizeof needless / sizeof *needless; i++)
        if (strncmp(needless[i], symbol, strlen(needless[i])) == 0)
            return CUDA_SUCCESS;
    return context && is_alive(context) ? context_error(context) : CUDA_SUCCESS;
}

/* CUDA driver API, CUresult: those of which it says that the context "must be destroyed" or "the process must be terminated". */
static bool is_end_of_context(CUresult error)
{
    return error == CUDA_ERROR_ILLEGAL_ADDRESS || error == 702 || error == 710 || (error >= 714 && error <= CUDA_ERROR_LAUNCH_FAILED);
}

void context_fail(CUresult error)
{
    const CUcontext context = context_current();
    int none = 0;
    if (!g_driver.machine.state->rules.sticky_errors || !is_end_of_context(error) || !context || !is_alive(context))
        return;
    if (atomic_compare_exchange_strong(&context_of_memory(context)->error, &none, error))
        atomic_fetch_add(&g_driver.contexts_failed, 1);
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

CUresult context_open(CUcontext context, CUdevice device)
{
    context->device = device;
    context->card = driver_card_index(device);
    context->last_ticket = 0;
    context->epoch++;
    TRY(occupy_card(context));
    CUresult result = stream_create(context, true, &context->legacy_stream);
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

void context_close(CUcontext context)
{
    context->is_alive = false;
    if (atomic_exchange(&context->error, 0))
        atomic_fetch_sub(&g_driver.contexts_failed, 1);
    if (context->is_primary)
        green_primary_closed(context);
    heap_free_all(context);
    module_drop_context(context);
    pool_drop_card(context);
    context_visit_streams(context, drop_stream);
    context->legacy_stream = NULL;
    leave_card(context);
}

static CUresult push_context(CUcontext context)
{
    REQUIRE(is_alive(context), CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(t_depth < CONTEXT_STACK_MAX, CUDA_ERROR_OUT_OF_MEMORY);
    t_stack[t_depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult create_context(CUcontext *ret_context, CUdevice device)
{
    REQUIRE(ret_context, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(t_depth < CONTEXT_STACK_MAX, CUDA_ERROR_OUT_OF_MEMORY);
    driver_lock();
    CUcontext context = object_new(KIND_CONTEXT, sizeof *context);
    CUresult result = context ? context_open(context, device) : CUDA_ERROR_OUT_OF_MEMORY;
    driver_unlock();
    if (result != CUDA_SUCCESS) {
        object_free(context);
        return result;
    }
    *ret_context = context;
    return push_context(context);
}

/* Flags and graphics interoperation have no effect here; execution affinity exists under MPS only. */
ENTRY(cuCtxCreate, (CUcontext *ret_context, unsigned flags, CUdevice device), ((void)flags, create_context(ret_context, device)))
ENTRY(cuCtxCreate_v2, (CUcontext *ret_context, unsigned flags, CUdevice device), ((void)flags, create_context(ret_context, device)))
ENTRY(cuCtxCreate_v3, (CUcontext *ret_context, const void *affinity, int count, unsigned flags, CUdevice device),
      ((void)flags, affinity || count ? (CUresult)CUDA_ERROR_NOT_SUPPORTED : create_context(ret_context, device)))
ENTRY(cuCtxCreate_v4, (CUcontext *ret_context, const void *parameters, unsigned flags, CUdevice device),
      ((void)parameters, (void)flags, create_context(ret_context, device)))

/* By cuCtxDestroy; a primary or green one has a way of its own. */
static bool may_be_destroyed(CUcontext context)
{
    return is_alive(context) && !context->is_primary && !context->primary;
}

static CUresult destroy_context(CUcontext context)
{
    REQUIRE(may_be_destroyed(context), CUDA_ERROR_INVALID_CONTEXT);
    driver_lock();
    context_close(context);
    driver_unlock();
    if (context_current() == context)
        t_depth--;
    return CUDA_SUCCESS; /* the record stays: other threads may have it current, and must be told that it is gone */
}

ENTRY(cuCtxDestroy, (CUcontext context), destroy_context(context))
ENTRY(cuCtxDestroy_v2, (CUcontext context), destroy_context(context))

ENTRY(cuCtxPushCurrent_v2, (CUcontext context), push_context(context))

CUDA_EXPORT cuCtxPopCurrent_v2(CUcontext *ret_context)
{
    ENTER(cuCtxPopCurrent_v2);
    REQUIRE(t_depth, CUDA_ERROR_INVALID_CONTEXT);
    CUcontext context = t_stack[--t_depth];
    if (ret_context)
        *ret_context = context;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuCtxSetCurrent(CUcontext context)
{
    ENTER(cuCtxSetCurrent);
    if (!context) {
        if (t_depth)
            t_depth--;
        return CUDA_SUCCESS;
    }
    REQUIRE(is_alive(context), CUDA_ERROR_INVALID_CONTEXT);
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

static CUresult device_of(CUdevice *ret_device, CUcontext context)
{
    REQUIRE(ret_device, CUDA_ERROR_INVALID_VALUE);
    TRY(context_resolve(context, &context));
    *ret_device = context->device;
    return CUDA_SUCCESS;
}

ENTRY(cuCtxGetDevice, (CUdevice *ret_device), device_of(ret_device, NULL))
ENTRY(cuCtxGetDevice_v2, (CUdevice *ret_device, CUcontext context), device_of(ret_device, context))

static CUresult synchronize_context(CUcontext context)
{
    TRY(context_resolve(context, &context));
    CUresult result = stream_wait_context(context);
    pool_trim_after_sync(context);
    return result;
}

ENTRY(cuCtxSynchronize, (void), synchronize_context(NULL))
ENTRY(cuCtxSynchronize_v2, (CUcontext context), synchronize_context(context))

/* Usage counts of contexts, as before CUDA 4: attach takes a reference on the current one, detach gives it back. */
CUDA_EXPORT cuCtxAttach(CUcontext *ret_context, unsigned flags)
{
    ENTER(cuCtxAttach);
    REQUIRE(ret_context && flags == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(context_require(ret_context));
    (*ret_context)->users++;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuCtxDetach(CUcontext context)
{
    ENTER(cuCtxDetach);
    REQUIRE(may_be_destroyed(context), CUDA_ERROR_INVALID_CONTEXT);
    if (!context->users)
        return destroy_context(context);
    context->users--;
    return CUDA_SUCCESS;
}
