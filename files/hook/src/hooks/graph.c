/* graph.c - building, instantiating and destroying graphs, as far as their memory nodes go. Next: graphs.c. */
#include "driver/nested.h"
#include "hooks/hooks.h"
#include "memory/graphs.h"
#include "memory/growth.h"

static CUresult check_any(const struct tf_cuda *cuda, const CUgraphNodeParams *parameters)
{
    return parameters && parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? tf_graphs_check_allocation(cuda, &parameters->allocation) : CUDA_SUCCESS;
}

#define ADD_NODE(symbol, check, arguments) \
    TF_ENTER(symbol); \
    CUresult result = check; \
    return result == CUDA_SUCCESS ? TF_NESTED(cuda->symbol arguments) : result

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    ADD_NODE(cuGraphAddMemAllocNode, tf_graphs_check_allocation(cuda, parameters), (node, graph, dependencies, count, parameters));
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraphNodeParams *parameters)
{
    ADD_NODE(cuGraphAddNode, check_any(cuda, parameters), (node, graph, dependencies, count, parameters));
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count, CUgraphNodeParams *parameters)
{
    ADD_NODE(cuGraphAddNode_v2, check_any(cuda, parameters), (node, graph, dependencies, edges, count, parameters));
}

CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count, CUgraphNodeParams *parameters)
{
    ADD_NODE(cuGraphAddNode_v3, check_any(cuda, parameters), (node, graph, dependencies, edges, count, parameters));
}

#define INSTANTIATE(symbol, arguments) \
    TF_ENTER(symbol); \
    return tf_graphs_instantiated(cuda, TF_NESTED(cuda->symbol arguments), executable, graph)

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

#define INSTANTIATE_WITH_PARAMS(symbol) \
    TF_ENTER(symbol); \
    return tf_graphs_instantiate(cuda, cuda->symbol, executable, graph, parameters)

CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    INSTANTIATE_WITH_PARAMS(cuGraphInstantiateWithParams);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    INSTANTIATE_WITH_PARAMS(cuGraphInstantiateWithParams_ptsz);
}

CUresult cuGraphExecDestroy(CUgraphExec executable)
{
    TF_ENTER(cuGraphExecDestroy);
    return tf_graphs_destroy(cuda, executable);
}

/* Maps the memory of a graph without running it. */
#define UPLOAD(symbol) \
    TF_ENTER(symbol); \
    return tf_graphs_launch(tf_container(), cuda, cuda->symbol, executable, stream)

CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) { UPLOAD(cuGraphUpload); }
CUresult cuGraphUpload_ptsz(CUgraphExec executable, CUstream stream) { UPLOAD(cuGraphUpload_ptsz); }

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    TF_ENTER(cuDeviceGraphMemTrim);
    tf_pools_lock();
    CUresult result = TF_NESTED(cuda->cuDeviceGraphMemTrim(device));
    atomic_fetch_add(&tf_growth_graph_trims, 1);
    tf_pools_unlock();
    tf_pools_refresh(tf_container(), cuda);
    return result;
}
