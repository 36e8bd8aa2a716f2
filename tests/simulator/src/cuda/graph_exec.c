/* graph_exec.c - graphs that run: instantiation copies the graph, a launch puts its nodes on a stream one after the other.
 *
 * Memory of allocation nodes comes from the card's graph pool when the graph is uploaded or runs, at the address fixed with the node, and
 * stays until a free node, cuMemFree or cuMemFreeAsync gives it back; the pool keeps it until cuDeviceGraphMemTrim. What a graph has had
 * once counts as used while the graph lives, as the driver's attribute says: mapped by at least one graph. */
#include "callback.h"
#include "graph.h"
#include "heap.h"
#include "pool.h"

struct CUgraphExec_st {
    struct object head;
    CUgraph graph; /* own clone */
    uint64_t mapped_bytes;
    CUdevice device; /* of its allocation nodes */
    CUgraphExec next;
};

static CUgraphExec g_execs; /* those with memory mapped */

enum { FLAG_UPLOAD = 2 };

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

static CUresult upload(CUgraphExec exec, CUstream stream)
{
    CUdevice device = 0;
    REQUIRE(object_is(exec, KIND_EXEC), CUDA_ERROR_INVALID_VALUE);
    TRY(stream_resolve(stream, &stream));
    driver_lock();
    const uint64_t bytes = exec->mapped_bytes ? 0 : needed_bytes(exec->graph, &device);
    CUmemoryPool pool = bytes ? pool_of_graphs(device) : NULL;
    CUresult result = !bytes ? CUDA_SUCCESS : pool ? pool_make_room(pool, bytes) : (CUresult)CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        map(exec);
    driver_unlock();
    return result;
}

STREAM_ENTRY(cuGraphUpload, (CUgraphExec exec, CUstream stream), upload(exec, stream))

static CUresult instantiate(CUgraphExec *ret_exec, CUgraph graph)
{
    REQUIRE(ret_exec && object_is(graph, KIND_GRAPH), CUDA_ERROR_INVALID_VALUE);
    CUgraphExec exec = object_new(KIND_EXEC, sizeof *exec);
    REQUIRE(exec, CUDA_ERROR_OUT_OF_MEMORY);
    driver_lock();
    exec->graph = graph_clone(graph);
    driver_unlock();
    if (!exec->graph) {
        object_free(exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret_exec = exec;
    return CUDA_SUCCESS;
}

static CUresult instantiate_with_log(CUgraphExec *ret_exec, CUgraph graph, CUgraphNode *ret_error_node, char *log, size_t log_bytes)
{
    if (ret_error_node)
        *ret_error_node = NULL;
    if (log && log_bytes)
        *log = '\0';
    return instantiate(ret_exec, graph);
}

ENTRY(cuGraphInstantiate, (CUgraphExec *ret_exec, CUgraph graph, CUgraphNode *ret_error_node, char *log, size_t log_bytes),
      instantiate_with_log(ret_exec, graph, ret_error_node, log, log_bytes))
ENTRY(cuGraphInstantiate_v2, (CUgraphExec *ret_exec, CUgraph graph, CUgraphNode *ret_error_node, char *log, size_t log_bytes),
      instantiate_with_log(ret_exec, graph, ret_error_node, log, log_bytes))
ENTRY(cuGraphInstantiateWithFlags, (CUgraphExec *ret_exec, CUgraph graph, unsigned long long flags), ((void)flags, instantiate(ret_exec, graph)))

static CUresult instantiate_with_params(CUgraphExec *ret_exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    REQUIRE(params, CUDA_ERROR_INVALID_VALUE);
    CUresult result = instantiate(ret_exec, graph);
    if (result == CUDA_SUCCESS && params->flags & FLAG_UPLOAD)
        result = upload(*ret_exec, params->upload_stream);
    params->error_node = NULL;
    params->result = result == CUDA_SUCCESS ? 0 : 1;
    return result;
}

ENTRY(cuGraphInstantiateWithParams, (CUgraphExec *ret_exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
      instantiate_with_params(ret_exec, graph, params))
ENTRY(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *ret_exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
      instantiate_with_params(ret_exec, graph, params))

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

/* Under driver_lock(). */
static CUresult run_allocation(CUgraphNode node, CUcontext context)
{
    CUmemoryPool pool = pool_of_graphs(node->device);
    uint64_t allocated_bytes = 0, anywhere;
    REQUIRE(pool, CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(!heap_find(node->address, ~0u), CUDA_ERROR_INVALID_VALUE); /* still there from the launch before */
    TRY(pool_take(pool, node->size_bytes, NULL, &allocated_bytes, &anywhere));
    CUdeviceptr address;
    const struct heap_entry entry = {.address = node->address,
                                     .size_bytes = node->size_bytes,
                                     .allocated_bytes = allocated_bytes,
                                     .context = context,
                                     .card = pool->card,
                                     .kind = HEAP_GRAPH,
                                     .owner = pool};
    CUresult result = heap_enter(&entry, 1, &address);
    if (result != CUDA_SUCCESS)
        pool_give_back(pool, node->address, node->size_bytes, allocated_bytes);
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
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return stream_submit(stream, node->duration_ns, NULL, true);
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
    for (size_t i = 0; i < graph->node_count; i++)
        TRY(run_node(graph->nodes[i], stream));
    return CUDA_SUCCESS;
}

static CUresult launch(CUgraphExec exec, CUstream stream)
{
    REQUIRE(object_is(exec, KIND_EXEC), CUDA_ERROR_INVALID_VALUE);
    TRY(stream_resolve(stream, &stream));
    REQUIRE(!stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    TRY(run_graph(exec->graph, stream));
    driver_lock();
    map(exec);
    driver_unlock();
    return CUDA_SUCCESS;
}

STREAM_ENTRY(cuGraphLaunch, (CUgraphExec exec, CUstream stream), launch(exec, stream))

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
