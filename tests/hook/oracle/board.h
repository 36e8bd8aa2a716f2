/* board.h - shared memory between the conductor and its workers: orders one way, reports the other.
 *
 * Owns:  the layout. A worker sits in one seat; the conductor writes orders, each worker its own seat.
 * Round: the conductor fills in the orders and raises `round`; every worker runs its threads, comes to rest and sets `arrived` to it. Only
 *        then does anybody compare the books. */
#ifndef TENFOLD_ORACLE_BOARD_H
#define TENFOLD_ORACLE_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

#include "../common/cuda_api.h"

enum { SEATS = 64, THREADS_MAX = 16, DEVICES_MAX = 4, OFFERS = 32, BOARD_KINDS = 16 };

enum order {
    ORDER_WORK = 0,
    ORDER_DRAIN = 1, /* drop every object, then rest */
    ORDER_LEAVE = 2, /* exit with what is held */
};

struct seat {
    _Atomic uint32_t arrived; /* last round that came to rest */
    _Atomic uint32_t worked;  /* last round whose operations are through; with injected errors the worker then waits for `calm` */
    _Atomic uint32_t has_failed;
    _Atomic uint64_t operations, refusals, injected;
    _Atomic uint64_t made[BOARD_KINDS]; /* objects per kind, so that a kind that was never made shows */
    uint64_t pool_used_bytes[DEVICES_MAX], pool_reserved_bytes[DEVICES_MAX]; /* the driver's own numbers, at rest */
    char failure[256];
    char last[THREADS_MAX][160]; /* what each thread did last */
};

/* A block whose owner invites others to open it by IPC. */
struct offer {
    _Atomic uint32_t sequence; /* odd while it is being written */
    uint32_t seat;
    CUipcMemHandle handle;
};

struct board {
    _Atomic uint32_t round;
    uint32_t order;
    uint64_t seed;
    uint32_t threads, kinds, devices;
    uint64_t operations;      /* per thread in this round; UINT64_MAX: until killed */
    int32_t injected_error;   /* a result that workers take for granted; 0 = none */
    _Atomic uint32_t calm;    /* last round in which nothing fails on purpose any more */
    struct seat seats[SEATS];
    struct offer offers[OFFERS];
};

#endif
