/* library.h - CUDA 12 libraries: code that is loaded once and becomes a function per context. */
#ifndef TENFOLD_SIM_LIBRARY_H
#define TENFOLD_SIM_LIBRARY_H

#include "driver.h"

struct CUlib_st {
    struct object head;
    CUmodule module; /* of the context in which it was first needed; goes with that context */
    uint64_t module_id;
    char *text;
    CUkernel kernels;
};

struct CUkern_st {
    struct object head;
    CUlibrary library;
    CUkernel next_in_library;
    CUfunction function; /* made on first use */
    uint64_t module_id; /* whose function it is */
    char name[128];
};

/* The function behind a handle that may be a kernel: launch calls take both. NULL if the kernel cannot be made one. */
CUfunction library_function(CUfunction function_or_kernel);

#endif
