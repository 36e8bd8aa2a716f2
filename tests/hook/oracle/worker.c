/* worker.c - a program like any other that uses a card: threads that make and drop objects, until the conductor has seen enough.
 *
 * Runs with the hook preloaded. Owns a table of live objects that all its threads share, so that one thread drops what another made.
 *   worker BOARD-FD SEAT            takes part in rounds (board.h)
 *   worker dialogue | late          opens card 0 (late: not yet) and does what it is told on stdin (dialogue.h)
 * Next: objects.c for the kinds. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dialogue.h"
#include "objects.h"
#include "random.h"

enum { PLACES_PER_THREAD = 24, PLACE_EMPTY = 0, PLACE_BUSY = 1, PLACE_FULL = 2, OPERATIONS_PER_FORK = 1000 };

struct place {
    _Atomic int state;
    struct object object;
};

static struct board *board;
static uint32_t own_seat, own_kinds; /* of the board's kinds, those that this driver has */
static struct cuda_api cuda;
static struct place places[THREADS_MAX * PLACES_PER_THREAD];
static struct hand hands[THREADS_MAX];
static pthread_barrier_t begin, end;

static uint32_t place_count(void) { return board->threads * PLACES_PER_THREAD; }

static int die(const char *what, int result)
{
    struct seat *seat = &board->seats[own_seat];
    snprintf(seat->failure, sizeof seat->failure, "%s gave %d", what, result);
    atomic_store(&seat->has_failed, 1);
    return 1;
}

static enum kind random_kind(struct hand *hand)
{
    for (;;) {
        enum kind kind = (enum kind)random_below(&hand->random, KINDS);
        if (own_kinds >> kind & 1)
            return kind;
    }
}

/* What launchers and data loaders do: a child without a card of its own. Its calls must come back with an error, whatever its parent's other
 * threads were doing at the fork, and it must not disturb the books. */
static int fork_once(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr pointer;
        size_t free_bytes, total_bytes;
        alarm(20); /* a child that hangs is a finding, not an orphan */
        CUresult asked = cuda.cuMemGetInfo_v2(&free_bytes, &total_bytes), allocated = cuda.cuMemAlloc_v2(&pointer, 4096);
        _exit(asked == CUDA_SUCCESS || allocated == CUDA_SUCCESS);
    }
    if (child < 0)
        return 0;
    if (waitpid(child, &status, 0) == child && status != 0)
        return die("a forked child's use of its parent's card", status) ? -1 : 0;
    return 0;
}

/* One operation: fills an empty place or empties a full one. -1: the run has failed. */
static int operate(struct hand *hand)
{
    if (random_below(&hand->random, OPERATIONS_PER_FORK) == 0)
        return fork_once();
    struct place *place = &places[random_below(&hand->random, place_count())];
    int state = PLACE_EMPTY, result = 0;
    if (atomic_compare_exchange_strong(&place->state, &state, PLACE_BUSY)) {
        result = object_make(hand, random_kind(hand), &place->object);
        atomic_store(&place->state, result == 0 ? PLACE_FULL : PLACE_EMPTY);
    } else if (state == PLACE_FULL && atomic_compare_exchange_strong(&place->state, &state, PLACE_BUSY)) {
        result = object_drop(hand, &place->object);
        atomic_store(&place->state, PLACE_EMPTY);
    }
    atomic_fetch_add_explicit(&board->seats[own_seat].operations, 1, memory_order_relaxed);
    return result < 0 ? -1 : 0;
}

static void *run_thread(void *argument)
{
    struct hand *hand = argument;
    for (;;) {
        pthread_barrier_wait(&begin);
        hand->random = board->seed ^ (uint64_t)board->round << 40 ^ (uint64_t)own_seat << 20 ^ hand->thread;
        for (uint64_t done = 0; board->order == ORDER_WORK && done < board->operations; done++)
            if (atomic_load_explicit(&board->seats[own_seat].has_failed, memory_order_relaxed) || operate(hand) < 0)
                break;
        pthread_barrier_wait(&end);
    }
    return NULL;
}

static int open_hand(uint32_t thread)
{
    struct hand *hand = &hands[thread];
    *hand = (struct hand){.cuda = &cuda, .board = board, .seat = own_seat, .thread = thread};
    for (uint32_t device = 0; device < board->devices; device++) {
        CUresult result = cuda.cuDevicePrimaryCtxRetain(&hand->contexts[device], (CUdevice)device);
        if (result == CUDA_SUCCESS)
            result = cuda.cuCtxSetCurrent(hand->contexts[device]);
        if (result == CUDA_SUCCESS)
            result = cuda.cuStreamCreate(&hand->streams[device], 1);
        if (result != CUDA_SUCCESS)
            return die("opening a card", result);
    }
    return 0;
}

static int drop_everything(void)
{
    for (uint32_t index = 0; index < place_count(); index++)
        if (atomic_load(&places[index].state) == PLACE_FULL) {
            if (object_drop(&hands[0], &places[index].object) < 0)
                return 1;
            atomic_store(&places[index].state, PLACE_EMPTY);
        }
    for (uint32_t device = 0; device < board->devices; device++) {
        CUmemoryPool pool;
        uint64_t none = 0;
        CUresult result = cuda.cuCtxSetCurrent(hands[0].contexts[device]);
        if (result == CUDA_SUCCESS && own_kinds >> KIND_ASYNC & 1) {
            result = cuda.cuDeviceGetDefaultMemPool(&pool, (CUdevice)device);
            if (result == CUDA_SUCCESS)
                result = cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none);
            if (result == CUDA_SUCCESS)
                result = cuda.cuMemPoolTrimTo(pool, 0);
        }
        if (result == CUDA_SUCCESS && own_kinds >> KIND_GRAPH & 1)
            result = cuda.cuDeviceGraphMemTrim((CUdevice)device);
        if (result != CUDA_SUCCESS)
            return die("trimming the pools", result);
    }
    return 0;
}

