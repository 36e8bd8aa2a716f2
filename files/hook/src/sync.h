/* sync.h - the only lock of the hook, and two small helpers. Process-private; nothing shared between processes ever waits on a lock.
 *
 * Contract: a futex mutex of one word (0 free, 1 held, 2 held and waited for). pthread's lives in a library that old images lack.
 *           Zero-initialised is unlocked; after fork the child stores 0 (process.c). */
#ifndef TENFOLD_SYNC_H
#define TENFOLD_SYNC_H

#include <stdatomic.h>
#include <stdint.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TF_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define TF_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

struct tf_lock {
    _Atomic uint32_t word;
};

static inline void tf_lock_acquire(struct tf_lock *lock)
{
    uint32_t expected = 0;
    if (TF_LIKELY(atomic_compare_exchange_strong_explicit(&lock->word, &expected, 1, memory_order_acquire, memory_order_relaxed)))
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

#endif
