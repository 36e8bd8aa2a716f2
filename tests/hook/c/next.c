/* next.c - the few facts about lookups that also fit a machine without a simulator: RTLD_NEXT, a hooked name, an absent one, a policy. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int is_ours(void *address)
{
    Dl_info info = {0};
    return address && dladdr(address, &info) && info.dli_fname && strstr(info.dli_fname, "libtenfold.so") != NULL;
}

int main(void)
{
    void *first = dlsym(RTLD_NEXT, "open"), *second = dlsym(RTLD_NEXT, "open");
    puts(first && first == second && !is_ours(first) ? "next-same" : "next-differs");
    puts(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") ? "driver-too-early" : "");
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *hooked = driver ? dlsym(driver, "cuMemAlloc_v2") : NULL;
    puts(is_ours(hooked) ? "driver-hooked" : "driver-not-hooked");
    puts(driver && !dlsym(driver, "cuMemGetInfo_v2") ? "absent-null" : "absent-found");
    unsigned long pointer = 0;
    int result = is_ours(hooked) ? ((int (*)(unsigned long *, unsigned long))hooked)(&pointer, 4096) : -1;
    puts(result == 0 ? "alloc-closed" : "alloc-failed"); /* no slice here: the driver's answer */
    return 0;
}
