/* view.c - what a program sees of its card: total and free memory, by CUDA and by NVML.
 *
 * Promise: total is the slice (never more than the card), free is what the slice has left and never negative, NULL outputs and errors are the
 *          driver's business: it answers first, we correct its answer.
 * Next:    reservation.c knows the numbers. */
#include "hooks/hooks.h"
#include "memory/overhead.h"
#include "memory/pools.h"
#include "memory/reservation.h"
#include "slice/device.h"

#include <limits.h>

static bool view_of_current(const struct tf_cuda *cuda, uint64_t real_total_bytes, uint64_t *ret_total_bytes, uint64_t *ret_used_bytes)
{
    struct tf_container *container = tf_container();
    if (atomic_load_explicit(&container->stance, memory_order_relaxed) != TF_ENFORCED)
        return false;
    tf_pools_refresh(container, cuda);
    int gpu = tf_device_current(container, cuda);
    if (gpu >= 0)
        tf_overhead_know(container, gpu);
    return tf_memory_view(container, gpu, real_total_bytes, ret_total_bytes, ret_used_bytes);
}

/* The driver's older entry points know 32 bits. */
static unsigned int saturated(uint64_t bytes) { return bytes < UINT_MAX ? (unsigned int)bytes : UINT_MAX; }

#define SHOW_CURRENT(symbol, real_total_bytes, as) \
    TF_ENTER(symbol); \
    CUresult result = cuda->symbol(free_bytes, total_bytes); \
    uint64_t total, used; \
    if (result == CUDA_SUCCESS && view_of_current(cuda, real_total_bytes, &total, &used)) { \
        if (free_bytes) \
            *free_bytes = as(total - used); \
        if (total_bytes) \
            *total_bytes = as(total); \
    } \
    return result

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) { SHOW_CURRENT(cuMemGetInfo_v2, total_bytes ? *total_bytes : UINT64_MAX, (size_t)); }
CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes) { SHOW_CURRENT(cuMemGetInfo, UINT64_MAX, saturated); }

#define SHOW_TOTAL(symbol, real_total_bytes, as) \
    TF_ENTER(symbol); \
    CUresult result = cuda->symbol(bytes, device); \
    struct tf_container *container = tf_container(); \
    uint64_t total, used; \
    if (result == CUDA_SUCCESS && bytes \
        && tf_memory_view(container, tf_device_of_ordinal(container, cuda, device), real_total_bytes, &total, &used)) \
        *bytes = as(total); \
    return result

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { SHOW_TOTAL(cuDeviceTotalMem_v2, *bytes, (size_t)); }
CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) { SHOW_TOTAL(cuDeviceTotalMem, UINT64_MAX, saturated); }

#define SHOW_BY_NVML(symbol, is_known) \
    TF_ENTER_NVML(symbol); \
    nvmlReturn_t result = nvml->symbol(device, memory); \
    struct tf_container *container = tf_container(); \
    uint64_t total, used; \
    bool is_ours = result == NVML_SUCCESS && memory && (is_known) \
        && tf_memory_view(container, tf_device_of_nvml(container, nvml, device), memory->total, &total, &used); \
    if (is_ours) { \
        memory->total = total; \
        memory->used = used; \
        memory->free = total - used; \
    }

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    SHOW_BY_NVML(nvmlDeviceGetMemoryInfo, true);
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    SHOW_BY_NVML(nvmlDeviceGetMemoryInfo_v2, memory->version == (unsigned int)NVML_MEMORY_V2); /* a later struct is not ours to touch */
    if (is_ours)
        memory->reserved = 0;
    return result;
}

static struct tf_quota *quota_of_nvml(const struct tf_nvml *nvml, nvmlDevice_t device, uint32_t view_bit)
{
    struct tf_container *container = tf_container();
    tf_container_refresh(container);
    if (atomic_load(&container->stance) != TF_ENFORCED || !(atomic_load(&container->view) & view_bit))
        return NULL;
    int gpu = tf_device_of_nvml(container, nvml, device);
    return gpu >= 0 && atomic_load(&container->quotas[gpu].is_listed) ? &container->quotas[gpu] : NULL;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *megahertz)
{
    TF_ENTER_NVML(nvmlDeviceGetClockInfo);
    nvmlReturn_t result = nvml->nvmlDeviceGetClockInfo(device, type, megahertz);
    struct tf_quota *quota;
    if (result == NVML_SUCCESS && megahertz && (type == NVML_CLOCK_SM || type == NVML_CLOCK_GRAPHICS)
        && (quota = quota_of_nvml(nvml, device, TENFOLD_VIEW_CLOCKS)) != NULL) {
        uint32_t limit_percent = atomic_load(&quota->core_limit_percent);
        *megahertz = limit_percent ? *megahertz * limit_percent / 100u : *megahertz;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, int *mode)
{
    TF_ENTER_NVML(nvmlDeviceGetComputeMode);
    nvmlReturn_t result = nvml->nvmlDeviceGetComputeMode(device, mode);
    if (result == NVML_SUCCESS && mode && quota_of_nvml(nvml, device, TENFOLD_VIEW_COMPUTE_MODE))
        *mode = NVML_COMPUTEMODE_EXCLUSIVE_PROCESS;
    return result;
}
