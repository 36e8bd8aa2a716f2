/* memop.c - small writes by a stream: cuStreamBatchMemOp.
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

static void write_value(const struct operation *operation)
{
    const bool is_write = operation->kind == OPERATION_WRITE_32 || operation->kind == OPERATION_WRITE_64;
    if (is_write && !heap_is_number(operation->address))
        memcpy((void *)(uintptr_t)operation->address, &operation->value, operation->kind == OPERATION_WRITE_32 ? 4 : 8);
}

static CUresult run_batch(CUstream stream, unsigned count, const struct operation *operations, unsigned flags)
{
    REQUIRE(operations && count && count <= OPERATIONS_MAX && flags == 0, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++) {
        const int kind = operations[i].kind;
        REQUIRE(kind == OPERATION_WRITE_32 || kind == OPERATION_WRITE_64 || kind == OPERATION_FLUSH || kind == OPERATION_BARRIER,
                CUDA_ERROR_NOT_SUPPORTED);
    }
    TRY(graph_mark(stream, CU_GRAPH_NODE_TYPE_EMPTY));
    for (unsigned i = 0; i < count; i++)
        write_value(&operations[i]);
    return CUDA_SUCCESS;
}

STREAM_ENTRY(cuStreamBatchMemOp, (CUstream stream, unsigned count, const struct operation *operations, unsigned flags),
             run_batch(stream, count, operations, flags))
STREAM_ENTRY(cuStreamBatchMemOp_v2, (CUstream stream, unsigned count, const struct operation *operations, unsigned flags),
             run_batch(stream, count, operations, flags))
