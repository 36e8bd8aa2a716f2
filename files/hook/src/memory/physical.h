/* physical.h - who holds a physical handle: references, and mappings wherever they are.
 *
 * Contract: one is taken out before the driver is asked to undo it, and concluded after: then it is gone, or back. Handles of other
 *           processes are not ours, and nothing is done about them.
 * Next:     hooks/vmm.c counts, tiles.c maps tiles of arrays. */
#pragma once

#include "abi/cuda.h"
#include "memory/ledger.h"

/* Units of an entry's count. */
#define TF_REFERENCE 1ull
#define TF_MAPPING (1ull << 32)

struct tf_recount {
    uint64_t add, subtract;
    struct tf_entry last; /* .kind != 0: this was the last of it */
};

/* One more. false: not ours. */
bool tf_physical_count_up(CUmemGenericAllocationHandle handle, uint64_t unit);

/* One less: the last must leave the ledger before the driver is asked, for the driver may hand out the same handle at once. false: not ours, and
 * not to be concluded. */
bool tf_physical_count_down(CUmemGenericAllocationHandle handle, uint64_t unit, struct tf_recount *ret_request);
void tf_physical_conclude(CUmemGenericAllocationHandle handle, uint64_t unit, struct tf_recount *request, bool is_done);
