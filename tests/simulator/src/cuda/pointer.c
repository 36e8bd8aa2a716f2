/* pointer.c - what the driver says about an address: cuPointerGetAttribute and relatives, over heap.h. */
#include "heap.h"

static bool is_on_host(const struct heap_entry *entry)
{
    return entry->kind == HEAP_HOST || entry->kind == HEAP_REGISTERED;
}

static int ordinal_of(const struct heap_entry *entry)
{
    for (CUdevice device = 0; device < driver_device_count(); device++)
        if (driver_card_index(device) == entry->card)
            return device;
    return -2; /* what the driver answers for memory of no device */
}

/* Writes one attribute. Unknown address: NULL entry, for which only some attributes have an answer. */
static CUresult write_attribute(void *ret_value, int attribute, const struct heap_entry *entry, CUdeviceptr address)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)ret_value = entry->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)ret_value = is_on_host(entry) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)ret_value = address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        REQUIRE(is_on_host(entry) || entry->kind == HEAP_MANAGED, CUDA_ERROR_INVALID_VALUE);
        *(void **)ret_value = (void *)(uintptr_t)address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(unsigned *)ret_value = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)ret_value = entry->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)ret_value = entry->kind == HEAP_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)ret_value = ordinal_of(entry);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)ret_value = entry->kind == HEAP_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)ret_value = entry->address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)ret_value = entry->size_bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned char *)ret_value = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)ret_value = entry->kind == HEAP_MAPPING ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)ret_value = entry->kind == HEAP_POOL ? entry->owner : NULL;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUDA_EXPORT cuPointerGetAttribute(void *ret_value, int attribute, CUdeviceptr address)
{
    ENTER(cuPointerGetAttribute);
    REQUIRE(ret_value, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    struct heap_entry *entry = heap_find_inside(address, ~(uint32_t)(HEAP_RANGE | HEAP_ARRAY));
    CUresult result = entry ? write_attribute(ret_value, attribute, entry, address) : (CUresult)CUDA_ERROR_INVALID_VALUE;
    driver_unlock();
    return result;
}

/* An address that nobody allocated is no error here: each attribute reads as empty, except the ordinal, which reads -2. */
CUDA_EXPORT cuPointerGetAttributes(unsigned count, int *attributes, void **ret_values, CUdeviceptr address)
{
    ENTER(cuPointerGetAttributes);
    REQUIRE(count && attributes && ret_values, CUDA_ERROR_INVALID_VALUE);
    static const CUdeviceptr nothing = 0;
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    struct heap_entry *entry = heap_find_inside(address, ~(uint32_t)(HEAP_RANGE | HEAP_ARRAY));
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        if (entry) {
            CUresult one = write_attribute(ret_values[i], attributes[i], entry, address);
            result = one == CUDA_ERROR_NOT_SUPPORTED ? one : CUDA_SUCCESS;
        } else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            *(int *)ret_values[i] = -2;
        } else if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED ||
                   attributes[i] == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
            memcpy(ret_values[i], &nothing, sizeof(unsigned));
        } else {
            memcpy(ret_values[i], &nothing, attributes[i] == CU_POINTER_ATTRIBUTE_MAPPED ? 1 : sizeof nothing);
        }
    }
    driver_unlock();
    return result;
}

CUDA_EXPORT cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address)
{
    ENTER(cuPointerSetAttribute);
    REQUIRE(value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    bool is_known = heap_find_inside(address, ~(uint32_t)(HEAP_RANGE | HEAP_ARRAY));
    driver_unlock();
    return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
