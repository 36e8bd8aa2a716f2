/* tiles.c - tiles of sparse arrays: memory of physical handles that an array keeps although nobody holds the handle any more.
 *
 * Promise: a handle stays charged while a tile of a living array is mapped to it.
 * How:     a tile is known by the array and the place that the program named. One that is unmapped by other places than it was mapped by stays
 *          charged until its array is destroyed. Mapping is ordered by a stream, the books change at the call.
 * Next:    physical.c counts for the handles; hooks/vmm.c maps, hooks/array.c destroys. */
#include "memory/tiles.h"

#include "base/sync.h"
#include "memory/physical.h"

#include <string.h>
#include <sys/mman.h>

enum { OPERATION_MAP = 1 };

static _Atomic bool has_tiles;

struct tile {
    struct tf_entry entry;
    struct tf_recount count;
    bool is_ours;
};

struct tf_tiles {
    size_t bytes;
    uint32_t count, room;
    struct tile tiles[];
};

/* A program may map thousands of tiles at once. */
static struct tf_tiles *new_tiles(uint32_t room)
{
    size_t bytes = sizeof(struct tf_tiles) + room * sizeof(struct tile);
    struct tf_tiles *tiles = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (tiles == MAP_FAILED)
        return NULL;
    tiles->bytes = bytes;
    tiles->room = room;
    return tiles;
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

/* FNV would do; what matters is that different places of one process hardly ever meet: 64 bits. */
static uint64_t key_of(const CUarrayMapInfo *info)
{
    uint64_t hash = mix(info->resource, (uint64_t)info->subresource_type << 32 | info->device_bit_mask);
    for (int index = 0; index < 4; index++)
        hash = mix(hash, info->subresource[index]);
    return hash;
}

static void unmap(struct tile *tile) { tile->is_ours = tf_physical_count_down(tile->entry.extra, TF_MAPPING, &tile->count); }

static void note(struct tf_tiles *tiles, const struct tf_entry *entry)
{
    struct tile *tile = &tiles->tiles[tiles->count++];
    tile->entry = *entry;
    unmap(tile);
}

void tf_tiles_conclude(struct tf_tiles *tiles, bool is_done)
{
    struct tf_entry replaced;
    if (!tiles)
        return;
    for (uint32_t index = 0; index < tiles->count; index++) {
        struct tile *tile = &tiles->tiles[index];
        if (!is_done)
            tf_ledger_add(&tile->entry, &replaced);
        if (tile->is_ours)
            tf_physical_conclude(tile->entry.extra, TF_MAPPING, &tile->count, is_done);
    }
    munmap(tiles, tiles->bytes);
}

void tf_tiles_map(const CUarrayMapInfo *info)
{
    struct tf_entry entry = {.key = key_of(info), .context = info->resource, .extra = info->handle, .kind = TF_KIND_TILE}, replaced;
    if (info->operation != OPERATION_MAP || !info->handle || !tf_physical_count_up(info->handle, TF_MAPPING))
        return;
    atomic_store(&has_tiles, true);
    /* without memory for the entry the handle stays charged until the process ends; so it does for a place that the list names twice */
    tf_ledger_add(&entry, &replaced);
}

struct tf_tiles *tf_tiles_take_listed(const CUarrayMapInfo *list, uint32_t count)
{
    struct tf_entry entry;
    struct tf_tiles *tiles = atomic_load(&has_tiles) ? new_tiles(count) : NULL;
    for (uint32_t index = 0; tiles && index < count; index++)
        if (tf_ledger_take(TF_KIND_TILE, key_of(&list[index]), &entry))
            note(tiles, &entry);
    return tiles;
}

/* --- the end of an array ---------------------------------------------------------------------------------------------------------------- */

struct search {
    uint64_t array;
    struct tf_tiles *tiles;
    uint32_t count;
};

static bool is_of_array(const struct tf_entry *entry, void *context)
{
    struct search *search = context;
    bool is_hit = entry->kind == TF_KIND_TILE && entry->context == search->array;
    if (is_hit && !search->tiles)
        search->count++;
    return is_hit && search->tiles && search->tiles->count < search->tiles->room;
}

/* Under the lock of the tile's shard, which may be its handle's, too: the handle has to wait. */
static void collect(const struct tf_entry *entry, void *context)
{
    struct tf_tiles *tiles = ((struct search *)context)->tiles;
    tiles->tiles[tiles->count++].entry = *entry;
}

struct tf_tiles *tf_tiles_take(const void *array)
{
    struct search search = {.array = (uint64_t)(uintptr_t)array};
    if (TF_LIKELY(!atomic_load_explicit(&has_tiles, memory_order_relaxed)))
        return NULL;
    tf_ledger_sweep(is_of_array, collect, &search); /* counts */
    search.tiles = search.count ? new_tiles(search.count) : NULL;
    if (search.tiles)
        tf_ledger_sweep(is_of_array, collect, &search);
    for (uint32_t index = 0; search.tiles && index < search.tiles->count; index++)
        unmap(&search.tiles->tiles[index]);
    return search.tiles;
}
