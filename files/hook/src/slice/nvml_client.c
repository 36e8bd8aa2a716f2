/* nvml_client.c - NVML for the hook's own questions (contract: nvml_client.h).
 *
 * Owns: whether NVML is initialised, the handle of each card, the lock that keeps forks out of our calls.
 * Next: neighbours.c asks for utilisation, driver_pid.c and overhead.c for memory. */
#include "slice/nvml_client.h"

#include "base/parts.h"
#include "driver/loader.h"

#include <string.h>
#include <time.h>

/* How long a fork waits for a call of ours before it goes ahead: a call takes milliseconds, and a library that hangs must not hang the fork. */
enum { FORK_TRIES = 10000 };
#define FORK_NAP_NS 100000l

extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso);

static struct tf_lock lock;
static _Thread_local bool has_fork_lock; /* this thread forks; others may at the same time, for glibc does not hold its own lock all the while */
static _Thread_local bool is_inside; /* NVML forks by itself where it loads the kernel module */
static _Atomic bool is_guarded;
static _Atomic bool is_open;
static _Atomic(nvmlDevice_t) devices[TENFOLD_GPUS_MAX];

static void forget(void)
{
    for (uint32_t gpu = 0; gpu < TENFOLD_GPUS_MAX; gpu++)
        atomic_store(&devices[gpu], NULL);
    atomic_store(&is_open, false);
    atomic_store(&lock.word, 0);
}

TF_PART(.forget = forget);

static void before_fork(void)
{
    const struct timespec nap = {.tv_nsec = FORK_NAP_NS};
    has_fork_lock = false;
    for (int tries = 0; tries < FORK_TRIES && !has_fork_lock && !is_inside; tries++) {
        has_fork_lock = tf_lock_try(&lock);
        if (!has_fork_lock)
            nanosleep(&nap, NULL);
    }
}

static void after_fork_in_parent(void)
{
    if (has_fork_lock)
        tf_lock_release(&lock);
    has_fork_lock = false;
}

static void after_fork_in_child(void)
{
    atomic_store(&lock.word, 0);
    has_fork_lock = false;
}

void tf_nvml_enter(void)
{
    tf_lock_acquire(&lock);
    is_inside = true;
}

void tf_nvml_leave(void)
{
    is_inside = false;
    tf_lock_release(&lock);
}

const struct tf_nvml *tf_nvml_opened(void) { return atomic_load_explicit(&is_open, memory_order_acquire) ? tf_nvml() : NULL; }

static bool open_locked(void)
{
    const struct tf_nvml *nvml = tf_nvml();
    if (!nvml) {
        tf_loader_open(TF_NVML_SONAME);
        nvml = tf_nvml();
    }
    /* counted by NVML: never taken back, so the program's own shutdown leaves us ours */
    return nvml && nvml->nvmlInit_v2 && nvml->nvmlDeviceGetHandleByUUID && nvml->nvmlDeviceGetComputeRunningProcesses
        && nvml->nvmlInit_v2() == NVML_SUCCESS;
}

const struct tf_nvml *tf_nvml_open(void)
{
    bool guarded = false;
    if (atomic_load(&is_open))
        return tf_nvml();
    if (atomic_compare_exchange_strong(&is_guarded, &guarded, true)) /* a child inherits the handlers */
        __register_atfork(before_fork, after_fork_in_parent, after_fork_in_child, NULL);
    tf_nvml_enter();
    bool is_opened = open_locked();
    tf_nvml_leave();
    atomic_store_explicit(&is_open, is_opened, memory_order_release);
    return is_opened ? tf_nvml() : NULL;
}

nvmlDevice_t tf_nvml_card(struct tf_container *container, const struct tf_nvml *nvml, int gpu)
{
    char uuid[TENFOLD_UUID_CHARS];
    nvmlDevice_t device = atomic_load(&devices[gpu]);
    if (device)
        return device;
    memcpy(uuid, container->state->gpus[gpu].uuid, sizeof uuid);
    uuid[sizeof uuid - 1] = '\0';
    tf_nvml_enter();
    bool is_found = nvml->nvmlDeviceGetHandleByUUID(uuid, &device) == NVML_SUCCESS;
    tf_nvml_leave();
    if (!is_found)
        return NULL;
    atomic_store(&devices[gpu], device);
    return device;
}

bool tf_nvml_list(struct tf_container *container, const struct tf_nvml *nvml, int gpu, struct tf_nvml_list *ret_list)
{
    nvmlDevice_t device = tf_nvml_card(container, nvml, gpu);
    if (!device)
        return false;
    ret_list->count = TF_NVML_PROCESSES_MAX;
    tf_nvml_enter();
    nvmlReturn_t result = nvml->nvmlDeviceGetComputeRunningProcesses(device, &ret_list->count, ret_list->processes);
    tf_nvml_leave();
    return result == NVML_SUCCESS && ret_list->count <= TF_NVML_PROCESSES_MAX;
}

bool tf_nvml_list_bytes(const struct tf_nvml_list *list, uint32_t pid, uint64_t *ret_bytes)
{
    for (unsigned int index = 0; index < list->count; index++)
        if (list->processes[index].pid == pid) {
            *ret_bytes = list->processes[index].used_bytes;
            return true;
        }
    return false;
}
