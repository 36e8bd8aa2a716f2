/* conductor.h - what the scenarios share: options, books, crew, and the one way out. */
#ifndef TENFOLD_ORACLE_CONDUCTOR_H
#define TENFOLD_ORACLE_CONDUCTOR_H

#include <stddef.h>

#include "books.h"
#include "crew.h"

struct conductor {
    struct crew crew;
    struct books books;
    struct board *board;
    uint32_t devices, processes, threads, rounds, kinds, stride;
    uint32_t flap, reserve, resume; /* change limits; compare what is gone from the card too; step: let the victim go on before it is killed */
    uint32_t measured;              /* contexts and modules take memory, and the page lets it be measured */
    uint64_t seed, operations, kills, killed, first; /* first: instruction that step begins with */
    const char *symbol, *operation;
    double began;
};
extern struct conductor conductor;

double conductor_seconds(void);

/* Ends the crew, prints the line, exits. */
void conductor_leave(int status, const char *problem) __attribute__((noreturn));

/* After every process is gone: a new one makes the hook look for the dead, finds everything given back and can fill the slice to the byte. */
void conductor_settle(void);

void step_play(void);

#endif
