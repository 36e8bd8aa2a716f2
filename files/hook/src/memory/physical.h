/* physical.h - who holds a physical handle: mappings, wherever they are.
 *
 * Contract: a mapping is taken out before the driver is asked to undo it, and concluded after: then it is gone, or back. Handles of other
 *           processes are not ours, and nothing is done about them.
 * Next:     hooks_vmm.c counts, hooks_tiles.c maps tiles of arrays. */
#ifndef TENFOLD_PHYSICAL_H
#define TENFOLD_PHYSICAL_H

#include "memory/ledger.h"

#include "abi/cuda.h"

struct tf_recount {
    uint64_t add, subtract;
    struct tf_entry last; /* .kind != 0: this was the last of it */
};

/* One more mapping. false: not ours. */
bool tf_physical_map(CUmemGenericAllocationHandle handle);

/* One mapping less. false: not ours, and not to be concluded. */
bool tf_physical_unmap(CUmemGenericAllocationHandle handle, struct tf_recount *ret_request);
void tf_physical_unmapped(CUmemGenericAllocationHandle handle, struct tf_recount *request, bool is_done);

/* The array is about to be destroyed with all its tiles; and it was, or not. */
struct tf_tiles;
struct tf_tiles *tf_tiles_take(const void *array);
void tf_tiles_conclude(struct tf_tiles *tiles, bool is_done);

#endif
