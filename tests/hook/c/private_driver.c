/* private_driver.c - a driver that hands out functions which it does not export; nothing of it is ever called but its resolver. */
#include <stdint.h>

static int private_function(void) { return 0; }

int cuMemAlloc_v2(void) { return 0; }
int cuLaunchKernel(void) { return 0; }
int cuLaunchKernel_ptsz(void) { return 0; }

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    (void)name, (void)version, (void)flags;
    *function = (void *)private_function;
    if (status)
        *status = 0;
    return 0;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, 0);
}
