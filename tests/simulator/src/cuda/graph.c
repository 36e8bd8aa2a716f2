/* graph.c - graphs as data: making and cloning them, and their nodes, one function per kind (contract: graph.h).
 * Next: capture.c records them, graph_exec.c runs them. */
#include "graph.h"

#include <stdlib.h>

#include "heap.h"

CUgraph graph_new(void)
{
    return object_new(KIND_GRAPH, sizeof(struct CUgraph_st));
}

/* A list with one node more; false without memory. */
static bool append(CUgraphNode **list, size_t *count, CUgraphNode node)
{
    CUgraphNode *grown = realloc(*list, (*count + 1) * sizeof *grown);
    if (!grown)
        return false;
    grown[(*count)++] = node;
    *list = grown;
    return true;
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
    bool is_built = true;
    for (size_t i = 0; is_built && i < count; i++)
        is_built = has(node->dependencies, node->dependency_count, dependencies[i]) ||
                   append(&node->dependencies, &node->dependency_count, dependencies[i]);
    if (!is_built || !append(&graph->nodes, &graph->node_count, node)) {
        free_node(node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret_node = node;
    return CUDA_SUCCESS;
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

static bool clone_node(CUgraph clone, CUgraphNode from)
{
    CUgraphNode node;
    if (graph_add(clone, from->type, NULL, 0, &node) != CUDA_SUCCESS)
        return false;
    const struct object head = node->head;
    *node = *from;
    node->head = head;
    node->graph = clone;
    node->origin = from;
    node->dependencies = NULL;
    node->dependency_count = 0;
    node->child = from->child ? graph_clone(from->child) : NULL;
    bool is_built = !from->child || node->child;
    for (size_t k = 0; is_built && k < from->dependency_count; k++)
        is_built = append(&node->dependencies, &node->dependency_count, twin_of(clone, from->dependencies[k]));
    return is_built;
}

/* NULL without memory. */
CUgraph graph_clone(CUgraph graph)
{
    CUgraph clone = graph_new();
    bool is_built = clone != NULL;
    for (size_t i = 0; is_built && i < graph->node_count; i++)
        is_built = clone_node(clone, graph->nodes[i]);
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

/* The list itself, or with a NULL list its length; a list with more room than nodes is filled up with NULL. */
CUDA_EXPORT cuGraphGetNodes(CUgraph graph, CUgraphNode *ret_nodes, size_t *ret_count)
{
    ENTER(cuGraphGetNodes);
    REQUIRE(object_is(graph, KIND_GRAPH) && ret_count, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; ret_nodes && i < *ret_count; i++)
        ret_nodes[i] = i < graph->node_count ? graph->nodes[i] : NULL;
    if (!ret_nodes || *ret_count > graph->node_count)
        *ret_count = graph->node_count;
    return CUDA_SUCCESS;
}

/* --- nodes ---------------------------------------------------------------------------------------------------------------------------- */

/* Where a new node goes, as every call that makes one says it. */
#define PLACE_PARAMETERS CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, size_t count
#define PLACE ret_node, graph, dependencies, count

/* A checked new node; the callers below fill it in. */
static CUresult add(PLACE_PARAMETERS, int type)
{
    REQUIRE(ret_node && object_is(graph, KIND_GRAPH) && (dependencies || count == 0), CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    CUresult result = graph_add(graph, type, dependencies, count, ret_node);
    driver_unlock();
    return result;
}

static CUresult add_kernel(PLACE_PARAMETERS, const CUDA_KERNEL_NODE_PARAMS_v2 *shape)
{
    int64_t duration_ns;
    REQUIRE(shape, CUDA_ERROR_INVALID_VALUE);
    const unsigned grid[] = {shape->grid_x, shape->grid_y, shape->grid_z}, block[] = {shape->block_x, shape->block_y, shape->block_z};
    TRY(launch_duration(shape->function, grid, block, shape->kernel_parameters, shape->extra, &duration_ns));
    TRY(add(PLACE, CU_GRAPH_NODE_TYPE_KERNEL));
    (*ret_node)->duration_ns = duration_ns;
    return CUDA_SUCCESS;
}

/* Version 2 of the parameters continues where version 1 ends, and what it adds is not looked at. */
ENTRY(cuGraphAddKernelNode, (PLACE_PARAMETERS, const CUDA_KERNEL_NODE_PARAMS_v1 *shape),
      add_kernel(PLACE, (const CUDA_KERNEL_NODE_PARAMS_v2 *)shape))
ENTRY(cuGraphAddKernelNode_v2, (PLACE_PARAMETERS, const CUDA_KERNEL_NODE_PARAMS_v2 *shape), add_kernel(PLACE, shape))

static CUresult add_child(PLACE_PARAMETERS, CUgraph child)
{
    REQUIRE(object_is(child, KIND_GRAPH) && child != graph, CUDA_ERROR_INVALID_VALUE);
    TRY(add(PLACE, CU_GRAPH_NODE_TYPE_GRAPH));
    (*ret_node)->child = graph_clone(child);
    return CUDA_SUCCESS;
}

ENTRY(cuGraphAddChildGraphNode, (PLACE_PARAMETERS, CUgraph child), add_child(PLACE, child))

/* The address is fixed here and stays the node's; memory is taken when the graph runs. */
static CUresult add_allocation(PLACE_PARAMETERS, CUDA_MEM_ALLOC_NODE_PARAMS *allocation)
{
    REQUIRE(allocation && allocation->size_bytes, CUDA_ERROR_INVALID_VALUE);
    const CUmemLocation *location = &allocation->pool_props.location;
    REQUIRE(location->type == CU_MEM_LOCATION_TYPE_DEVICE && driver_card(location->id), CUDA_ERROR_INVALID_VALUE);
    TRY(add(PLACE, CU_GRAPH_NODE_TYPE_MEM_ALLOC));
    (*ret_node)->device = location->id;
    (*ret_node)->size_bytes = allocation->size_bytes;
    driver_lock();
    allocation->address = (*ret_node)->address = heap_new_address(allocation->size_bytes);
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuGraphAddMemAllocNode, (PLACE_PARAMETERS, CUDA_MEM_ALLOC_NODE_PARAMS *allocation), add_allocation(PLACE, allocation))

static CUresult add_free(PLACE_PARAMETERS, CUdeviceptr address)
{
    REQUIRE(address, CUDA_ERROR_INVALID_VALUE);
    TRY(add(PLACE, CU_GRAPH_NODE_TYPE_MEM_FREE));
    (*ret_node)->address = address;
    return CUDA_SUCCESS;
}

ENTRY(cuGraphAddMemFreeNode, (PLACE_PARAMETERS, CUdeviceptr address), add_free(PLACE, address))

static CUresult add_any(PLACE_PARAMETERS, CUgraphNodeParams *what)
{
    REQUIRE(what, CUDA_ERROR_INVALID_VALUE);
    switch (what->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return add_kernel(PLACE, &what->kernel);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return add_allocation(PLACE, &what->allocate);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return add_free(PLACE, what->free_address);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        REQUIRE(object_is(what->event, KIND_EVENT), CUDA_ERROR_INVALID_VALUE);
        TRY(add(PLACE, what->type));
        (*ret_node)->event = what->event;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_HOST:
        REQUIRE(what->host.function, CUDA_ERROR_INVALID_VALUE);
        TRY(add(PLACE, what->type));
        (*ret_node)->host = what->host;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return add(PLACE, what->type);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* Edge data (ports of programmatic launch) is not looked at: edges wait for completion. */
#define PLACE_WITH_EDGES CUgraphNode *ret_node, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count
ENTRY(cuGraphAddNode, (PLACE_PARAMETERS, CUgraphNodeParams *what), add_any(PLACE, what))
ENTRY(cuGraphAddNode_v2, (PLACE_WITH_EDGES, CUgraphNodeParams *what), ((void)edges, add_any(PLACE, what)))
ENTRY(cuGraphAddNode_v3, (PLACE_WITH_EDGES, CUgraphNodeParams *what), ((void)edges, add_any(PLACE, what)))

CUDA_EXPORT cuGraphNodeGetType(CUgraphNode node, int *ret_type)
{
    ENTER(cuGraphNodeGetType);
    REQUIRE(object_is(node, KIND_NODE) && ret_type, CUDA_ERROR_INVALID_VALUE);
    *ret_type = node->type;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *ret_graph)
{
    ENTER(cuGraphChildGraphNodeGetGraph);
    REQUIRE(object_is(node, KIND_NODE) && node->child && ret_graph, CUDA_ERROR_INVALID_VALUE);
    *ret_graph = node->child;
    return CUDA_SUCCESS;
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
