/* hooks.h - prototypes of every function that the hook exports in the driver's place, made from hooks.def: same names, same ABI. */
#ifndef TENFOLD_HOOKS_H
#define TENFOLD_HOOKS_H

#include "abi/cuda.h"
#include "abi/nvml.h"

#define TF_EXPORT __attribute__((visibility("default")))

#define CUDA_HOOK(symbol, base, since, class, parameters) TF_EXPORT CUresult symbol parameters;
#define NVML_HOOK(symbol, class, parameters) TF_EXPORT nvmlReturn_t symbol parameters;
#include "abi/hooks.def"

#endif
