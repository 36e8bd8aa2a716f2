/* memop.c - small writes by a stream: cuStreamWriteValue and cuStreamBatchMemOp.
 *
 * A write is a marker in the queue; it reaches memory only where the address is this process's own page, and at once. Waiting for a
 * value is not supported, and the device attributes say so: a stream never stops here. */
#include "graph.h"
#include "heap.h"

enum { OPERATION_WRITE_32 = 2, OPERATION_FLUSH = 3, OPERATION_WRITE_64 = 5, OPERATION_BARRIER = 6, OPERATIONS_MAX = 256 };

/* CUstreamBatchMemOpParams: a union of 48 bytes; writes and waits have this form. */
struct operation {
    int kind;
    CUdeviceptr address;
    uint64_t value;
    unsigned flags;
    CUdeviceptr alias;
    uint64_t filler;
};
_Static_assert(sizeof(struct operation) == 48, "CUstreamBatchMemOpParams has 48 bytes");

static void write_value(CUdeviceptr address, uint64_t value, unsigned bytes)
{
    if (!heap_is_number(address))
        memcpy((void *)(uintptr_t)address, &value, bytes);
}

static CUresult mark(CUstream handle)
{
    CUstream stream;
    bool is_captured = false;
    CUresult result = stream_resolve(handle, &stream);
    if (result == CUDA_SUCCESS)
        result = graph_capture_marker(stream, CU_GRAPH_NODE_TYPE_EMPTY, &is_captured);
    return result == CUDA_SUCCESS && !is_captured ? stream_submit(stream, 0, NULL, false) : result;
}

static CUresult write_one(CUstream stream, CUdeviceptr address, uint64_t value, unsigned bytes)
{
    REQUIRE(address && address % bytes == 0, CUDA_ERROR_INVALID_VALUE);
    CUresult result = mark(stream);
    if (result == CUDA_SUCCESS)
        write_value(address, value, bytes);
    return result;
}

#define WRITE(symbol, type, stream_of)                                                             \
    CUDA_EXPORT symbol(CUstream stream, CUdeviceptr address, type value, unsigned flags)           \
    {                                                                                              \
        ENTER(symbol);                                                                             \
        REQUIRE(flags <= 1, CUDA_ERROR_INVALID_VALUE);                                             \
        return write_one(stream_of(stream), address, value, sizeof value);                         \
    }
#define SAME(stream) (stream)
WRITE(cuStreamWriteValue32, uint32_t, SAME)
WRITE(cuStreamWriteValue32_ptsz, uint32_t, stream_of_thread)
WRITE(cuStreamWriteValue32_v2, uint32_t, SAME)
WRITE(cuStreamWriteValue32_v2_ptsz, uint32_t, stream_of_thread)
WRITE(cuStreamWriteValue64, uint64_t, SAME)
WRITE(cuStreamWriteValue64_ptsz, uint64_t, stream_of_thread)
WRITE(cuStreamWriteValue64_v2, uint64_t, SAME)
WRITE(cuStreamWriteValue64_v2_ptsz, uint64_t, stream_of_thread)

static CUresult run_batch(CUstream stream, unsigned count, const struct operation *operations, unsigned flags)
{
    REQUIRE(operations && count && count <= OPERATIONS_MAX && flags == 0, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++) {
        const int kind = operations[i].kind;
        REQUIRE(kind == OPERATION_WRITE_32 || kind == OPERATION_WRITE_64 || kind == OPERATION_FLUSH || kind == OPERATION_BARRIER,
                CUDA_ERROR_NOT_SUPPORTED);
    }
    CUresult result = mark(stream);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        if (operations[i].kind == OPERATION_WRITE_32 || operations[i].kind == OPERATION_WRITE_64)
            write_value(operations[i].address, operations[i].value, operations[i].kind == OPERATION_WRITE_32 ? 4 : 8);
    return result;
}

#define BATCH(symbol, stream_of)                                                                                     \
    CUDA_EXPORT symbol(CUstream stream, unsigned count, const struct operation *operations, unsigned flags)          \
    {                                                                                                                \
        ENTER(symbol);                                                                                               \
        return run_batch(stream_of(stream), count, operations, flags);                                               \
    }
BATCH(cuStreamBatchMemOp, SAME)
BATCH(cuStreamBatchMemOp_ptsz, stream_of_thread)
BATCH(cuStreamBatchMemOp_v2, SAME)
BATCH(cuStreamBatchMemOp_v2_ptsz, stream_of_thread)
