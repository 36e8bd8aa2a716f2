/* stress.c - many threads in one process do everything at once; compiled together with the driver's sources under a sanitizer.
 *
 * Usage: stress SECONDS THREADS. Exits 0 if every call answered as it should and the books end at zero. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../src/cuda/driver.h"

CUresult cuInit(unsigned);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
CUresult cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
CUresult cuMemUnmap(CUdeviceptr, size_t);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamBeginCapture_v2(CUstream, int);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphExecDestroy(CUgraphExec);
CUresult cuGraphDestroy(CUgraph);
CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventSynchronize(CUevent);
CUresult cuEventElapsedTime(float *, CUevent, CUevent);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuLaunchHostFunc(CUstream, CUhostFn, void *);

static CUcontext g_context;
static CUfunction g_spin;
static int64_t g_end_ns;
static _Atomic unsigned g_called;

static void must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s answered %d\n", what, result);
    _Exit(1);
}
#define MUST(call) must(call, #call)

static void count_call(void *unused)
{
    (void)unused;
    atomic_fetch_add(&g_called, 1);
}

static void do_memory(unsigned *seed)
{
    CUdeviceptr addresses[8];
    size_t total_bytes, free_bytes;
    for (int i = 0; i < 8; i++)
        MUST(cuMemAlloc_v2(&addresses[i], 1 + (size_t)rand_r(seed) % (4 << 20)));
    MUST(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    for (int i = 0; i < 8; i++)
        MUST(cuMemFree_v2(addresses[i]));
    MUST(cuMemAllocManaged(&addresses[0], 1 << 20, 1));
    *(volatile char *)(uintptr_t)addresses[0] = 1;
    MUST(cuMemFree_v2(addresses[0]));
}

static void do_mapping(void)
{
    const size_t bytes = 4 << 20;
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr range;
    MUST(cuMemCreate(&handle, bytes, &properties, 0));
    MUST(cuMemAddressReserve(&range, 2 * bytes, 0, 0, 0));
    MUST(cuMemMap(range + bytes, bytes, 0, handle, 0));
    MUST(cuMemRelease(handle));
    MUST(cuMemUnmap(range + bytes, bytes));
    MUST(cuMemAddressFree(range, 2 * bytes));
}

static void do_stream(uint32_t us)
{
    void *parameters[] = {&us};
    CUstream stream;
    CUevent first, second;
    CUdeviceptr address;
    float ms;
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuEventCreate(&first, 0));
    MUST(cuEventCreate(&second, 0));
    MUST(cuMemAllocAsync(&address, 100000, stream));
    MUST(cuEventRecord(first, stream));
    for (int i = 0; i < 20; i++)
        MUST(cuLaunchKernel(g_spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    MUST(cuEventRecord(second, stream));
    MUST(cuLaunchHostFunc(stream, count_call, NULL));
    MUST(cuMemFreeAsync(address, stream));
    MUST(cuEventSynchronize(second));
    MUST(cuStreamSynchronize(stream));
    MUST(cuEventElapsedTime(&ms, first, second));
    if (ms < 20 * (float)us / 1000 - 0.001f)
        must(CUDA_ERROR_UNKNOWN, "the time between two events");
    MUST(cuEventDestroy_v2(first));
    MUST(cuEventDestroy_v2(second));
    MUST(cuStreamDestroy_v2(stream));
}

static void do_graph(void)
{
    uint32_t us = 5;
    void *parameters[] = {&us};
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr address;
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuStreamBeginCapture_v2(stream, 2)); /* relaxed: the other threads go on with everything */
    MUST(cuMemAllocAsync(&address, 1 << 20, stream));
    MUST(cuLaunchKernel(g_spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    MUST(cuMemFreeAsync(address, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; i++)
        MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
    MUST(cuStreamDestroy_v2(stream));
}

static void *work(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    MUST(cuCtxSetCurrent(g_context));
    while (state_now_ns() < g_end_ns) {
        do_memory(&seed);
        do_mapping();
        do_stream(10);
        do_graph();
    }
    return NULL;
}

int main(int count, char **words)
{
    enum { THREADS_MAX = 64 };
    pthread_t threads[THREADS_MAX];
    CUmodule module;
    int thread_count = count == 3 ? atoi(words[2]) : 0;
    if (thread_count < 1 || thread_count > THREADS_MAX)
        return fprintf(stderr, "usage: stress SECONDS THREADS\n"), 2;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&g_context, 0, 0));
    MUST(cuModuleLoadData(&module, ".version 7.0\n.entry tenfold_spin(.param .u32 us)\n"));
    MUST(cuModuleGetFunction(&g_spin, module, "tenfold_spin"));
    g_end_ns = state_now_ns() + (int64_t)(atof(words[1]) * 1e9);
    for (int i = 0; i < thread_count; i++)
        pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < thread_count; i++)
        pthread_join(threads[i], NULL);
    MUST(cuCtxSynchronize());
    MUST(cuCtxDestroy_v2(g_context));
    const struct sim_usage *usage = &g_driver.machine.slot->usage[0];
    printf("requested %llu allocated %llu reserved %llu used %llu called %u\n", (unsigned long long)usage->requested_bytes,
           (unsigned long long)usage->allocated_bytes, (unsigned long long)usage->reserved_bytes,
           (unsigned long long)g_driver.machine.state->cards[0].used_bytes, g_called);
    return usage->requested_bytes || usage->allocated_bytes || usage->reserved_bytes || !g_called;
}
