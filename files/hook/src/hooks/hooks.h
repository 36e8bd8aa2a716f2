/* hooks.h - prototypes of every function that the hook exports in the driver's place, made from hooks.def (same names, same ABI), and how each
 * of them begins. */
#pragma once

#include "driver/driver.h"

#define TF_EXPORT __attribute__((visibility("default")))

#define CUDA_HOOK(symbol, base, since, class, parameters) TF_EXPORT CUresult symbol parameters;
#define NVML_HOOK(symbol, class, parameters) TF_EXPORT nvmlReturn_t symbol parameters;
#include "abi/hooks.def"

/* Declares `cuda` or `nvml`, the driver's own table, in which there is such a function. */
#define TF_ENTER(symbol) \
    const struct tf_cuda *cuda = tf_cuda(); \
    if (TF_UNLIKELY(!cuda || !cuda->symbol)) \
        return CUDA_ERROR_NOT_INITIALIZED
#define TF_ENTER_NVML(symbol) \
    const struct tf_nvml *nvml = tf_nvml(); \
    if (!nvml || !nvml->symbol) \
        return NVML_ERROR_UNINITIALIZED
