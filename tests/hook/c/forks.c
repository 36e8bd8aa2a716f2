/* forks.c - threads that fork at the same time while the hook's own thread asks NVML; then a module, which the hook must still find.
 *
 *   forks THREADS FORKS     each thread forks so often
 * Prints "forked", then waits for the end of its input. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common/cuda_api.h"

static int forks;

static void require(const char *what, int is_done)
{
    if (is_done)
        return;
    fprintf(stderr, "forks: %s failed\n", what);
    exit(1);
}

static void *fork_often(void *unused)
{
    for (int count = 0; count < forks; count++) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        require("fork", child > 0 && waitpid(child, NULL, 0) == child);
    }
    return unused;
}

int main(int argc, char **argv)
{
    static struct cuda_api cuda;
    CUcontext context;
    CUmodule module;
    CUdeviceptr pointer;
    pthread_t threads[16];
    int count = argc == 3 ? atoi(argv[1]) : 0;
    if (count < 1 || count > 16 || cuda_api_load(&cuda) != 0)
        return 2;
    forks = atoi(argv[2]);
    require("cuInit", cuda.cuInit(0) == CUDA_SUCCESS);
    require("cuCtxCreate", cuda.cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
    require("cuMemAlloc", cuda.cuMemAlloc_v2(&pointer, 2 << 20) == CUDA_SUCCESS); /* starts the hook's thread */
    usleep(200000); /* in which it opens NVML */
    for (int number = 0; number < count; number++)
        require("pthread_create", pthread_create(&threads[number], NULL, fork_often, NULL) == 0);
    for (int number = 0; number < count; number++)
        pthread_join(threads[number], NULL);
    require("cuModuleLoadData", cuda.cuModuleLoadData(&module, cuda_spin_ptx) == CUDA_SUCCESS);
    puts("forked");
    fflush(stdout);
    return getchar() == EOF ? 0 : 1;
}
