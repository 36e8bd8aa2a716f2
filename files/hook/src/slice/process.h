/* process.h - who a process is, and whether another one still lives.
 *
 * Contract: reads /proc with raw system calls, never blocks, keeps errno. Where /proc is not mounted, identity is the pid alone. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct tf_identity {
    uint32_t pid;
    uint64_t start_ticks;
    uint64_t pid_namespace; /* inode; 0: unknown */
    int lock_descriptor;    /* of the state file, on which slots.c holds a lock while this program runs; -1: none */
};

/* Grows with each attaching, so it changes in a forked child: whoever keeps state per process compares it. */
extern _Atomic uint32_t tf_epoch;
static inline uint32_t tf_process_epoch(void) { return atomic_load_explicit(&tf_epoch, memory_order_relaxed); }

void tf_process_self(struct tf_identity *ret_identity);

/* Is there no such process, or only its zombie? Asks the kernel for the pid alone (a pidfd where there are such), touching nothing of the
 * process: reading its /proc files would keep its memory, and with it the driver's, alive for as long as we are not scheduled. */
bool tf_process_is_gone(uint32_t pid);

/* The same with identity, from /proc. Is the process dead? A zombie without threads is: the kernel has closed its files, so the driver has
 * taken its memory back. Another process under the same pid means dead, too. `start_ticks_mask` are the low bits that the caller knows of the
 * start time. */
bool tf_process_is_dead(uint32_t pid, uint64_t start_ticks, uint64_t start_ticks_mask);

/* "08:01 12345 " - device and inode of the file that is mapped at `address` in this process, as /proc prints them. false: not known. */
enum { TF_MAPPING_KEY_CHARS = 64 };
bool tf_process_mapping_key(const void *address, char ret_key[TF_MAPPING_KEY_CHARS]);

/* Has a living process certainly not mapped that file? false where its mappings cannot be read. Costs a walk over all its mappings. */
bool tf_process_lacks_mapping(uint32_t pid, const char *key);
