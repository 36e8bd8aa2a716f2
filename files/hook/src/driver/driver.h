/* driver.h - the real CUDA driver and NVML of this process.
 *
 * Owns:     struct tf_cuda and struct tf_nvml, made from hooks.def: the functions of the driver that the hook replaces or calls.
 * Contract: the tables are complete before a non-NULL pointer is returned and never change after; any thread. Nothing is loaded that the
 *           program did not load itself; what we keep pointers into is pinned. Of several copies the first that was loaded is the driver. */
#pragma once

#include "abi/cuda.h"
#include "abi/nvml.h"
#include "base/sync.h"

#include <stdbool.h>

#define TF_CUDA_SONAME "libcuda.so.1"
#define TF_NVML_SONAME "libnvidia-ml.so.1"

#define TF_BLOCK_BYTES (2ull << 20) /* what the driver takes of the card at a time; small allocations share one */

/* The driver's functions; NULL where this driver has none. */
struct tf_cuda {
#define CUDA_HOOK(symbol, base, since, class, parameters) CUresult(*symbol) parameters;
#define CUDA_REAL(symbol, parameters) CUresult(*symbol) parameters;
#include "abi/hooks.def"
};

struct tf_nvml {
#define NVML_HOOK(symbol, class, parameters) nvmlReturn_t(*symbol) parameters;
#define NVML_REAL(symbol, parameters) nvmlReturn_t(*symbol) parameters;
#include "abi/hooks.def"
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

/* What the program may have for a symbol that was `found`: that itself, but the first copy's where it is in another copy of the driver (an image's
 * beside the node's). So a process has one driver whatever it loads, and nobody is given a second one, which would know no limit. NULL: the first
 * has none. */
void *tf_driver_symbol(void *found, const char *symbol, bool is_nvml);
