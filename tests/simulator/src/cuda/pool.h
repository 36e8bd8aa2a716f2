/* pool.h - stream-ordered pools: memory that a pool keeps reserved and hands out; under driver_lock().
 *
 * A pool grows in steps of pool_growth_bytes and shrinks to its release threshold at synchronisation, as the driver's do. What it reserves is
 * one sum, or, with the model's pool_has_pieces, chunks cut into pieces (pool_piece.c). */
#ifndef TENFOLD_SIM_POOL_H
#define TENFOLD_SIM_POOL_H

#include "driver.h"

struct CUmemPoolHandle_st {
    struct object head;
    CUdevice device;
    uint32_t card;
    bool is_default, is_graph, is_destroyed;
    bool is_host; /* its memory is the machine's, not a card's */
    uint64_t max_bytes; /* 0 = no own limit */
    uint64_t used_bytes, used_high_bytes, reserved_bytes, reserved_high_bytes, release_threshold_bytes;
    uint64_t mapped_bytes; /* of graphs: what executable graphs keep mapped, used or not; they may share it */
    bool has_pieces;
    struct pool_piece *pieces;
    CUmemoryPool next;
};

/* Takes size_bytes (rounded to the granule in *ret_allocated_bytes) out of the pool, growing it if need be. *ret_address: where; 0 = anywhere. */
CUresult pool_take(CUmemoryPool pool, uint64_t size_bytes, CUstream stream, uint64_t *ret_allocated_bytes, uint64_t *ret_address);
void pool_give_back(CUmemoryPool pool, uint64_t address, uint64_t size_bytes, uint64_t allocated_bytes);

/* Reserves needed_bytes in all. */
CUresult pool_grow(CUmemoryPool pool, uint64_t needed_bytes);

/* pool_piece.c. A free by a stream is told before the piece is given back; chunks of up to excess_bytes go, if nobody may still use them. */
CUresult pool_piece_take(CUmemoryPool pool, uint64_t bytes, CUstream stream, uint64_t *ret_address);
void pool_piece_freed_by(CUmemoryPool pool, uint64_t address, CUstream stream);
void pool_piece_give_back(CUmemoryPool pool, uint64_t address);
uint64_t pool_piece_drop_chunks(CUmemoryPool pool, uint64_t excess_bytes);
void pool_piece_forget(CUmemoryPool pool);

/* Room for size_bytes more, without handing them out. */
CUresult pool_make_room(CUmemoryPool pool, uint64_t size_bytes);

CUmemoryPool pool_default(CUdevice device);
CUmemoryPool pool_of_graphs(CUdevice device);

void pool_trim_unused(CUmemoryPool pool);

/* Takes driver_lock() itself. */
void pool_trim_after_sync(CUcontext context);

/* A closed context's card: empty pools give everything back. */
void pool_drop_card(CUcontext context);

#endif
