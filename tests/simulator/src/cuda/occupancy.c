/* occupancy.c - how many blocks fit a multiprocessor: threads, blocks and shared memory of the card's profile; registers never bind
 * here, because nothing is compiled. Rules: CUDA C++ programming guide, "Occupancy Calculator". */
#include "library.h"

enum { WARP_THREADS = 32, BLOCK_THREADS_MAX = 1024, RESERVED_SHARED_BYTES = 1024 /* per block, since compute capability 8.0 */ };

static const struct sim_card *card_of(CUfunction function)
{
    return &g_driver.machine.state->cards[function->module->context->card];
}

static unsigned shared_per_block(const struct sim_card *card, size_t dynamic_bytes)
{
    size_t reserved_bytes = card->compute_major >= 8 ? RESERVED_SHARED_BYTES : 0;
    return dynamic_bytes > UINT32_MAX / 2 ? UINT32_MAX : (unsigned)(dynamic_bytes + reserved_bytes);
}

static int blocks_that_fit(const struct sim_card *card, int block_threads, size_t dynamic_bytes)
{
    const unsigned threads = ((unsigned)block_threads + WARP_THREADS - 1) / WARP_THREADS * WARP_THREADS;
    const unsigned shared_bytes = shared_per_block(card, dynamic_bytes);
    unsigned blocks = card->threads_per_multiprocessor / threads, most = card->compute_major >= 8 ? 32 : 16;
    if (shared_bytes && card->shared_memory_per_multiprocessor_bytes / shared_bytes < blocks)
        blocks = card->shared_memory_per_multiprocessor_bytes / shared_bytes;
    return (int)(blocks < most ? blocks : most);
}

static CUresult active_blocks(int *ret_blocks, CUfunction function, int block_threads, size_t dynamic_bytes)
{
    function = library_function(function);
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(ret_blocks && block_threads > 0 && block_threads <= BLOCK_THREADS_MAX, CUDA_ERROR_INVALID_VALUE);
    *ret_blocks = blocks_that_fit(card_of(function), block_threads, dynamic_bytes);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuOccupancyMaxActiveBlocksPerMultiprocessor(int *ret_blocks, CUfunction function, int block_threads, size_t dynamic_bytes)
{
    ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    return active_blocks(ret_blocks, function, block_threads, dynamic_bytes);
}

CUDA_EXPORT cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *ret_blocks, CUfunction function, int block_threads,
                                                                 size_t dynamic_bytes, unsigned flags)
{
    ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
    REQUIRE(flags <= 1, CUDA_ERROR_INVALID_VALUE);
    return active_blocks(ret_blocks, function, block_threads, dynamic_bytes);
}

/* The block size with most resident threads, the largest of equals. */
static CUresult potential_block(int *ret_grid, int *ret_block, CUfunction function, CUoccupancyB2DSize dynamic_bytes_of,
                                size_t dynamic_bytes, int limit)
{
    function = library_function(function);
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(ret_grid && ret_block && limit >= 0, CUDA_ERROR_INVALID_VALUE);
    const struct sim_card *card = card_of(function);
    int best_threads = -1;
    for (int block = limit && limit < BLOCK_THREADS_MAX ? limit : BLOCK_THREADS_MAX; block > 0; block -= WARP_THREADS) {
        int blocks = blocks_that_fit(card, block, dynamic_bytes_of ? dynamic_bytes_of(block) : dynamic_bytes);
        if (blocks * block > best_threads) {
            best_threads = blocks * block;
            *ret_block = block;
            *ret_grid = blocks * (int)card->multiprocessors;
        }
    }
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuOccupancyMaxPotentialBlockSize(int *ret_grid, int *ret_block, CUfunction function, CUoccupancyB2DSize dynamic_bytes_of,
                                             size_t dynamic_bytes, int limit)
{
    ENTER(cuOccupancyMaxPotentialBlockSize);
    return potential_block(ret_grid, ret_block, function, dynamic_bytes_of, dynamic_bytes, limit);
}

CUDA_EXPORT cuOccupancyMaxPotentialBlockSizeWithFlags(int *ret_grid, int *ret_block, CUfunction function,
                                                      CUoccupancyB2DSize dynamic_bytes_of, size_t dynamic_bytes, int limit, unsigned flags)
{
    ENTER(cuOccupancyMaxPotentialBlockSizeWithFlags);
    REQUIRE(flags <= 1, CUDA_ERROR_INVALID_VALUE);
    return potential_block(ret_grid, ret_block, function, dynamic_bytes_of, dynamic_bytes, limit);
}

CUDA_EXPORT cuOccupancyAvailableDynamicSMemPerBlock(size_t *ret_bytes, CUfunction function, int blocks, int block_threads)
{
    ENTER(cuOccupancyAvailableDynamicSMemPerBlock);
    function = library_function(function);
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(ret_bytes && blocks > 0 && block_threads > 0 && block_threads <= BLOCK_THREADS_MAX, CUDA_ERROR_INVALID_VALUE);
    const struct sim_card *card = card_of(function);
    const size_t share_bytes = card->shared_memory_per_multiprocessor_bytes / (unsigned)blocks, own_bytes = shared_per_block(card, 0);
    *ret_bytes = share_bytes > own_bytes ? share_bytes - own_bytes : 0;
    return CUDA_SUCCESS;
}
