/* copy.c - copies and fills. No bytes move unless both ends are this process's own pages (host or managed memory); device memory has
 * no content here. Each call checks its handles, takes its place in the stream's queue and, at copy_bytes_per_us > 0, GPU time.
 *
 * Synchronous calls wait for the stream. The many names differ in argument types only; the macros below keep one line per name. */
#include "graph.h"
#include "heap.h"

static int64_t duration_ns(uint64_t bytes)
{
    const int64_t rate = g_driver.machine.state->time.copy_bytes_per_us;
    return rate > 0 ? (int64_t)(bytes * 1000 / (uint64_t)rate) : 0;
}

static CUresult move(CUstream handle, uint64_t bytes, int node_type, bool is_async)
{
    CUstream stream;
    bool is_captured = false;
    CUresult result = stream_resolve(handle, &stream);
    if (result == CUDA_SUCCESS && stream->capture && !is_async)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (result == CUDA_SUCCESS)
        result = graph_capture_marker(stream, node_type, &is_captured);
    if (result == CUDA_SUCCESS && !is_captured)
        result = stream_submit(stream, duration_ns(bytes), NULL, false);
    if (result == CUDA_SUCCESS && !is_async && !is_captured)
        result = stream_wait_ticket(stream->context, stream->last_ticket);
    return result;
}

static bool is_own_page(uint64_t address)
{
    return !heap_is_number(address);
}

static CUresult copy(uint64_t destination, uint64_t source, size_t bytes, CUstream stream, bool is_async)
{
    REQUIRE(bytes == 0 || (destination && source), CUDA_ERROR_INVALID_VALUE);
    CUresult result = move(stream, bytes, CU_GRAPH_NODE_TYPE_MEMCPY, is_async);
    if (result == CUDA_SUCCESS && bytes && is_own_page(destination) && is_own_page(source))
        memmove((void *)(uintptr_t)destination, (const void *)(uintptr_t)source, bytes);
    return result;
}

/* value repeated; width elements of element_bytes in each of height rows. */
static CUresult fill(uint64_t address, size_t pitch_bytes, unsigned value, unsigned element_bytes, size_t width, size_t height,
                     CUstream stream, bool is_async)
{
    REQUIRE(address, CUDA_ERROR_INVALID_VALUE);
    CUresult result = move(stream, width * height * element_bytes, CU_GRAPH_NODE_TYPE_MEMSET, is_async);
    if (result != CUDA_SUCCESS || !is_own_page(address))
        return result;
    for (size_t row = 0; row < height; row++)
        for (size_t column = 0; column < width; column++)
            memcpy((char *)(uintptr_t)address + row * pitch_bytes + column * element_bytes, &value, element_bytes);
    return result;
}

#define ENTRY(symbol, parameters, call) \
    CUDA_EXPORT symbol parameters       \
    {                                   \
        ENTER(symbol);                  \
        return call;                    \
    }

/* linear copies */
ENTRY(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), copy(to, from, bytes, NULL, false))
ENTRY(cuMemcpy_ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), copy(to, from, bytes, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), copy(to, (uint64_t)(uintptr_t)from, bytes, NULL, false))
ENTRY(cuMemcpyHtoD_v2_ptds, (CUdeviceptr to, const void *from, size_t bytes),
      copy(to, (uint64_t)(uintptr_t)from, bytes, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), copy((uint64_t)(uintptr_t)to, from, bytes, NULL, false))
ENTRY(cuMemcpyDtoH_v2_ptds, (void *to, CUdeviceptr from, size_t bytes),
      copy((uint64_t)(uintptr_t)to, from, bytes, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), copy(to, from, bytes, NULL, false))
ENTRY(cuMemcpyDtoD_v2_ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), copy(to, from, bytes, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), copy(to, from, bytes, stream, true))
ENTRY(cuMemcpyAsync_ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
      copy(to, from, bytes, stream_of_thread(stream), true))
ENTRY(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
      copy(to, (uint64_t)(uintptr_t)from, bytes, stream, true))
ENTRY(cuMemcpyHtoDAsync_v2_ptsz, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
      copy(to, (uint64_t)(uintptr_t)from, bytes, stream_of_thread(stream), true))
ENTRY(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
      copy((uint64_t)(uintptr_t)to, from, bytes, stream, true))
ENTRY(cuMemcpyDtoHAsync_v2_ptsz, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
      copy((uint64_t)(uintptr_t)to, from, bytes, stream_of_thread(stream), true))
