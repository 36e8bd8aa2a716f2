/* process.h - who a process is, and whether another one still lives.
 *
 * Contract: reads /proc with raw system calls, never blocks, keeps errno. Where /proc is not mounted, identity is the pid alone. */
#ifndef TENFOLD_PROCESS_H
#define TENFOLD_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

struct tf_identity {
    uint32_t pid;
    uint64_t start_ticks;
    uint64_t pid_namespace; /* inode; 0: unknown */
};

void tf_process_self(struct tf_identity *ret_identity);

/* Is the process dead? A zombie without threads is: the kernel has closed its files, so the driver has taken its memory back. Another
 * process under the same pid means dead, too. `start_ticks_bits` are the low bits that the caller knows of the start time. */
bool tf_process_is_dead(uint32_t pid, uint64_t start_ticks, uint64_t start_ticks_mask);

#endif
