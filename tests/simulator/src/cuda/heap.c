/* heap.c - the table of this process's allocations (contract: heap.h).
 *
 * Open addressing with backward-shift deletion: free costs the same with ten live blocks or a million. Small allocations of a context
 * are cut one after the other from a block of block_bytes, which goes back to the card with its last piece. */
#include "heap.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "pool.h"

#define DEVICE_ADDRESSES_FROM UINT64_C(0x300000000000) /* between heap and mmap area of a Linux process; never dereferenced */

struct heap_small_block {
    uint64_t base;
    uint64_t cut_bytes; /* already handed out, from the front */
    uint64_t live;
    CUcontext context;
};

static struct heap_entry *g_table;
static size_t g_capacity, g_count; /* capacity is a power of two */
static _Atomic uint64_t g_next_address = DEVICE_ADDRESSES_FROM; /* read without the lock by heap_is_number() */
static uint64_t g_next_id = 1;

static size_t bucket_of(uint64_t address)
{
    return (size_t)((address >> 9) * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (g_capacity - 1);
}

static void put(const struct heap_entry *entry)
{
    size_t i = bucket_of(entry->address);
    while (g_table[i].address)
        i = (i + 1) & (g_capacity - 1);
    g_table[i] = *entry;
    g_count++;
}

static bool make_room(void)
{
    if (g_capacity && g_count < g_capacity / 2)
        return true;
    struct heap_entry *old = g_table;
    size_t old_capacity = g_capacity;
    struct heap_entry *grown = calloc(old_capacity ? old_capacity * 2 : 1024, sizeof *grown);
    if (!grown)
        return false;
    g_table = grown;
    g_capacity = old_capacity ? old_capacity * 2 : 1024;
    g_count = 0;
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i].address)
            put(&old[i]);
    free(old);
    return true;
}

static void remove_at(size_t hole)
{
    size_t mask = g_capacity - 1;
    for (size_t i = (hole + 1) & mask; g_table[i].address; i = (i + 1) & mask) {
        size_t home = bucket_of(g_table[i].address);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            g_table[hole] = g_table[i];
            hole = i;
        }
    }
    g_table[hole].address = 0;
    g_count--;
}

struct heap_entry *heap_find(CUdeviceptr address, uint32_t kinds)
{
    if (!g_capacity || !address)
        return NULL;
    for (size_t i = bucket_of(address); g_table[i].address; i = (i + 1) & (g_capacity - 1))
        if (g_table[i].address == address && (g_table[i].kind & kinds))
            return &g_table[i];
    return NULL;
}

struct heap_entry *heap_find_overlap(CUdeviceptr address, uint64_t size_bytes, uint32_t kinds)
{
    for (size_t i = 0; i < g_capacity; i++) {
        struct heap_entry *entry = &g_table[i];
        if (entry->address && (entry->kind & kinds) && entry->address < address + size_bytes && address < entry->address + entry->size_bytes)
            return entry;
    }
    return NULL;
}

struct heap_entry *heap_find_inside(CUdeviceptr address, uint32_t kinds)
{
    struct heap_entry *exact = heap_find(address, kinds);
    return exact ? exact : heap_find_overlap(address, 1, kinds);
}

struct heap_entry *heap_find_owner(const void *owner, uint32_t kinds)
{
    for (size_t i = 0; i < g_capacity; i++)
        if (g_table[i].address && (g_table[i].kind & kinds) && g_table[i].owner == owner)
            return &g_table[i];
    return NULL;
}

