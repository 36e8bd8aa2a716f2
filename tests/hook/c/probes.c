/* probes.c - the promise of probe.h, hammered: processes that fill the limit exactly while others probe are never refused.
 *
 *   probes SECONDS    prints {"allocations", "refused", "probes", "met"}; met: refusals that a probe explained
 * One filler uses the whole limit, so that any probe in between is in its way; threads and child processes probe. */
#include "account.h"
#include "probe.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_BYTES (64ull << 20)
#define PROBE_BYTES (32ull << 20)

enum { PROBERS = 3, FILLER_SLOT = 0 };

struct board {
    struct tenfold_state state;
    _Atomic int is_over;
    _Atomic unsigned long probes;
};

static struct board *board;

static unsigned long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000u + (unsigned long long)now.tv_nsec;
}

static void *probe(void *slot)
{
    const struct timespec moment = {.tv_nsec = 20000};
    while (!board->is_over) {
        uint64_t word;
        if (tf_probe_begin(&board->state, 0, now_ns(), &word)) {
            if (tf_account_charge(&board->state, (uint32_t)(uintptr_t)slot, 0, PROBE_BYTES, LIMIT_BYTES) == 0) {
                nanosleep(&moment, NULL);
                tf_account_release(&board->state, (uint32_t)(uintptr_t)slot, 0, PROBE_BYTES);
                board->probes++;
            }
            tf_probe_end(&board->state, 0, word);
        }
        nanosleep(&moment, NULL);
    }
    return NULL;
}

/* As memory.c does it. */
static int fill(unsigned long *met)
{
    int error = tf_account_charge(&board->state, FILLER_SLOT, 0, LIMIT_BYTES, LIMIT_BYTES);
    for (int tries = 0; error && tries < TF_PROBE_TRIES; tries++) {
        uint64_t seen = tf_probe_seen(&board->state, 0);
        error = tf_account_charge(&board->state, FILLER_SLOT, 0, LIMIT_BYTES, LIMIT_BYTES);
        if (error && !tf_probe_overlapped(&board->state, 0, seen))
            break;
        *met += 1;
    }
    return error;
}

int main(int argc, char **argv)
{
    unsigned long allocations = 0, refused = 0, met = 0;
    pthread_t thread;
    pid_t children[PROBERS];
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (argc != 2 || board == MAP_FAILED)
        return 2;
    for (int number = 0; number < PROBERS; number++) {
        children[number] = fork();
        if (children[number] == 0) {
            probe((void *)(uintptr_t)(number + 1));
            _exit(0);
        }
    }
    if (pthread_create(&thread, NULL, probe, (void *)(uintptr_t)FILLER_SLOT) != 0)
        return 2;
    for (unsigned long long end = now_ns() + strtoull(argv[1], NULL, 10) * 1000000000u; now_ns() < end; allocations++) {
        if (fill(&met) == 0)
            tf_account_release(&board->state, FILLER_SLOT, 0, LIMIT_BYTES);
        else
            refused++;
        const struct timespec moment = {.tv_nsec = 10000};
        nanosleep(&moment, NULL);
    }
    board->is_over = 1;
    pthread_join(thread, NULL);
    for (int number = 0; number < PROBERS; number++)
        waitpid(children[number], NULL, 0);
    printf("{\"allocations\": %lu, \"refused\": %lu, \"probes\": %lu, \"met\": %lu}\n", allocations, refused, board->probes, met);
    return tf_account_used(&board->state, 0) != 0;
}
