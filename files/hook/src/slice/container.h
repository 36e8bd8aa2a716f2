/* container.h - what this process knows of its slice: limits in force, shared state, its slot in it.
 *
 * Contract: tf_container() attaches on first use (any thread, also after fork) and never returns NULL. Limits are refreshed by
 *           tf_container_refresh(), one load when nothing changed. Nothing here runs in a process that never calls CUDA or NVML. */
#ifndef TENFOLD_CONTAINER_H
#define TENFOLD_CONTAINER_H

#include "slice/process.h"
#include "base/sync.h"
#include "tenfold_region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum tf_stance {
    TF_NO_SLICE, /* no configuration anywhere: everything goes to the driver */
    TF_ENFORCED,
    TF_CLOSED, /* a slice that cannot be enforced, policy closed: allocations fail */
    TF_OPEN,   /* a slice that cannot be enforced, policy open: no limits */
};

/* Limits of one card, each word by itself atomic; 0 means none. */
struct tf_quota {
    _Atomic uint64_t memory_limit_bytes;
    _Atomic uint64_t overhead_reserve_bytes;
    _Atomic uint32_t core_limit_percent;
    _Atomic uint32_t mode;
    _Atomic int32_t priority;
    _Atomic uint32_t pressure; /* enum tenfold_pressure */
    _Atomic uint32_t overhead; /* enum tenfold_overhead */
    _Atomic bool is_listed; /* the page names this card */
};

struct tf_container {
    _Atomic int stance;
    struct tenfold_state *state; /* valid if ENFORCED */
    uint32_t slot;
    uint32_t policy; /* enum tenfold_policy, as of attaching */
    struct tf_identity self;
    const struct tenfold_header *page; /* mapped, or NULL (stand-alone) */
    _Atomic uint64_t generation;       /* of the copy that quotas were taken from */
    _Atomic bool has_core_limits;      /* any card at all, and enforced: the launch path's first question */
    _Atomic uint32_t view;             /* enum tenfold_view bits */
    struct tf_lock refresh_lock;
    uint32_t gpu_count;
    unsigned char uuids[TENFOLD_GPUS_MAX][16];
    struct tf_quota quotas[TENFOLD_GPUS_MAX];
};

/* Lies in a page that the kernel empties in a forked child. */
enum { TF_MARK_NONE = 0, TF_MARK_BUSY = 1, TF_MARK_ATTACHED = 2 };
struct tf_mark {
    _Atomic uint32_t word;
};

extern struct tf_container tf_the_container;
extern _Atomic(struct tf_mark *) tf_container_mark;

/* The process's slice, attached. */
struct tf_container *tf_container_attach(void);
static inline struct tf_container *tf_container(void)
{
    struct tf_mark *mark = atomic_load_explicit(&tf_container_mark, memory_order_acquire);
    bool is_attached = mark && atomic_load_explicit(&mark->word, memory_order_acquire) == TF_MARK_ATTACHED;
    return TF_LIKELY(is_attached) ? &tf_the_container : tf_container_attach();
}

/* Attached, and the page has not changed since. */
static inline bool tf_container_is_settled(void)
{
    struct tf_mark *mark = atomic_load_explicit(&tf_container_mark, memory_order_acquire);
    if (TF_UNLIKELY(!mark || atomic_load_explicit(&mark->word, memory_order_acquire) != TF_MARK_ATTACHED))
        return false;
    const struct tenfold_header *page = tf_the_container.page; /* not before the mark: another thread may be attaching */
    return !page || __atomic_load_n(&page->generation, __ATOMIC_ACQUIRE) == atomic_load_explicit(&tf_the_container.generation, memory_order_acquire);
}

/* Takes over a page that the host has changed since the last call. */
void tf_container_take_page(struct tf_container *container);
static inline void tf_container_refresh(struct tf_container *container)
{
    if (container->page
        && TF_UNLIKELY(__atomic_load_n(&container->page->generation, __ATOMIC_ACQUIRE)
            != atomic_load_explicit(&container->generation, memory_order_acquire)))
        tf_container_take_page(container);
}

/* Number of a card in the state by its UUID bytes, or -1. */
int tf_container_gpu(const struct tf_container *container, const unsigned char uuid[16]);

#endif
