/* dialogue.c - one operation at a time (contract: dialogue.h). */
#include "dialogue.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/cuda_api.h"

enum { BLOCKS = 4096 };

static struct cuda_api cuda;
static CUdeviceptr blocks[BLOCKS];
static int block_count;

static CUresult open_card(void)
{
    CUcontext context = NULL;
    CUresult result = cuda.cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuda.cuDevicePrimaryCtxRetain(&context, 0);
    return result == CUDA_SUCCESS ? cuda.cuCtxSetCurrent(context) : result;
}

static CUresult allocate(size_t bytes)
{
    if (block_count == BLOCKS)
        return -1;
    CUresult result = cuda.cuMemAlloc_v2(&blocks[block_count], bytes);
    block_count += result == CUDA_SUCCESS;
    return result;
}

static CUresult release(void)
{
    if (!block_count)
        return -1;
    CUresult result = cuda.cuMemFree_v2(blocks[block_count - 1]);
    block_count -= result == CUDA_SUCCESS;
    return result;
}

/* The whole way of a process into its slice: cuInit, context, first allocation. */
static CUresult attach(size_t bytes)
{
    CUresult result = open_card();
    return result == CUDA_SUCCESS ? allocate(bytes) : result;
}

static CUresult perform(const char *what, size_t bytes)
{
    return strcmp(what, "alloc") == 0 ? allocate(bytes) : strcmp(what, "attach") == 0 ? attach(bytes) : release();
}

int dialogue(bool opens_card)
{
    char line[128], word[32], what[32];
    unsigned long long bytes = 0;
    if (cuda_api_load(&cuda) != 0)
        return 3;
    printf("%d\n", opens_card ? open_card() : CUDA_SUCCESS);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        size_t free_bytes = 0, total_bytes = 0;
        CUresult result = -1;
        if (sscanf(line, "stop %31s %llu", what, &bytes) == 2) {
            raise(SIGSTOP);
            result = perform(what, bytes);
            raise(SIGSTOP);
        } else if (sscanf(line, "alloc %llu", &bytes) == 1) {
            result = allocate(bytes);
        } else if (sscanf(line, "%31s", word) == 1 && strcmp(word, "free") == 0) {
            result = release();
        } else {
            result = cuda.cuMemGetInfo_v2(&free_bytes, &total_bytes);
            printf("%d %zu %zu\n", result, free_bytes, total_bytes);
            fflush(stdout);
            continue;
        }
        printf("%d\n", result);
        fflush(stdout);
    }
    return 0;
}
