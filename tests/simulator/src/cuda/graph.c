/* graph.c - graphs as data: making, cloning and dropping them (contract: graph.h).
 * Next: graph_nodes.c and graph_edges.c fill them, capture.c records them, graph_exec.c runs them. */
#include "graph.h"

#include <stdlib.h>

CUgraph graph_new(void)
{
    return object_new(KIND_GRAPH, sizeof(struct CUgraph_st));
}

bool graph_list_append(CUgraphNode **list, size_t *count, CUgraphNode node)
{
    CUgraphNode *grown = realloc(*list, (*count + 1) * sizeof *grown);
    if (!grown)
        return false;
    grown[(*count)++] = node;
    *list = grown;
    return true;
}

void graph_list_remove(CUgraphNode *list, size_t *count, CUgraphNode node)
{
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++)
        if (list[i] != node)
            list[kept++] = list[i];
    *count = kept;
}

bool graph_list_has(const CUgraphNode *list, size_t count, CUgraphNode node)
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
    bool is_built = graph_list_append(&graph->nodes, &graph->node_count, node);
    for (size_t i = 0; is_built && i < count; i++)
        is_built = graph_list_has(node->dependencies, node->dependency_count, dependencies[i]) ||
                   graph_list_append(&node->dependencies, &node->dependency_count, dependencies[i]);
    if (!is_built) {
        graph_list_remove(graph->nodes, &graph->node_count, node);
        free_node(node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret_node = node;
    return CUDA_SUCCESS;
}

void graph_remove(CUgraphNode node)
{
    CUgraph graph = node->graph;
    graph_list_remove(graph->nodes, &graph->node_count, node);
    for (size_t i = 0; i < graph->node_count; i++)
        graph_list_remove(graph->nodes[i]->dependencies, &graph->nodes[i]->dependency_count, node);
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
            is_built = graph_list_append(&clone->nodes[i]->dependencies, &clone->nodes[i]->dependency_count,
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
