/* helper.c - the one thread of the hook.
 *
 * Owns:    its start (detached, all signals blocked), its right to call the driver while the program captures, its sleep (on a futex while
 *          there is nothing to do soon), and its rest: a driver takes itself apart in a handler of exit(), and may crash the program if
 *          another thread still calls it. Handlers run in reverse order, so ours, registered when the driver has long been loaded, runs
 *          before and stops the thread.
 * Failure: where no thread can be made, launches are charged by their estimates alone and never settled, and overhead is the reserve.
 * Next:    the work is done by the parts that want rounds (parts.h). */
#include "driver/helper.h"

#include "base/parts.h"
#include "base/sync.h"
#include "driver/driver.h"
#include "driver/loader.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

enum { ASLEEP = 0, AWAKE = 1, NOT_STARTED = 2, IMPOSSIBLE = 3 };

/* A nap that a wake need not cut short. */
#define NAP_MAX_NS 2000000ull

static _Atomic uint32_t helper_state = NOT_STARTED;

/* --- the driver ------------------------------------------------------------------------------------------------------------------- */

/* While any thread captures in the default mode, asking for an event or taking memory is forbidden to all threads and spoils the capture,
 * except to those that said that they know what they do. Ours does, before it calls the driver for anything else. */
static bool is_relaxed;

static void relax_capture_mode(const struct tf_cuda *cuda)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    is_relaxed = !cuda->cuThreadExchangeStreamCaptureMode || cuda->cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
}

static uint64_t poll(void)
{
    const struct tf_cuda *cuda = tf_cuda();
    if (!cuda)
        return UINT64_MAX;
    if (TF_UNLIKELY(!is_relaxed))
        relax_capture_mode(cuda);
    uint64_t nap_ns = UINT64_MAX;
    TF_EACH_PART(part) {
        uint64_t part_ns = (*part)->poll ? (*part)->poll() : UINT64_MAX;
        nap_ns = part_ns < nap_ns ? part_ns : nap_ns;
    }
    return nap_ns;
}

/* --- the end of the process ------------------------------------------------------------------------------------------------------- */

enum { REST_PATIENCE_MS = 100 };

static _Atomic bool is_ending;
static _Atomic uint32_t is_at_rest;

bool tf_helper_has_ended(void) { return atomic_load_explicit(&is_ending, memory_order_relaxed); }

static void rest_if_ending(void)
{
    if (!atomic_load(&is_ending))
        return;
    atomic_store(&is_at_rest, 1);
    for (;;)
        syscall(SYS_futex, &is_at_rest, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
}

/* Runs in exit(), also in a forked child, which has no helper unless it started one. */
static void end(void *unused)
{
    (void)unused;
    if (atomic_load(&helper_state) == NOT_STARTED || atomic_load(&helper_state) == IMPOSSIBLE)
        return;
    atomic_store(&is_ending, true);
    atomic_store(&helper_state, AWAKE);
    syscall(SYS_futex, &helper_state, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
    const struct timespec millisecond = {0, 1000000};
    for (int tries = 0; tries < REST_PATIENCE_MS && !atomic_load(&is_at_rest); tries++)
        nanosleep(&millisecond, NULL);
}

extern int __cxa_atexit(void (*function)(void *), void *argument, void *dso);

static void end_before_the_driver(void)
{
    static _Atomic bool is_registered; /* a forked child inherits it, as it does the handler */
    if (!atomic_exchange(&is_registered, true))
        __cxa_atexit(end, NULL, NULL);
}

/* --- the thread -------------------------------------------------------------------------------------------------------------------- */

static struct timespec length_of(uint64_t ns) { return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)}; }

static void *helper_main(void *unused)
{
    (void)unused;
    for (;;) {
        rest_if_ending();
        uint64_t nap_ns = poll();
        if (nap_ns <= NAP_MAX_NS) {
            struct timespec nap = length_of(nap_ns);
            nanosleep(&nap, NULL);
            continue;
        }
        atomic_store(&helper_state, ASLEEP);
        rest_if_ending();
        nap_ns = poll(); /* something may have come before we said so */
        if (nap_ns > NAP_MAX_NS) {
            struct timespec nap = length_of(nap_ns);
            syscall(SYS_futex, &helper_state, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, ASLEEP, nap_ns == UINT64_MAX ? NULL : &nap, NULL, 0);
        }
        atomic_store(&helper_state, AWAKE);
    }
    return NULL;
}

/* pthread_create is found at run time: before glibc 2.34 it lives in a library that we must not need, and that CUDA itself brings. */
static bool start(void)
{
    typedef int create_type(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    typedef int detach_type(pthread_t);
#ifdef __SANITIZE_THREAD__ /* must see the thread being made */
    create_type *create = pthread_create;
    detach_type *detach = pthread_detach;
#else
    create_type *create = (create_type *)tf_loader_libc("pthread_create");
    detach_type *detach = (detach_type *)tf_loader_libc("pthread_detach");
#endif
    sigset_t all, before;
    pthread_t thread;
    if (!create || !detach)
        return false;
    /* raw: sigprocmask is per thread in the kernel, and a new thread inherits it; no signal of the program may land on ours */
    sigfillset(&all);
    if (syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, 8) != 0)
        return false;
    bool is_started = create(&thread, NULL, helper_main, NULL) == 0;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
    if (is_started) {
        detach(thread);
        end_before_the_driver();
    }
    return is_started;
}

bool tf_helper_wake(void)
{
    uint32_t seen = atomic_load_explicit(&helper_state, memory_order_acquire);
    if (TF_LIKELY(seen == AWAKE || seen == IMPOSSIBLE))
        return seen == AWAKE;
    if (seen == NOT_STARTED && atomic_compare_exchange_strong(&helper_state, &seen, AWAKE)) {
        bool is_started = start();
        if (!is_started)
            atomic_store(&helper_state, IMPOSSIBLE);
        return is_started;
    }
    atomic_store(&helper_state, AWAKE);
    syscall(SYS_futex, &helper_state, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
    return true;
}

static void forget(void)
{
    atomic_store(&helper_state, NOT_STARTED);
    atomic_store(&is_ending, false);
    atomic_store(&is_at_rest, 0);
    is_relaxed = false;
}

TF_PART(.forget = forget);