static uint64_t next_address(uint64_t size_bytes, uint64_t alignment_bytes)
{
    uint64_t address = (g_next_address + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
    g_next_address = address + size_bytes;
    return address;
}

CUdeviceptr heap_new_address(uint64_t size_bytes)
{
    return next_address(size_bytes, g_driver.machine.state->memory.block_bytes);
}

bool heap_is_number(uint64_t address)
{
    return address >= DEVICE_ADDRESSES_FROM && address < g_next_address;
}

CUresult heap_enter(const struct heap_entry *wanted, uint64_t alignment_bytes, CUdeviceptr *ret_address)
{
    REQUIRE(make_room(), CUDA_ERROR_OUT_OF_MEMORY);
    struct heap_entry entry = *wanted;
    if (entry.context)
        entry.context = context_of_memory(entry.context);
    if (!entry.address)
        entry.address = next_address(entry.size_bytes, alignment_bytes);
    entry.id = g_next_id++;
    put(&entry);
    *ret_address = entry.address;
    return CUDA_SUCCESS;
}

/* A piece of the context's open block, or of a new one. */
static CUresult cut_small(CUcontext context, uint64_t bytes, struct heap_entry *entry)
{
    const uint64_t block_bytes = g_driver.machine.state->memory.block_bytes;
    struct heap_small_block *block = context->small_block;
    if (!block || block->cut_bytes + bytes > block_bytes) {
        TRY(driver_take_memory(context->card, block_bytes));
        block = calloc(1, sizeof *block);
        if (!block) {
            driver_settle_memory(context->card, 0, 0, block_bytes);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *block = (struct heap_small_block){.base = next_address(block_bytes, block_bytes), .context = context};
        context->small_block = block;
    }
    entry->address = block->base + block->cut_bytes;
    entry->owner = block;
    block->cut_bytes += bytes;
    block->live++;
    return CUDA_SUCCESS;
}

static void return_small(struct heap_small_block *block, uint32_t card)
{
    if (--block->live)
        return;
    driver_settle_memory(card, 0, 0, g_driver.machine.state->memory.block_bytes);
    if (block->context->small_block == block)
        block->context->small_block = NULL;
    free(block);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Real pages, touched by nobody until the program does. */
static void *map_pages(uint64_t size_bytes)
{
    void *pages = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

static CUresult take_own(CUcontext context, uint64_t bytes, struct heap_entry *entry)
{
    const bool is_lazy = entry->kind == HEAP_MANAGED && g_driver.machine.state->rules.managed_on_touch;
    entry->reserved_bytes = is_lazy ? 0 : bytes;
    TRY(driver_take_memory(context->card, entry->reserved_bytes));
    entry->address = entry->kind == HEAP_MANAGED ? (uint64_t)(uintptr_t)map_pages(bytes)
                                                 : next_address(bytes, g_driver.machine.state->memory.block_bytes);
    if (entry->address)
        return CUDA_SUCCESS;
    driver_settle_memory(context->card, 0, 0, entry->reserved_bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void heap_move_managed(CUdeviceptr address, uint64_t bytes, bool is_to_card)
{
    if (!g_driver.machine.state->rules.managed_on_touch)
        return;
    driver_lock();
    struct heap_entry *entry = bytes ? heap_find_inside(address, HEAP_MANAGED) : NULL;
    if (entry && !is_to_card) {
        driver_settle_memory(entry->card, 0, 0, entry->reserved_bytes);
        entry->reserved_bytes = 0;
    } else if (entry) {
        const uint64_t block_bytes = g_driver.machine.state->memory.block_bytes;
        uint64_t wanted_bytes = (address - entry->address + bytes + block_bytes - 1) / block_bytes * block_bytes;
        wanted_bytes = wanted_bytes < entry->allocated_bytes ? wanted_bytes : entry->allocated_bytes;
        while (entry->reserved_bytes < wanted_bytes) {
            const uint64_t more_bytes = least(block_bytes, wanted_bytes - entry->reserved_bytes);
            if (driver_take_memory(entry->card, more_bytes) != CUDA_SUCCESS)
                break; /* the rest stays with the host */
            entry->reserved_bytes += more_bytes;
        }
    }
    driver_unlock();
}

CUresult heap_enter_pages(CUcontext context, uint64_t size_bytes, CUdeviceptr *ret_address)
{
    void *pages = map_pages(size_bytes);
    REQUIRE(pages, CUDA_ERROR_OUT_OF_MEMORY);
    const struct heap_entry entry = {.address = (uint64_t)(uintptr_t)pages,
                                     .size_bytes = size_bytes,
                                     .allocated_bytes = size_bytes,
                                     .context = context,
                                     .card = context->card,
                                     .kind = HEAP_HOST};
    CUresult result = heap_enter(&entry, 1, ret_address);
    if (result != CUDA_SUCCESS)
        munmap(pages, size_bytes);
    return result;
}

CUresult heap_allocate(CUcontext context, uint32_t kind, uint64_t size_bytes, CUdeviceptr *ret_address)
{
    context = context_of_memory(context);
    const struct sim_memory_model *model = &g_driver.machine.state->memory;
    uint64_t rounded_bytes = memory_rounded(model, size_bytes);
    REQUIRE(size_bytes > 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(rounded_bytes > 0 && make_room(), CUDA_ERROR_OUT_OF_MEMORY);
    struct heap_entry entry = {.size_bytes = size_bytes,
                               .allocated_bytes = rounded_bytes,
                               .context = context,
                               .card = context->card,
                               .kind = kind,
                               .id = g_next_id++};
    bool is_small = kind != HEAP_MANAGED && size_bytes < model->small_limit_bytes;
    TRY(is_small ? cut_small(context, rounded_bytes, &entry) : take_own(context, rounded_bytes, &entry));
    put(&entry);
    driver_settle_memory(context->card, (int64_t)size_bytes, (int64_t)rounded_bytes, 0);
    *ret_address = entry.address;
    return CUDA_SUCCESS;
}

void heap_release(struct heap_entry *position)
{
    struct heap_entry entry = *position;
    remove_at((size_t)(position - g_table));
    switch (entry.kind) {
    case HEAP_DEVICE:
    case HEAP_MANAGED:
    case HEAP_ARRAY:
        driver_settle_memory(entry.card, -(int64_t)entry.size_bytes, -(int64_t)entry.allocated_bytes, entry.reserved_bytes);
        if (entry.owner)
            return_small(entry.owner, entry.card);
        if (entry.kind == HEAP_MANAGED)
            munmap((void *)(uintptr_t)entry.address, entry.allocated_bytes);
        break;
    case HEAP_HOST:
        munmap((void *)(uintptr_t)entry.address, entry.allocated_bytes);
        break;
    case HEAP_POOL:
    case HEAP_GRAPH:
        pool_give_back(entry.owner, entry.address, entry.size_bytes, entry.allocated_bytes);
        break;
    case HEAP_MAPPING:
        physical_unmapped(entry.owner);
        break;
    default: /* charged elsewhere */
        break;
    }
}

bool heap_free(CUdeviceptr address, uint32_t kinds)
{
    driver_lock();
    struct heap_entry *entry = heap_find(address, kinds);
    if (entry)
        heap_release(entry);
    driver_unlock();
    return entry;
}

void heap_free_all(CUcontext context)
{
    for (size_t i = 0; i < g_capacity;) {
        if (g_table[i].address && g_table[i].context == context)
            heap_release(&g_table[i]); /* something else may have moved here: look again */
        else
            i++;
    }
}
