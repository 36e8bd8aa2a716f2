/* device.h - from what a call names (CUDA ordinal, current context, NVML handle) to the card's number in the state, always by UUID. */
#pragma once

#include "driver/driver.h"
#include "slice/container.h"

/* All return the number of the card, or a negative TF_DEVICE_*. */
enum {
    TF_DEVICE_UNLISTED = -1, /* the page does not name it */
    TF_DEVICE_UNKNOWN = -2,  /* the driver does not say: no context, bad ordinal; the call will fail by itself */
};

/* The usual slice: CUDA sees one card, so every context is on it. Negative: not so, or not known yet. */
extern _Atomic uint64_t tf_only_card; /* epoch in the upper half, number + 3 in the lower */
static inline int tf_device_only(void)
{
    uint64_t only = atomic_load_explicit(&tf_only_card, memory_order_relaxed);
    return TF_LIKELY(only >> 32 == tf_process_epoch()) ? (int)(uint32_t)only - 3 : TF_DEVICE_UNKNOWN;
}

int tf_device_of_ordinal(struct tf_container *container, const struct tf_cuda *cuda, CUdevice device);
int tf_device_current(struct tf_container *container, const struct tf_cuda *cuda);
int tf_device_of_context(struct tf_container *container, const struct tf_cuda *cuda, CUcontext *ret_context); /* the current one, NULL: none */
bool tf_device_ordinal(const struct tf_cuda *cuda, CUdevice *ret_device); /* of the current context */
int tf_device_of_nvml(struct tf_container *container, const struct tf_nvml *nvml, nvmlDevice_t device);
