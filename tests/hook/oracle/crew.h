/* crew.h - processes that run under the hook: starting, killing, talking to them.
 *
 * Owns:  their environment (hook preloaded, simulated driver, slot) and their pids; nothing else is ever signalled.
 * Next:  conductor.c and step.c decide who lives. */
#ifndef TENFOLD_ORACLE_CREW_H
#define TENFOLD_ORACLE_CREW_H

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct crew {
    const char *worker, *machine, *slot, *preload, *driver;
    int board_fd;
};

/* Takes a seat at the board. The pid, or -1. */
pid_t crew_start_seat(const struct crew *crew, uint32_t seat);

/* A worker in dialogue. */
struct partner {
    pid_t pid;
    int to, from;
};

/* `manner` is "dialogue" or "late" (worker.c). 0, or -1: it did not open its card; *ret_result tells what the driver said. */
int partner_start(const struct crew *crew, const char *manner, struct partner *ret_partner, int *ret_result);

void partner_send(const struct partner *partner, const char *line);

/* The answer within five seconds: its first number, or -1. Up to two more numbers in ret_numbers. */
int partner_answer(const struct partner *partner, unsigned long long ret_numbers[2]);
int partner_ask(const struct partner *partner, const char *format, unsigned long long value);

/* SIGKILL, or an orderly end by closing its stdin; waits for it. */
void partner_kill(struct partner *partner);
void partner_end(struct partner *partner);

#endif
