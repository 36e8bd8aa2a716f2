/* fallback.c - a weak definition of every exported name: what has no behaviour anywhere else answers CUDA_ERROR_NOT_SUPPORTED.
 *
 * The names come from cuda_symbols.def; a strong definition in another file replaces the weak one at link time. Which names are left
 * with the fallback is written down in tests/unsupported_symbols.txt, and a test compares. */
#include "driver.h"

#define SYMBOL(exported, asked, version, stream)                                          \
    __attribute__((visibility("default"), weak)) CUresult exported(void);                 \
    CUresult exported(void)                                                               \
    {                                                                                     \
        CUresult refused = driver_enter(#exported);                                       \
        return refused != CUDA_SUCCESS ? refused : (CUresult)CUDA_ERROR_NOT_SUPPORTED;    \
    }
#include "cuda_symbols.def"
