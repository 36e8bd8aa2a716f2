/* ledger.h - what this process has allocated: handle or address -> card and bytes.
 *
 * Contract: constant time however many blocks live; any thread; no malloc (a malloc that allocates on the GPU would recurse). A key that is
 *           not here was not charged by us, and the call about it is the driver's business alone. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum tf_kind {
    TF_KIND_POINTER = 1, /* device address */
    TF_KIND_ARRAY,       /* CUarray */
    TF_KIND_MIPMAP,      /* CUmipmappedArray */
    TF_KIND_PHYSICAL,    /* CUmemGenericAllocationHandle */
    TF_KIND_MAPPING,     /* address of a mapping of a physical handle */
    TF_KIND_TILE,        /* place in a sparse array that is mapped to a physical handle */
    TF_KIND_POOL,        /* CUmemoryPool */
    TF_KIND_GRAPH,       /* card number: memory that graphs hold */
};

struct tf_entry {
    uint64_t key;
    uint64_t context; /* CUcontext that the driver frees it with; 0: none */
    uint64_t extra;   /* POINTER: is it managed; PHYSICAL: references and mappings; MAPPING, TILE: the handle */
    uint64_t bytes : 48; /* charged */
    uint64_t kind : 8;   /* enum tf_kind; 0: empty place */
    uint64_t gpu : 8;
};
_Static_assert(sizeof(struct tf_entry) == 32, "an entry lies in one cache line");

/* Adds. 0, or -ENOMEM. An entry of the same kind and key is replaced (the driver re-used an address that it freed behind our back). */
int tf_ledger_add(const struct tf_entry *entry, struct tf_entry *ret_replaced);

/* The entry will be asked for soon: of thousands of blocks it is in no near cache. */
void tf_ledger_expect(enum tf_kind kind, uint64_t key);

/* Removes and returns. false: not here. */
bool tf_ledger_take(enum tf_kind kind, uint64_t key, struct tf_entry *ret_entry);

/* Calls `change` with the entry under its lock; the entry goes if it returns false. false: not here. */
bool tf_ledger_change(enum tf_kind kind, uint64_t key, bool (*change)(struct tf_entry *entry, void *context), void *context);

/* Removes every entry for which `is_gone` says so, calling `gone` for each. Both run under the lock of the entry's shard: neither may touch the
 * ledger. */
void tf_ledger_sweep(bool (*is_gone)(const struct tf_entry *entry, void *context), void (*gone)(const struct tf_entry *entry, void *context),
    void *context);

/* Calls `visit` with every entry under the lock of its shard; it may change what is no part of where the entry stands: all but kind and key. */
void tf_ledger_visit(void (*visit)(struct tf_entry *entry, void *context), void *context);
