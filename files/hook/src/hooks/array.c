/* array.c - arrays and mipmapped arrays.
 *
 * Promise: an array is charged with what its layout takes; sparse and deferred arrays own nothing (the handles mapped into them are charged
 *          by hooks/vmm.c). The size is computed from the descriptor; where the driver tells it, the driver's number counts.
 * Next:    reservation.c, tiles.c. */
#include "driver/nested.h"
#include "hooks/hooks.h"
#include "memory/charge.h"
#include "memory/tiles.h"

/* Bytes of one channel (or, for block formats, of a 4 x 4 block); CUarray_format by number, from the public headers. */
static uint64_t format_bytes(int format, uint32_t *ret_block)
{
    *ret_block = 1;
    switch (format) {
    case 0x01: case 0x08: case 0xc0: case 0xc3: return 1; /* 8-bit integers, normalised forms */
    case 0x02: case 0x09: case 0x10: case 0xc6: case 0xc9: return 2; /* 16-bit, half */
    case 0x03: case 0x0a: case 0x20: return 4;
    case 0x91: case 0x92: case 0x97: case 0x98: *ret_block = 4; return 8; /* BC1, BC4 */
    case 0x93: case 0x94: case 0x95: case 0x96: case 0x99: case 0x9a: case 0x9b: case 0x9c: case 0x9d: case 0x9e: *ret_block = 4; return 16;
    default: return 4; /* formats of later drivers: none is wider per channel */
    }
}

static uint64_t at_least_one(uint64_t value) { return value ? value : 1; }

static uint64_t level_bytes(uint64_t width, uint64_t height, uint64_t depth, int format, uint32_t channels)
{
    uint32_t block;
    uint64_t channel_bytes = format_bytes(format, &block), bytes;
    width = (at_least_one(width) + block - 1) / block;
    height = (at_least_one(height) + block - 1) / block;
    if (__builtin_mul_overflow(width, channel_bytes * at_least_one(block > 1 ? 1 : channels), &bytes) || __builtin_mul_overflow(bytes, height, &bytes)
        || __builtin_mul_overflow(bytes, at_least_one(depth), &bytes))
        return UINT64_MAX;
    return bytes;
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned int levels)
{
    uint64_t sum = 0;
    if (array->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    for (unsigned int level = 0; level < levels && level < 64; level++) {
        /* of a layered array (flag 1) the depth counts layers and does not shrink */
        uint64_t depth = array->flags & 1 ? array->depth : array->depth >> level;
        uint64_t bytes = level_bytes(array->width >> level, array->height >> level, depth, array->format, array->channels);
        if (__builtin_add_overflow(sum, bytes, &sum))
            return UINT64_MAX;
        if (!(array->width >> level) && !(array->height >> level))
            break;
    }
    return tf_memory_rounded(sum);
}

/* Some drivers tell the size of any array, others (by their documentation) only of deferred ones, which own nothing. */
static CUresult adjust(const struct tf_cuda *cuda, struct tf_reservation *reservation, enum tf_kind kind, void *handle)
{
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {.size = 0};
    CUdevice device;
    CUresult result = -1;
    if (reservation->gpu < 0 || reservation->bytes == 0 || !tf_device_ordinal(cuda, &device))
        return CUDA_SUCCESS;
    if (kind == TF_KIND_ARRAY && cuda->cuArrayGetMemoryRequirements)
        result = cuda->cuArrayGetMemoryRequirements(&needs, handle, device);
    else if (kind == TF_KIND_MIPMAP && cuda->cuMipmappedArrayGetMemoryRequirements)
        result = cuda->cuMipmappedArrayGetMemoryRequirements(&needs, handle, device);
    return result == CUDA_SUCCESS && needs.size ? tf_memory_adjust(reservation, needs.size) : CUDA_SUCCESS;
}

static CUresult conclude(const struct tf_cuda *cuda, CUresult result, struct tf_reservation *reservation, enum tf_kind kind, void *handle)
{
    if (result != CUDA_SUCCESS) {
        tf_memory_undo(reservation);
        return result;
    }
    result = adjust(cuda, reservation, kind, handle);
    if (result == CUDA_SUCCESS)
        result = tf_memory_keep(reservation, kind, (uint64_t)(uintptr_t)handle);
    if (result == CUDA_SUCCESS)
        return result;
    if (kind == TF_KIND_ARRAY)
        cuda->cuArrayDestroy(handle);
    else
        cuda->cuMipmappedArrayDestroy(handle);
    tf_memory_undo(reservation);
    return result;
}

#define CREATE(symbol, kind, bytes, arguments) \
    TF_ENTER(symbol); \
    TF_CALL_CHARGED(symbol, array && descriptor, bytes, arguments); \
    return conclude(cuda, result, &reservation, kind, result == CUDA_SUCCESS ? (void *)*array : NULL)

#define AS_3D(depth_, flags_) \
    (&(CUDA_ARRAY3D_DESCRIPTOR){descriptor->width, descriptor->height, depth_, descriptor->format, descriptor->channels, flags_})

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor)
{
    CREATE(cuArrayCreate, TF_KIND_ARRAY, array_bytes(AS_3D(0, 0), 1), (array, descriptor));
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    CREATE(cuArrayCreate_v2, TF_KIND_ARRAY, array_bytes(AS_3D(0, 0), 1), (array, descriptor));
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor)
{
    CREATE(cuArray3DCreate, TF_KIND_ARRAY, array_bytes(AS_3D(descriptor->depth, descriptor->flags), 1), (array, descriptor));
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    CREATE(cuArray3DCreate_v2, TF_KIND_ARRAY, array_bytes(descriptor, 1), (array, descriptor));
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels)
{
    CREATE(cuMipmappedArrayCreate, TF_KIND_MIPMAP, array_bytes(descriptor, levels), (array, descriptor, levels));
}

#define DESTROY(symbol, kind) \
    TF_ENTER(symbol); \
    struct tf_entry entry; \
    tf_container(); \
    bool is_ours = !tf_is_nested() && tf_ledger_take(kind, (uint64_t)(uintptr_t)array, &entry); \
    struct tf_tiles *tiles = tf_is_nested() ? NULL : tf_tiles_take(array); \
    CUresult result = TF_NESTED(cuda->symbol(array)); \
    tf_tiles_conclude(tiles, result == CUDA_SUCCESS); \
    return tf_conclude_free(result, is_ours, &entry)

CUresult cuArrayDestroy(CUarray array) { DESTROY(cuArrayDestroy, TF_KIND_ARRAY); }
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) { DESTROY(cuMipmappedArrayDestroy, TF_KIND_MIPMAP); }
