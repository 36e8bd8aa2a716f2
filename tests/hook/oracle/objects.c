/* objects.c - every kind of device memory, made and dropped (contract: objects.h). */
#include "objects.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "random.h"

#define MIB (UINT64_C(1) << 20)
#define BLOCK (2 * MIB)
#define CUDA (hand->cuda)

_Static_assert((int)KINDS <= (int)BOARD_KINDS, "a counter for every kind");

enum { TRIES = 64, FORMAT_UINT8 = 1, FORMAT_FLOAT = 0x20 };

static void note(struct hand *hand, const char *what, uint64_t bytes, CUresult result)
{
    snprintf(hand->board->seats[hand->seat].last[hand->thread], sizeof hand->board->seats[0].last[0], "%s %llu bytes: %d", what,
             (unsigned long long)bytes, result);
}

static int fail(struct hand *hand, const char *what, CUresult result)
{
    struct seat *seat = &hand->board->seats[hand->seat];
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&seat->has_failed, &none, 1))
        snprintf(seat->failure, sizeof seat->failure, "thread %u: %s gave %d", hand->thread, what, result);
    return -1;
}

static bool is_injected(struct hand *hand, CUresult result)
{
    if (!hand->board->injected_error || result != hand->board->injected_error)
        return false;
    atomic_fetch_add(&hand->board->seats[hand->seat].injected, 1);
    return true;
}

/* Refusals that an allocation may meet. */
static bool is_refusal(struct hand *hand, CUresult result)
{
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        atomic_fetch_add(&hand->board->seats[hand->seat].refusals, 1);
    return result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_NOT_SUPPORTED || is_injected(hand, result);
}

static int outcome(struct hand *hand, const char *what, uint64_t bytes, CUresult result)
{
    note(hand, what, bytes, result);
    if (result == CUDA_SUCCESS)
        return 0;
    return is_refusal(hand, result) ? 1 : fail(hand, what, result);
}

/* The same for a call whose output is not to be trusted after a failure. */
#define OUTCOME(what, bytes, output, call) ({ \
        int outcome_ = outcome(hand, what, bytes, call); \
        if (outcome_) \
            (output) = 0; \
        outcome_; })

/* A call that cannot fail but by injection; `call` is evaluated until it succeeds. */
#define UNTIL_DONE(what, call) until_done_outcome(hand, what, ({ \
        CUresult result_ = (call); \
        for (int tries_ = 0; tries_ < TRIES && result_ != CUDA_SUCCESS && is_injected(hand, result_); tries_++) \
            result_ = (call); \
        result_; }))
static int until_done_outcome(struct hand *hand, const char *what, CUresult result)
{
    note(hand, what, 0, result);
    return result == CUDA_SUCCESS ? 0 : fail(hand, what, result);
}

static uint64_t random_bytes(struct hand *hand)
{
    uint64_t dice = random_below(&hand->random, 20);
    if (random_below(&hand->random, 16) == 0) /* where the driver's rounding changes */
        return MIB - 512 + random_below(&hand->random, 1024);
    if (dice < 9)
        return 1 + random_below(&hand->random, UINT64_C(1) << (6 + random_below(&hand->random, 15)));
    if (dice < 18)
        return MIB - 2 + random_below(&hand->random, 24 * MIB);
    return dice == 18 ? BLOCK * (1 + random_below(&hand->random, 8)) : MIB - 1 + random_below(&hand->random, 256 * MIB);
}

static int make_linear(struct hand *hand, struct object *object)
{
    object->bytes = random_bytes(hand);
    if (random_below(&hand->random, 200) == 0) { /* sizes that no card has must not wrap anything */
        CUresult result = CUDA->cuMemAlloc_v2(&object->pointers[0], SIZE_MAX - random_below(&hand->random, 4096));
        return result == CUDA_SUCCESS ? fail(hand, "cuMemAlloc_v2 of 2^64 bytes", result) : OUTCOME("cuMemAlloc_v2", SIZE_MAX, object->pointers[0], result);
    }
    return OUTCOME("cuMemAlloc_v2", object->bytes, object->pointers[0], CUDA->cuMemAlloc_v2(&object->pointers[0], object->bytes));
}

