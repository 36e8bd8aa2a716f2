/* cuda_api.h - the driver as a program meets it: dlopen, dlsym, a struct of function pointers.
 *
 * Owns:  loading; every lookup goes through dlsym, so a preloaded hook is in the way exactly as in a real program.
 * Next:  the oracle's, the benchmark's and other test programs call through the struct. */
#ifndef TENFOLD_TEST_CUDA_API_H
#define TENFOLD_TEST_CUDA_API_H

#include "../../simulator/include/cuda_abi.h"

/* CUDA_EXTERNAL_MEMORY_HANDLE_DESC and CUDA_EXTERNAL_MEMORY_BUFFER_DESC, for a file descriptor. */
struct cuda_external_memory {
    int type; /* 1: opaque file descriptor */
    union {
        int fd;
        void *pointers[2];
    } handle;
    unsigned long long size_bytes;
    unsigned flags;
    unsigned reserved[16];
};

struct cuda_external_buffer {
    unsigned long long offset, size_bytes;
    unsigned flags;
    unsigned reserved[16];
};

struct cuda_api {
#define FUNCTION(symbol, parameters) CUresult(*symbol) parameters;
#include "cuda_functions.def"
#undef FUNCTION
};

/* 0, or -1: there is no libcuda.so.1, *api is untouched. */
int cuda_api_load(struct cuda_api *api);

/* PTX whose entry `tenfold_spin(u32 us)` keeps a card busy for that many microseconds; the simulated driver reads its name. */
extern const char cuda_spin_ptx[];

#endif
