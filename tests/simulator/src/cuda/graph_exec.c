/* graph_exec.c - graphs that run: instantiation orders the nodes, a launch puts them on a stream one after the other.
 *
 * Memory of allocation nodes comes from the card's graph pool when the graph is uploaded or runs, at the address fixed with the node, and
 * stays until a free node, cuMemFree or cuMemFreeAsync gives it back; the pool keeps it until cuDeviceGraphMemTrim. What a graph has had
 * once counts as used while the graph lives, as the driver's attribute says: mapped by at least one graph. */
#include <stdlib.h>

#include "callback.h"
#include "graph.h"
#include "heap.h"
#include "pool.h"

struct CUgraphExec_st {
    struct object head;
    CUgraph graph; /* own clone, nodes in an order that keeps every edge */
    uint64_t flags;
    uint64_t mapped_bytes;
    CUdevice device; /* of its allocation nodes */
    CUgraphExec next;
};

static CUgraphExec g_execs; /* those with memory mapped */

enum { FLAG_UPLOAD = 2 };

/* Orders graph->nodes so that dependencies come first. False: there is a cycle. */
static bool sort_nodes(CUgraph graph)
{
    for (size_t placed = 0; placed < graph->node_count; placed++) {
        size_t next = placed;
        for (bool is_ready = false; next < graph->node_count; next++) {
            is_ready = true;
            for (size_t k = 0; is_ready && k < graph->nodes[next]->dependency_count; k++) {
                bool is_placed = false;
                for (size_t p = 0; p < placed && !is_placed; p++)
                    is_placed = graph->nodes[p] == graph->nodes[next]->dependencies[k];
                is_ready = is_placed;
            }
            if (is_ready)
                break;
        }
        if (next == graph->node_count)
            return false;
        CUgraphNode node = graph->nodes[next];
        memmove(&graph->nodes[placed + 1], &graph->nodes[placed], (next - placed) * sizeof node);
        graph->nodes[placed] = node;
    }
    return true;
}

/* What the allocation nodes take together, those of child graphs included. */
static uint64_t needed_bytes(CUgraph graph, CUdevice *ret_device)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < graph->node_count; i++) {
        CUgraphNode node = graph->nodes[i];
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
            bytes += node->size_bytes;
            *ret_device = node->device;
        } else if (node->type == CU_GRAPH_NODE_TYPE_GRAPH && node->child) {
            bytes += needed_bytes(node->child, ret_device);
        }
    }
    return bytes;
}

/* Under driver_lock(). */
static void map(CUgraphExec exec)
{
    const uint64_t bytes = exec->mapped_bytes ? 0 : needed_bytes(exec->graph, &exec->device);
    if (!bytes)
        return;
    exec->mapped_bytes = bytes;
    exec->next = g_execs;
    g_execs = exec;
    pool_of_graphs(exec->device)->mapped_bytes += bytes;
}

/* Under driver_lock(). */
static void unmap(CUgraphExec exec)
{
    CUgraphExec *link = &g_execs;
    while (*link && *link != exec)
        link = &(*link)->next;
    if (!*link)
        return;
    *link = exec->next;
    pool_of_graphs(exec->device)->mapped_bytes -= exec->mapped_bytes;
    exec->mapped_bytes = 0;
}

static CUresult instantiate(CUgraphExec *ret_exec, CUgraph graph, uint64_t flags)
{
    REQUIRE(ret_exec && object_is(graph, KIND_GRAPH), CUDA_ERROR_INVALID_VALUE);
    CUgraphExec exec = object_new(KIND_EXEC, sizeof *exec);
    REQUIRE(exec, CUDA_ERROR_OUT_OF_MEMORY);
    driver_lock();
    exec->graph = graph_clone(graph);
    exec->flags = flags;
    CUresult result = !exec->graph ? CUDA_ERROR_OUT_OF_MEMORY : !sort_nodes(exec->graph) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS && exec->graph)
        graph_destroy(exec->graph);
    driver_unlock();
    if (result == CUDA_SUCCESS)
        *ret_exec = exec;
    else
        object_free(exec);
    return result;
}

static CUresult instantiate_with_log(CUgraphExec *ret_exec, CUgraph graph, CUgraphNode *ret_error_node, char *log, size_t log_bytes)
{
    if (ret_error_node)
        *ret_error_node = NULL;
    if (log && log_bytes)
        *log = '\0';
    return instantiate(ret_exec, graph, 0);
}