static int make_pitch(struct hand *hand, struct object *object)
{
    size_t pitch = 0, width = 1 + random_below(&hand->random, 8192), rows = 1 + random_below(&hand->random, 4096);
    object->bytes = width * rows;
    return OUTCOME("cuMemAllocPitch_v2", object->bytes, object->pointers[0], CUDA->cuMemAllocPitch_v2(&object->pointers[0], &pitch, width, rows, 4));
}

static int make_managed(struct hand *hand, struct object *object)
{
    object->bytes = random_bytes(hand);
    return OUTCOME("cuMemAllocManaged", object->bytes, object->pointers[0], CUDA->cuMemAllocManaged(&object->pointers[0], object->bytes, 1));
}

/* One shape in eight lies at 1 MiB, where the driver's rounding changes. */
static bool is_boundary(struct hand *hand) { return random_below(&hand->random, 8) == 0; }

static int make_array(struct hand *hand, struct object *object)
{
    CUDA_ARRAY_DESCRIPTOR descriptor = {.width = 1 + random_below(&hand->random, 4096),
                                        .height = random_below(&hand->random, 1024),
                                        .format = FORMAT_FLOAT,
                                        .channels = 1u << random_below(&hand->random, 3)};
    if (is_boundary(hand))
        descriptor = (CUDA_ARRAY_DESCRIPTOR){.width = 4095 + random_below(&hand->random, 3), .height = 64, .format = FORMAT_FLOAT, .channels = 1};
    return OUTCOME("cuArrayCreate_v2", descriptor.width * (descriptor.height + 1) * 4 * descriptor.channels, object->handles[0],
                   CUDA->cuArrayCreate_v2((CUarray *)&object->handles[0], &descriptor));
}

static CUDA_ARRAY3D_DESCRIPTOR random_volume(struct hand *hand)
{
    if (is_boundary(hand))
        return (CUDA_ARRAY3D_DESCRIPTOR){.width = 255 + random_below(&hand->random, 3), .height = 256, .depth = 4, .format = FORMAT_UINT8, .channels = 4};
    return (CUDA_ARRAY3D_DESCRIPTOR){.width = 1 + random_below(&hand->random, 256),
                                     .height = 1 + random_below(&hand->random, 256),
                                     .depth = 1 + random_below(&hand->random, 64),
                                     .format = FORMAT_UINT8,
                                     .channels = 4};
}

static int make_array3d(struct hand *hand, struct object *object)
{
    const CUDA_ARRAY3D_DESCRIPTOR descriptor = random_volume(hand);
    return OUTCOME("cuArray3DCreate_v2", descriptor.width * descriptor.height * descriptor.depth * 4, object->handles[0],
                   CUDA->cuArray3DCreate_v2((CUarray *)&object->handles[0], &descriptor));
}

static int make_mipmap(struct hand *hand, struct object *object)
{
    const CUDA_ARRAY3D_DESCRIPTOR descriptor = random_volume(hand);
    return OUTCOME("cuMipmappedArrayCreate", descriptor.width * descriptor.height * descriptor.depth * 4, object->handles[0],
                   CUDA->cuMipmappedArrayCreate((CUmipmappedArray *)&object->handles[0], &descriptor, 1 + (unsigned)random_below(&hand->random, 4)));
}

/* Variants of a physical handle's life. */
enum { VMM_BARE, VMM_MAPPED, VMM_RELEASED_FIRST, VMM_RETAINED, VMM_IMPORTED, VMM_TWICE, VMM_VARIANTS };

static int map_physical(struct hand *hand, struct object *object, int part)
{
    const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, object->device}, .flags = 3};
    int result = OUTCOME("cuMemAddressReserve", object->bytes, object->pointers[part],
                         CUDA->cuMemAddressReserve(&object->pointers[part], object->bytes, 0, 0, 0));
    if (result == 0 && (result = outcome(hand, "cuMemMap", object->bytes, CUDA->cuMemMap(object->pointers[part], object->bytes, 0, object->physical[0], 0)))) {
        UNTIL_DONE("cuMemAddressFree", CUDA->cuMemAddressFree(object->pointers[part], object->bytes));
        object->pointers[part] = 0;
    }
    if (result == 0)
        result = outcome(hand, "cuMemSetAccess", object->bytes, CUDA->cuMemSetAccess(object->pointers[part], object->bytes, &access, 1));
    return result;
}

