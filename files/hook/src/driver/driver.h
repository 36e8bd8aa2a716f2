/* driver.h - the real CUDA driver and NVML of this process.
 *
 * Contract: the tables are complete before a non-NULL pointer is returned and never change after; any thread. Nothing is loaded that the
 *           program did not load itself; what we keep pointers into is pinned. */
#ifndef TENFOLD_DRIVER_H
#define TENFOLD_DRIVER_H

#include "hooks/hooks.h"
#include "base/sync.h"

#include <stdbool.h>

/* One row per hooked symbol. */
struct tf_hook {
    const char *symbol;
    const char *base;
    int since; /* CUDA version; 0 for NVML */
    void *function; /* ours */
    size_t real_offset; /* of the driver's pointer in struct tf_cuda or struct tf_nvml */
};

/* NULL while the library is not loaded. */
const struct tf_nvml *tf_nvml(void);
const struct tf_cuda *tf_cuda_first(void);
extern _Atomic(const struct tf_cuda *) tf_cuda_ready;
static inline const struct tf_cuda *tf_cuda(void)
{
    const struct tf_cuda *ready = atomic_load_explicit(&tf_cuda_ready, memory_order_acquire);
    return TF_LIKELY(ready != NULL) ? ready : tf_cuda_first();
}

#define TF_NVML_SONAME "libnvidia-ml.so.1"

/* The row for an exact symbol name, or NULL. `is_nvml` chooses the table. */
const struct tf_hook *tf_hook_named(const char *symbol, bool is_nvml);

/* The driver's own function for a row, or NULL (not loaded, or this driver has none). */
void *tf_hook_real(const struct tf_hook *hook, bool is_nvml);

/* Our function for what the driver answered to (base, version, flags), or NULL to keep the driver's pointer. *ret_unknown is set to true
 * where the pointer is no exported symbol and no row of the version table fits. */
void *tf_hook_for_pointer(void *real, const char *base, int cuda_version, uint64_t flags, bool *ret_unknown);

#endif
