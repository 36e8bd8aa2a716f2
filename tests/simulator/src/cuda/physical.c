/* physical.c - virtual memory management: physical handles, reserved ranges, mappings between them.
 *
 * A handle holds its card's bytes while anybody holds the handle or a mapping of it. An imported handle is charged to its exporter; if
 * the exporter gives it back first, the bytes are free although the importer still has a mapping (hardware would keep them). */
#include <stdlib.h>
#include <sys/mman.h>

#include "../core/old_libc.h"
#include "heap.h"

#define EXPORT_MAGIC UINT64_C(0x4d4d56304d495354)

struct physical {
    struct object head;
    CUmemAllocationProp properties;
    uint64_t size_bytes;
    uint32_t card;
    uint32_t handles; /* cuMemCreate, cuMemRetainAllocationHandle, cuMemImportFromShareableHandle */
    uint32_t mappings;
    bool is_charged;
};

/* What an exported file descriptor says; the file is a memfd. */
struct export_record {
    uint64_t magic, size_bytes, uuid[2];
    CUmemAllocationProp properties;
};

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    return object_is(physical, KIND_PHYSICAL) && physical->handles + physical->mappings > 0 ? physical : NULL;
}

static void drop_if_unused(struct physical *physical)
{
    if (physical->handles || physical->mappings)
        return;
    if (physical->is_charged)
        driver_settle_memory(physical->card, -(int64_t)physical->size_bytes, -(int64_t)physical->size_bytes, physical->size_bytes);
    object_free(physical);
}

void physical_unmapped(void *handle)
{
    struct physical *physical = handle;
    physical->mappings--;
    drop_if_unused(physical);
}

/* --- tiles of sparse arrays ----------------------------------------------------------------------------------------------------------- */

struct tile {
    struct tile *next;
    const void *array;
    uint32_t kind_of_place;
    uint64_t place[4];
    struct physical *physical;
};

static struct tile *g_tiles;

/* CUarrayMapInfo, as documented. */
struct map_info {
    int resource_type;
    const void *resource;
    uint32_t kind_of_place, filler;
    uint64_t place[4];
    int operation, handle_type;
    CUmemGenericAllocationHandle handle;
    uint64_t offset;
    unsigned device_bit_mask, flags, reserved[2];
};
_Static_assert(sizeof(struct map_info) == 96, "CUarrayMapInfo has 96 bytes");
enum { OPERATION_MAP = 1, OPERATION_UNMAP = 2 };

static void drop_tile(struct tile **link)
{
    struct tile *tile = *link;
    *link = tile->next;
    physical_unmapped(tile->physical);
    free(tile);
}

void physical_array_gone(const void *array)
{
    for (struct tile **link = &g_tiles; *link;)
        if ((*link)->array == array)
            drop_tile(link);
        else
            link = &(*link)->next;
}

static void unmap_tile(const struct map_info *info)
{
    for (struct tile **link = &g_tiles; *link;)
        if ((*link)->array == info->resource && (*link)->kind_of_place == info->kind_of_place &&
            memcmp((*link)->place, info->place, sizeof info->place) == 0)
            drop_tile(link);
        else
            link = &(*link)->next;
}

