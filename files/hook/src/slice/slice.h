/* slice.h - what this process knows of its slice: limits in force, shared state, its slot in it.
 *
 * container.c and standalone.c fill it; the rest of the hook reads it. */
#pragma once

#include "base/sync.h"
#include "slice/process.h"
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
    _Atomic uint64_t overhead_bytes[TENFOLD_GPUS_MAX]; /* what of our slot's usage the program has not allocated; overhead.c charges it */
};
