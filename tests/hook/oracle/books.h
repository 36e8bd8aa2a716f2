/* books.h - the two books and their comparison: the hook's ledger in the slot's state, the driver's truth in the machine's.
 *
 * Owns:  which number of one is which number of the other. Truth of a process on a card: its allocations, each rounded as the driver rounds it
 *        by itself, with pools counted by what they keep reserved.
 * Next:  conductor.c and step.c ask. */
#ifndef TENFOLD_ORACLE_BOOKS_H
#define TENFOLD_ORACLE_BOOKS_H

#include <stdbool.h>

#include "../../../files/hook/include/tenfold_region.h"
#include "../../simulator/src/core/state.h"
#include "board.h"

struct books {
    struct sim_machine machine;
    const struct tenfold_state *ledger;
    const struct tenfold_header *page;
    uint32_t devices;
    uint32_t gpu_of_card[DEVICES_MAX]; /* index in the ledger */
    char slot[512];
    uint64_t limit_bytes[DEVICES_MAX]; /* as they were at the opening */
    char problem[512];
};

/* 0, or -1 with books->problem. `slot` is the folder with config and state. Cards 0 to devices - 1 of the machine. */
int books_open(struct books *books, const char *machine_path, const char *slot, uint32_t devices);

uint64_t books_limit_bytes(const struct books *books, uint32_t device);
uint64_t books_ledger_bytes(const struct books *books, uint32_t device);
uint64_t books_truth_bytes(struct books *books, uint32_t device); /* all live processes, without pools' reserves; reaps the dead */

/* Puts 1 / divisor of the opening's limits in force for running processes. -1 with books->problem. */
int books_set_limits(struct books *books, uint32_t divisor);

/* At any time: truth <= ledger <= the opening's limit for the container. -1 with books->problem. */
int books_check_order(struct books *books);

/* At any time: what is gone from the card, pools' reserves included, is within the limit. Not for work that makes small linear blocks: those share
 * 2 MiB blocks of which the ledger counts the parts. -1 with books->problem. */
int books_check_reserve(struct books *books);

/* At rest: every process of the board has in the ledger exactly what it has on the card, and nobody else has anything. A pid of 0 is an
 * empty seat. -1 with books->problem. */
int books_check_equal(struct books *books, const struct board *board, const int32_t pids[SEATS]);

/* The same where overhead is measured: what of the ledger is no overhead is in truth what the program has allocated; and the ledger of every
 * process is all that is gone from the card because of it, as far as the limit lets it. Whoever asks has patience, for it is measured at times. */
int books_check_measured(struct books *books, const struct board *board, const int32_t pids[SEATS]);

/* What is gone from a card because of all live processes. */
uint64_t books_gone_bytes(struct books *books, uint32_t device);

/* At rest: exactly so much on a card in truth, and in the ledger with the overhead. -1 with books->problem. */
int books_check_total(struct books *books, uint32_t device, uint64_t bytes, uint64_t overhead_bytes);

/* The nth call of a driver function, and repeat - 1 more, fail with error. */
void books_inject(struct books *books, const char *symbol, uint64_t nth, uint64_t repeat, int32_t error);
uint64_t books_disarm(struct books *books); /* returns how often something fired */

#endif
