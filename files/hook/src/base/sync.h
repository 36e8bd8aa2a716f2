/* sync.h - the hook's two locks, and small helpers. Process-private; nothing shared between processes ever waits on a lock.
 *
 * tf_lock: a futex mutex of one word (0 free, 1 held, 2 held and waited for), for parts that call the driver or the kernel. pthread's lives
 *          in a library that old images lack.
 * tf_spin: for parts of a few dozen instructions. Its release is a plain store, for it wakes nobody: who waits looks again, at first at
 *          once, then with naps, so that a holder without a processor gets one whatever the waiter's priority.
 * Both:    zero-initialised is free; after fork the child stores 0 (container.c). */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TF_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define TF_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

struct tf_lock {
    _Atomic uint32_t word;
};

static inline bool tf_lock_try(struct tf_lock *lock)
{
    uint32_t free = 0;
    return atomic_compare_exchange_strong_explicit(&lock->word, &free, 1, memory_order_acquire, memory_order_relaxed);
}

static inline void tf_lock_acquire(struct tf_lock *lock)
{
    uint32_t expected;
    if (TF_LIKELY(tf_lock_try(lock)))
        return;
    for (int spin = 0; spin < 100; spin++) {
        expected = 0;
        if (atomic_compare_exchange_weak_explicit(&lock->word, &expected, 1, memory_order_acquire, memory_order_relaxed))
            return;
    }
    while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0)
        syscall(SYS_futex, &lock->word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 2, NULL, NULL, 0);
}

static inline void tf_lock_release(struct tf_lock *lock)
{
    if (TF_UNLIKELY(atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2))
        syscall(SYS_futex, &lock->word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
}

/* One round of waiting for somebody who needs only nanoseconds of a processor. */
static inline void tf_relax(uint32_t tries)
{
    enum { PAUSES = 64 };
    const struct timespec nap = {0, 50000};
    if (tries >= PAUSES)
        syscall(SYS_nanosleep, &nap, NULL);
#if defined(__x86_64__)
    else
        __builtin_ia32_pause();
#endif
}

struct tf_spin {
    _Atomic uint32_t word;
};

static inline bool tf_spin_try(struct tf_spin *spin)
{
    uint32_t free = 0;
    return atomic_compare_exchange_strong_explicit(&spin->word, &free, 1, memory_order_acquire, memory_order_relaxed);
}

static inline void tf_spin_acquire(struct tf_spin *spin)
{
    for (uint32_t tries = 0; TF_UNLIKELY(!tf_spin_try(spin)); tries++)
        tf_relax(tries);
}

static inline void tf_spin_release(struct tf_spin *spin) { atomic_store_explicit(&spin->word, 0, memory_order_release); }
