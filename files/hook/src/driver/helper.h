/* helper.h - the one thread that the hook may start, and only once a limited launch or memory of a limited card needs measuring. */
#ifndef TENFOLD_HELPER_H
#define TENFOLD_HELPER_H

#include <stdbool.h>
#include <stdint.h>

/* Starts the thread on first use and makes it look at the queues. Cheap while it is awake. */
void tf_helper_wake(void);

/* The process is in exit(), and the thread rests for good: nothing is measured any more. */
bool tf_helper_has_ended(void);

/* In a forked child: there is no thread any more. */
void tf_helper_reset(void);

/* measure.c's round: nanoseconds until the next one is worth it, UINT64_MAX for none. */
uint64_t tf_measure_poll(void);

#endif