CUDA_EXPORT cuGraphInstantiate(CUgraphExec *ret_exec, CUgraph graph, CUgraphNode *ret_error_node, char *log, size_t log_bytes)
{
    ENTER(cuGraphInstantiate);
    return instantiate_with_log(ret_exec, graph, ret_error_node, log, log_bytes);
}

CUDA_EXPORT cuGraphInstantiate_v2(CUgraphExec *ret_exec, CUgraph graph, CUgraphNode *ret_error_node, char *log, size_t log_bytes)
{
    ENTER(cuGraphInstantiate_v2);
    return instantiate_with_log(ret_exec, graph, ret_error_node, log, log_bytes);
}

CUDA_EXPORT cuGraphInstantiateWithFlags(CUgraphExec *ret_exec, CUgraph graph, unsigned long long flags)
{
    ENTER(cuGraphInstantiateWithFlags);
    return instantiate(ret_exec, graph, flags);
}

static CUresult upload(CUgraphExec exec, CUstream handle);

static CUresult instantiate_with_params(CUgraphExec *ret_exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    REQUIRE(params, CUDA_ERROR_INVALID_VALUE);
    CUresult result = instantiate(ret_exec, graph, params->flags);
    if (result == CUDA_SUCCESS && params->flags & FLAG_UPLOAD)
        result = upload(*ret_exec, params->upload_stream);
    params->error_node = NULL;
    params->result = result == CUDA_SUCCESS ? 0 : 1;
    return result;
}

CUDA_EXPORT cuGraphInstantiateWithParams(CUgraphExec *ret_exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    ENTER(cuGraphInstantiateWithParams);
    return instantiate_with_params(ret_exec, graph, params);
}

CUDA_EXPORT cuGraphInstantiateWithParams_ptsz(CUgraphExec *ret_exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    ENTER(cuGraphInstantiateWithParams_ptsz);
    return instantiate_with_params(ret_exec, graph, params);
}

