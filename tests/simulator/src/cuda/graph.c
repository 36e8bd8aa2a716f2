/* graph.c - graphs as data: nodes, edges, their parameters (contract: graph.h). Next: capture.c records them, graph_exec.c runs them. */
#include "graph.h"

#include <stdlib.h>

#include "heap.h"

CUgraph graph_new(void)
{
    return object_new(KIND_GRAPH, sizeof(struct CUgraph_st));
}

static bool append(CUgraphNode **list, size_t *count, CUgraphNode node)
{
    CUgraphNode *grown = realloc(*list, (*count + 1) * sizeof *grown);
    if (!grown)
        return false;
    grown[(*count)++] = node;
    *list = grown;
    return true;
}

static void take_out(CUgraphNode *list, size_t *count, CUgraphNode node)
{
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++)
        if (list[i] != node)
            list[kept++] = list[i];
    *count = kept;
}

static bool has(const CUgraphNode *list, size_t count, CUgraphNode node)
{
    for (size_t i = 0; i < count; i++)
        if (list[i] == node)
            return true;
    return false;
}

static void free_node(CUgraphNode node)
{
    free(node->dependencies);
    if (node->child)
        graph_destroy(node->child);
    object_free(node);
}

CUresult graph_add(CUgraph graph, int type, const CUgraphNode *dependencies, size_t count, CUgraphNode *ret_node)
{
    for (size_t i = 0; i < count; i++)
        REQUIRE(object_is(dependencies[i], KIND_NODE) && dependencies[i]->graph == graph, CUDA_ERROR_INVALID_VALUE);
    CUgraphNode node = object_new(KIND_NODE, sizeof *node);
    REQUIRE(node, CUDA_ERROR_OUT_OF_MEMORY);
    node->graph = graph;
    node->type = type;
    bool is_built = append(&graph->nodes, &graph->node_count, node);
    for (size_t i = 0; is_built && i < count; i++)
        is_built = has(node->dependencies, node->dependency_count, dependencies[i]) ||
                   append(&node->dependencies, &node->dependency_count, dependencies[i]);
    if (!is_built) {
        take_out(graph->nodes, &graph->node_count, node);
        free_node(node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret_node = node;
    return CUDA_SUCCESS;
}

void graph_remove(CUgraphNode node)
{
    CUgraph graph = node->graph;
    take_out(graph->nodes, &graph->node_count, node);
    for (size_t i = 0; i < graph->node_count; i++)
        take_out(graph->nodes[i]->dependencies, &graph->nodes[i]->dependency_count, node);
    free_node(node);
}

void graph_destroy(CUgraph graph)
{
    for (size_t i = 0; i < graph->node_count; i++)
        free_node(graph->nodes[i]);
    free(graph->nodes);
    graph->nodes = NULL;
    object_free(graph);
}

static CUgraphNode twin_of(CUgraph clone, CUgraphNode original)
{
    for (size_t i = 0; i < clone->node_count; i++)
        if (clone->nodes[i]->origin == original)
            return clone->nodes[i];
    return NULL;
}

/* NULL without memory. */
CUgraph graph_clone(CUgraph graph)
{
    CUgraph clone = graph_new();
    bool is_built = clone != NULL;
    for (size_t i = 0; is_built && i < graph->node_count; i++) {
        CUgraphNode from = graph->nodes[i], node;
        is_built = graph_add(clone, from->type, NULL, 0, &node) == CUDA_SUCCESS;
        if (!is_built)
            break;
        struct object head = node->head;
        *node = *from;
        node->head = head;
        node->graph = clone;
        node->origin = from;
        node->dependencies = NULL;
        node->dependency_count = 0;
        node->child = from->child ? graph_clone(from->child) : NULL;
        is_built = !from->child || node->child;
    }
    for (size_t i = 0; is_built && i < graph->node_count; i++)
        for (size_t k = 0; is_built && k < graph->nodes[i]->dependency_count; k++)
            is_built = append(&clone->nodes[i]->dependencies, &clone->nodes[i]->dependency_count,
                              twin_of(clone, graph->nodes[i]->dependencies[k]));
    if (!is_built && clone) {
        graph_destroy(clone);
        clone = NULL;
    }
    return clone;
}

CUDA_EXPORT cuGraphCreate(CUgraph *ret_graph, unsigned flags)
{
    ENTER(cuGraphCreate);
    REQUIRE(ret_graph && flags == 0, CUDA_ERROR_INVALID_VALUE);
    *ret_graph = graph_new();
    return *ret_graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_EXPORT cuGraphDestroy(CUgraph graph)
{
    ENTER(cuGraphDestroy);
    REQUIRE(object_is(graph, KIND_GRAPH), CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    graph_destroy(graph);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGraphClone(CUgraph *ret_clone, CUgraph graph)
{
    ENTER(cuGraphClone);
    REQUIRE(ret_clone && object_is(graph, KIND_GRAPH), CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    CUgraph clone = graph_clone(graph);
    driver_unlock();
    REQUIRE(clone, CUDA_ERROR_OUT_OF_MEMORY);
    *ret_clone = clone;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGraphNodeFindInClone(CUgraphNode *ret_node, CUgraphNode original, CUgraph clone)
{
    ENTER(cuGraphNodeFindInClone);
    REQUIRE(ret_node && object_is(original, KIND_NODE) && object_is(clone, KIND_GRAPH), CUDA_ERROR_INVALID_VALUE);
    CUgraphNode twin = twin_of(clone, original);
    REQUIRE(twin, CUDA_ERROR_INVALID_VALUE);
    *ret_node = twin;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGraphDestroyNode(CUgraphNode node)
{
    ENTER(cuGraphDestroyNode);
    REQUIRE(object_is(node, KIND_NODE), CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    graph_remove(node);
    driver_unlock();
    return CUDA_SUCCESS;
}

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

/* The list itself, or with a NULL list its length; a list with more room than nodes is filled up with NULL. */
static CUresult list_nodes(const CUgraphNode *from, size_t available, CUgraphNode *ret_nodes, size_t *ret_count)
{
    REQUIRE(ret_count, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; ret_nodes && i < *ret_count; i++)
        ret_nodes[i] = i < available ? from[i] : NULL;
    if (!ret_nodes || *ret_count > available)
        *ret_count = available;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGraphGetNodes(CUgraph graph, CUgraphNode *ret_nodes, size_t *ret_count)
{
    ENTER(cuGraphGetNodes);
    REQUIRE(object_is(graph, KIND_GRAPH), CUDA_ERROR_INVALID_VALUE);
    return list_nodes(graph->nodes, graph->node_count, ret_nodes, ret_count);
}

CUDA_EXPORT cuGraphGetRootNodes(CUgraph graph, CUgraphNode *ret_nodes, size_t *ret_count)
{
    ENTER(cuGraphGetRootNodes);
    REQUIRE(object_is(graph, KIND_GRAPH), CUDA_ERROR_INVALID_VALUE);
    CUgraphNode *roots = NULL;
    size_t count = 0;
    bool is_built = true;
    for (size_t i = 0; is_built && i < graph->node_count; i++)
        is_built = graph->nodes[i]->dependency_count || append(&roots, &count, graph->nodes[i]);
    CUresult result = is_built ? list_nodes(roots, count, ret_nodes, ret_count) : (CUresult)CUDA_ERROR_OUT_OF_MEMORY;
    free(roots);
    return result;
}

static CUresult give_dependencies(CUgraphNode node, CUgraphNode *ret_nodes, size_t *ret_count)
{
    REQUIRE(object_is(node, KIND_NODE), CUDA_ERROR_INVALID_VALUE);
    return list_nodes(node->dependencies, node->dependency_count, ret_nodes, ret_count);
}

CUDA_EXPORT cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *ret_nodes, size_t *ret_count)
{
    ENTER(cuGraphNodeGetDependencies);
    return give_dependencies(node, ret_nodes, ret_count);
}

/* Edge data (ports of programmatic launch) is all zero here: edges wait for completion. */
static void clear_edges(void *ret_edges, const size_t *count)
{
    if (ret_edges && count)
        memset(ret_edges, 0, *count * 8 /* CUgraphEdgeData has 8 bytes */);
}

CUDA_EXPORT cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *ret_nodes, void *ret_edges, size_t *ret_count)
{
    ENTER(cuGraphNodeGetDependencies_v2);
    clear_edges(ret_edges, ret_count);
    return give_dependencies(node, ret_nodes, ret_count);
}

static CUresult give_dependents(CUgraphNode node, CUgraphNode *ret_nodes, size_t *ret_count)
{
    CUgraphNode *dependents = NULL;
    size_t count = 0;
    bool is_built = true;
    REQUIRE(object_is(node, KIND_NODE), CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; is_built && i < node->graph->node_count; i++)
        if (has(node->graph->nodes[i]->dependencies, node->graph->nodes[i]->dependency_count, node))
            is_built = append(&dependents, &count, node->graph->nodes[i]);
    CUresult result = is_built ? list_nodes(dependents, count, ret_nodes, ret_count) : (CUresult)CUDA_ERROR_OUT_OF_MEMORY;
    free(dependents);
    return result;
}

CUDA_EXPORT cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *ret_nodes, size_t *ret_count)
{
    ENTER(cuGraphNodeGetDependentNodes);
    return give_dependents(node, ret_nodes, ret_count);
}

CUDA_EXPORT cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *ret_nodes, void *ret_edges, size_t *ret_count)
{
    ENTER(cuGraphNodeGetDependentNodes_v2);
    clear_edges(ret_edges, ret_count);
    return give_dependents(node, ret_nodes, ret_count);
}

/* Both lists or, without lists, the number of edges. */
static CUresult give_edges(CUgraph graph, CUgraphNode *ret_from, CUgraphNode *ret_to, size_t *ret_count)
{
    size_t count = 0;
    REQUIRE(object_is(graph, KIND_GRAPH) && ret_count && !ret_from == !ret_to, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < graph->node_count; i++)
        for (size_t k = 0; k < graph->nodes[i]->dependency_count; k++, count++)
            if (ret_from && count < *ret_count) {
                ret_from[count] = graph->nodes[i]->dependencies[k];
                ret_to[count] = graph->nodes[i];
            }
    for (size_t i = count; ret_from && i < *ret_count; i++)
        ret_from[i] = ret_to[i] = NULL;
    if (!ret_from || *ret_count > count)
        *ret_count = count;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGraphGetEdges(CUgraph graph, CUgraphNode *ret_from, CUgraphNode *ret_to, size_t *ret_count)
{
    ENTER(cuGraphGetEdges);
    return give_edges(graph, ret_from, ret_to, ret_count);
}

CUDA_EXPORT cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *ret_from, CUgraphNode *ret_to, void *ret_edges, size_t *ret_count)
{
    ENTER(cuGraphGetEdges_v2);
    clear_edges(ret_edges, ret_count);
    return give_edges(graph, ret_from, ret_to, ret_count);
}

static CUresult add_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    REQUIRE(object_is(graph, KIND_GRAPH) && ((from && to) || count == 0), CUDA_ERROR_INVALID_VALUE);
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        bool is_valid = object_is(from[i], KIND_NODE) && object_is(to[i], KIND_NODE) && from[i]->graph == graph && to[i]->graph == graph;
        if (!is_valid || has(to[i]->dependencies, to[i]->dependency_count, from[i]))
            result = CUDA_ERROR_INVALID_VALUE;
        else if (!append(&to[i]->dependencies, &to[i]->dependency_count, from[i]))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    driver_unlock();
    return result;
}

CUDA_EXPORT cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    ENTER(cuGraphAddDependencies);
    return add_edges(graph, from, to, count);
}

CUDA_EXPORT cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const void *edges, size_t count)
{
    ENTER(cuGraphAddDependencies_v2);
    (void)edges;
    return add_edges(graph, from, to, count);
}

static CUresult remove_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    REQUIRE(object_is(graph, KIND_GRAPH) && ((from && to) || count == 0), CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    for (size_t i = 0; i < count; i++)
        if (object_is(to[i], KIND_NODE))
            take_out(to[i]->dependencies, &to[i]->dependency_count, from[i]);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    ENTER(cuGraphRemoveDependencies);
    return remove_edges(graph, from, to, count);
}

CUDA_EXPORT cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const void *edges, size_t count)
{
    ENTER(cuGraphRemoveDependencies_v2);
    (void)edges;
    return remove_edges(graph, from, to, count);
}

CUDA_EXPORT cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *ret_host)
{
    ENTER(cuGraphHostNodeGetParams);
    REQUIRE(object_is(node, KIND_NODE) && node->type == CU_GRAPH_NODE_TYPE_HOST && ret_host, CUDA_ERROR_INVALID_VALUE);
    *ret_host = node->host;
    return CUDA_SUCCESS;
}
