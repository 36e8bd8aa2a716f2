/* inside.c - the whole hook linked into one program, so that a sanitizer sees every access of it: threads that allocate every kind of memory,
 * launch under a limit, wait, make and destroy contexts, and forked children that do the same.
 *
 * Arguments: threads, operations per thread. Prints "used BYTES" of the first card at the end: it must be 0. */
#include "slice/account.h"
#include "slice/container.h"
#include "hooks/hooks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Not hooked, so the driver's own. */
CUresult cuInit(unsigned int flags);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuModuleLoadData(void **module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, void *module, const char *name);
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr wish, uint64_t flags);
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes);
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUdeviceptr pointer);

static const char spin_ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry tenfold_spin(.param .u32 us)\n{\nret;\n}\n";

static CUfunction spin;
static CUcontext primary;
static unsigned int operations;

static void linear(unsigned int random)
{
    CUdeviceptr pointer;
    if (cuMemAlloc_v2(&pointer, 1 + random % (4u << 20)) == CUDA_SUCCESS)
        cuMemFree_v2(pointer);
}

static void pitched(unsigned int random)
{
    CUdeviceptr pointer;
    size_t pitch;
    if (cuMemAllocPitch_v2(&pointer, &pitch, 1 + random % 4096, 1 + random % 512, 4) == CUDA_SUCCESS)
        cuMemFree_v2(pointer);
}

static void stream_ordered(unsigned int random)
{
    CUdeviceptr pointer;
    if (cuMemAllocAsync(&pointer, 1 + random % (8u << 20), NULL) == CUDA_SUCCESS)
        cuMemFreeAsync(pointer, NULL);
    if (random % 8 == 0)
        cuStreamSynchronize(NULL);
}

static void array(unsigned int random)
{
    CUarray handle;
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {1 + random % 1024, 1 + random % 64, 0, 0x20, 1, 0};
    if (cuArray3DCreate_v2(&handle, &descriptor) == CUDA_SUCCESS)
        cuArrayDestroy(handle);
}

static void physical(unsigned int random)
{
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr address = 0;
    CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    size_t bytes = (1 + random % 3) * (2u << 20);
    if (cuMemCreate(&handle, bytes, &properties, 0) != CUDA_SUCCESS)
        return;
    if (cuMemAddressReserve(&address, bytes, 0, 0, 0) == CUDA_SUCCESS && cuMemMap(address, bytes, 0, handle, 0) == CUDA_SUCCESS) {
        if (cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)address) == CUDA_SUCCESS)
            cuMemRelease(again);
        cuMemUnmap(address, bytes);
    }
    cuMemRelease(handle);
    if (address)
        cuMemAddressFree(address, bytes);
}

static void graph(unsigned int random)
{
    CUgraph handle;
    CUgraphExec executable;
    CUgraphNode allocation, release;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.pool = {.alloc_type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytes = 1 + random % (4u << 20)};
    if (cuGraphCreate(&handle, 0) != CUDA_SUCCESS)
        return;
    if (cuGraphAddMemAllocNode(&allocation, handle, NULL, 0, &parameters) == CUDA_SUCCESS
        && cuGraphAddMemFreeNode(&release, handle, &allocation, 1, parameters.pointer) == CUDA_SUCCESS
        && cuGraphInstantiateWithFlags(&executable, handle, 0) == CUDA_SUCCESS) {
        cuGraphLaunch(executable, NULL);
        cuStreamSynchronize(NULL);
        cuGraphExecDestroy(executable);
    }
    cuGraphDestroy(handle);
    cuDeviceGraphMemTrim(0);
}

static void launch(unsigned int random)
{
    unsigned int us = 1 + random % 40;
    void *parameters[] = {&us};
    cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    if (random % 4 == 0)
        cuCtxSynchronize();
}

static void own_context(unsigned int random)
{
    CUcontext context;
    CUdeviceptr pointer;
    if (cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS)
        return;
    cuMemAlloc_v2(&pointer, 1 + random % 65536);
    cuCtxDestroy_v2(context);
    cuCtxSetCurrent(primary);
}

/* Others hold the primary context, too: each release may be the end of it, and is not. */
static void reference(unsigned int random)
{
    CUcontext context;
    if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS)
        return;
    launch(random);
    cuDevicePrimaryCtxRelease_v2(0);
}

static void look(unsigned int random)
{
    size_t free_bytes, total_bytes;
    (void)random;
    if (cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS || free_bytes > total_bytes)
        abort();
}

static void *work(void *argument)
{
    static void (*const kinds[])(unsigned int) = {linear, linear, pitched, stream_ordered, array, physical, graph, launch, launch, own_context,
                                                 reference, look};
    unsigned int seed = (unsigned int)(uintptr_t)argument;
    cuCtxSetCurrent(primary);
    for (unsigned int index = 0; index < operations; index++) {
        unsigned int random = (unsigned int)rand_r(&seed);
        kinds[random % (sizeof kinds / sizeof *kinds)](random >> 4);
    }
    return NULL;
}

static int start(void)
{
    void *module;
    return cuInit(0) || cuDevicePrimaryCtxRetain(&primary, 0) || cuCtxSetCurrent(primary) || cuModuleLoadData(&module, spin_ptx)
        || cuModuleGetFunction(&spin, module, "tenfold_spin");
}

static int run(unsigned int threads)
{
    pthread_t workers[64];
    if (start())
        return 1;
    for (unsigned int index = 0; index < threads && index < 64; index++)
        pthread_create(&workers[index], NULL, work, (void *)(uintptr_t)(index + 1));
    for (unsigned int index = 0; index < threads && index < 64; index++)
        pthread_join(workers[index], NULL);
    cuCtxSynchronize();
    size_t free_bytes, total_bytes;
    return cuMemGetInfo_v2(&free_bytes, &total_bytes); /* pools shrink at the wait; this notices */
}

int main(int argc, char **argv)
{
    unsigned int threads = argc > 1 ? (unsigned int)atoi(argv[1]) : 4;
    operations = argc > 2 ? (unsigned int)atoi(argv[2]) : 200;
    pid_t child = fork();
    int result = run(threads), status = 0;
    if (child == 0)
        _exit(result);
    waitpid(child, &status, 0);
    usleep(600000); /* at rest, overhead is measured */
    struct tf_container *container = tf_container();
    size_t free_bytes, total_bytes;
    cuMemGetInfo_v2(&free_bytes, &total_bytes);
    uint64_t overhead = __atomic_load_n(&container->state->slots[container->slot].overhead_bytes, __ATOMIC_RELAXED); /* never above what is charged */
    printf("used %llu\n", (unsigned long long)(tf_account_slot_used(container->state, container->slot, 0) - overhead));
    return result ? result : status;
}
