/* linked.c - a program that was linked with the driver, as most are: allocates blocks of 2 MiB until the driver refuses.
 *
 * Prints "BYTES of TOTAL, result R": what it got, what cuMemGetInfo calls the card's total, and the refusal. */
#include <stdint.h>
#include <stdio.h>

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes);

enum { BLOCK_BYTES = 2 << 20, BLOCKS_AT_MOST = 200000 };

int main(void)
{
    void *context;
    uint64_t pointer, got_bytes = 0;
    size_t free_bytes = 0, total_bytes = 0;
    int result = cuInit(0);
    if (result == 0 && (result = cuDevicePrimaryCtxRetain(&context, 0)) == 0)
        result = cuCtxSetCurrent(context);
    if (result == 0)
        result = cuMemGetInfo_v2(&free_bytes, &total_bytes);
    for (int count = 0; result == 0 && count < BLOCKS_AT_MOST; count++) {
        result = cuMemAlloc_v2(&pointer, BLOCK_BYTES);
        got_bytes += result == 0 ? BLOCK_BYTES : 0;
    }
    printf("%llu of %zu, result %d\n", (unsigned long long)got_bytes, total_bytes, result);
    return 0;
}
