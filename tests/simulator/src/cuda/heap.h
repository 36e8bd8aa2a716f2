/* heap.h - this process's allocations: address -> what it is, what it was charged, whose it is.
 *
 * Device addresses are numbers only, unless a mapping says otherwise: managed and host memory are real pages of this process.
 * All functions need driver_lock(). Next: core/memory.c keeps the card's books. */
#ifndef TENFOLD_SIM_HEAP_H
#define TENFOLD_SIM_HEAP_H

#include "driver.h"

enum heap_kind {
    HEAP_DEVICE = 1,     /* cuMemAlloc, cuMemAllocPitch */
    HEAP_MANAGED = 2,    /* cuMemAllocManaged: charged to the card, pages are real */
    HEAP_HOST = 4,       /* cuMemAllocHost, cuMemHostAlloc: not charged */
    HEAP_POOL = 16,      /* stream-ordered: its pool is charged */
    HEAP_MAPPING = 32,   /* a physical handle mapped into a reserved range */
    HEAP_RANGE = 64,     /* cuMemAddressReserve */
    HEAP_IPC = 128,      /* another process's memory: charged there */
    HEAP_EXTERNAL = 256, /* mapped external memory */
    HEAP_GRAPH = 512,    /* made by a graph's allocation node */
    HEAP_ARRAY = 1024,   /* arrays and mipmaps; its address is nobody's pointer */
};

struct heap_small_block;

struct heap_entry {
    uint64_t address; /* 0 = empty slot of the table */
    uint64_t size_bytes;
    uint64_t allocated_bytes; /* as booked in sim_usage */
    uint64_t reserved_bytes;  /* own share of the card; 0 when a block or pool holds it */
    uint64_t id;
    CUcontext context;
    void *owner; /* pool, physical handle, small block: by kind */
    uint32_t kind, card;
    uint32_t openings; /* HEAP_IPC */
    uint32_t filler;
};

/* Takes memory off the card. HEAP_DEVICE, HEAP_MANAGED or HEAP_ARRAY. Untouched outputs on failure. */
CUresult heap_allocate(CUcontext context, uint32_t kind, uint64_t size_bytes, CUdeviceptr *ret_address);

/* Enters something that is charged elsewhere, or not at all. address 0 = give it a number, aligned to alignment_bytes. */
CUresult heap_enter(const struct heap_entry *entry, uint64_t alignment_bytes, CUdeviceptr *ret_address);

/* Real pages of the host, charged to no card. */
CUresult heap_enter_pages(CUcontext context, uint64_t size_bytes, CUdeviceptr *ret_address);

/* Exact start address, kinds as a mask; NULL if there is none. Valid until the next change. */
struct heap_entry *heap_find(CUdeviceptr address, uint32_t kinds);

/* The entry that holds the address anywhere inside. Linear: for queries, not for hot paths. */
struct heap_entry *heap_find_inside(CUdeviceptr address, uint32_t kinds);

/* Any entry that shares a byte with the range; the one with the given owner. Linear. */
struct heap_entry *heap_find_overlap(CUdeviceptr address, uint64_t size_bytes, uint32_t kinds);
struct heap_entry *heap_find_owner(const void *owner, uint32_t kinds);

/* Gives back what the entry was charged and forgets it. */
void heap_release(struct heap_entry *entry);

/* Managed memory moves: the bytes from its start up to there are on the card, as far as it has room; or, 0, none are. No effect unless
 * the model's managed_on_touch is set. Takes driver_lock() itself. */
void heap_move_managed(CUdeviceptr address, uint64_t bytes, bool is_to_card);

/* The entry at that address, if there is one of these kinds. Takes driver_lock() itself. */
bool heap_free(CUdeviceptr address, uint32_t kinds);

/* All entries of a context, as its destruction does. */
void heap_free_all(CUcontext context);

/* A block-aligned address that nobody has had yet. */
CUdeviceptr heap_new_address(uint64_t size_bytes);

/* Did this heap ever give out the address as a mere number? Such memory has no content. */
bool heap_is_number(uint64_t address);

/* physical.c: a mapping of that handle is gone. */
void physical_unmapped(void *handle);

/* An array goes, and lets go of what its tiles are mapped to. */
void physical_array_gone(const void *array);

#endif
