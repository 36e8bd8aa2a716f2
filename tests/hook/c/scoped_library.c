/* scoped_library.c - a library that is linked with the driver and also looks it up; past_scope.c loads it. */
#include <dlfcn.h>
#include <stddef.h>

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);

typedef int info_function(size_t *free_bytes, size_t *total_bytes);

static size_t total_by(info_function *info)
{
    void *context;
    size_t free_bytes, total_bytes = 0;
    if (!info || cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0)
        return 0;
    return info(&free_bytes, &total_bytes) == 0 ? total_bytes : 0;
}

size_t linked_total(void) { return total_by(cuMemGetInfo_v2); }

size_t looked_up_total(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    return total_by(driver ? (info_function *)dlsym(driver, "cuMemGetInfo_v2") : NULL);
}
