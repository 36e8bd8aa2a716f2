/* driver.c - a process's way into its simulated driver: cuInit, entry checks, fork, object records (contract: driver.h).
 *
 * Nothing is given back at exit: other threads may still be inside the driver. The kernel drops the slot's lock when the process is
 * gone, and the next one to look reaps it, whether it exited or was killed. */
#include "driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct driver g_driver = {.machine = {.fd = -1}};

static pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;

void driver_lock(void)
{
    pthread_mutex_lock(&g_mutex);
}

void driver_unlock(void)
{
    pthread_mutex_unlock(&g_mutex);
}

void driver_spend(int64_t time_ns)
{
    if (time_ns <= 0)
        return;
    for (int64_t end_ns = state_now_ns() + time_ns; state_now_ns() < end_ns;)
        continue;
}

/* The real driver's contexts do not survive fork(): the child of a process that called cuInit gets NOT_INITIALIZED for ever. */
static void after_fork_in_child(void)
{
    if (!g_driver.machine.state)
        return;
    atomic_store(&g_driver.is_ready, 0);
    atomic_store(&g_driver.is_inherited, 1);
    state_forget(&g_driver.machine);
}

/* Under the lock that guards attaching; once per process and its forks. */
static void watch_fork(void)
{
    static bool is_watched;
    if (!is_watched)
        pthread_atfork(NULL, NULL, after_fork_in_child);
    is_watched = true;
}

CUresult driver_error(int negative_errno)
{
    switch (negative_errno) {
    case 0:
        return CUDA_SUCCESS;
    case -ENOMEM:
        return CUDA_ERROR_OUT_OF_MEMORY;
    case -ENOENT:
        return CUDA_ERROR_NO_DEVICE;
    case -EPROTO:
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    case -EINVAL:
        return CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_UNKNOWN;
    }
}

CUresult driver_take_memory(uint32_t card, uint64_t bytes)
{
    state_lock(&g_driver.machine);
    int error = memory_reserve(&g_driver.machine, card, bytes);
    state_unlock(&g_driver.machine);
    return driver_error(error);
}

void driver_settle_memory(uint32_t card, int64_t requested_bytes, int64_t allocated_bytes, uint64_t give_back_bytes)
{
    state_lock(&g_driver.machine);
    memory_note(&g_driver.machine, card, requested_bytes, allocated_bytes);
    if (give_back_bytes)
        memory_unreserve(&g_driver.machine, card, give_back_bytes);
    state_unlock(&g_driver.machine);
}

CUresult driver_check_entry(const char *symbol, bool needs_ready)
{
    if (atomic_load(&g_driver.is_inherited))
        return CUDA_ERROR_NOT_INITIALIZED;
    bool is_ready = atomic_load_explicit(&g_driver.is_ready, memory_order_acquire);
    if (!is_ready)
        return needs_ready ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
    if (atomic_load(&g_driver.captures_open))
        TRY(capture_mode_check(symbol));
    CUresult injected = state_injected_error(&g_driver.machine, symbol);
    context_fail(injected);
    return injected != CUDA_SUCCESS ? injected : context_check_call(symbol);
}

/* Under driver_lock(). */
static CUresult join_machine(void)
{
    if (g_driver.machine.state)
        return CUDA_SUCCESS;
    int error = state_attach(state_path(), &g_driver.machine);
    if (error)
        return driver_error(error);
    watch_fork();
    visible_apply(&g_driver.machine);
    return CUDA_SUCCESS;
}

static CUresult attach_locked(void)
{
    if (atomic_load(&g_driver.is_ready))
        return CUDA_SUCCESS;
    TRY(join_machine());
    TRY(state_injected_error(&g_driver.machine, "cuInit"));
    REQUIRE(g_driver.machine.visible_count, CUDA_ERROR_NO_DEVICE);
    atomic_store_explicit(&g_driver.is_ready, 1, memory_order_release);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuInit(unsigned flags)
{
    if (atomic_load(&g_driver.is_inherited))
        return CUDA_ERROR_NOT_INITIALIZED;
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    CUresult result = attach_locked();
    driver_unlock();
    return result;
}

CUdevice driver_device_count(void)
{
    return (CUdevice)g_driver.machine.visible_count;
}

struct sim_card *driver_card(CUdevice device)
{
    if (device < 0 || device >= driver_device_count())
        return NULL;
    return &g_driver.machine.state->cards[g_driver.machine.visible[device]];
}

uint32_t driver_card_index(CUdevice device)
{
    return g_driver.machine.visible[device];
}

static struct object *g_recycled[KIND_LAST - KIND_CONTEXT + 1];
static pthread_mutex_t g_object_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t g_next_object_id = 1;

void *object_new(enum object_kind kind, size_t size_bytes)
{
    pthread_mutex_lock(&g_object_mutex);
    struct object **list = &g_recycled[kind - KIND_CONTEXT];
    struct object *object = *list;
    if (object)
        *list = object->next;
    uint64_t id = g_next_object_id++;
    pthread_mutex_unlock(&g_object_mutex);
    if (object)
        memset(object, 0, size_bytes);
    else
        object = calloc(1, size_bytes);
    if (object) {
        object->kind = kind;
        object->id = id;
    }
    return object;
}

void object_free(void *handle)
{
    struct object *object = handle;
    if (!object || object->kind == KIND_FREE)
        return;
    pthread_mutex_lock(&g_object_mutex);
    struct object **list = &g_recycled[object->kind - KIND_CONTEXT];
    object->kind = KIND_FREE;
    object->next = *list;
    *list = object;
    pthread_mutex_unlock(&g_object_mutex);
}

/* The version needs the machine, not cuInit: attaching for it leaves the process uninitialised. */
CUresult driver_cuda_version(int *ret_version)
{
    if (atomic_load(&g_driver.is_inherited))
        return CUDA_ERROR_NOT_INITIALIZED;
    driver_lock();
    CUresult result = join_machine();
    if (result == CUDA_SUCCESS)
        *ret_version = g_driver.machine.state->cuda_version;
    driver_unlock();
    return result;
}

CUDA_EXPORT cuDriverGetVersion(int *ret_version)
{
    REQUIRE(ret_version, CUDA_ERROR_INVALID_VALUE);
    ENTER_UNREADY(cuDriverGetVersion);
    return driver_cuda_version(ret_version);
}
