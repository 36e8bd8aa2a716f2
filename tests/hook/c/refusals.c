/* refusals.c - nobody is refused below the limit because of what others do in passing (probe.h, slots.h). One filler uses the whole limit.
 *
 *   refusals hammer SECONDS    processes and a thread probe all the time; prints {"allocations", "refused", "probes", "met"}, met: refusals
 *                              that a probe explained
 *   refusals stepped           a process is held up at each instruction of beginning a probe, while another one begins; prints {"steps",
 *                              "both"}: in how many cases both thought that they probe
 *   refusals stopped           a prober is stopped in the middle of a probe for 0.7 s; prints {"refused"}
 *   refusals dead              a prober is killed in the middle of a probe, after the dead were looked for; prints {"refused"}
 *   refusals reaping           another process is giving back what a dead one held; prints {"refused"} */
#include "slice/account.h"
#include "base/clock.h"
#include "slice/probe.h"
#include "slice/slots.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_BYTES (64ull << 20)
#define PROBE_BYTES (32ull << 20)
#define STOPPED_NS 700000000l
#define REAPING_NS 5000000l

enum { PROBERS = 7 };

struct board {
    struct tenfold_state state;
    _Atomic int is_over, is_ready, has_begun;
    _Atomic unsigned long probes;
};

static struct board *board;
static struct tf_identity self;

static void sleep_ns(long time_ns)
{
    const struct timespec moment = {.tv_nsec = time_ns};
    nanosleep(&moment, NULL);
}

/* A slot of this process, as the hook takes it; without a lock behind the file, which only makes the hook look closer. */
static uint32_t attach(void)
{
    uint32_t slot;
    tf_process_self(&self);
    atomic_fetch_add(&tf_epoch, 1);
    if (tf_slots_attach(&board->state, &self, &slot) != 0)
        abort();
    return slot;
}

static void *probe(void *slot)
{
    while (!board->is_over) {
        uint64_t word;
        if (tf_probe_begin(&board->state, 0, &word)) {
            if (tf_account_charge(&board->state, (uint32_t)(uintptr_t)slot, 0, PROBE_BYTES, LIMIT_BYTES) == 0) {
                sleep_ns(20000);
                tf_account_release(&board->state, (uint32_t)(uintptr_t)slot, 0, PROBE_BYTES);
                board->probes++;
            }
            tf_probe_end(&board->state, 0, word);
        }
        sleep_ns(20000);
    }
    return NULL;
}

/* As memory.c does it. */
static int fill(uint32_t slot, unsigned long *met)
{
    tf_slots_reap(&board->state, &self);
    board->is_ready = 1;
    int error = tf_account_charge(&board->state, slot, 0, LIMIT_BYTES, LIMIT_BYTES);
    for (int tries = 0; error && tries < TF_PROBE_TRIES; tries++) {
        uint64_t seen = tf_probe_seen(&board->state, 0);
        error = tf_account_charge(&board->state, slot, 0, LIMIT_BYTES, LIMIT_BYTES);
        if (error && !tf_probe_overlapped(&board->state, 0, seen))
            break;
        *met += 1;
        if (error)
            tf_slots_reap(&board->state, &self);
    }
    return error;
}

static int hammer(unsigned long long seconds)
{
    unsigned long allocations = 0, refused = 0, met = 0;
    pthread_t thread;
    pid_t children[PROBERS];
    for (int number = 0; number < PROBERS; number++) {
        children[number] = fork();
        if (children[number] == 0) {
            probe((void *)(uintptr_t)attach());
            _exit(0);
        }
    }
    uint32_t slot = attach();
    if (pthread_create(&thread, NULL, probe, (void *)(uintptr_t)slot) != 0)
        return 2;
    for (uint64_t end = tf_now_ns() + seconds * 1000000000u; tf_now_ns() < end; allocations++) {
        if (fill(slot, &met) == 0)
            tf_account_release(&board->state, slot, 0, LIMIT_BYTES);
        else
            refused++;
        sleep_ns(10000);
    }
    board->is_over = 1;
    pthread_join(thread, NULL);
    for (int number = 0; number < PROBERS; number++)
        waitpid(children[number], NULL, 0);
    printf("{\"allocations\": %lu, \"refused\": %lu, \"probes\": %lu, \"met\": %lu}\n", allocations, refused, board->probes, met);
    return tf_account_used(&board->state, 0) != 0;
}

