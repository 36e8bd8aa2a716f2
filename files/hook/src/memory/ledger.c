/* ledger.c - what this process has allocated.
 *
 * Owns:    64 open-addressing tables (linear probing, backward-shift deletion), each with its lock and its own anonymous mapping.
 * Fast:    one hash, one uncontended lock, one or two cache lines; growth doubles at three quarters full.
 * Fork:    a child's allocations are not its parent's: its tables are empty and their locks free.
 * Never:   calls the driver or the region. */
#include "memory/ledger.h"

#include "base/parts.h"
#include "base/sync.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

enum { SHARDS = 64, FIRST_PLACES = 128 };

struct shard {
    _Alignas(64) struct tf_spin lock;
    uint64_t places; /* power of two, or 0 */
    uint64_t entries;
    struct tf_entry *table;
};

static struct shard shards[SHARDS];

static uint64_t hash_of(enum tf_kind kind, uint64_t key)
{
    uint64_t hash = (key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 29;
}

static struct tf_entry *map_table(uint64_t places)
{
    void *memory = mmap(NULL, places * sizeof(struct tf_entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static struct shard *lock_shard(uint64_t hash)
{
    struct shard *shard = &shards[hash >> 58];
    tf_spin_acquire(&shard->lock);
    return shard;
}

/* Place of the entry in a table, or the empty place where it belongs. */
static struct tf_entry *place_in(struct tf_entry *table, uint64_t places, uint64_t hash, enum tf_kind kind, uint64_t key)
{
    uint64_t mask = places - 1, place = hash & mask;
    while (table[place].kind && (table[place].key != key || table[place].kind != kind))
        place = (place + 1) & mask;
    return &table[place];
}

static struct tf_entry *place_of(const struct shard *shard, uint64_t hash, enum tf_kind kind, uint64_t key)
{
    return place_in(shard->table, shard->places, hash, kind, key);
}

static int grow(struct shard *shard)
{
    uint64_t places = shard->places ? shard->places * 2 : FIRST_PLACES;
    struct tf_entry *table = map_table(places);
    if (!table)
        return -ENOMEM;
    for (uint64_t place = 0; place < shard->places; place++) {
        const struct tf_entry *entry = &shard->table[place];
        if (entry->kind)
            *place_in(table, places, hash_of(entry->kind, entry->key), entry->kind, entry->key) = *entry;
    }
    if (shard->table)
        munmap(shard->table, shard->places * sizeof *shard->table);
    __atomic_store_n(&shard->table, table, __ATOMIC_RELAXED); /* tf_ledger_expect() reads them without the lock */
    __atomic_store_n(&shard->places, places, __ATOMIC_RELAXED);
    return 0;
}

/* Closes the gap, so that no later entry of the run becomes unreachable. */
static void erase(struct shard *shard, struct tf_entry *entry)
{
    uint64_t mask = shard->places - 1, hole = (uint64_t)(entry - shard->table), place = hole;
    for (;;) {
        place = (place + 1) & mask;
        const struct tf_entry *next = &shard->table[place];
        if (!next->kind)
            break;
        uint64_t home = hash_of(next->kind, next->key) & mask;
        if (((place - home) & mask) >= ((place - hole) & mask)) {
            shard->table[hole] = *next;
            hole = place;
        }
    }
    shard->table[hole].kind = 0;
    shard->entries--;
}

/* Without the lock: at worst a table that has just been replaced, and a prefetch of a wrong address is no access. */
void tf_ledger_expect(enum tf_kind kind, uint64_t key)
{
    uint64_t hash = hash_of(kind, key);
    const struct shard *shard = &shards[hash >> 58];
    uintptr_t table = (uintptr_t)__atomic_load_n(&shard->table, __ATOMIC_RELAXED);
    uint64_t places = __atomic_load_n(&shard->places, __ATOMIC_RELAXED);
    __builtin_prefetch((const void *)(table + (hash & (places - 1)) * sizeof(struct tf_entry)), 1);
}

int tf_ledger_add(const struct tf_entry *entry, struct tf_entry *ret_replaced)
{
    uint64_t hash = hash_of(entry->kind, entry->key);
    struct shard *shard = lock_shard(hash);
    int result = 0;
    ret_replaced->kind = 0;
    if (shard->entries * 4 >= shard->places * 3)
        result = grow(shard);
    if (result == 0) {
        struct tf_entry *place = place_of(shard, hash, entry->kind, entry->key);
        *ret_replaced = *place;
        shard->entries += place->kind == 0;
        *place = *entry;
    }
    tf_spin_release(&shard->lock);
    return result;
}

bool tf_ledger_take(enum tf_kind kind, uint64_t key, struct tf_entry *ret_entry)
{
    uint64_t hash = hash_of(kind, key);
    struct shard *shard = lock_shard(hash);
    struct tf_entry *place = shard->places ? place_of(shard, hash, kind, key) : NULL;
    bool is_here = place && place->kind;
    if (is_here) {
        *ret_entry = *place;
        erase(shard, place);
    }
    tf_spin_release(&shard->lock);
    return is_here;
}

bool tf_ledger_change(enum tf_kind kind, uint64_t key, bool (*change)(struct tf_entry *entry, void *context), void *context)
{
    uint64_t hash = hash_of(kind, key);
    struct shard *shard = lock_shard(hash);
    struct tf_entry *place = shard->places ? place_of(shard, hash, kind, key) : NULL;
    bool is_here = place && place->kind;
    if (is_here && !change(place, context))
        erase(shard, place);
    tf_spin_release(&shard->lock);
    return is_here;
}

static void sweep_shard(struct shard *shard, bool (*is_gone)(const struct tf_entry *, void *), void (*gone)(const struct tf_entry *, void *),
    void *context)
{
    uint64_t place = 0;
    while (place < shard->places) {
        struct tf_entry *entry = &shard->table[place];
        if (!entry->kind || !is_gone(entry, context)) {
            place++;
            continue;
        }
        struct tf_entry copy = *entry;
        erase(shard, entry); /* may move another entry here: look at the place again */
        gone(&copy, context);
    }
}

void tf_ledger_sweep(bool (*is_gone)(const struct tf_entry *, void *), void (*gone)(const struct tf_entry *, void *), void *context)
{
    for (uint64_t index = 0; index < SHARDS; index++) {
        struct shard *shard = lock_shard(index << 58);
        sweep_shard(shard, is_gone, gone, context);
        tf_spin_release(&shard->lock);
    }
}

void tf_ledger_visit(void (*visit)(struct tf_entry *, void *), void *context)
{
    for (uint64_t index = 0; index < SHARDS; index++) {
        struct shard *shard = lock_shard(index << 58);
        for (uint64_t place = 0; place < shard->places; place++)
            if (shard->table[place].kind)
                visit(&shard->table[place], context);
        tf_spin_release(&shard->lock);
    }
}

static void forget(void)
{
    for (uint64_t index = 0; index < SHARDS; index++) {
        struct shard *shard = &shards[index];
        if (shard->table)
            munmap(shard->table, shard->places * sizeof *shard->table);
        *shard = (struct shard){.places = 0};
    }
}

TF_PART(.forget = forget);
