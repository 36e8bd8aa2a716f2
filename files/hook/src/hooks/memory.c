/* memory.c - linear device memory: cuMemAlloc, pitched, managed, and their frees.
 *
 * Promise: the bytes are reserved before the driver is asked and given back after it let go, exactly once; a refusal is
 *          CUDA_ERROR_OUT_OF_MEMORY; a pointer that we did not see allocated goes to the driver untouched.
 * Next:    reservation.c charges; hooks/array.c, hooks/vmm.c and hooks/pool.c for the other kinds. */
#include "driver/nested.h"
#include "hooks/hooks.h"
#include "memory/charge.h"
#include "memory/overhead.h"
#include "memory/pools.h"

/* After the driver's answer: into the ledger, or everything back. */
static CUresult conclude(const struct tf_cuda *cuda, CUresult result, const struct tf_reservation *reservation, CUdeviceptr pointer)
{
    if (result != CUDA_SUCCESS) {
        tf_memory_undo(reservation);
        return result;
    }
    result = tf_memory_keep(reservation, TF_KIND_POINTER, pointer);
    if (TF_LIKELY(result == CUDA_SUCCESS))
        return result;
    cuda->cuMemFree_v2(pointer);
    tf_memory_undo(reservation);
    return result;
}

#define ALLOCATE(symbol) \
    TF_ENTER(symbol); \
    TF_CALL_CHARGED(symbol, pointer, tf_memory_rounded(bytes), (pointer, bytes)); \
    return conclude(cuda, result, &reservation, result == CUDA_SUCCESS ? *pointer : 0)

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) { ALLOCATE(cuMemAlloc_v2); }
CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes) { ALLOCATE(cuMemAlloc); }

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    TF_ENTER(cuMemAllocManaged);
    if (!pointer || tf_is_nested())
        return cuda->cuMemAllocManaged(pointer, bytes, flags);
    struct tf_reservation reservation;
    CUresult result = tf_reserve_here(cuda, tf_memory_rounded(bytes), &reservation);
    if (result != CUDA_SUCCESS)
        return result;
    reservation.is_managed = true;
    if (reservation.gpu >= 0)
        tf_overhead_managed(reservation.gpu, (int64_t)reservation.bytes);
    result = TF_NESTED(cuda->cuMemAllocManaged(pointer, bytes, flags));
    return conclude(cuda, result, &reservation, result == CUDA_SUCCESS ? *pointer : 0);
}

/* Rows are padded to a multiple that the driver chooses; 512 bytes is the guess that the reservation starts with. */
static uint64_t pitched_bytes(uint64_t pitch_bytes, uint64_t rows)
{
    if (rows && pitch_bytes > UINT64_MAX / rows)
        return UINT64_MAX;
    return tf_memory_rounded(pitch_bytes * rows);
}

static uint64_t guessed_pitch(uint64_t width_bytes) { return width_bytes > UINT64_MAX - 511 ? UINT64_MAX : (width_bytes + 511) / 512 * 512; }

#define ALLOCATE_PITCHED(symbol) \
    TF_ENTER(symbol); \
    TF_CALL_CHARGED(symbol, pointer && pitch, pitched_bytes(guessed_pitch(width_bytes), height), (pointer, pitch, width_bytes, height, element_bytes)); \
    if (result == CUDA_SUCCESS && tf_memory_adjust(&reservation, pitched_bytes(*pitch, height)) != CUDA_SUCCESS) { \
        cuda->cuMemFree_v2(*pointer); \
        result = CUDA_ERROR_OUT_OF_MEMORY; \
    } \
    return conclude(cuda, result, &reservation, result == CUDA_SUCCESS ? *pointer : 0)

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width_bytes, size_t height, unsigned int element_bytes)
{
    ALLOCATE_PITCHED(cuMemAllocPitch_v2);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width_bytes, unsigned int height, unsigned int element_bytes)
{
    ALLOCATE_PITCHED(cuMemAllocPitch);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    TF_ENTER(cuMemFree_v2);
    if (tf_is_nested())
        return cuda->cuMemFree_v2(pointer);
    struct tf_entry entry, block;
    tf_ledger_expect(TF_KIND_POINTER, pointer);
    tf_container();
    bool is_ours = tf_ledger_take(TF_KIND_POINTER, pointer, &entry);
    bool is_block = !is_ours && tf_pools_take_block(pointer, &block);
    CUresult result = TF_NESTED(cuda->cuMemFree_v2(pointer));
    if (is_block)
        tf_pools_conclude_block(&block, result == CUDA_SUCCESS);
    return tf_conclude_free(result, is_ours, &entry);
}

CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
    TF_ENTER(cuMemFree);
    if (tf_is_nested())
        return cuda->cuMemFree(pointer);
    struct tf_entry entry;
    tf_container();
    bool is_ours = tf_ledger_take(TF_KIND_POINTER, pointer, &entry);
    return tf_conclude_free(TF_NESTED(cuda->cuMemFree(pointer)), is_ours, &entry);
}
