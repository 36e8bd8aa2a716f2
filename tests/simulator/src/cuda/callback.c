/* callback.c - cuLaunchHostFunc and cuStreamAddCallback, and the thread that calls host functions (contract: callback.h).
 *
 * The thread is started by the first callback and sleeps without work. Where streams have their own order, work behind a callback waits
 * for it to return, as on hardware; where all feed one queue it does not, and only waiting for the stream does. */
#include "callback.h"

#include <pthread.h>
#include <stdlib.h>

#include "../core/old_libc.h"
#include "graph.h"

OLD_LIBC_PTHREAD_CREATE

struct callback {
    struct callback *next;
    CUstream stream;
    CUcontext context;
    uint64_t epoch;
    uint64_t ticket_after; /* the work before it */
    uint64_t held_after;   /* what holds the work behind it; 0 = nothing */
    CUhostFn function;
    CUstreamCallback old;
    void *user_data;
};

static pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t g_changed = PTHREAD_COND_INITIALIZER;
static struct callback *g_first, **g_last = &g_first; /* the one being called stays first until it returns */
static bool g_has_thread;
static _Atomic uint32_t g_pending;
static __thread bool t_is_caller;

static void *call_all(void *unused)
{
    (void)unused;
    t_is_caller = true;
    pthread_mutex_lock(&g_mutex);
    for (;;) {
        while (!g_first)
            pthread_cond_wait(&g_changed, &g_mutex);
        struct callback *callback = g_first;
        pthread_mutex_unlock(&g_mutex);
        CUresult status = stream_wait_ticket(callback->context, callback->ticket_after);
        if (callback->function)
            callback->function(callback->user_data);
        else
            callback->old(callback->stream, status, callback->user_data);
        if (callback->held_after)
            stream_release(callback->context, callback->epoch, callback->held_after);
        pthread_mutex_lock(&g_mutex);
        g_first = callback->next;
        if (!g_first)
            g_last = &g_first;
        atomic_fetch_sub(&g_pending, 1);
        free(callback);
        pthread_cond_broadcast(&g_changed);
    }
    return NULL;
}

static bool start_thread(void)
{
    pthread_attr_t detached;
    pthread_t thread;
    if (g_has_thread || pthread_attr_init(&detached) != 0)
        return g_has_thread;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    g_has_thread = pthread_create(&thread, &detached, call_all, NULL) == 0;
    pthread_attr_destroy(&detached);
    return g_has_thread;
}

CUresult callback_submit(CUstream stream, CUhostFn function, CUstreamCallback old, void *user_data)
{
    struct callback *callback = malloc(sizeof *callback);
    REQUIRE(callback, CUDA_ERROR_OUT_OF_MEMORY);
    uint64_t ticket_after = stream->last_ticket, held_after = 0;
    if (stream_has_own_order()) {
        CUresult result = stream_submit(stream, 0, NULL, false);
        ticket_after = stream->last_ticket;
        result = result == CUDA_SUCCESS ? stream_submit_waiting(stream, 0, true) : result;
        held_after = stream->last_ticket;
        if (result != CUDA_SUCCESS) {
            free(callback);
            return result;
        }
    }
    *callback = (struct callback){.stream = stream,
                                  .context = stream->context,
                                  .epoch = stream->context->epoch,
                                  .ticket_after = ticket_after,
                                  .held_after = held_after,
                                  .function = function,
                                  .old = old,
                                  .user_data = user_data};
    pthread_mutex_lock(&g_mutex);
    bool is_running = start_thread();
    if (is_running) {
        *g_last = callback;
        g_last = &callback->next;
        atomic_fetch_add(&g_pending, 1);
        pthread_cond_broadcast(&g_changed);
    }
    pthread_mutex_unlock(&g_mutex);
    if (!is_running)
        free(callback);
    return is_running ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

static bool is_pending_locked(CUstream stream)
{
    for (struct callback *callback = g_first; callback; callback = callback->next)
        if (callback->stream == stream)
            return true;
    return false;
}

bool callback_is_pending(CUstream stream)
{
    if (atomic_load(&g_pending) == 0)
        return false;
    pthread_mutex_lock(&g_mutex);
    bool is_pending = is_pending_locked(stream);
    pthread_mutex_unlock(&g_mutex);
    return is_pending;
}

void callback_wait(CUstream stream)
{
    if (atomic_load(&g_pending) == 0 || t_is_caller)
        return;
    pthread_mutex_lock(&g_mutex);
    while (is_pending_locked(stream))
        pthread_cond_wait(&g_changed, &g_mutex);
    pthread_mutex_unlock(&g_mutex);
}

/* To the thread, or into the graph of a stream that captures. */
static CUresult host_function(CUstream stream, CUhostFn function, CUstreamCallback old, void *user_data, unsigned flags)
{
    CUgraphNode node;
    REQUIRE((function || old) && flags == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_resolve(stream, &stream));
    REQUIRE(!(old && stream->capture), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    TRY(graph_capture(stream, CU_GRAPH_NODE_TYPE_HOST, &node));
    if (!node)
        return callback_submit(stream, function, old, user_data);
    node->host = (CUDA_HOST_NODE_PARAMS){.function = function, .user_data = user_data};
    return CUDA_SUCCESS;
}

STREAM_ENTRY(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *user_data), host_function(stream, function, NULL, user_data, 0))
/* The mode says how the caller's thread waits, which changes nothing here. */
STREAM_ENTRY(cuLaunchHostFunc_v2, (CUstream stream, CUhostFn function, void *user_data, unsigned mode),
             ((void)mode, host_function(stream, function, NULL, user_data, 0)))
STREAM_ENTRY(cuStreamAddCallback, (CUstream stream, CUstreamCallback callback, void *user_data, unsigned flags),
             host_function(stream, NULL, callback, user_data, flags))
