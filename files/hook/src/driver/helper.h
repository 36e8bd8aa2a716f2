/* helper.h - the one thread that the hook may start, and only once a limited launch or memory of a limited card needs measuring. */
#pragma once

#include <stdbool.h>

/* Starts the thread on first use and makes it look at the queues. Cheap while it is awake. false: no thread can be made. */
bool tf_helper_wake(void);

/* The process is in exit(), and the thread rests for good: nothing is measured any more. */
bool tf_helper_has_ended(void);
