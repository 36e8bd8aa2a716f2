/* graph_edges.c - which nodes there are and what depends on what (contract: graph.h). */
#include <stdlib.h>

#include "graph.h"

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
        is_built = graph->nodes[i]->dependency_count || graph_list_append(&roots, &count, graph->nodes[i]);
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
        if (graph_list_has(node->graph->nodes[i]->dependencies, node->graph->nodes[i]->dependency_count, node))
            is_built = graph_list_append(&dependents, &count, node->graph->nodes[i]);
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
        if (!is_valid || graph_list_has(to[i]->dependencies, to[i]->dependency_count, from[i]))
            result = CUDA_ERROR_INVALID_VALUE;
        else if (!graph_list_append(&to[i]->dependencies, &to[i]->dependency_count, from[i]))
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
            graph_list_remove(to[i]->dependencies, &to[i]->dependency_count, from[i]);
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