static pid_t start_stepped(void)
{
    pid_t child = fork();
    if (child == 0) {
        uint64_t word;
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            abort();
        raise(SIGSTOP);
        board->has_begun = tf_probe_begin(&board->state, 0, &word);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    return child;
}

static bool step(pid_t child, int instructions)
{
    int status = 0;
    while (instructions-- > 0)
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) != 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
            return false;
    return true;
}

static int stepped(void)
{
    int steps = 0, both = 0;
    for (;; steps++) {
        uint64_t word;
        board->has_begun = 0;
        board->state.gpus[0].probe = 0;
        pid_t child = start_stepped();
        bool is_over = !step(child, steps) || board->has_begun;
        bool has_begun = tf_probe_begin(&board->state, 0, &word);
        ptrace(PTRACE_CONT, child, NULL, NULL);
        waitpid(child, NULL, 0);
        if (is_over)
            break;
        both += has_begun && board->has_begun;
    }
    printf("{\"steps\": %d, \"both\": %d}\n", steps, both);
    return 0;
}

/* A child that begins a probe and then gets `signal_number`; returns once it has. */
static pid_t start_prober(int signal_number, bool waits_for_filler)
{
    pid_t child = fork();
    if (child == 0) {
        uint64_t word;
        uint32_t slot = attach();
        if (!tf_probe_begin(&board->state, 0, &word) || tf_account_charge(&board->state, slot, 0, PROBE_BYTES, LIMIT_BYTES) != 0)
            abort();
        board->is_ready = 2;
        while (waits_for_filler && board->is_ready != 1)
            sleep_ns(20000);
        sleep_ns(waits_for_filler ? 10000000l : 0);
        raise(signal_number);
        tf_account_release(&board->state, slot, 0, PROBE_BYTES);
        tf_probe_end(&board->state, 0, word);
        _exit(0);
    }
    while (board->is_ready != 2)
        sleep_ns(20000);
    return child;
}

static void *go_on(void *child)
{
    sleep_ns(STOPPED_NS);
    kill((pid_t)(intptr_t)child, SIGCONT);
    return NULL;
}

static int stopped(void)
{
    unsigned long met = 0;
    pthread_t thread;
    int status;
    pid_t child = start_prober(SIGSTOP, false);
    if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status) || pthread_create(&thread, NULL, go_on, (void *)(intptr_t)child) != 0)
        return 2;
    int error = fill(attach(), &met);
    pthread_join(thread, NULL);
    waitpid(child, NULL, 0);
    printf("{\"refused\": %d}\n", error != 0);
    return 0;
}

static int dead(void)
{
    unsigned long met = 0;
    uint32_t slot = attach();
    start_prober(SIGKILL, true);
    signal(SIGCHLD, SIG_IGN); /* nobody waits for it: its pid goes with it */
    int error = fill(slot, &met);
    printf("{\"refused\": %d}\n", error != 0);
    return 0;
}

/* The child has found a dead process and gives back its memory, slowly. */
static int reaping(void)
{
    enum { DEAD_SLOT = 9 };
    unsigned long met = 0;
    uint32_t slot = attach();
    board->state.slots_high_water = DEAD_SLOT + 1;
    if (tf_account_charge(&board->state, DEAD_SLOT, 0, PROBE_BYTES, LIMIT_BYTES) != 0)
        return 2;
    pid_t child = fork();
    if (child == 0) {
        uint64_t *identity = &board->state.slots[DEAD_SLOT].identity;
        *identity = (board->state.slots[attach()].identity & ~3ull) | TENFOLD_SLOT_REAPING;
        board->is_ready = 2;
        sleep_ns(REAPING_NS);
        tf_account_reap(&board->state, DEAD_SLOT);
        __atomic_store_n(identity, TENFOLD_SLOT_FREE, __ATOMIC_SEQ_CST);
        sleep_ns(STOPPED_NS);
        _exit(0);
    }
    while (board->is_ready != 2)
        sleep_ns(20000);
    int error = fill(slot, &met);
    waitpid(child, NULL, 0);
    printf("{\"refused\": %d}\n", error != 0);
    return 0;
}

int main(int argc, char **argv)
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (argc < 2 || board == MAP_FAILED)
        return 2;
    static const struct {
        const char *name;
        int (*run)(void);
    } cases[] = {{"stepped", stepped}, {"stopped", stopped}, {"dead", dead}, {"reaping", reaping}};
    if (strcmp(argv[1], "hammer") == 0 && argc == 3)
        return hammer(strtoull(argv[2], NULL, 10));
    for (size_t number = 0; number < sizeof cases / sizeof *cases; number++)
        if (strcmp(argv[1], cases[number].name) == 0)
            return cases[number].run();
    return 2;
}
