/* physical.c - references to physical handles, and mappings (contract: physical.h). Next: ledger.c counts both in one entry. */
#include "memory/physical.h"

#include "memory/reservation.h"

/* Adds to an entry's count; takes the entry out when nothing is left of it. */
static bool recount(struct tf_entry *entry, void *context)
{
    struct tf_recount *request = context;
    entry->extra += request->add;
    entry->extra -= request->subtract;
    if (entry->extra)
        return true;
    request->last = *entry;
    return false;
}

bool tf_physical_count_up(CUmemGenericAllocationHandle handle, uint64_t unit)
{
    struct tf_recount request = {.add = unit};
    return tf_ledger_change(TF_KIND_PHYSICAL, handle, recount, &request);
}

bool tf_physical_count_down(CUmemGenericAllocationHandle handle, uint64_t unit, struct tf_recount *ret_request)
{
    *ret_request = (struct tf_recount){.subtract = unit};
    return tf_ledger_change(TF_KIND_PHYSICAL, handle, recount, ret_request);
}

void tf_physical_conclude(CUmemGenericAllocationHandle handle, uint64_t unit, struct tf_recount *request, bool is_done)
{
    struct tf_container *container = tf_container();
    if (request->last.kind && is_done) {
        tf_memory_gone(container, &request->last);
    } else if (request->last.kind) {
        request->last.extra = unit;
        tf_memory_back(container, &request->last);
    } else if (!is_done) {
        tf_physical_count_up(handle, unit);
    }
}
