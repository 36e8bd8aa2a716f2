/* hooks.h - prototypes and numbers of every hooked symbol, made from hooks.def.
 *
 * Owns: the declarations of our exported functions (same names and ABI as the driver's) and struct tf_cuda / tf_nvml, the driver's own.
 * Next: resolve.h fills the structs, hooks_*.c define the functions. */
#ifndef TENFOLD_HOOKS_H
#define TENFOLD_HOOKS_H

#include "abi/cuda.h"
#include "abi/nvml.h"

#define TF_EXPORT __attribute__((visibility("default")))

#define CUDA_HOOK(symbol, base, since, class, parameters) TF_EXPORT CUresult symbol parameters;
#define CUDA_REAL(symbol, parameters)
#define NVML_HOOK(symbol, class, parameters) TF_EXPORT nvmlReturn_t symbol parameters;
#define NVML_REAL(symbol, parameters)
#include "abi/hooks.def"
#undef CUDA_HOOK
#undef CUDA_REAL
#undef NVML_HOOK
#undef NVML_REAL

/* The driver's functions; NULL where this driver has none. */
struct tf_cuda {
#define CUDA_HOOK(symbol, base, since, class, parameters) CUresult(*symbol) parameters;
#define CUDA_REAL(symbol, parameters) CUresult(*symbol) parameters;
#define NVML_HOOK(symbol, class, parameters)
#define NVML_REAL(symbol, parameters)
#include "abi/hooks.def"
#undef CUDA_HOOK
#undef CUDA_REAL
#undef NVML_HOOK
#undef NVML_REAL
};

struct tf_nvml {
#define CUDA_HOOK(symbol, base, since, class, parameters)
#define CUDA_REAL(symbol, parameters)
#define NVML_HOOK(symbol, class, parameters) nvmlReturn_t(*symbol) parameters;
#define NVML_REAL(symbol, parameters) nvmlReturn_t(*symbol) parameters;
#include "abi/hooks.def"
#undef CUDA_HOOK
#undef CUDA_REAL
#undef NVML_HOOK
#undef NVML_REAL
};

#endif
