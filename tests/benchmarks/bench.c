/* bench.c - what driver calls cost in this process, as one line of JSON; bench_hook.py runs it with and without a hook and compares.
 *
 *   bench calls [ROW...]                  median ns per call of each row below, over many short batches
 *   bench init COUNT                      wall time in us from "go" until COUNT processes have a context each
 *   bench spin US MS [sync|async|graph] [CV]   keeps the card busy for MS milliseconds with kernels of US microseconds
 *   bench rss                             resident KiB after cuInit, a context and one allocation
 * Batches are short against a scheduler's slice, so that a busy machine disturbs some of them and not their median. */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../hook/common/cuda_api.h"

enum { BATCHES = 61, LIVE_MAX = 8000, TEAM = 4, TEAM_LIVE = 2000, TEAM_PAIRS = 20000, TEAM_BATCHES = 7, PROCESSES_MAX = 64 };

static struct cuda_api cuda;
static CUcontext context;
static CUfunction spin;
static CUdeviceptr live[LIVE_MAX];
static int live_count;
static uint32_t dice = 1;

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void require(const char *what, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "bench: %s gave %d\n", what, result);
        _exit(1);
    }
}

static uint32_t roll(uint32_t bound)
{
    dice = dice * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)dice * bound >> 32);
}

static void open_card(void)
{
    CUmodule module;
    if (cuda_api_load(&cuda) != 0) {
        fprintf(stderr, "bench: libcuda.so.1 cannot be loaded: %s\n", dlerror());
        _exit(1);
    }
    require("cuInit", cuda.cuInit(0));
    require("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(&context, 0));
    require("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context));
    require("cuModuleLoadData", cuda.cuModuleLoadData(&module, cuda_spin_ptx));
    require("cuModuleGetFunction", cuda.cuModuleGetFunction(&spin, module, "tenfold_spin"));
}

static void launch(uint32_t us)
{
    void *parameters[] = {&us};
    require("cuLaunchKernel", cuda.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
}

/* --- rows: each does `count` calls ---------------------------------------------------------------------------------------------- */

static void row_launch(int count)
{
    for (int call = 0; call < count; call++)
        launch(0);
    require("cuCtxSynchronize", cuda.cuCtxSynchronize());
}

static void hold(int blocks)
{
    while (live_count < blocks)
        require("cuMemAlloc_v2", cuda.cuMemAlloc_v2(&live[live_count++], 4096));
    while (live_count > blocks)
        require("cuMemFree_v2", cuda.cuMemFree_v2(live[--live_count]));
}

static void row_alloc_free(int count)
{
    for (int call = 0; call < count; call++) {
        CUdeviceptr *block = &live[roll((uint32_t)live_count)];
        require("cuMemFree_v2", cuda.cuMemFree_v2(*block));
        require("cuMemAlloc_v2", cuda.cuMemAlloc_v2(block, 4096));
    }
}

static void row_info(int count)
{
    size_t free_bytes, total_bytes;
    for (int call = 0; call < count; call++)
        require("cuMemGetInfo_v2", cuda.cuMemGetInfo_v2(&free_bytes, &total_bytes));
}

static void row_dlsym(int count)
{
    for (int call = 0; call < count; call++)
        if (!dlsym(RTLD_DEFAULT, "strtoul"))
            _exit(1);
}

static void row_get_proc_address(int count)
{
    void *function;
    int status;
    for (int call = 0; call < count; call++)
        require("cuGetProcAddress_v2", cuda.cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &status));
}

struct member {
    pthread_t id;
    pthread_barrier_t *start;
    double ns;
};

static void *run_member(void *argument)
{
    struct member *member = argument;
    static __thread CUdeviceptr own[TEAM_LIVE];
    uint32_t state = (uint32_t)(uintptr_t)member;
    require("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context));
    for (int block = 0; block < TEAM_LIVE; block++)
        require("cuMemAlloc_v2", cuda.cuMemAlloc_v2(&own[block], 4096));
    pthread_barrier_wait(member->start);
    double began = now_ns();
    for (int pair = 0; pair < TEAM_PAIRS; pair++) {
        state = state * 1664525u + 1013904223u;
        CUdeviceptr *block = &own[(uint64_t)state * TEAM_LIVE >> 32];
        require("cuMemFree_v2", cuda.cuMemFree_v2(*block));
        require("cuMemAlloc_v2", cuda.cuMemAlloc_v2(block, 4096));
    }
    member->ns = now_ns() - began;
    pthread_barrier_wait(member->start);
    for (int block = 0; block < TEAM_LIVE; block++)
        require("cuMemFree_v2", cuda.cuMemFree_v2(own[block]));
    return NULL;
}

/* Four threads at once, 8,000 live blocks between them; ns per pair, as one of them sees it. Long against a scheduler's slice: who waits for a CPU
 * is part of the picture. */
static double run_team(void)
{
    struct member members[TEAM];
    pthread_barrier_t start;
    double sum_ns = 0;
    pthread_barrier_init(&start, NULL, TEAM);
    for (int index = 0; index < TEAM; index++) {
        members[index].start = &start;
        if (pthread_create(&members[index].id, NULL, run_member, &members[index]) != 0)
            _exit(1);
    }
    for (int index = 0; index < TEAM; index++) {
        pthread_join(members[index].id, NULL);
        sum_ns += members[index].ns;
    }
    return sum_ns / TEAM / TEAM_PAIRS;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double measure_team(void)
{
    double ns[TEAM_BATCHES];
    for (int batch = 0; batch < TEAM_BATCHES; batch++)
        ns[batch] = run_team();
    qsort(ns, TEAM_BATCHES, sizeof *ns, compare);
    return ns[TEAM_BATCHES / 2];
}

static double measure(void (*row)(int), int count)
{
    double ns[BATCHES];
    row(count);
    for (int batch = 0; batch < BATCHES; batch++) {
        double began = now_ns();
        row(count);
        ns[batch] = (now_ns() - began) / count;
    }
    qsort(ns, BATCHES, sizeof *ns, compare);
    return ns[BATCHES / 2];
}

static const struct row {
    const char *name;
    void (*run)(int count);
    int count; /* calls per batch: 50 to 200 us */
    int live;  /* blocks that live meanwhile */
} rows[] = {
    {"launch", row_launch, 500, 0},
    {"alloc_free_10", row_alloc_free, 100, 10},
    {"alloc_free_8000", row_alloc_free, 100, 8000},
    {"info", row_info, 2000, 0},
    {"dlsym", row_dlsym, 500, 0},
    {"get_proc_address", row_get_proc_address, 100, 0},
};

static bool is_wanted(const char *name, int count, char **names)
{
    for (int index = 0; index < count; index++)
        if (strcmp(names[index], name) == 0)
            return true;
    return count == 0;
}

static void *sleep_on(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static int run_calls(int count, char **names)
{
    const char *separator = "";
    pthread_t sleeper;
    open_card();
    /* The real driver brings threads, the simulated one none, and the hook one. In a process with a single thread the C library leaves out
     * what makes its locks cost anything; so that no row is measured there, there are two in all of them. */
    if (pthread_create(&sleeper, NULL, sleep_on, NULL) != 0)
        return 2;
    printf("{");
    for (size_t index = 0; index < sizeof rows / sizeof *rows; index++) {
        if (!is_wanted(rows[index].name, count, names))
            continue;
        hold(rows[index].live);
        printf("%s\"%s\": %.2f", separator, rows[index].name, measure(rows[index].run, rows[index].count));
        separator = ", ";
    }
    hold(0);
    if (is_wanted("alloc_free_threads", count, names))
        printf("%s\"alloc_free_threads\": %.2f", separator, measure_team());
    printf("}\n");
    return 0;
}

/* Children are forked before anything is loaded and wait at the pipe; time runs from its closing. */
static int run_init(int count)
{
    int go[2];
    pid_t children[PROCESSES_MAX];
    if (count > PROCESSES_MAX || pipe(go) != 0)
        return 2;
    for (int child = 0; child < count; child++) {
        children[child] = fork();
        if (children[child] == 0) {
            char byte;
            close(go[1]);
            (void)!read(go[0], &byte, 1);
            if (cuda_api_load(&cuda) != 0)
                _exit(1);
            require("cuInit", cuda.cuInit(0));
            require("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(&context, 0));
            require("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context));
            require("cuMemAlloc_v2", cuda.cuMemAlloc_v2(&live[0], 4096));
            _exit(0);
        }
    }
    usleep(20000);
    double began = now_ns();
    close(go[0]);
    close(go[1]);
    for (int child = 0; child < count; child++) {
        int status;
        if (waitpid(children[child], &status, 0) < 0 || status != 0)
            return 1;
    }
    printf("{\"init_us\": %.1f}\n", (now_ns() - began) / 1e3);
    return 0;
}

static double normal(void)
{
    double sum = 0;
    for (int index = 0; index < 12; index++)
        sum += (double)roll(1u << 30) / (double)(1u << 30);
    return sum - 6;
}

/* Lognormal with that mean and coefficient of variation. */
static uint32_t varied(uint32_t us, double cv)
{
    double sigma = sqrt(log(1 + cv * cv));
    return cv > 0 ? (uint32_t)(us * exp(sigma * normal() - sigma * sigma / 2)) : us;
}

static CUgraphExec make_graph(uint32_t us)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    void *parameters[] = {&us};
    const CUDA_KERNEL_NODE_PARAMS_v1 kernel = {.function = spin, .grid_x = 1, .grid_y = 1, .grid_z = 1, .block_x = 1, .block_y = 1, .block_z = 1,
                                               .kernel_parameters = parameters};
    require("cuGraphCreate", cuda.cuGraphCreate(&graph, 0));
    require("cuGraphAddKernelNode", cuda.cuGraphAddKernelNode(&node, graph, NULL, 0, &kernel));
    require("cuGraphInstantiateWithFlags", cuda.cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

/* Says "ready" first, so that nobody measures the start. Asynchronous work is bounded by the driver's queue and two synchronisations a second. */
static int run_spin(uint32_t us, double milliseconds, const char *style, double cv)
{
    CUstream stream;
    open_card();
    require("cuStreamCreate", cuda.cuStreamCreate(&stream, 1));
    CUgraphExec exec = strcmp(style, "graph") == 0 ? make_graph(us) : NULL;
    bool is_sync = strcmp(style, "sync") == 0;
    printf("{\"ready\": %d}\n", (int)getpid());
    fflush(stdout);
    double end = now_ns() + milliseconds * 1e6;
    for (uint64_t launches = 0; now_ns() < end; launches++) {
        if (exec)
            require("cuGraphLaunch", cuda.cuGraphLaunch(exec, stream));
        else
            launch(varied(us, cv));
        /* no more than about 40 ms of work in the queue, so that the end is near the time asked for */
        if (is_sync || launches % (1 + 40000 / (us + 1)) == 0)
            require("cuCtxSynchronize", cuda.cuCtxSynchronize());
    }
    require("cuCtxSynchronize", cuda.cuCtxSynchronize());
    return 0;
}

static int run_rss(void)
{
    char line[256];
    long kib = 0;
    open_card();
    require("cuMemAlloc_v2", cuda.cuMemAlloc_v2(&live[0], 4096));
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmRSS: %ld", &kib) == 1)
            break;
    printf("{\"rss_kib\": %ld}\n", kib);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "calls") == 0)
        return run_calls(argc - 2, argv + 2);
    if (argc == 3 && strcmp(argv[1], "init") == 0)
        return run_init(atoi(argv[2]));
    if (argc >= 4 && strcmp(argv[1], "spin") == 0)
        return run_spin((uint32_t)atoi(argv[2]), atof(argv[3]), argc > 4 ? argv[4] : "async", argc > 5 ? atof(argv[5]) : 0);
    if (argc == 2 && strcmp(argv[1], "rss") == 0)
        return run_rss();
    fprintf(stderr, "usage: bench calls [ROW...] | init COUNT | spin US MS [sync|async|graph] [CV] | rss\n");
    return 2;
}
