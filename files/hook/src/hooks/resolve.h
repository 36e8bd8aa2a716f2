/* resolve.h - the hooked functions, one row each. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct tf_hook {
    const char *symbol;
    const char *base;
    int since; /* CUDA version; 0 for NVML */
    void *function; /* ours */
    size_t real_offset; /* of the driver's pointer in struct tf_cuda or struct tf_nvml */
};

/* The row for an exact symbol name, or NULL. `is_nvml` chooses the table. */
const struct tf_hook *tf_hook_named(const char *symbol, bool is_nvml);

/* The driver's own function for a row, or NULL (not loaded, or this driver has none). */
void *tf_hook_real(const struct tf_hook *hook, bool is_nvml);
