/* container.h - the slice of this process, attached.
 *
 * Contract: tf_container() attaches on first use (any thread, also after fork) and never returns NULL. Limits are refreshed by
 *           tf_container_refresh(), one load when nothing changed. Nothing here runs in a process that never calls CUDA or NVML. */
#pragma once

#include "slice/slice.h"

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
