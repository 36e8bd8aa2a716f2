/* nvml.h - the part of NVML's ABI that the hook touches, declared by us.
 *
 * Owns: handles, codes and the two memory structs. Versioned structs of unknown size are never touched.
 * Next: cuda.h, hooks.def. */
#pragma once

#include <stdint.h>

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

enum { NVML_SUCCESS = 0, NVML_ERROR_UNINITIALIZED = 1, NVML_ERROR_FUNCTION_NOT_FOUND = 13 };

typedef struct {
    unsigned long long total, free, used; /* bytes */
} nvmlMemory_t;

typedef struct {
    unsigned int version; /* sizeof | 2 << 24, set by the caller */
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

/* The first version of the list: later ones changed their size within one driver branch. */
typedef struct {
    unsigned int pid;
    unsigned long long used_bytes;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned int pid;
    unsigned long long time_us; /* of the wall clock: the end of the sample */
    unsigned int sm_percent, memory_percent, encoder_percent, decoder_percent;
} nvmlProcessUtilizationSample_t;

enum { NVML_MEMORY_V2 = (int)(sizeof(nvmlMemory_v2_t) | 2u << 24) };

enum { NVML_CLOCK_SM = 1, NVML_CLOCK_GRAPHICS = 0, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3 };
