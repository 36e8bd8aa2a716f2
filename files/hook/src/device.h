/* device.h - from what a call names (CUDA ordinal, current context, NVML handle) to the card's number in the state, always by UUID. */
#ifndef TENFOLD_DEVICE_H
#define TENFOLD_DEVICE_H

#include "container.h"
#include "driver.h"

/* All return the number of the card, or a negative TF_DEVICE_*. */
enum {
    TF_DEVICE_UNLISTED = -1, /* the page does not name it */
    TF_DEVICE_UNKNOWN = -2,  /* the driver does not say: no context, bad ordinal; the call will fail by itself */
};

int tf_device_of_ordinal(struct tf_container *container, const struct tf_cuda *cuda, CUdevice device);
int tf_device_current(struct tf_container *container, const struct tf_cuda *cuda);
bool tf_device_ordinal(const struct tf_cuda *cuda, CUdevice *ret_device); /* of the current context */
int tf_device_of_nvml(struct tf_container *container, const struct tf_nvml *nvml, nvmlDevice_t device);

#endif
