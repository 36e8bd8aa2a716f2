/* vmm.c - virtual memory management: physical handles, and what keeps them alive; tiles of sparse arrays.
 *
 * Promise: a handle is charged to the card of its own location when it is created, and given back when its last reference and its last mapping
 *          are gone, in whatever order. What another process exported is charged there, not here.
 * Next:    physical.c counts references and mappings, tiles.c has the mappings of sparse arrays. */
#include "driver/nested.h"
#include "hooks/hooks.h"
#include "memory/charge.h"
#include "memory/physical.h"
#include "memory/tiles.h"

static CUresult conclude(const struct tf_cuda *cuda, CUresult result, const struct tf_reservation *reservation, CUmemGenericAllocationHandle handle)
{
    if (result != CUDA_SUCCESS || (reservation->gpu < 0 && !reservation->is_blind)) {
        tf_memory_undo(reservation);
        return result;
    }
    struct tf_entry entry = {.key = handle, .bytes = reservation->bytes, .extra = TF_REFERENCE, .kind = TF_KIND_PHYSICAL, .gpu = (uint8_t)reservation->gpu};
    struct tf_entry replaced;
    if (!reservation->is_blind && tf_ledger_add(&entry, &replaced) == 0) {
        if (replaced.kind)
            tf_memory_gone(reservation->container, &replaced);
        return result;
    }
    cuda->cuMemRelease(handle);
    tf_memory_undo(reservation);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags)
{
    TF_ENTER(cuMemCreate);
    if (!handle || !properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || tf_is_nested())
        return cuda->cuMemCreate(handle, bytes, properties, flags);
    struct tf_container *container = tf_container();
    struct tf_reservation reservation;
    int gpu = atomic_load(&container->stance) == TF_NO_SLICE ? TF_DEVICE_UNKNOWN : tf_device_of_ordinal(container, cuda, properties->location.id);
    CUresult result = tf_memory_reserve(container, gpu, bytes, &reservation);
    if (result != CUDA_SUCCESS)
        return result;
    result = TF_NESTED(cuda->cuMemCreate(handle, bytes, properties, flags));
    return conclude(cuda, result, &reservation, result == CUDA_SUCCESS ? *handle : 0);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    TF_ENTER(cuMemRelease);
    struct tf_recount request;
    tf_container();
    bool is_ours = !tf_is_nested() && tf_physical_count_down(handle, TF_REFERENCE, &request);
    CUresult result = TF_NESTED(cuda->cuMemRelease(handle));
    if (is_ours)
        tf_physical_conclude(handle, TF_REFERENCE, &request, result == CUDA_SUCCESS);
    return result;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    TF_ENTER(cuMemMap);
    tf_container();
    CUresult result = TF_NESTED(cuda->cuMemMap(pointer, bytes, offset, handle, flags));
    if (result != CUDA_SUCCESS || tf_is_nested())
        return result;
    if (!tf_physical_count_up(handle, TF_MAPPING))
        return result; /* another process's memory */
    struct tf_entry mapping = {.key = pointer, .context = bytes, .extra = handle, .kind = TF_KIND_MAPPING}, replaced;
    if (tf_ledger_add(&mapping, &replaced) != 0) {
        cuda->cuMemUnmap(pointer, bytes);
        struct tf_recount request;
        tf_physical_count_down(handle, TF_MAPPING, &request);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

/* An unmapping may span several mappings, each of them whole. All leave the ledger before the driver is asked, in batches. */
enum { BATCH = 32 };

struct range {
    uint64_t first, bytes;
    struct tf_entry mappings[BATCH];
    struct tf_recount counts[BATCH];
    uint32_t count;
};

static bool is_in_range(const struct tf_entry *entry, void *context)
{
    const struct range *range = context;
    return entry->kind == TF_KIND_MAPPING && entry->key - range->first < range->bytes && range->count < BATCH;
}

static void note_mapping(const struct tf_entry *entry, void *context)
{
    struct range *range = context;
    range->mappings[range->count++] = *entry;
}

static void take_mappings(struct range *range)
{
    if (tf_ledger_take(TF_KIND_MAPPING, range->first, &range->mappings[0]))
        range->count = 1;
    if (!range->count || range->mappings[0].context < range->bytes)
        tf_ledger_sweep(is_in_range, note_mapping, range);
    for (uint32_t index = 0; index < range->count; index++)
        if (!tf_physical_count_down(range->mappings[index].extra, TF_MAPPING, &range->counts[index]))
            range->mappings[index].kind = 0;
}

static void conclude_mappings(struct range *range, bool is_done)
{
    for (uint32_t index = 0; index < range->count; index++) {
        struct tf_entry replaced;
        if (!range->mappings[index].kind)
            continue;
        if (!is_done)
            tf_ledger_add(&range->mappings[index], &replaced);
        tf_physical_conclude(range->mappings[index].extra, TF_MAPPING, &range->counts[index], is_done);
    }
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    TF_ENTER(cuMemUnmap);
    tf_container();
    if (tf_is_nested())
        return cuda->cuMemUnmap(pointer, bytes);
    struct range range = {.first = pointer, .bytes = bytes};
    take_mappings(&range);
    CUresult result = TF_NESTED(cuda->cuMemUnmap(pointer, bytes));
    conclude_mappings(&range, result == CUDA_SUCCESS);
    while (result == CUDA_SUCCESS && range.count == BATCH) { /* more than one batch: the driver has let go of them all */
        range = (struct range){.first = pointer, .bytes = bytes};
        take_mappings(&range);
        conclude_mappings(&range, true);
    }
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    TF_ENTER(cuMemRetainAllocationHandle);
    tf_container();
    CUresult result = TF_NESTED(cuda->cuMemRetainAllocationHandle(handle, address));
    if (result == CUDA_SUCCESS && handle && !tf_is_nested())
        tf_physical_count_up(*handle, TF_REFERENCE);
    return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, int handle_type)
{
    TF_ENTER(cuMemImportFromShareableHandle);
    tf_container();
    CUresult result = TF_NESTED(cuda->cuMemImportFromShareableHandle(handle, os_handle, handle_type));
    if (result == CUDA_SUCCESS && handle && !tf_is_nested())
        tf_physical_count_up(*handle, TF_REFERENCE); /* our own export came back: one more reference to what is charged already */
    return result;
}

static CUresult map_tiles(CUresult (*real)(CUarrayMapInfo *, unsigned int, CUstream), CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
    tf_container();
    if (tf_is_nested() || !list || !count)
        return real(list, count, stream);
    struct tf_tiles *before = tf_tiles_take_listed(list, count);
    CUresult result = TF_NESTED(real(list, count, stream));
    tf_tiles_conclude(before, result == CUDA_SUCCESS);
    for (unsigned int index = 0; result == CUDA_SUCCESS && index < count; index++)
        tf_tiles_map(&list[index]);
    return result;
}

#define MAP_TILES(symbol) \
    TF_ENTER(symbol); \
    return map_tiles(cuda->symbol, list, count, stream)

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream) { MAP_TILES(cuMemMapArrayAsync); }
CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream) { MAP_TILES(cuMemMapArrayAsync_ptsz); }