static int make_vmm(struct hand *hand, struct object *object)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .requested_handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, object->device}};
    object->variant = (unsigned)random_below(&hand->random, VMM_VARIANTS);
    object->bytes = BLOCK * (1 + random_below(&hand->random, 16));
    int fd = -1;
    int result = OUTCOME("cuMemCreate", object->bytes, object->physical[0], CUDA->cuMemCreate(&object->physical[0], object->bytes, &properties, 0));
    if (result == 0 && object->variant != VMM_BARE && object->variant != VMM_IMPORTED)
        result = map_physical(hand, object, 0);
    if (result == 0 && object->variant == VMM_TWICE)
        result = map_physical(hand, object, 1);
    if (result == 0 && object->variant == VMM_RELEASED_FIRST) {
        result = UNTIL_DONE("cuMemRelease", CUDA->cuMemRelease(object->physical[0]));
        object->physical[0] = 0;
    }
    if (result == 0 && object->variant == VMM_RETAINED)
        result = OUTCOME("cuMemRetainAllocationHandle", 0, object->physical[1],
                         CUDA->cuMemRetainAllocationHandle(&object->physical[1], (void *)(uintptr_t)object->pointers[0]));
    if (result == 0 && object->variant == VMM_IMPORTED)
        result = OUTCOME("cuMemExportToShareableHandle", 0, fd,
                         CUDA->cuMemExportToShareableHandle(&fd, object->physical[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    if (result == 0 && object->variant == VMM_IMPORTED)
        result = OUTCOME("cuMemImportFromShareableHandle", 0, object->physical[1],
                         CUDA->cuMemImportFromShareableHandle(&object->physical[1], (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    if (fd > 0)
        close(fd);
    return result;
}

static int drop_vmm(struct hand *hand, struct object *object)
{
    bool handles_first = random_below(&hand->random, 2);
    int result = 0;
    for (int pass = 0; pass < 2 && result == 0; pass++)
        for (int part = 0; part < PARTS && result == 0; part++) {
            if ((pass == 0) == handles_first && object->physical[part]) {
                result = UNTIL_DONE("cuMemRelease", CUDA->cuMemRelease(object->physical[part]));
                object->physical[part] = 0;
            }
            if ((pass == 0) != handles_first && object->pointers[part]) {
                result = UNTIL_DONE("cuMemUnmap", CUDA->cuMemUnmap(object->pointers[part], object->bytes));
                if (result == 0)
                    result = UNTIL_DONE("cuMemAddressFree", CUDA->cuMemAddressFree(object->pointers[part], object->bytes));
                object->pointers[part] = 0;
            }
        }
    return result;
}

static CUstream random_stream(struct hand *hand, CUdevice device)
{
    uint64_t dice = random_below(&hand->random, 3);
    return dice == 0 ? NULL : dice == 1 ? CU_STREAM_PER_THREAD : hand->streams[device];
}

static int make_async(struct hand *hand, struct object *object)
{
    CUstream stream = random_stream(hand, object->device);
    bool is_per_thread = CUDA->cuMemAllocAsync_ptsz && random_below(&hand->random, 2);
    object->bytes = random_bytes(hand);
    return OUTCOME(is_per_thread ? "cuMemAllocAsync_ptsz" : "cuMemAllocAsync", object->bytes, object->pointers[0],
                   is_per_thread ? CUDA->cuMemAllocAsync_ptsz(&object->pointers[0], object->bytes, stream)
                                 : CUDA->cuMemAllocAsync(&object->pointers[0], object->bytes, stream));
}

static int free_async(struct hand *hand, CUdevice device, CUdeviceptr pointer)
{
    CUstream stream = random_stream(hand, device);
    uint64_t dice = random_below(&hand->random, 3);
    if (dice == 0)
        return UNTIL_DONE("cuMemFree_v2 (stream-ordered)", CUDA->cuMemFree_v2(pointer));
    if (dice == 1 && CUDA->cuMemFreeAsync_ptsz)
        return UNTIL_DONE("cuMemFreeAsync_ptsz", CUDA->cuMemFreeAsync_ptsz(pointer, stream));
    return UNTIL_DONE("cuMemFreeAsync", CUDA->cuMemFreeAsync(pointer, stream));
}

static int make_pool(struct hand *hand, struct object *object)
{
    CUmemPoolProps properties = {.allocation_type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, object->device}};
    uint64_t threshold = random_below(&hand->random, 2) ? UINT64_MAX : 0;
    int result = OUTCOME("cuMemPoolCreate", 0, object->handles[0], CUDA->cuMemPoolCreate((CUmemoryPool *)&object->handles[0], &properties));
    if (result)
        return result;
    result = UNTIL_DONE("cuMemPoolSetAttribute", CUDA->cuMemPoolSetAttribute(object->handles[0], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    for (int part = 0; part < PARTS && result == 0; part++) {
        object->bytes = random_bytes(hand);
        result = OUTCOME("cuMemAllocFromPoolAsync", object->bytes, object->pointers[part],
                         CUDA->cuMemAllocFromPoolAsync(&object->pointers[part], object->bytes, object->handles[0], random_stream(hand, object->device)));
    }
    return result;
}

static int drop_pool(struct hand *hand, struct object *object)
{
    int result = 0;
    for (int part = 0; part < PARTS && result == 0; part++)
        if (object->pointers[part]) {
            result = free_async(hand, object->device, object->pointers[part]);
            object->pointers[part] = 0;
        }
    if (result == 0 && random_below(&hand->random, 2))
        result = UNTIL_DONE("cuCtxSynchronize", CUDA->cuCtxSynchronize());
    if (result == 0 && random_below(&hand->random, 2))
        result = UNTIL_DONE("cuMemPoolTrimTo", CUDA->cuMemPoolTrimTo(object->handles[0], 0));
    return result ? result : UNTIL_DONE("cuMemPoolDestroy", CUDA->cuMemPoolDestroy(object->handles[0]));
}

/* handles: 0 the graph, 1 its executable form. The graph's block lives from the launch to the free, by whichever way. */
enum { GRAPH_FREES_ITSELF, GRAPH_FREED_OUTSIDE, GRAPH_LAUNCHED_TWICE, GRAPH_CAPTURED, GRAPH_CAPTURED_OPEN, GRAPH_VARIANTS };

static int add_nodes(struct hand *hand, struct object *object)
{
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
        .pool_props = {.allocation_type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, object->device}},
        .size_bytes = object->bytes};
    CUgraphNode node, free_node;
    int result = OUTCOME("cuGraphCreate", 0, object->handles[0], CUDA->cuGraphCreate((CUgraph *)&object->handles[0], 0));
    if (result == 0)
        result = outcome(hand, "cuGraphAddMemAllocNode", object->bytes, CUDA->cuGraphAddMemAllocNode(&node, object->handles[0], NULL, 0, &parameters));
    object->pointers[1] = parameters.address;
    if (result == 0 && object->variant != GRAPH_FREED_OUTSIDE)
        result = outcome(hand, "cuGraphAddMemFreeNode", 0, CUDA->cuGraphAddMemFreeNode(&free_node, object->handles[0], &node, 1, parameters.address));
    return result;
}

/* The same graph, recorded from a stream of its own; a failure inside ends the recording. */
static int capture_nodes(struct hand *hand, struct object *object)
{
    CUstream stream = NULL;
    CUdeviceptr block = 0;
    int result = OUTCOME("cuStreamCreate", 0, stream, CUDA->cuStreamCreate(&stream, 1));
    if (result == 0)
        result = outcome(hand, "cuStreamBeginCapture_v2", 0, CUDA->cuStreamBeginCapture_v2(stream, 1));
    bool is_capturing = result == 0;
    if (result == 0)
        result = OUTCOME("cuMemAllocAsync (captured)", object->bytes, block, CUDA->cuMemAllocAsync(&block, object->bytes, stream));
    if (result == 0 && object->variant == GRAPH_CAPTURED)
        result = outcome(hand, "cuMemFreeAsync (captured)", 0, CUDA->cuMemFreeAsync(block, stream));
    if (is_capturing) {
        int ended = UNTIL_DONE("cuStreamEndCapture", CUDA->cuStreamEndCapture(stream, (CUgraph *)&object->handles[0]));
        result = ended ? ended : result;
    }
    if (stream && UNTIL_DONE("cuStreamDestroy_v2", CUDA->cuStreamDestroy_v2(stream)))
        return -1;
    object->pointers[1] = block;
    return result;
}

static int make_graph(struct hand *hand, struct object *object)
{
    CUstream stream = hand->streams[object->device];
    object->variant = (unsigned)random_below(&hand->random, GRAPH_VARIANTS);
    object->bytes = random_bytes(hand);
    bool is_captured = object->variant == GRAPH_CAPTURED || object->variant == GRAPH_CAPTURED_OPEN;
    bool stays = object->variant == GRAPH_FREED_OUTSIDE || object->variant == GRAPH_CAPTURED_OPEN;
    int result = is_captured ? capture_nodes(hand, object) : add_nodes(hand, object);
    CUdeviceptr block = object->pointers[1];
    object->pointers[1] = 0;
    if (result == 0)
        result = OUTCOME("cuGraphInstantiateWithFlags", object->bytes, object->handles[1],
                         CUDA->cuGraphInstantiateWithFlags((CUgraphExec *)&object->handles[1], object->handles[0], 0));
    for (int launches = object->variant == GRAPH_LAUNCHED_TWICE ? 2 : 1; launches > 0 && result == 0; launches--)
        result = outcome(hand, "cuGraphLaunch", object->bytes, CUDA->cuGraphLaunch(object->handles[1], stream));
    if (result == 0 && stays)
        object->pointers[0] = block;
    if (result == 0)
        result = UNTIL_DONE("cuStreamSynchronize", CUDA->cuStreamSynchronize(stream));
    return result;
}

static int drop_graph(struct hand *hand, struct object *object)
{
    int result = 0;
    if (object->pointers[0])
        result = free_async(hand, object->device, object->pointers[0]);
    if (result == 0)
        result = UNTIL_DONE("cuCtxSynchronize", CUDA->cuCtxSynchronize());
    if (result == 0 && object->handles[1])
        result = UNTIL_DONE("cuGraphExecDestroy", CUDA->cuGraphExecDestroy(object->handles[1]));
    if (result == 0 && object->handles[0])
        result = UNTIL_DONE("cuGraphDestroy", CUDA->cuGraphDestroy(object->handles[0]));
    if (result == 0 && random_below(&hand->random, 2))
        result = UNTIL_DONE("cuDeviceGraphMemTrim", CUDA->cuDeviceGraphMemTrim(object->device));
    return result;
}

/* A context of its own with blocks in it, which only its destruction gives back. */
static int make_context(struct hand *hand, struct object *object)
{
    CUcontext popped;
    int result = OUTCOME("cuCtxCreate_v2", 0, object->handles[0], CUDA->cuCtxCreate_v2((CUcontext *)&object->handles[0], 0, object->device));
    if (result)
        return result;
    for (int part = 0; part < PARTS && result == 0; part++) {
        object->bytes = random_bytes(hand);
        result = outcome(hand, "cuMemAlloc_v2 (in a context of its own)", object->bytes, CUDA->cuMemAlloc_v2(&object->pointers[part], object->bytes));
    }
    int is_stacked = UNTIL_DONE("cuCtxPopCurrent_v2", CUDA->cuCtxPopCurrent_v2(&popped)); /* creation put it on this thread's stack */
    return is_stacked ? is_stacked : result;
}

static int make_host(struct hand *hand, struct object *object)
{
    object->bytes = 1 + random_below(&hand->random, 4 * MIB);
    return OUTCOME("cuMemAllocHost_v2", object->bytes, object->handles[0], CUDA->cuMemAllocHost_v2(&object->handles[0], object->bytes));
}

/* Memory of another interface (here: any file), mapped: charged to nobody, and its buffer is freed like a block of ours. */
static int make_external(struct hand *hand, struct object *object)
{
    object->bytes = BLOCK * (1 + random_below(&hand->random, 8));
    struct cuda_external_memory memory = {.type = 1, .size_bytes = object->bytes};
    const struct cuda_external_buffer buffer = {.size_bytes = object->bytes};
    memory.handle.fd = memfd_create("tenfold-external", MFD_CLOEXEC);
    if (memory.handle.fd < 0)
        return 1;
    int result = OUTCOME("cuImportExternalMemory", object->bytes, object->handles[0],
                         CUDA->cuImportExternalMemory((CUexternalMemory *)&object->handles[0], &memory));
    close(memory.handle.fd);
    if (result == 0)
        result = OUTCOME("cuExternalMemoryGetMappedBuffer", object->bytes, object->pointers[0],
                         CUDA->cuExternalMemoryGetMappedBuffer(&object->pointers[0], object->handles[0], &buffer));
    return result;
}

static int drop_external(struct hand *hand, struct object *object)
{
    int result = object->pointers[0] ? UNTIL_DONE("cuMemFree_v2 (external)", CUDA->cuMemFree_v2(object->pointers[0])) : 0;
    if (result == 0 && object->handles[0])
        result = UNTIL_DONE("cuDestroyExternalMemory", CUDA->cuDestroyExternalMemory(object->handles[0]));
    return result;
}

static void publish(struct hand *hand, CUdeviceptr pointer)
{
    struct offer *offer = &hand->board->offers[random_below(&hand->random, OFFERS)];
    CUipcMemHandle handle;
    uint32_t sequence = atomic_load(&offer->sequence);
    if (sequence % 2 || CUDA->cuIpcGetMemHandle(&handle, pointer) != CUDA_SUCCESS || !atomic_compare_exchange_strong(&offer->sequence, &sequence, sequence + 1))
        return;
    offer->seat = hand->seat;
    offer->handle = handle;
    atomic_store(&offer->sequence, sequence + 2);
}

/* Publishes a block of its own, or opens another process's. The importer is charged nothing. What was published may be gone by now, so
 * any error of the opening is fine. */
static int make_ipc(struct hand *hand, struct object *object)
{
    struct offer *offer = &hand->board->offers[random_below(&hand->random, OFFERS)];
    uint32_t sequence = atomic_load(&offer->sequence);
    struct offer seen = {.seat = offer->seat, .handle = offer->handle};
    bool is_whole = sequence && sequence % 2 == 0 && atomic_load(&offer->sequence) == sequence;
    if (is_whole && seen.seat != hand->seat && random_below(&hand->random, 2)) {
        CUresult result = CUDA->cuIpcOpenMemHandle_v2(&object->pointers[0], seen.handle, 1);
        note(hand, "cuIpcOpenMemHandle_v2", 0, result);
        object->variant = 1;
        return result == CUDA_SUCCESS ? 0 : 1;
    }
    object->bytes = BLOCK;
    int result = OUTCOME("cuMemAlloc_v2 (to be shared)", BLOCK, object->pointers[0], CUDA->cuMemAlloc_v2(&object->pointers[0], BLOCK));
    if (result == 0)
        publish(hand, object->pointers[0]);
    return result;
}

/* Holds memory that no call tells of, where the machine's model gives modules any. */
static int make_module(struct hand *hand, struct object *object)
{
    return OUTCOME("cuModuleLoadData", 0, object->handles[0], CUDA->cuModuleLoadData((CUmodule *)&object->handles[0], cuda_spin_ptx));
}

bool object_is_possible(const struct cuda_api *cuda, enum kind kind)
{
    switch (kind) {
    case KIND_VMM:
        return cuda->cuMemCreate && cuda->cuMemRetainAllocationHandle; /* CUDA 10.2, 11.0 */
    case KIND_ASYNC:
    case KIND_POOL:
        return cuda->cuMemAllocAsync && cuda->cuMemPoolCreate; /* 11.2 */
    case KIND_GRAPH:
        return cuda->cuGraphAddMemAllocNode && cuda->cuGraphInstantiateWithFlags; /* 11.4 */
    case KIND_IPC:
        return cuda->cuIpcOpenMemHandle_v2; /* 11.0 */
    case KIND_EXTERNAL:
        return cuda->cuImportExternalMemory; /* 10.0 */
    default:
        return true;
    }
}

static int drop_present(struct hand *hand, struct object *object)
{
    switch (object->kind) {
    case KIND_LINEAR:
    case KIND_PITCH:
    case KIND_MANAGED:
        return object->pointers[0] ? UNTIL_DONE("cuMemFree_v2", CUDA->cuMemFree_v2(object->pointers[0])) : 0;
    case KIND_ARRAY:
    case KIND_ARRAY3D:
        return object->handles[0] ? UNTIL_DONE("cuArrayDestroy", CUDA->cuArrayDestroy(object->handles[0])) : 0;
    case KIND_MIPMAP:
        return object->handles[0] ? UNTIL_DONE("cuMipmappedArrayDestroy", CUDA->cuMipmappedArrayDestroy(object->handles[0])) : 0;
    case KIND_VMM:
        return drop_vmm(hand, object);
    case KIND_ASYNC:
        return object->pointers[0] ? free_async(hand, object->device, object->pointers[0]) : 0;
    case KIND_POOL:
        return object->handles[0] ? drop_pool(hand, object) : 0;
    case KIND_GRAPH:
        return drop_graph(hand, object);
    case KIND_CONTEXT:
        return object->handles[0] ? UNTIL_DONE("cuCtxDestroy_v2", CUDA->cuCtxDestroy_v2(object->handles[0])) : 0;
    case KIND_IPC:
        if (!object->pointers[0])
            return 0;
        return object->variant ? UNTIL_DONE("cuIpcCloseMemHandle", CUDA->cuIpcCloseMemHandle(object->pointers[0]))
                               : UNTIL_DONE("cuMemFree_v2 (shared)", CUDA->cuMemFree_v2(object->pointers[0]));
    case KIND_HOST:
        return object->handles[0] ? UNTIL_DONE("cuMemFreeHost", CUDA->cuMemFreeHost(object->handles[0])) : 0;
    case KIND_EXTERNAL:
        return drop_external(hand, object);
    case KIND_MODULE:
        return object->handles[0] ? UNTIL_DONE("cuModuleUnload", CUDA->cuModuleUnload(object->handles[0])) : 0;
    default:
        return 0;
    }
}

int object_drop(struct hand *hand, struct object *object)
{
    int result = UNTIL_DONE("cuCtxSetCurrent", CUDA->cuCtxSetCurrent(hand->contexts[object->device]));
    if (result == 0)
        result = drop_present(hand, object);
    memset(object, 0, sizeof *object);
    return result;
}

int object_make(struct hand *hand, enum kind kind, struct object *ret_object)
{
    static int (*const makers[KINDS])(struct hand *, struct object *) = {
        make_linear, make_pitch,  make_managed, make_array,   make_array3d, make_mipmap, make_vmm,
        make_async,  make_pool,   make_graph,   make_context, make_ipc,     make_host,  make_external,
        make_module};
    struct object object = {.kind = kind, .device = (CUdevice)random_below(&hand->random, hand->board->devices)};
    int result = UNTIL_DONE("cuCtxSetCurrent", CUDA->cuCtxSetCurrent(hand->contexts[object.device]));
    if (result == 0)
        result = makers[kind](hand, &object);
    if (result == 0) {
        *ret_object = object;
        atomic_fetch_add_explicit(&hand->board->seats[hand->seat].made[kind], 1, memory_order_relaxed);
    } else if (result == 1 && object_drop(hand, &object) < 0) {
        return -1;
    }
    return result;
}
