/* graph_nodes.c - nodes of a graph, one function per kind, and their parameters (contract: graph.h). */
#include "graph.h"
#include "heap.h"

/* A checked new node; the callers below fill it in. */
static CUresult add(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count, int type)
{
    REQUIRE(ret_node && object_is(graph, KIND_GRAPH) && (dependencies || count == 0), CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    CUresult result = graph_add(graph, type, dependencies, count, ret_node);
    driver_unlock();
    return result;
}

static CUresult set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *shape)
{
    const unsigned grid[] = {shape->grid_x, shape->grid_y, shape->grid_z}, block[] = {shape->block_x, shape->block_y, shape->block_z};
    struct launch launch;
    CUfunction function = shape->function ? shape->function : (CUfunction)shape->kernel;
    CUresult result = launch_prepare(function, grid, block, shape->kernel_parameters, shape->extra, &launch);
    if (result == CUDA_SUCCESS) {
        node->launch = launch;
        node->shape = *shape;
    }
    return result;
}

static CUresult add_kernel(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                           const CUDA_KERNEL_NODE_PARAMS_v2 *shape)
{
    struct CUgraphNode_st trial = {0};
    CUresult result = set_kernel(&trial, shape);
    if (result == CUDA_SUCCESS)
        result = add(ret_node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_KERNEL);
    if (result == CUDA_SUCCESS) {
        (*ret_node)->launch = trial.launch;
        (*ret_node)->shape = trial.shape;
    }
    return result;
}

static CUDA_KERNEL_NODE_PARAMS_v2 widened(const CUDA_KERNEL_NODE_PARAMS_v1 *narrow)
{
    CUDA_KERNEL_NODE_PARAMS_v2 wide = {0};
    memcpy(&wide, narrow, sizeof *narrow); /* version 2 continues where version 1 ends */
    return wide;
}

CUDA_EXPORT cuGraphAddKernelNode(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS_v1 *shape)
{
    ENTER(cuGraphAddKernelNode);
    REQUIRE(shape, CUDA_ERROR_INVALID_VALUE);
    CUDA_KERNEL_NODE_PARAMS_v2 wide = widened(shape);
    return add_kernel(ret_node, graph, dependencies, count, &wide);
}

CUDA_EXPORT cuGraphAddKernelNode_v2(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                    const CUDA_KERNEL_NODE_PARAMS_v2 *shape)
{
    ENTER(cuGraphAddKernelNode_v2);
    REQUIRE(shape, CUDA_ERROR_INVALID_VALUE);
    return add_kernel(ret_node, graph, dependencies, count, shape);
}

static bool is_kernel_node(CUgraphNode node)
{
    return object_is(node, KIND_NODE) && node->type == CU_GRAPH_NODE_TYPE_KERNEL;
}

CUDA_EXPORT cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *ret_shape)
{
    ENTER(cuGraphKernelNodeGetParams);
    REQUIRE(is_kernel_node(node) && ret_shape, CUDA_ERROR_INVALID_VALUE);
    memcpy(ret_shape, &node->shape, sizeof *ret_shape);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *ret_shape)
{
    ENTER(cuGraphKernelNodeGetParams_v2);
    REQUIRE(is_kernel_node(node) && ret_shape, CUDA_ERROR_INVALID_VALUE);
    *ret_shape = node->shape;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *shape)
{
    ENTER(cuGraphKernelNodeSetParams);
    REQUIRE(is_kernel_node(node) && shape, CUDA_ERROR_INVALID_VALUE);
    CUDA_KERNEL_NODE_PARAMS_v2 wide = widened(shape);
    return set_kernel(node, &wide);
}

CUDA_EXPORT cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *shape)
{
    ENTER(cuGraphKernelNodeSetParams_v2);
    REQUIRE(is_kernel_node(node) && shape, CUDA_ERROR_INVALID_VALUE);
    return set_kernel(node, shape);
}

CUDA_EXPORT cuGraphAddEmptyNode(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    ENTER(cuGraphAddEmptyNode);
    return add(ret_node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EMPTY);
}

CUDA_EXPORT cuGraphAddMemcpyNode(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const void *copy,
                                 CUcontext context)
{
    ENTER(cuGraphAddMemcpyNode);
    (void)context;
    REQUIRE(copy, CUDA_ERROR_INVALID_VALUE);
    return add(ret_node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMCPY);
}

CUDA_EXPORT cuGraphAddMemsetNode(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context)
{
    ENTER(cuGraphAddMemsetNode);
    (void)context;
    REQUIRE(fill, CUDA_ERROR_INVALID_VALUE);
    CUresult result = add(ret_node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMSET);
    if (result == CUDA_SUCCESS)
        (*ret_node)->memset = *fill;
    return result;
}

CUDA_EXPORT cuGraphAddHostNode(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                               const CUDA_HOST_NODE_PARAMS *host)
{
    ENTER(cuGraphAddHostNode);
    REQUIRE(host && host->function, CUDA_ERROR_INVALID_VALUE);
    CUresult result = add(ret_node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_HOST);
    if (result == CUDA_SUCCESS)
        (*ret_node)->host = *host;
    return result;
}

CUDA_EXPORT cuGraphAddChildGraphNode(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraph child)
{
    ENTER(cuGraphAddChildGraphNode);
    REQUIRE(object_is(child, KIND_GRAPH) && child != graph, CUDA_ERROR_INVALID_VALUE);
    CUresult result = add(ret_node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_GRAPH);
    if (result == CUDA_SUCCESS)
        (*ret_node)->child = graph_clone(child);
    return result;
}

