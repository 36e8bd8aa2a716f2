/* dialogue.h - a worker that does one thing at a time, as told on stdin, and answers each on stdout.
 *
 *   alloc BYTES     cuMemAlloc_v2 on card 0       -> result
 *   free            cuMemFree_v2 of the newest    -> result
 *   info            cuMemGetInfo_v2               -> result free total
 *   stop alloc|free|attach BYTES   raises SIGSTOP, does it, raises SIGSTOP: what step.c walks through, instruction by instruction. attach is
 *                   cuInit, the context and one allocation, for a worker that has not opened its card yet */
#ifndef TENFOLD_ORACLE_DIALOGUE_H
#define TENFOLD_ORACLE_DIALOGUE_H

#include <stdbool.h>

int dialogue(bool opens_card);

#endif
