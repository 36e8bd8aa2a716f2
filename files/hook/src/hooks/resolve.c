/* hooks_resolve.c - cuGetProcAddress in its two ABIs and two stream flavours.
 *
 * Promise: the driver decides what a request means; we only replace its pointer by our function for exactly that symbol.
 * Next:    driver.c finds it. */
#include "slice/container.h"
#include "driver/driver.h"
#include "base/sync.h"

static void count_unknown(void)
{
    struct tf_container *container = tf_container();
    if (atomic_load(&container->stance) == TF_ENFORCED)
        __atomic_fetch_add(&container->state->unknown_entry_points, 1, __ATOMIC_RELAXED);
}

static void substitute(void **function, const char *name, int cuda_version, uint64_t flags)
{
    bool is_unknown;
    void *ours = tf_hook_for_pointer(*function, name, cuda_version, flags, &is_unknown);
    if (ours)
        *function = ours;
    if (TF_UNLIKELY(is_unknown))
        count_unknown();
}

#define RESOLVE(symbol, call) \
    const struct tf_cuda *cuda = tf_cuda(); \
    if (!cuda || !cuda->symbol) \
        return CUDA_ERROR_NOT_INITIALIZED; \
    CUresult result = cuda->symbol call; \
    if (result == CUDA_SUCCESS && name && function && *function) \
        substitute(function, name, cuda_version, flags); \
    return result

CUresult cuGetProcAddress(const char *name, void **function, int cuda_version, uint64_t flags)
{
    RESOLVE(cuGetProcAddress, (name, function, cuda_version, flags));
}

CUresult cuGetProcAddress_ptsz(const char *name, void **function, int cuda_version, uint64_t flags)
{
    RESOLVE(cuGetProcAddress_ptsz, (name, function, cuda_version, flags));
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int cuda_version, uint64_t flags, int *status)
{
    RESOLVE(cuGetProcAddress_v2, (name, function, cuda_version, flags, status));
}

CUresult cuGetProcAddress_v2_ptsz(const char *name, void **function, int cuda_version, uint64_t flags, int *status)
{
    RESOLVE(cuGetProcAddress_v2_ptsz, (name, function, cuda_version, flags, status));
}
