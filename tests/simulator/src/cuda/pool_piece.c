/* pool_piece.c - a pool's memory cut into pieces, as data of the model (pool_has_pieces; contract: pool.h).
 *
 * A pool takes chunks from the card, each a multiple of pool_growth_bytes, and cuts allocations from the first piece that is free and large
 * enough; what lies between live pieces is lost to larger ones. Freed in stream order: the same stream may use a piece again at once, another
 * one, or the card, only after the work before the free is done (CUDA programming guide, Stream Ordered Memory Allocator, Memory Reuse
 * Policies, with the opportunistic policy alone). */
#include "pool.h"

#include <stdlib.h>

#include "heap.h"

struct pool_piece {
    struct pool_piece *next; /* by address */
    uint64_t address, bytes;
    uint64_t chunk_bytes; /* of the first piece of a chunk, else 0 */
    bool is_taken;
    uint64_t stream; /* free: who freed it, and the work before that */
    CUcontext context;
    uint64_t epoch, ticket_after;
};

static bool is_done(const struct pool_piece *piece)
{
    return !piece->ticket_after || !piece->context->is_alive || piece->context->epoch != piece->epoch ||
           stream_is_ticket_done(piece->context, piece->ticket_after);
}

static void merge_free(CUmemoryPool pool)
{
    for (struct pool_piece *piece = pool->pieces; piece; piece = piece->next)
        while (!piece->is_taken && piece->next && !piece->next->is_taken && !piece->next->chunk_bytes && is_done(piece) && is_done(piece->next)) {
            struct pool_piece *gone = piece->next;
            piece->bytes += gone->bytes;
            piece->ticket_after = 0;
            piece->next = gone->next;
            free(gone);
        }
}

static struct pool_piece *add_after(struct pool_piece **link, uint64_t address, uint64_t bytes)
{
    struct pool_piece *piece = calloc(1, sizeof *piece);
    if (!piece)
        return NULL;
    piece->next = *link;
    piece->address = address;
    piece->bytes = bytes;
    *link = piece;
    return piece;
}

static struct pool_piece *add_chunk(CUmemoryPool pool, uint64_t bytes)
{
    struct pool_piece **link = &pool->pieces;
    while (*link)
        link = &(*link)->next; /* addresses only grow */
    struct pool_piece *piece = add_after(link, heap_new_address(bytes), bytes);
    if (piece)
        piece->chunk_bytes = bytes;
    return piece;
}

CUresult pool_piece_take(CUmemoryPool pool, uint64_t bytes, CUstream stream, uint64_t *ret_address)
{
    struct pool_piece *piece;
    merge_free(pool);
    for (piece = pool->pieces; piece; piece = piece->next)
        if (!piece->is_taken && piece->bytes >= bytes && (piece->stream == stream->head.id || is_done(piece)))
            break;
    if (!piece) {
        const uint64_t before_bytes = pool->reserved_bytes;
        TRY(pool_grow(pool, before_bytes + bytes));
        piece = add_chunk(pool, pool->reserved_bytes - before_bytes);
    }
    REQUIRE(piece, CUDA_ERROR_OUT_OF_MEMORY);
    if (piece->bytes > bytes) {
        struct pool_piece *rest = add_after(&piece->next, piece->address + bytes, piece->bytes - bytes);
        REQUIRE(rest, CUDA_ERROR_OUT_OF_MEMORY);
        rest->stream = piece->stream;
        rest->context = piece->context;
        rest->epoch = piece->epoch;
        rest->ticket_after = piece->ticket_after;
        piece->bytes = bytes;
    }
    piece->is_taken = true;
    piece->ticket_after = piece->stream = 0;
    *ret_address = piece->address;
    return CUDA_SUCCESS;
}

void pool_piece_freed_by(CUmemoryPool pool, uint64_t address, CUstream stream)
{
    for (struct pool_piece *piece = pool->pieces; piece; piece = piece->next)
        if (piece->address == address) {
            piece->stream = stream->head.id;
            piece->context = stream->context;
            piece->epoch = stream->context->epoch;
            piece->ticket_after = stream->last_ticket;
        }
}

void pool_piece_give_back(CUmemoryPool pool, uint64_t address)
{
    for (struct pool_piece *piece = pool->pieces; piece; piece = piece->next)
        if (piece->address == address)
            piece->is_taken = false;
}

uint64_t pool_piece_drop_chunks(CUmemoryPool pool, uint64_t excess_bytes)
{
    uint64_t dropped_bytes = 0;
    merge_free(pool);
    for (struct pool_piece **link = &pool->pieces; *link;) {
        struct pool_piece *piece = *link;
        const bool is_whole = piece->chunk_bytes && piece->bytes == piece->chunk_bytes;
        if (!is_whole || piece->is_taken || !is_done(piece) || dropped_bytes >= excess_bytes) {
            link = &piece->next;
            continue;
        }
        dropped_bytes += piece->chunk_bytes;
        *link = piece->next;
        free(piece);
    }
    return dropped_bytes;
}

void pool_piece_forget(CUmemoryPool pool)
{
    for (struct pool_piece *next; pool->pieces; pool->pieces = next) {
        next = pool->pieces->next;
        free(pool->pieces);
    }
}