static CUresult add_pool(struct seat *seat, CUdevice device, CUmemoryPool pool)
{
    uint64_t used_bytes = 0, reserved_bytes = 0;
    CUresult result = cuda.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes);
    if (result == CUDA_SUCCESS)
        result = cuda.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes);
    seat->pool_used_bytes[device] += used_bytes;
    seat->pool_reserved_bytes[device] += reserved_bytes;
    return result;
}

/* Comes to rest: all work done, then one look at the free memory of each card (a hook that reconciles pools late may do it there), then
 * the driver's own word on pools, whose reserve is part of what a process has taken from the card. */
static int rest(void)
{
    struct seat *seat = &board->seats[own_seat];
    memset(seat->pool_used_bytes, 0, sizeof seat->pool_used_bytes);
    memset(seat->pool_reserved_bytes, 0, sizeof seat->pool_reserved_bytes);
    for (uint32_t device = 0; device < board->devices; device++) {
        size_t free_bytes = 0, total_bytes = 0;
        uint64_t graph_used_bytes = 0, graph_reserved_bytes = 0;
        CUmemoryPool pool = NULL;
        CUresult result = cuda.cuCtxSetCurrent(hands[0].contexts[device]);
        if (result == CUDA_SUCCESS)
            result = cuda.cuCtxSynchronize();
        if (result == CUDA_SUCCESS)
            result = cuda.cuMemGetInfo_v2(&free_bytes, &total_bytes);
        if (result == CUDA_SUCCESS && free_bytes > total_bytes)
            return die("more memory is free than there is: cuMemGetInfo_v2", result);
        if (result == CUDA_SUCCESS && own_kinds >> KIND_ASYNC & 1)
            result = cuda.cuDeviceGetDefaultMemPool(&pool, (CUdevice)device);
        if (result == CUDA_SUCCESS && pool)
            result = add_pool(seat, (CUdevice)device, pool);
        if (result == CUDA_SUCCESS && own_kinds >> KIND_GRAPH & 1) {
            result = cuda.cuDeviceGetGraphMemAttribute((CUdevice)device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &graph_used_bytes);
            if (result == CUDA_SUCCESS)
                result = cuda.cuDeviceGetGraphMemAttribute((CUdevice)device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &graph_reserved_bytes);
        }
        seat->pool_used_bytes[device] += graph_used_bytes;
        seat->pool_reserved_bytes[device] += graph_reserved_bytes;
        if (result != CUDA_SUCCESS)
            return die("coming to rest", result);
    }
    for (uint32_t index = 0; index < place_count(); index++)
        if (atomic_load(&places[index].state) == PLACE_FULL && places[index].object.kind == KIND_POOL)
            if (add_pool(seat, places[index].object.device, places[index].object.handles[0]) != CUDA_SUCCESS)
                return die("asking a pool", 0);
    return 0;
}

static void wait_for_round(uint32_t last)
{
    while (atomic_load(&board->round) == last)
        syscall(SYS_futex, &board->round, FUTEX_WAIT, last, NULL, NULL, 0);
}

static int take_part(int board_fd, uint32_t seat)
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, board_fd, 0);
    own_seat = seat;
    if (board == MAP_FAILED)
        return 1;
    if (cuda_api_load(&cuda) != 0)
        return die("dlopen of libcuda.so.1", errno);
    for (int kind = 0; kind < KINDS; kind++)
        if (board->kinds >> kind & 1 && object_is_possible(&cuda, (enum kind)kind))
            own_kinds |= 1u << kind;
    CUresult result = cuda.cuInit(0);
    if (result != CUDA_SUCCESS || !own_kinds)
        return die("cuInit", result);
    pthread_barrier_init(&begin, NULL, board->threads + 1);
    pthread_barrier_init(&end, NULL, board->threads + 1);
    for (uint32_t thread = 0; thread < board->threads; thread++) {
        pthread_t id;
        if (open_hand(thread) || pthread_create(&id, NULL, run_thread, &hands[thread]) != 0)
            return 1;
    }
    for (;;) {
        uint32_t round = atomic_load(&board->seats[seat].arrived);
        wait_for_round(round);
        round = atomic_load(&board->round);
        if (board->order == ORDER_LEAVE)
            return 0;
        pthread_barrier_wait(&begin);
        pthread_barrier_wait(&end);
        atomic_store(&board->seats[seat].worked, round);
        while (board->injected_error && atomic_load(&board->calm) != round)
            usleep(100);
        if ((board->order == ORDER_DRAIN && drop_everything()) || rest())
            return 1;
        atomic_store(&board->seats[seat].arrived, round);
        syscall(SYS_futex, &board->seats[seat].arrived, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && (strcmp(argv[1], "dialogue") == 0 || strcmp(argv[1], "late") == 0))
        return dialogue(strcmp(argv[1], "late") != 0);
    if (argc != 3) {
        fprintf(stderr, "usage: worker BOARD-FD SEAT | worker dialogue | worker late\n");
        return 2;
    }
    return take_part(atoi(argv[1]), (uint32_t)atoi(argv[2]));
}