/* Under driver_lock(). */
static CUresult map_tile(const struct map_info *info)
{
    struct physical *physical = info->operation == OPERATION_MAP && info->handle ? physical_of(info->handle) : NULL;
    REQUIRE(object_is(info->resource, KIND_ARRAY) || object_is(info->resource, KIND_MIPMAP), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(info->operation == OPERATION_MAP || info->operation == OPERATION_UNMAP, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(physical || !info->handle || info->operation == OPERATION_UNMAP, CUDA_ERROR_INVALID_VALUE);
    struct tile *tile = physical ? malloc(sizeof *tile) : NULL;
    REQUIRE(tile || !physical, CUDA_ERROR_OUT_OF_MEMORY);
    unmap_tile(info);
    if (!tile)
        return CUDA_SUCCESS;
    *tile = (struct tile){.next = g_tiles, .array = info->resource, .kind_of_place = info->kind_of_place, .physical = physical};
    memcpy(tile->place, info->place, sizeof tile->place);
    physical->mappings++;
    g_tiles = tile;
    return CUDA_SUCCESS;
}

/* Nothing lies between a call and its stream: tiles have no content. */
static CUresult map_tiles(const struct map_info *list, unsigned count, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    REQUIRE(list || !count, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_resolve(stream, &stream));
    driver_lock();
    for (unsigned index = 0; result == CUDA_SUCCESS && index < count; index++)
        result = map_tile(&list[index]);
    driver_unlock();
    return result;
}

STREAM_ENTRY(cuMemMapArrayAsync, (const void *list, unsigned count, CUstream stream), map_tiles(list, count, stream))

/* --- handles, ranges and mappings ------------------------------------------------------------------------------------------------------- */

static uint64_t granularity(void)
{
    return g_driver.machine.state->memory.block_bytes;
}

static CUresult check_properties(const CUmemAllocationProp *properties)
{
    REQUIRE(properties && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!(properties->requested_handle_types & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), CUDA_ERROR_NOT_SUPPORTED);
    if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return driver_card(properties->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    return properties->location.type >= CU_MEM_LOCATION_TYPE_HOST && properties->location.type <= 4 ? CUDA_SUCCESS
                                                                                                   : CUDA_ERROR_INVALID_VALUE;
}

CUDA_EXPORT cuMemGetAllocationGranularity(size_t *ret_bytes, const CUmemAllocationProp *properties, int option)
{
    ENTER(cuMemGetAllocationGranularity);
    REQUIRE(ret_bytes && (option == 0 || option == 1), CUDA_ERROR_INVALID_VALUE);
    TRY(check_properties(properties));
    *ret_bytes = granularity();
    return CUDA_SUCCESS;
}

static CUresult charge(struct physical *physical)
{
    TRY(driver_take_memory(physical->card, physical->size_bytes));
    driver_settle_memory(physical->card, (int64_t)physical->size_bytes, (int64_t)physical->size_bytes, 0);
    physical->is_charged = true;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuMemCreate(CUmemGenericAllocationHandle *ret_handle, size_t size_bytes, const CUmemAllocationProp *properties,
                        unsigned long long flags)
{
    ENTER(cuMemCreate);
    REQUIRE(ret_handle && flags == 0 && size_bytes && size_bytes % granularity() == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(check_properties(properties));
    CUresult result = CUDA_SUCCESS;
    struct physical *physical = object_new(KIND_PHYSICAL, sizeof *physical);
    REQUIRE(physical, CUDA_ERROR_OUT_OF_MEMORY);
    physical->properties = *properties;
    physical->size_bytes = size_bytes;
    physical->handles = 1;
    if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE) { /* host locations take no card memory */
        physical->card = driver_card_index(properties->location.id);
        result = charge(physical);
    }
    if (result == CUDA_SUCCESS)
        *ret_handle = (uintptr_t)physical;
    else
        object_free(physical);
    return result;
}

CUDA_EXPORT cuMemRelease(CUmemGenericAllocationHandle handle)
{
    ENTER(cuMemRelease);
    driver_lock();
    struct physical *physical = physical_of(handle);
    bool is_held = physical && physical->handles > 0;
    if (is_held) {
        physical->handles--;
        drop_if_unused(physical);
    }
    driver_unlock();
    return is_held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_EXPORT cuMemAddressReserve(CUdeviceptr *ret_address, size_t size_bytes, size_t alignment_bytes, CUdeviceptr wanted,
                                unsigned long long flags)
{
    ENTER(cuMemAddressReserve);
    (void)wanted; /* a hint */
    REQUIRE(ret_address && size_bytes && size_bytes % granularity() == 0 && flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((alignment_bytes & (alignment_bytes - 1)) == 0, CUDA_ERROR_INVALID_VALUE);
    const struct heap_entry entry = {.size_bytes = size_bytes, .kind = HEAP_RANGE};
    driver_lock();
    CUresult result = heap_enter(&entry, alignment_bytes > granularity() ? alignment_bytes : granularity(), ret_address);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuMemAddressFree(CUdeviceptr address, size_t size_bytes)
{
    ENTER(cuMemAddressFree);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct heap_entry *entry = heap_find(address, HEAP_RANGE);
    if (entry && entry->size_bytes == size_bytes && !heap_find_overlap(address, size_bytes, HEAP_MAPPING)) {
        heap_release(entry);
        result = CUDA_SUCCESS;
    }
    driver_unlock();
    return result;
}

/* Under driver_lock(). */
static CUresult map(CUdeviceptr address, size_t size_bytes, struct physical *physical)
{
    struct heap_entry *range = heap_find_inside(address, HEAP_RANGE);
    REQUIRE(range && size_bytes <= range->size_bytes - (address - range->address), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!heap_find_overlap(address, size_bytes, HEAP_MAPPING), CUDA_ERROR_INVALID_VALUE);
    const struct heap_entry entry = {.address = address,
                                     .size_bytes = size_bytes,
                                     .card = physical->card,
                                     .kind = HEAP_MAPPING,
                                     .owner = physical};
    TRY(heap_enter(&entry, 1, &address));
    physical->mappings++;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuMemMap(CUdeviceptr address, size_t size_bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    ENTER(cuMemMap);
    REQUIRE(address && size_bytes && flags == 0 && address % granularity() == 0, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    struct physical *physical = physical_of(handle);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (physical && offset == 0 && size_bytes == physical->size_bytes) /* partial mappings: refused by the driver as well */
        result = map(address, size_bytes, physical);
    driver_unlock();
    return result;
}

/* Several mappings may go at once; each must lie inside as a whole. */
CUDA_EXPORT cuMemUnmap(CUdeviceptr address, size_t size_bytes)
{
    ENTER(cuMemUnmap);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    for (struct heap_entry *entry; (entry = heap_find_overlap(address, size_bytes, HEAP_MAPPING));) {
        if (entry->address < address || entry->address + entry->size_bytes > address + size_bytes) {
            result = CUDA_ERROR_INVALID_VALUE;
            break;
        }
        heap_release(entry);
        result = CUDA_SUCCESS;
    }
    driver_unlock();
    return result;
}

CUDA_EXPORT cuMemSetAccess(CUdeviceptr address, size_t size_bytes, const CUmemAccessDesc *access, size_t count)
{
    ENTER(cuMemSetAccess);
    REQUIRE(address && size_bytes && access && count, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++)
        REQUIRE(access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || driver_card(access[i].location.id), CUDA_ERROR_INVALID_DEVICE);
    driver_lock();
    bool is_mapped = heap_find_overlap(address, size_bytes, HEAP_MAPPING) != NULL;
    driver_unlock();
    return is_mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_EXPORT cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *ret_handle, void *address)
{
    ENTER(cuMemRetainAllocationHandle);
    REQUIRE(ret_handle, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    struct heap_entry *entry = heap_find_inside((uintptr_t)address, HEAP_MAPPING);
    if (entry) {
        ((struct physical *)entry->owner)->handles++;
        *ret_handle = (uintptr_t)entry->owner;
    }
    driver_unlock();
    return entry ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_EXPORT cuMemExportToShareableHandle(void *ret_handle, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    ENTER(cuMemExportToShareableHandle);
    REQUIRE(ret_handle && flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
    struct export_record record = {.magic = EXPORT_MAGIC};
    driver_lock();
    struct physical *physical = physical_of(handle);
    if (physical) {
        record.properties = physical->properties;
        record.size_bytes = physical->size_bytes;
        memcpy(record.uuid, g_driver.machine.state->cards[physical->card].uuid, sizeof record.uuid);
    }
    driver_unlock();
    REQUIRE(physical && (record.properties.requested_handle_types & type), CUDA_ERROR_INVALID_VALUE);
    int fd = old_libc_memfd_create("nvidia-vmm", MFD_CLOEXEC);
    REQUIRE(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    if (write(fd, &record, sizeof record) != (ssize_t)sizeof record) {
        close(fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)ret_handle = fd;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret_handle, void *os_handle, int type)
{
    ENTER(cuMemImportFromShareableHandle);
    struct export_record record;
    REQUIRE(ret_handle, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(pread((int)(intptr_t)os_handle, &record, sizeof record, 0) == (ssize_t)sizeof record && record.magic == EXPORT_MAGIC,
            CUDA_ERROR_INVALID_VALUE);
    for (CUdevice device = 0; device < driver_device_count(); device++) {
        if (memcmp(driver_card(device)->uuid, record.uuid, sizeof record.uuid) != 0)
            continue;
        struct physical *physical = object_new(KIND_PHYSICAL, sizeof *physical);
        REQUIRE(physical, CUDA_ERROR_OUT_OF_MEMORY);
        physical->properties = record.properties;
        physical->properties.location.id = device;
        physical->size_bytes = record.size_bytes;
        physical->card = driver_card_index(device);
        physical->handles = 1;
        *ret_handle = (uintptr_t)physical;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE; /* of a card that this process does not see */
}
