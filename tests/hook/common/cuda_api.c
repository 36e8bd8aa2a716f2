/* cuda_api.c - loading the driver (contract: cuda_api.h). */
#include "cuda_api.h"

#include <dlfcn.h>

const char cuda_spin_ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                             ".visible .entry tenfold_spin(.param .u32 us)\n{\n"
                             ".reg .pred %p<2>;\n.reg .b32 %r<2>;\n.reg .b64 %rd<5>;\n"
                             "ld.param.u32 %r1, [us];\nmul.wide.u32 %rd1, %r1, 1000;\nmov.u64 %rd2, %globaltimer;\n"
                             "again:\nmov.u64 %rd3, %globaltimer;\nsub.u64 %rd4, %rd3, %rd2;\nsetp.lt.u64 %p1, %rd4, %rd1;\n"
                             "@%p1 bra again;\nret;\n}\n";

int cuda_api_load(struct cuda_api *api)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return -1;
#define FUNCTION(symbol, parameters) *(void **)&api->symbol = dlsym(library, #symbol);
#include "cuda_functions.def"
#undef FUNCTION
    return 0;
}
