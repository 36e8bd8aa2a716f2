/* share.c - memory that came from elsewhere: other processes (IPC handles) and other interfaces (external memory). Charged to whoever
 * made it, never to whoever opens it. Events are not shared. */
#include "heap.h"

#define IPC_MAGIC UINT64_C(0x3043504953464e54)

/* The 64 bytes of an IPC memory handle. */
struct ipc_record {
    uint64_t magic;
    uint32_t slot, generation;
    uint8_t uuid[16];
    uint64_t size_bytes, id, offset, filler;
};
_Static_assert(sizeof(struct ipc_record) == sizeof(CUipcMemHandle), "an IPC handle has 64 bytes");

CUDA_EXPORT cuIpcGetMemHandle(CUipcMemHandle *ret_handle, CUdeviceptr address)
{
    ENTER(cuIpcGetMemHandle);
    REQUIRE(ret_handle, CUDA_ERROR_INVALID_VALUE);
    struct ipc_record record = {.magic = IPC_MAGIC, .slot = g_driver.machine.slot_index, .generation = g_driver.machine.slot->generation};
    driver_lock();
    struct heap_entry *entry = heap_find_inside(address, HEAP_DEVICE);
    if (entry) {
        record.size_bytes = entry->size_bytes;
        record.id = entry->id;
        memcpy(record.uuid, g_driver.machine.state->cards[entry->card].uuid, sizeof record.uuid);
    }
    driver_unlock();
    REQUIRE(entry, CUDA_ERROR_INVALID_VALUE);
    memcpy(ret_handle, &record, sizeof record);
    return CUDA_SUCCESS;
}

static bool is_exporter_alive(const struct ipc_record *record)
{
    if (record->slot >= SIM_SLOTS_MAX)
        return false;
    state_lock(&g_driver.machine);
    const struct sim_slot *slot = &g_driver.machine.state->slots[record->slot];
    bool is_alive = slot->live && slot->generation == record->generation && state_is_slot_alive(&g_driver.machine, record->slot);
    state_unlock(&g_driver.machine);
    return is_alive;
}

/* Opened again in one process, the same memory has the same address; openings counts how often. */
static CUresult enter_ipc(const struct ipc_record *record, CUcontext context, CUdeviceptr *ret_address)
{
    void *const source = (void *)(uintptr_t)(record->id << 20 | record->slot << 2);
    struct heap_entry *known = heap_find_owner(source, HEAP_IPC);
    if (known) {
        known->openings++;
        *ret_address = known->address;
        return CUDA_SUCCESS;
    }
    const struct heap_entry entry = {.size_bytes = record->size_bytes,
                                     .context = context,
                                     .card = context->card,
                                     .kind = HEAP_IPC,
                                     .owner = source,
                                     .openings = 1};
    return heap_enter(&entry, g_driver.machine.state->memory.block_bytes, ret_address);
}

CUDA_EXPORT cuIpcOpenMemHandle_v2(CUdeviceptr *ret_address, CUipcMemHandle handle, unsigned flags)
{
    ENTER(cuIpcOpenMemHandle_v2);
    struct ipc_record record;
    CUcontext context;
    REQUIRE(ret_address && flags == 1, CUDA_ERROR_INVALID_VALUE); /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS is the only flag */
    TRY(context_require(&context));
    memcpy(&record, &handle, sizeof record);
    REQUIRE(record.magic == IPC_MAGIC, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(record.slot != g_driver.machine.slot_index || record.generation != g_driver.machine.slot->generation,
            CUDA_ERROR_INVALID_CONTEXT); /* not in the process that exported it */
    REQUIRE(is_exporter_alive(&record), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(memcmp(record.uuid, g_driver.machine.state->cards[context->card].uuid, sizeof record.uuid) == 0, CUDA_ERROR_INVALID_DEVICE);
    driver_lock();
    CUresult result = enter_ipc(&record, context, ret_address);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuIpcCloseMemHandle(CUdeviceptr address)
{
    ENTER(cuIpcCloseMemHandle);
    driver_lock();
    struct heap_entry *entry = heap_find(address, HEAP_IPC);
    const bool is_open = entry != NULL;
    if (is_open && --entry->openings == 0)
        heap_release(entry);
    driver_unlock();
    return is_open ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct CUextMemory_st {
    struct object head;
    uint64_t size_bytes;
};

/* The heads of NVIDIA's descriptors; reserved words follow. */
struct external_memory_descriptor {
    int type;
    union {
        int fd;
        struct {
            void *handle;
            const void *name;
        } win32;
    } handle;
    unsigned long long size_bytes;
    unsigned flags;
};
struct external_buffer_descriptor {
    unsigned long long offset, size_bytes;
    unsigned flags;
};

CUDA_EXPORT cuImportExternalMemory(CUexternalMemory *ret_memory, const struct external_memory_descriptor *descriptor)
{
    ENTER(cuImportExternalMemory);
    CUcontext context;
    REQUIRE(ret_memory && descriptor && descriptor->size_bytes, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(descriptor->type == 1 /* opaque file descriptor */, CUDA_ERROR_NOT_SUPPORTED);
    TRY(context_require(&context));
    CUexternalMemory memory = object_new(KIND_EXTERNAL, sizeof *memory);
    REQUIRE(memory, CUDA_ERROR_OUT_OF_MEMORY);
    memory->size_bytes = descriptor->size_bytes;
    *ret_memory = memory;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuExternalMemoryGetMappedBuffer(CUdeviceptr *ret_address, CUexternalMemory memory,
                                            const struct external_buffer_descriptor *buffer)
{
    ENTER(cuExternalMemoryGetMappedBuffer);
    CUcontext context;
    REQUIRE(ret_address && buffer && buffer->size_bytes, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(memory, KIND_EXTERNAL), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(buffer->offset <= memory->size_bytes && buffer->size_bytes <= memory->size_bytes - buffer->offset, CUDA_ERROR_INVALID_VALUE);
    TRY(context_require(&context));
    const struct heap_entry entry = {
        .size_bytes = buffer->size_bytes, .context = context, .card = context->card, .kind = HEAP_EXTERNAL, .owner = memory};
    driver_lock();
    CUresult result = heap_enter(&entry, g_driver.machine.state->memory.block_bytes, ret_address);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuDestroyExternalMemory(CUexternalMemory memory)
{
    ENTER(cuDestroyExternalMemory);
    REQUIRE(object_is(memory, KIND_EXTERNAL), CUDA_ERROR_INVALID_HANDLE);
    object_free(memory);
    return CUDA_SUCCESS;
}
