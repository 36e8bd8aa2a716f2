/* counted.c - another library that somebody preloads: it counts what a program allocates from the driver and says so at its end, so that a
 * test sees that it was there, in front of us or behind us.
 *
 * It wraps a hooked function, and a function of the C library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

static unsigned long driver_calls, id_calls;

int cuMemAlloc_v2(uint64_t *pointer, size_t bytes);

int cuMemAlloc_v2(uint64_t *pointer, size_t bytes)
{
    int (*next)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    driver_calls++;
    return next ? next(pointer, bytes) : 999;
}

pid_t getppid(void)
{
    pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "getppid");
    id_calls++;
    return next();
}

__attribute__((destructor)) static void say(void)
{
    getppid();
    if (driver_calls)
        printf("counted %lu\n", driver_calls);
    else
        printf("counted nothing, loaded\n");
}
