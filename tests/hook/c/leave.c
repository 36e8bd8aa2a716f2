/* leave.c - ends while its limited work is still on the card, and looks at the hook's thread after the program's last handler.
 *
 * A driver takes itself apart in a handler of exit(), registered when it was loaded, and handlers run in reverse order: whoever still calls it then
 * from another thread may crash the program. So this one is registered before the driver is loaded, in the driver's place, and counts how often
 * the other thread runs. Prints {"threads": n, "switches": n}. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/cuda_api.h"

/* Of all threads but this one: how many, and how often they have gone to sleep. */
static long count_switches(int *ret_threads)
{
    long sum = 0;
    struct dirent *entry;
    DIR *tasks = opendir("/proc/self/task");
    *ret_threads = 0;
    while (tasks && (entry = readdir(tasks)) != NULL) {
        char path[300], line[256];
        long switches;
        if (entry->d_name[0] == '.' || atoi(entry->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = fopen(path, "r");
        while (status && fgets(line, sizeof line, status))
            if (sscanf(line, "voluntary_ctxt_switches: %ld", &switches) == 1)
                sum += switches;
        if (status)
            fclose(status);
        ++*ret_threads;
    }
    if (tasks)
        closedir(tasks);
    return sum;
}

static void driver_unloads(void)
{
    int threads;
    long before = count_switches(&threads);
    usleep(100000);
    printf("{\"threads\": %d, \"switches\": %ld}\n", threads, count_switches(&threads) - before);
    fflush(stdout);
}

static int require(const char *what, CUresult result)
{
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "leave: %s gave %d\n", what, result);
    return result != CUDA_SUCCESS;
}

int main(void)
{
    static struct cuda_api cuda;
    CUcontext context;
    CUmodule module;
    CUfunction spin;
    uint32_t us = 20000;
    void *parameters[] = {&us};
    atexit(driver_unloads);
    if (cuda_api_load(&cuda) != 0 || require("cuInit", cuda.cuInit(0)) || require("retain", cuda.cuDevicePrimaryCtxRetain(&context, 0))
        || require("current", cuda.cuCtxSetCurrent(context)) || require("module", cuda.cuModuleLoadData(&module, cuda_spin_ptx))
        || require("function", cuda.cuModuleGetFunction(&spin, module, "tenfold_spin")))
        return 1;
    for (int launch = 0; launch < 15; launch++)
        if (require("launch", cuda.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL)))
            return 1;
    return 0;
}