CUDA_EXPORT cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *ret_graph)
{
    ENTER(cuGraphChildGraphNodeGetGraph);
    REQUIRE(object_is(node, KIND_NODE) && node->child && ret_graph, CUDA_ERROR_INVALID_VALUE);
    *ret_graph = node->child;
    return CUDA_SUCCESS;
}

static CUresult add_event(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUevent event, int type)
{
    REQUIRE(object_is(event, KIND_EVENT), CUDA_ERROR_INVALID_VALUE);
    CUresult result = add(ret_node, graph, dependencies, count, type);
    if (result == CUDA_SUCCESS)
        (*ret_node)->event = event;
    return result;
}

CUDA_EXPORT cuGraphAddEventRecordNode(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUevent event)
{
    ENTER(cuGraphAddEventRecordNode);
    return add_event(ret_node, graph, dependencies, count, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}

CUDA_EXPORT cuGraphAddEventWaitNode(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUevent event)
{
    ENTER(cuGraphAddEventWaitNode);
    return add_event(ret_node, graph, dependencies, count, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}

/* The address is fixed here and stays the node's; memory is taken when the graph runs. */
static CUresult add_allocation(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                               CUDA_MEM_ALLOC_NODE_PARAMS *allocation)
{
    const CUmemLocation *location = &allocation->pool_props.location;
    REQUIRE(location->type == CU_MEM_LOCATION_TYPE_DEVICE && driver_card(location->id), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(allocation->size_bytes, CUDA_ERROR_INVALID_VALUE);
    CUresult result = add(ret_node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (result != CUDA_SUCCESS)
        return result;
    (*ret_node)->device = location->id;
    (*ret_node)->size_bytes = allocation->size_bytes;
    driver_lock();
    allocation->address = (*ret_node)->address = heap_new_address(allocation->size_bytes);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGraphAddMemAllocNode(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                   CUDA_MEM_ALLOC_NODE_PARAMS *allocation)
{
    ENTER(cuGraphAddMemAllocNode);
    REQUIRE(allocation, CUDA_ERROR_INVALID_VALUE);
    return add_allocation(ret_node, graph, dependencies, count, allocation);
}

CUDA_EXPORT cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *ret_allocation)
{
    ENTER(cuGraphMemAllocNodeGetParams);
    REQUIRE(object_is(node, KIND_NODE) && node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && ret_allocation, CUDA_ERROR_INVALID_VALUE);
    memset(ret_allocation, 0, sizeof *ret_allocation);
    ret_allocation->pool_props.allocation_type = CU_MEM_ALLOCATION_TYPE_PINNED;
    ret_allocation->pool_props.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = node->device};
    ret_allocation->size_bytes = node->size_bytes;
    ret_allocation->address = node->address;
    return CUDA_SUCCESS;
}

static CUresult add_free(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUdeviceptr address)
{
    REQUIRE(address, CUDA_ERROR_INVALID_VALUE);
    CUresult result = add(ret_node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_FREE);
    if (result == CUDA_SUCCESS)
        (*ret_node)->address = address;
    return result;
}

CUDA_EXPORT cuGraphAddMemFreeNode(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUdeviceptr address)
{
    ENTER(cuGraphAddMemFreeNode);
    return add_free(ret_node, graph, dependencies, count, address);
}

CUDA_EXPORT cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *ret_address)
{
    ENTER(cuGraphMemFreeNodeGetParams);
    REQUIRE(object_is(node, KIND_NODE) && node->type == CU_GRAPH_NODE_TYPE_MEM_FREE && ret_address, CUDA_ERROR_INVALID_VALUE);
    *ret_address = node->address;
    return CUDA_SUCCESS;
}

static CUresult add_any(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraphNodeParams *what)
{
    REQUIRE(what, CUDA_ERROR_INVALID_VALUE);
    CUresult result;
    switch (what->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return add_kernel(ret_node, graph, dependencies, count, &what->kernel);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return add_allocation(ret_node, graph, dependencies, count, &what->allocate);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return add_free(ret_node, graph, dependencies, count, what->free_address);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return add_event(ret_node, graph, dependencies, count, what->event, what->type);
    case CU_GRAPH_NODE_TYPE_HOST:
        REQUIRE(what->host.function, CUDA_ERROR_INVALID_VALUE);
        result = add(ret_node, graph, dependencies, count, what->type);
        if (result == CUDA_SUCCESS)
            (*ret_node)->host = what->host;
        return result;
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return add(ret_node, graph, dependencies, count, what->type);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUDA_EXPORT cuGraphAddNode(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraphNodeParams *what)
{
    ENTER(cuGraphAddNode);
    return add_any(ret_node, graph, dependencies, count, what);
}

CUDA_EXPORT cuGraphAddNode_v2(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count,
                              CUgraphNodeParams *what)
{
    ENTER(cuGraphAddNode_v2);
    (void)edges;
    return add_any(ret_node, graph, dependencies, count, what);
}

CUDA_EXPORT cuGraphAddNode_v3(CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count,
                              CUgraphNodeParams *what)
{
    ENTER(cuGraphAddNode_v3);
    (void)edges;
    return add_any(ret_node, graph, dependencies, count, what);
}

CUDA_EXPORT cuGraphNodeGetType(CUgraphNode node, int *ret_type)
{
    ENTER(cuGraphNodeGetType);
    REQUIRE(object_is(node, KIND_NODE) && ret_type, CUDA_ERROR_INVALID_VALUE);
    *ret_type = node->type;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *ret_host)
{
    ENTER(cuGraphHostNodeGetParams);
    REQUIRE(object_is(node, KIND_NODE) && node->type == CU_GRAPH_NODE_TYPE_HOST && ret_host, CUDA_ERROR_INVALID_VALUE);
    *ret_host = node->host;
    return CUDA_SUCCESS;
}