ENTRY(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), copy(to, from, bytes, stream, true))
ENTRY(cuMemcpyDtoDAsync_v2_ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
      copy(to, from, bytes, stream_of_thread(stream), true))

/* between cards: both contexts must live */
static CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream,
                          bool is_async)
{
    REQUIRE(object_is(to_context, KIND_CONTEXT) && object_is(from_context, KIND_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(to_context->is_alive && from_context->is_alive, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return copy(to, from, bytes, stream, is_async);
}

ENTRY(cuMemcpyPeer, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
      copy_peer(to, to_context, from, from_context, bytes, NULL, false))
ENTRY(cuMemcpyPeer_ptds, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
      copy_peer(to, to_context, from, from_context, bytes, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemcpyPeerAsync, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream),
      copy_peer(to, to_context, from, from_context, bytes, stream, true))
ENTRY(cuMemcpyPeerAsync_ptsz, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
      CUstream stream),
      copy_peer(to, to_context, from, from_context, bytes, stream_of_thread(stream), true))

/* two and three dimensions: contents are not moved, and the size is not priced */
static CUresult copy_shaped(const void *descriptor, CUstream stream, bool is_async)
{
    REQUIRE(descriptor, CUDA_ERROR_INVALID_VALUE);
    return move(stream, 0, CU_GRAPH_NODE_TYPE_MEMCPY, is_async);
}

ENTRY(cuMemcpy2D_v2, (const void *descriptor), copy_shaped(descriptor, NULL, false))
ENTRY(cuMemcpy2D_v2_ptds, (const void *descriptor), copy_shaped(descriptor, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemcpy2DUnaligned_v2, (const void *descriptor), copy_shaped(descriptor, NULL, false))
ENTRY(cuMemcpy2DUnaligned_v2_ptds, (const void *descriptor), copy_shaped(descriptor, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemcpy3D_v2, (const void *descriptor), copy_shaped(descriptor, NULL, false))
ENTRY(cuMemcpy3D_v2_ptds, (const void *descriptor), copy_shaped(descriptor, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemcpy3DPeer, (const void *descriptor), copy_shaped(descriptor, NULL, false))
ENTRY(cuMemcpy3DPeer_ptds, (const void *descriptor), copy_shaped(descriptor, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemcpy2DAsync_v2, (const void *descriptor, CUstream stream), copy_shaped(descriptor, stream, true))
ENTRY(cuMemcpy2DAsync_v2_ptsz, (const void *descriptor, CUstream stream), copy_shaped(descriptor, stream_of_thread(stream), true))
ENTRY(cuMemcpy3DAsync_v2, (const void *descriptor, CUstream stream), copy_shaped(descriptor, stream, true))
ENTRY(cuMemcpy3DAsync_v2_ptsz, (const void *descriptor, CUstream stream), copy_shaped(descriptor, stream_of_thread(stream), true))
ENTRY(cuMemcpy3DPeerAsync, (const void *descriptor, CUstream stream), copy_shaped(descriptor, stream, true))
ENTRY(cuMemcpy3DPeerAsync_ptsz, (const void *descriptor, CUstream stream), copy_shaped(descriptor, stream_of_thread(stream), true))

/* from and to arrays: contents are not moved */
static CUresult copy_array(const void *first, const void *second, size_t bytes, CUstream stream, bool is_async)
{
    REQUIRE((!first || object_is(first, KIND_ARRAY)) && (!second || object_is(second, KIND_ARRAY)), CUDA_ERROR_INVALID_HANDLE);
    return move(stream, bytes, CU_GRAPH_NODE_TYPE_MEMCPY, is_async);
}

ENTRY(cuMemcpyDtoA_v2, (CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes),
      ((void)to_offset, (void)from, copy_array(to, NULL, bytes, NULL, false)))
ENTRY(cuMemcpyDtoA_v2_ptds, (CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes),
      ((void)to_offset, (void)from, copy_array(to, NULL, bytes, CU_STREAM_PER_THREAD, false)))
ENTRY(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes),
      ((void)to, (void)from_offset, copy_array(from, NULL, bytes, NULL, false)))
ENTRY(cuMemcpyAtoD_v2_ptds, (CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes),
      ((void)to, (void)from_offset, copy_array(from, NULL, bytes, CU_STREAM_PER_THREAD, false)))
ENTRY(cuMemcpyHtoA_v2, (CUarray to, size_t to_offset, const void *from, size_t bytes),
      ((void)to_offset, (void)from, copy_array(to, NULL, bytes, NULL, false)))
ENTRY(cuMemcpyHtoA_v2_ptds, (CUarray to, size_t to_offset, const void *from, size_t bytes),
      ((void)to_offset, (void)from, copy_array(to, NULL, bytes, CU_STREAM_PER_THREAD, false)))
ENTRY(cuMemcpyHtoAAsync_v2, (CUarray to, size_t to_offset, const void *from, size_t bytes, CUstream stream),
      ((void)to_offset, (void)from, copy_array(to, NULL, bytes, stream, true)))
ENTRY(cuMemcpyHtoAAsync_v2_ptsz, (CUarray to, size_t to_offset, const void *from, size_t bytes, CUstream stream),
      ((void)to_offset, (void)from, copy_array(to, NULL, bytes, stream_of_thread(stream), true)))
ENTRY(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t from_offset, size_t bytes),
      ((void)to, (void)from_offset, copy_array(from, NULL, bytes, NULL, false)))
ENTRY(cuMemcpyAtoH_v2_ptds, (void *to, CUarray from, size_t from_offset, size_t bytes),
      ((void)to, (void)from_offset, copy_array(from, NULL, bytes, CU_STREAM_PER_THREAD, false)))
ENTRY(cuMemcpyAtoHAsync_v2, (void *to, CUarray from, size_t from_offset, size_t bytes, CUstream stream),
      ((void)to, (void)from_offset, copy_array(from, NULL, bytes, stream, true)))
ENTRY(cuMemcpyAtoHAsync_v2_ptsz, (void *to, CUarray from, size_t from_offset, size_t bytes, CUstream stream),
      ((void)to, (void)from_offset, copy_array(from, NULL, bytes, stream_of_thread(stream), true)))
ENTRY(cuMemcpyAtoA_v2, (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
      ((void)to_offset, (void)from_offset, copy_array(to, from, bytes, NULL, false)))
ENTRY(cuMemcpyAtoA_v2_ptds, (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
      ((void)to_offset, (void)from_offset, copy_array(to, from, bytes, CU_STREAM_PER_THREAD, false)))

/* fills */
ENTRY(cuMemsetD8_v2, (CUdeviceptr address, unsigned char value, size_t count), fill(address, 0, value, 1, count, 1, NULL, false))
ENTRY(cuMemsetD8_v2_ptds, (CUdeviceptr address, unsigned char value, size_t count),
      fill(address, 0, value, 1, count, 1, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemsetD8Async, (CUdeviceptr address, unsigned char value, size_t count, CUstream stream),
      fill(address, 0, value, 1, count, 1, stream, true))
ENTRY(cuMemsetD8Async_ptsz, (CUdeviceptr address, unsigned char value, size_t count, CUstream stream),
      fill(address, 0, value, 1, count, 1, stream_of_thread(stream), true))
ENTRY(cuMemsetD2D8_v2, (CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t height),
      fill(address, pitch, value, 1, width, height, NULL, false))
ENTRY(cuMemsetD2D8_v2_ptds, (CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t height),
      fill(address, pitch, value, 1, width, height, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemsetD2D8Async, (CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream),
      fill(address, pitch, value, 1, width, height, stream, true))
ENTRY(cuMemsetD2D8Async_ptsz, (CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream),
      fill(address, pitch, value, 1, width, height, stream_of_thread(stream), true))
ENTRY(cuMemsetD16_v2, (CUdeviceptr address, unsigned short value, size_t count), fill(address, 0, value, 2, count, 1, NULL, false))
ENTRY(cuMemsetD16_v2_ptds, (CUdeviceptr address, unsigned short value, size_t count),
      fill(address, 0, value, 2, count, 1, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemsetD16Async, (CUdeviceptr address, unsigned short value, size_t count, CUstream stream),
      fill(address, 0, value, 2, count, 1, stream, true))
ENTRY(cuMemsetD16Async_ptsz, (CUdeviceptr address, unsigned short value, size_t count, CUstream stream),
      fill(address, 0, value, 2, count, 1, stream_of_thread(stream), true))
ENTRY(cuMemsetD2D16_v2, (CUdeviceptr address, size_t pitch, unsigned short value, size_t width, size_t height),
      fill(address, pitch, value, 2, width, height, NULL, false))
ENTRY(cuMemsetD2D16_v2_ptds, (CUdeviceptr address, size_t pitch, unsigned short value, size_t width, size_t height),
      fill(address, pitch, value, 2, width, height, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemsetD2D16Async, (CUdeviceptr address, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream),
      fill(address, pitch, value, 2, width, height, stream, true))
ENTRY(cuMemsetD2D16Async_ptsz, (CUdeviceptr address, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream),
      fill(address, pitch, value, 2, width, height, stream_of_thread(stream), true))
ENTRY(cuMemsetD32_v2, (CUdeviceptr address, unsigned value, size_t count), fill(address, 0, value, 4, count, 1, NULL, false))
ENTRY(cuMemsetD32_v2_ptds, (CUdeviceptr address, unsigned value, size_t count),
      fill(address, 0, value, 4, count, 1, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemsetD32Async, (CUdeviceptr address, unsigned value, size_t count, CUstream stream),
      fill(address, 0, value, 4, count, 1, stream, true))
ENTRY(cuMemsetD32Async_ptsz, (CUdeviceptr address, unsigned value, size_t count, CUstream stream),
      fill(address, 0, value, 4, count, 1, stream_of_thread(stream), true))
ENTRY(cuMemsetD2D32_v2, (CUdeviceptr address, size_t pitch, unsigned value, size_t width, size_t height),
      fill(address, pitch, value, 4, width, height, NULL, false))
ENTRY(cuMemsetD2D32_v2_ptds, (CUdeviceptr address, size_t pitch, unsigned value, size_t width, size_t height),
      fill(address, pitch, value, 4, width, height, CU_STREAM_PER_THREAD, false))
ENTRY(cuMemsetD2D32Async, (CUdeviceptr address, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream),
      fill(address, pitch, value, 4, width, height, stream, true))
ENTRY(cuMemsetD2D32Async_ptsz, (CUdeviceptr address, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream),
      fill(address, pitch, value, 4, width, height, stream_of_thread(stream), true))

/* batches: one call, one place in the queue; attributes only hint */
static CUresult copy_batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t count, size_t *ret_failed,
                           CUstream stream)
{
    REQUIRE(to && from && bytes && count, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(stream && stream != CU_STREAM_LEGACY, CUDA_ERROR_INVALID_HANDLE);
    for (size_t i = 0; i < count; i++) {
        CUresult result = copy(to[i], from[i], bytes[i], stream, true);
        if (result != CUDA_SUCCESS && ret_failed)
            *ret_failed = i;
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

ENTRY(cuMemcpyBatchAsync, (CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes, size_t *indices,
      size_t attribute_count, size_t *ret_failed, CUstream stream),
      ((void)attributes, (void)indices, (void)attribute_count, copy_batch(to, from, bytes, count, ret_failed, stream)))
ENTRY(cuMemcpyBatchAsync_ptsz, (CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes,
      size_t *indices, size_t attribute_count, size_t *ret_failed, CUstream stream),
      ((void)attributes, (void)indices, (void)attribute_count, copy_batch(to, from, bytes, count, ret_failed, stream_of_thread(stream))))
ENTRY(cuMemcpyBatchAsync_v2, (CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes, size_t *indices,
      size_t attribute_count, CUstream stream),
      ((void)attributes, (void)indices, (void)attribute_count, copy_batch(to, from, bytes, count, NULL, stream)))
ENTRY(cuMemcpyBatchAsync_v2_ptsz, (CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes,
      size_t *indices, size_t attribute_count, CUstream stream),
      ((void)attributes, (void)indices, (void)attribute_count, copy_batch(to, from, bytes, count, NULL, stream_of_thread(stream))))
ENTRY(cuMemcpy3DBatchAsync, (size_t count, const void *operations, size_t *ret_failed, unsigned long long flags, CUstream stream),
      ((void)ret_failed, (void)flags, count ? copy_shaped(operations, stream, true) : CUDA_ERROR_INVALID_VALUE))
ENTRY(cuMemcpy3DBatchAsync_ptsz, (size_t count, const void *operations, size_t *ret_failed, unsigned long long flags, CUstream stream),
      ((void)ret_failed, (void)flags, count ? copy_shaped(operations, stream_of_thread(stream), true) : CUDA_ERROR_INVALID_VALUE))
ENTRY(cuMemcpy3DBatchAsync_v2, (size_t count, const void *operations, unsigned long long flags, CUstream stream),
      ((void)flags, count ? copy_shaped(operations, stream, true) : CUDA_ERROR_INVALID_VALUE))
ENTRY(cuMemcpy3DBatchAsync_v2_ptsz, (size_t count, const void *operations, unsigned long long flags, CUstream stream),
      ((void)flags, count ? copy_shaped(operations, stream_of_thread(stream), true) : CUDA_ERROR_INVALID_VALUE))