CUDA_EXPORT cuGraphExecDestroy(CUgraphExec exec)
{
    ENTER(cuGraphExecDestroy);
    REQUIRE(object_is(exec, KIND_EXEC), CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    unmap(exec);
    graph_destroy(exec->graph);
    object_free(exec);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGraphExecGetFlags(CUgraphExec exec, uint64_t *ret_flags)
{
    ENTER(cuGraphExecGetFlags);
    REQUIRE(object_is(exec, KIND_EXEC) && ret_flags, CUDA_ERROR_INVALID_VALUE);
    *ret_flags = exec->flags;
    return CUDA_SUCCESS;
}

/* Under driver_lock(). */
static CUresult run_allocation(CUgraphNode node, CUcontext context)
{
    CUmemoryPool pool = pool_of_graphs(node->device);
    uint64_t allocated_bytes = 0;
    REQUIRE(pool, CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(!heap_find(node->address, ~0u), CUDA_ERROR_INVALID_VALUE); /* still there from the launch before */
    CUresult result = pool_take(pool, node->size_bytes, &allocated_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    CUdeviceptr address;
    const struct heap_entry entry = {.address = node->address,
                                     .size_bytes = node->size_bytes,
                                     .allocated_bytes = allocated_bytes,
                                     .context = context,
                                     .card = pool->card,
                                     .kind = HEAP_GRAPH,
                                     .owner = pool};
    result = heap_enter(&entry, 1, &address);
    if (result != CUDA_SUCCESS)
        pool_give_back(pool, node->size_bytes, allocated_bytes);
    return result;
}

/* Under driver_lock(). */
static CUresult run_free(CUgraphNode node)
{
    struct heap_entry *entry = heap_find(node->address, HEAP_GRAPH | HEAP_POOL | HEAP_DEVICE);
    REQUIRE(entry, CUDA_ERROR_INVALID_VALUE);
    heap_release(entry);
    return CUDA_SUCCESS;
}

static CUresult run_graph(CUgraph graph, CUstream stream);

static CUresult run_node(CUgraphNode node, CUstream stream)
{
    CUresult result;
    if (node->is_disabled)
        return CUDA_SUCCESS;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return stream_submit(stream, node->launch.duration_ns, NULL, true);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return node->child ? run_graph(node->child, stream) : (CUresult)CUDA_ERROR_OUT_OF_MEMORY;
    case CU_GRAPH_NODE_TYPE_HOST:
        return callback_submit(stream, node->host.function, NULL, node->host.user_data);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return stream_submit(stream, 0, node->event, false);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        driver_lock();
        result = node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? run_allocation(node, stream->context) : run_free(node);
        driver_unlock();
        return result;
    default: /* copies and fills move nothing and cost nothing inside a graph; waits are kept by the queue */
        return CUDA_SUCCESS;
    }
}

static CUresult run_graph(CUgraph graph, CUstream stream)
{
    for (size_t i = 0; i < graph->node_count; i++) {
        CUresult result = run_node(graph->nodes[i], stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

static CUresult launch(CUgraphExec exec, CUstream handle)
{
    CUstream stream;
    REQUIRE(object_is(exec, KIND_EXEC), CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(!stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    result = run_graph(exec->graph, stream);
    driver_lock();
    if (result == CUDA_SUCCESS)
        map(exec);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    ENTER(cuGraphLaunch);
    return launch(exec, stream);
}

CUDA_EXPORT cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    ENTER(cuGraphLaunch_ptsz);
    return launch(exec, stream_of_thread(stream));
}

static CUresult upload(CUgraphExec exec, CUstream handle)
{
    CUstream stream;
    CUdevice device = 0;
    REQUIRE(object_is(exec, KIND_EXEC), CUDA_ERROR_INVALID_VALUE);
    CUresult result = stream_resolve(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    const uint64_t bytes = exec->mapped_bytes ? 0 : needed_bytes(exec->graph, &device);
    CUmemoryPool pool = bytes ? pool_of_graphs(device) : NULL;
    result = !bytes ? CUDA_SUCCESS : pool ? pool_make_room(pool, bytes) : (CUresult)CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        map(exec);
    driver_unlock();
    return result;
}

CUDA_EXPORT cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    ENTER(cuGraphUpload);
    return upload(exec, stream);
}

CUDA_EXPORT cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    ENTER(cuGraphUpload_ptsz);
    return upload(exec, stream_of_thread(stream));
}

static CUgraphNode twin_in(CUgraphExec exec, CUgraphNode node)
{
    for (size_t i = 0; object_is(exec, KIND_EXEC) && i < exec->graph->node_count; i++)
        if (exec->graph->nodes[i]->origin == node)
            return exec->graph->nodes[i];
    return NULL;
}

CUDA_EXPORT cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned is_enabled)
{
    ENTER(cuGraphNodeSetEnabled);
    CUgraphNode twin = twin_in(exec, node);
    REQUIRE(twin && (twin->type <= CU_GRAPH_NODE_TYPE_MEMSET), CUDA_ERROR_INVALID_VALUE);
    twin->is_disabled = !is_enabled;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned *ret_is_enabled)
{
    ENTER(cuGraphNodeGetEnabled);
    CUgraphNode twin = twin_in(exec, node);
    REQUIRE(twin && ret_is_enabled, CUDA_ERROR_INVALID_VALUE);
    *ret_is_enabled = !twin->is_disabled;
    return CUDA_SUCCESS;
}

static CUresult set_kernel(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *shape)
{
    CUgraphNode twin = twin_in(exec, node);
    REQUIRE(twin && twin->type == CU_GRAPH_NODE_TYPE_KERNEL, CUDA_ERROR_INVALID_VALUE);
    const unsigned grid[] = {shape->grid_x, shape->grid_y, shape->grid_z}, block[] = {shape->block_x, shape->block_y, shape->block_z};
    return launch_prepare(shape->function ? shape->function : (CUfunction)shape->kernel, grid, block, shape->kernel_parameters,
                          shape->extra, &twin->launch);
}

CUDA_EXPORT cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *shape)
{
    ENTER(cuGraphExecKernelNodeSetParams);
    REQUIRE(shape, CUDA_ERROR_INVALID_VALUE);
    CUDA_KERNEL_NODE_PARAMS_v2 wide = {0};
    memcpy(&wide, shape, sizeof *shape);
    return set_kernel(exec, node, &wide);
}

CUDA_EXPORT cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *shape)
{
    ENTER(cuGraphExecKernelNodeSetParams_v2);
    REQUIRE(shape, CUDA_ERROR_INVALID_VALUE);
    return set_kernel(exec, node, shape);
}

/* CUgraphExecUpdateResult: what kept an update from being made. */
enum { UPDATE_DONE = 0, UPDATE_ERROR = 1, UPDATE_TOPOLOGY_CHANGED = 2, UPDATE_TYPE_CHANGED = 3 };

/* Takes over the parameters of a graph of the same shape. */
static CUresult update(CUgraphExec exec, CUgraph graph, int *ret_reason)
{
    REQUIRE(object_is(exec, KIND_EXEC) && object_is(graph, KIND_GRAPH), CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    CUgraph fresh = graph_clone(graph);
    *ret_reason = !fresh || !sort_nodes(fresh) ? UPDATE_ERROR : UPDATE_DONE;
    if (*ret_reason == UPDATE_DONE && fresh->node_count != exec->graph->node_count)
        *ret_reason = UPDATE_TOPOLOGY_CHANGED;
    for (size_t i = 0; *ret_reason == UPDATE_DONE && i < fresh->node_count; i++) {
        if (fresh->nodes[i]->dependency_count != exec->graph->nodes[i]->dependency_count)
            *ret_reason = UPDATE_TOPOLOGY_CHANGED;
        else if (fresh->nodes[i]->type != exec->graph->nodes[i]->type)
            *ret_reason = UPDATE_TYPE_CHANGED;
    }
    CUgraph old = *ret_reason == UPDATE_DONE ? exec->graph : fresh;
    if (*ret_reason == UPDATE_DONE)
        exec->graph = fresh;
    if (old)
        graph_destroy(old);
    driver_unlock();
    return *ret_reason == UPDATE_DONE ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUDA_EXPORT cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *ret_error_node, int *ret_reason)
{
    ENTER(cuGraphExecUpdate);
    REQUIRE(ret_reason, CUDA_ERROR_INVALID_VALUE);
    if (ret_error_node)
        *ret_error_node = NULL;
    return update(exec, graph, ret_reason);
}

struct update_result {
    int reason;
    CUgraphNode error_node, error_from_node;
};

CUDA_EXPORT cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, struct update_result *ret_result)
{
    ENTER(cuGraphExecUpdate_v2);
    REQUIRE(ret_result, CUDA_ERROR_INVALID_VALUE);
    *ret_result = (struct update_result){.reason = UPDATE_ERROR};
    return update(exec, graph, &ret_result->reason);
}

CUDA_EXPORT cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *ret_value)
{
    ENTER(cuDeviceGetGraphMemAttribute);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(ret_value && attribute >= 0 && attribute <= CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    CUmemoryPool pool = pool_of_graphs(device);
    if (pool) {
        uint64_t mapped_bytes = pool->mapped_bytes < pool->reserved_bytes ? pool->mapped_bytes : pool->reserved_bytes;
        if (!g_driver.machine.state->memory.graph_use_is_mapped)
            mapped_bytes = 0;
        const uint64_t used_bytes = pool->used_bytes > mapped_bytes ? pool->used_bytes : mapped_bytes;
        const uint64_t values[] = {used_bytes, pool->used_high_bytes, pool->reserved_bytes, pool->reserved_high_bytes};
        *(uint64_t *)ret_value = values[attribute];
    }
    driver_unlock();
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_EXPORT cuDeviceSetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    ENTER(cuDeviceSetGraphMemAttribute);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(value && *(uint64_t *)value == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    CUmemoryPool pool = pool_of_graphs(device);
    if (pool && attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        pool->used_high_bytes = pool->used_bytes;
    else if (pool)
        pool->reserved_high_bytes = pool->reserved_bytes;
    driver_unlock();
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_EXPORT cuDeviceGraphMemTrim(CUdevice device)
{
    ENTER(cuDeviceGraphMemTrim);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    driver_lock();
    CUmemoryPool pool = pool_of_graphs(device);
    for (CUgraphExec exec = g_execs, next; exec; exec = next) { /* none is running: launches are done when they return */
        next = exec->next;
        if (exec->device == device)
            unmap(exec);
    }
    if (pool)
        pool_trim_unused(pool);
    driver_unlock();
    return CUDA_SUCCESS;
}
