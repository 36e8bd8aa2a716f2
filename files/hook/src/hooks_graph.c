/* hooks_graph.c - memory of graphs.
 *
 * Promise: a memory node that can never fit is refused when it is added; a launch whose nodes do not fit is refused, with out of memory,
 *          before the driver takes anything; what graphs keep on a card is charged from the driver's own counter.
 * How:     instantiation adds up the nodes of each card and remembers the sum under the executable graph. Graphs without memory nodes
 *          leave no trace and their launches cost one look into the ledger.
 * Next:    pools.c has the card's graph pool, hooks_launch.c calls tf_graphs_launch(). */
#include "graphs.h"

#include "charge.h"
#include "nested.h"
#include "pools.h"

#include <sys/mman.h>

static _Atomic bool has_memory_graphs;

CUresult tf_graphs_check_node(struct tf_container *container, int gpu, uint64_t bytes)
{
    struct tf_reservation reservation;
    CUresult result = tf_memory_reserve(container, gpu, tf_memory_rounded(bytes), &reservation);
    if (result == CUDA_SUCCESS)
        tf_memory_undo(&reservation);
    return result;
}

static CUresult check_allocation(const struct tf_cuda *cuda, const CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    struct tf_container *container = tf_container();
    if (!parameters || parameters->pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE || atomic_load(&container->stance) == TF_NO_SLICE)
        return CUDA_SUCCESS;
    return tf_graphs_check_node(container, tf_device_of_ordinal(container, cuda, parameters->pool.location.id), parameters->bytes);
}

static CUresult check_any(const struct tf_cuda *cuda, const CUgraphNodeParams *parameters)
{
    return parameters && parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? check_allocation(cuda, &parameters->allocation) : CUDA_SUCCESS;
}

#define ADD_NODE(symbol, check, arguments) \
    const struct tf_cuda *cuda = tf_cuda(); \
    if (!cuda || !cuda->symbol) \
        return CUDA_ERROR_NOT_INITIALIZED; \
    CUresult result = check; \
    return result == CUDA_SUCCESS ? TF_NESTED(cuda->symbol arguments) : result

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    ADD_NODE(cuGraphAddMemAllocNode, check_allocation(cuda, parameters), (node, graph, dependencies, count, parameters));
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraphNodeParams *parameters)
{
    ADD_NODE(cuGraphAddNode, check_any(cuda, parameters), (node, graph, dependencies, count, parameters));
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count, CUgraphNodeParams *parameters)
{
    ADD_NODE(cuGraphAddNode_v2, check_any(cuda, parameters), (node, graph, dependencies, edges, count, parameters));
}

/* --- executable graphs ------------------------------------------------------------------------------------------------------------ */

struct need {
    CUdevice device;
    uint64_t bytes;
};

static void add_node(const struct tf_cuda *cuda, CUgraphNode node, struct need *need)
{
    CUDA_MEM_ALLOC_NODE_PARAMS parameters;
    int type = -1;
    if (cuda->cuGraphNodeGetType(node, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_MEM_ALLOC
        || cuda->cuGraphMemAllocNodeGetParams(node, &parameters) != CUDA_SUCCESS)
        return;
    if (!need->bytes)
        need->device = parameters.pool.location.id;
    need->bytes += (parameters.bytes + 511) / 512 * 512;
}

/* Memory nodes of one graph; all of them on one card in every graph that captures produce, else the first card counts for all. */
static bool add_up(const struct tf_cuda *cuda, CUgraph graph, struct need *ret_need)
{
    size_t count = 0;
    *ret_need = (struct need){.bytes = 0};
    if (!cuda->cuGraphGetNodes || !cuda->cuGraphNodeGetType || !cuda->cuGraphMemAllocNodeGetParams
        || cuda->cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || !count)
        return false;
    size_t bytes = count * sizeof(CUgraphNode);
    CUgraphNode *nodes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (nodes == MAP_FAILED)
        return false;
    if (cuda->cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t index = 0; index < count; index++)
            add_node(cuda, nodes[index], ret_need);
    munmap(nodes, bytes);
    return ret_need->bytes != 0;
}

static CUresult instantiated(const struct tf_cuda *cuda, CUresult result, CUgraphExec *executable, CUgraph graph)
{
    struct need need;
    if (result != CUDA_SUCCESS || tf_is_nested() || atomic_load(&tf_container()->stance) != TF_ENFORCED || !add_up(cuda, graph, &need))
        return result;
    struct tf_entry entry = {.key = (uint64_t)(uintptr_t)*executable, .context = (uint64_t)need.device, .extra = need.bytes, .kind = TF_KIND_GRAPH}, replaced;
    tf_ledger_add(&entry, &replaced);
    atomic_store(&has_memory_graphs, true);
    return result;
}

#define INSTANTIATE(symbol, arguments) \
    const struct tf_cuda *cuda = tf_cuda(); \
    if (!cuda || !cuda->symbol) \
        return CUDA_ERROR_NOT_INITIALIZED; \
    return instantiated(cuda, TF_NESTED(cuda->symbol arguments), executable, graph)

CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
    INSTANTIATE(cuGraphInstantiate, (executable, graph, error_node, log, log_bytes));
}

CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
    INSTANTIATE(cuGraphInstantiate_v2, (executable, graph, error_node, log, log_bytes));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
    INSTANTIATE(cuGraphInstantiateWithFlags, (executable, graph, flags));
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph, void *parameters)
{
    INSTANTIATE(cuGraphInstantiateWithParams, (executable, graph, parameters));
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *executable, CUgraph graph, void *parameters)
{
    INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (executable, graph, parameters));
}

CUresult cuGraphExecDestroy(CUgraphExec executable)
{
    const struct tf_cuda *cuda = tf_cuda();
    struct tf_entry entry, replaced;
    if (!cuda || !cuda->cuGraphExecDestroy)
        return CUDA_ERROR_NOT_INITIALIZED;
    bool is_known = atomic_load(&has_memory_graphs) && tf_ledger_take(TF_KIND_GRAPH, (uint64_t)(uintptr_t)executable, &entry);
    CUresult result = TF_NESTED(cuda->cuGraphExecDestroy(executable));
    if (is_known && result != CUDA_SUCCESS)
        tf_ledger_add(&entry, &replaced);
    return result;
}

static bool copy_entry(struct tf_entry *entry, void *context)
{
    *(struct tf_entry *)context = *entry;
    return true;
}

static CUresult launch_reserved(struct tf_container *container, const struct tf_cuda *cuda, CUresult (*real)(CUgraphExec, CUstream),
    CUgraphExec executable, CUstream stream, const struct tf_entry *need)
{
    CUdevice device = (CUdevice)need->context;
    int gpu = tf_device_of_ordinal(container, cuda, device);
    struct tf_pool *pool = gpu >= 0 ? tf_pools_enter(container, cuda, NULL, device, gpu) : NULL;
    struct tf_reservation reservation;
    if (!pool)
        return real(executable, stream);
    CUresult result = tf_pools_reserve(container, cuda, pool, need->extra, &reservation);
    if (result != CUDA_SUCCESS)
        return result;
    result = TF_NESTED(real(executable, stream));
    /* a launch that failed midway may have taken memory, too */
    if (!tf_pools_settle(cuda, pool, &reservation)) {
        tf_memory_undo(&reservation);
        tf_pools_charge_truth(container, cuda, pool);
    }
    return result;
}

CUresult tf_graphs_launch(struct tf_container *container, const struct tf_cuda *cuda, CUresult (*real)(CUgraphExec, CUstream), CUgraphExec executable,
    CUstream stream)
{
    struct tf_entry need;
    if (TF_LIKELY(!atomic_load_explicit(&has_memory_graphs, memory_order_relaxed)) || tf_is_nested()
        || !tf_ledger_change(TF_KIND_GRAPH, (uint64_t)(uintptr_t)executable, copy_entry, &need))
        return real(executable, stream);
    tf_pools_lock();
    CUresult result = launch_reserved(container, cuda, real, executable, stream, &need);
    tf_pools_unlock();
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    const struct tf_cuda *cuda = tf_cuda();
    if (!cuda || !cuda->cuDeviceGraphMemTrim)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = TF_NESTED(cuda->cuDeviceGraphMemTrim(device));
    tf_pools_refresh(tf_container(), cuda);
    return result;
}
