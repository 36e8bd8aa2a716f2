/* launchers.c - threads that launch on one stream at the same time, for as long as it lives.
 *
 *   launchers THREADS own|shared MICROSECONDS     own: each thread its own default stream; shared: one stream for all
 * Prints nothing; who started it looks at the card. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/cuda_api.h"

#define PER_THREAD ((CUstream)2) /* CU_STREAM_PER_THREAD */

static struct cuda_api cuda;
static CUcontext context;
static CUfunction function;
static CUstream stream;
static unsigned kernel_us;

static void require(const char *what, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "launchers: %s gave %d\n", what, result);
    exit(1);
}

static void *launch(void *unused)
{
    require("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context));
    for (;;) {
        void *parameters[] = {&kernel_us};
        require("cuLaunchKernel", cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    }
    return unused;
}

int main(int argc, char **argv)
{
    CUmodule module;
    pthread_t thread;
    if (argc != 4 || cuda_api_load(&cuda) != 0)
        return 2;
    kernel_us = (unsigned)atoi(argv[3]);
    require("cuInit", cuda.cuInit(0));
    require("cuCtxCreate", cuda.cuCtxCreate_v2(&context, 0, 0));
    require("cuModuleLoadData", cuda.cuModuleLoadData(&module, cuda_spin_ptx));
    require("cuModuleGetFunction", cuda.cuModuleGetFunction(&function, module, "tenfold_spin"));
    if (strcmp(argv[2], "own") == 0)
        stream = PER_THREAD;
    else
        require("cuStreamCreate", cuda.cuStreamCreate(&stream, 0));
    for (int number = 1; number < atoi(argv[1]); number++)
        if (pthread_create(&thread, NULL, launch, NULL) != 0)
            return 2;
    launch(NULL);
    return 0;
}
