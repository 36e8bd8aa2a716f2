/* step.c - SIGKILL between any two instructions of an operation.
 *
 * A traced process is stopped in front of one allocation or free, walked n instructions on, and killed there; n runs over the whole operation
 * in steps of --stride. At every other n a neighbour allocates and frees while the victim is stopped, so that the hook's helping is exercised
 * too. Then the neighbour makes the hook look for the dead: exactly the neighbour's own bytes must remain.
 * With --resume 1 the victim goes on after its stop, so that a process that others have overtaken is seen to end its operation exactly once.
 *   --operation alloc | free   of a block
 *   --operation attach         the way into the slice: cuInit, context, first allocation
 *   --operation reap           a process that is about to give a dead one's memory back is killed itself */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "conductor.h"

#define BLOCK_BYTES (UINT64_C(2) << 20)
#define VICTIM_BYTES (UINT64_C(3) * BLOCK_BYTES)
#define SMALL_BYTES UINT64_C(1536)

static struct partner neighbour;

static void fail_at(uint64_t instructions, const char *problem)
{
    char text[700];
    snprintf(text, sizeof text, "%s, victim killed after %llu instructions: %s", conductor.operation, (unsigned long long)instructions, problem);
    conductor_leave(1, text);
}

static struct partner start_partner(const char *manner)
{
    struct partner partner;
    int result;
    if (partner_start(&conductor.crew, manner, &partner, &result) < 0)
        conductor_leave(1, "a process under the hook cannot open its card");
    return partner;
}

static bool holds_machine_lock(pid_t pid)
{
    struct sim_state *state = conductor.books.machine.state;
    uint32_t owner = (atomic_load(&state->lock_word) & ~SIM_LOCK_WAITERS);
    return owner && state->slots[owner - 1].pid == pid;
}

/* Walks to the operation's start, then n instructions on. 1: there it stands. 0: the operation is over before. */
static int walk(pid_t pid, uint64_t instructions)
{
    int status;
    if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP)
        fail_at(0, "the traced process did not stop in front of its operation");
    for (uint64_t done = 0; done < instructions; done++) {
        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) != 0 || waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
            fail_at(done, "the traced process ended by itself");
        if (WSTOPSIG(status) == SIGSTOP)
            return 0;
        if (WSTOPSIG(status) != SIGTRAP)
            fail_at(done, "the traced process got a signal");
    }
    return 1;
}

static void disturb(uint64_t instructions, pid_t victim)
{
    if (holds_machine_lock(victim)) /* a stopped driver lets nobody in */
        return;
    if (books_check_order(&conductor.books) < 0)
        fail_at(instructions, conductor.books.problem);
    if (instructions / conductor.stride % 2)
        return;
    if (partner_ask(&neighbour, "alloc %llu\n", BLOCK_BYTES) != CUDA_SUCCESS || partner_ask(&neighbour, "free\n", 0) != CUDA_SUCCESS)
        fail_at(instructions, "a stopped process keeps its neighbour from allocating");
}

static void verify(uint64_t instructions)
{
    uint64_t limit = books_limit_bytes(&conductor.books, 0);
    if (partner_ask(&neighbour, "alloc %llu\n", limit) != CUDA_ERROR_OUT_OF_MEMORY) /* looks for the dead, then refuses: the neighbour has something itself */
        fail_at(instructions, "an allocation above the limit was not refused with OUT_OF_MEMORY");
    if (books_check_total(&conductor.books, 0, BLOCK_BYTES + SMALL_BYTES, 0) < 0)
        fail_at(instructions, conductor.books.problem);
}

static void leave_a_corpse(void)
{
    struct partner corpse = start_partner("dialogue");
    for (int block = 0; block < 2; block++)
        if (partner_ask(&corpse, "alloc %llu\n", VICTIM_BYTES) != CUDA_SUCCESS)
            conductor_leave(1, "a small allocation was refused");
    partner_kill(&corpse);
}

/* Lets the stopped victim end its operation; then the books must hold the neighbour's bytes and `victim_bytes`. */
static void resume(struct partner *victim, uint64_t instructions, int expected_result, uint64_t victim_bytes)
{
    int status;
    if (ptrace(PTRACE_CONT, victim->pid, NULL, NULL) != 0 || waitpid(victim->pid, &status, 0) != victim->pid || !WIFSTOPPED(status) ||
        WSTOPSIG(status) != SIGSTOP)
        fail_at(instructions, "the victim was resumed and did not end its operation");
    ptrace(PTRACE_DETACH, victim->pid, NULL, NULL);
    if (partner_answer(victim, NULL) != expected_result)
        fail_at(instructions, "the victim was resumed and its operation had another result than without a stop");
    if (books_check_total(&conductor.books, 0, BLOCK_BYTES + SMALL_BYTES + victim_bytes, 0) < 0)
        fail_at(instructions, conductor.books.problem);
}

/* Returns false when the operation ends before that many instructions. */
static bool kill_after(uint64_t instructions)
{
    char line[64];
    bool is_reap = strcmp(conductor.operation, "reap") == 0, is_attach = strcmp(conductor.operation, "attach") == 0;
    struct partner victim = start_partner(is_attach ? "late" : "dialogue");
    int result = is_attach ? CUDA_SUCCESS : partner_ask(&victim, "alloc %llu\n", VICTIM_BYTES);
    if (result != CUDA_SUCCESS)
        fail_at(instructions, result < 0 ? "before the kill, a small allocation got no answer in 5 s" : "before the kill, a small allocation was refused");
    if (is_reap)
        leave_a_corpse();
    if (ptrace(PTRACE_SEIZE, victim.pid, NULL, NULL) != 0)
        conductor_leave(77, "this machine does not let a parent trace its child");
    snprintf(line, sizeof line, "stop %s %llu\n", is_reap ? "alloc" : conductor.operation,
             (unsigned long long)(is_reap ? books_limit_bytes(&conductor.books, 0) : VICTIM_BYTES));
    partner_send(&victim, line);
    bool stands = walk(victim.pid, instructions) == 1;
    if (stands)
        disturb(instructions, victim.pid);
    if (stands && conductor.resume)
        resume(&victim, instructions, is_reap ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS,
               strcmp(conductor.operation, "alloc") == 0 ? 2 * VICTIM_BYTES : strcmp(conductor.operation, "free") == 0 ? 0 : VICTIM_BYTES);
    partner_kill(&victim);
    conductor.killed++;
    verify(instructions);
    return stands;
}

void step_play(void)
{
    neighbour = start_partner("dialogue");
    if (partner_ask(&neighbour, "alloc %llu\n", BLOCK_BYTES) != CUDA_SUCCESS || partner_ask(&neighbour, "alloc %llu\n", SMALL_BYTES) != CUDA_SUCCESS)
        conductor_leave(1, "a small allocation was refused");
    verify(0);
    for (uint64_t instructions = conductor.first + conductor.seed % conductor.stride; kill_after(instructions);)
        instructions += conductor.stride;
    partner_end(&neighbour);
    conductor_settle();
}
