/* graphs.c - memory of graphs.
 *
 * Promise: a memory node that can never fit is refused when it is added; a launch or an upload whose nodes do not fit is refused, with out of
 *          memory, before the driver takes anything; what graphs keep on a card is charged from the driver's own counter.
 * How:     instantiation adds up the nodes, those of child graphs included, and remembers the sum under the executable graph. Once launched
 *          or uploaded its memory stays mapped until a trim: the next launch needs no more room where the pool holds all graphs that are
 *          mapped. Graphs without memory nodes leave no trace and their launches cost one look into the ledger.
 * Next:    pools.c has the card's graph pool, growth.c its mappings; hooks/graph.c and hooks/launch.c call. */
#include "memory/graphs.h"

#include "driver/nested.h"
#include "memory/growth.h"
#include "memory/overhead.h"
#include "slice/device.h"

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

CUresult tf_graphs_check_allocation(const struct tf_cuda *cuda, const CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    struct tf_container *container = tf_container();
    if (!parameters || parameters->pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE || atomic_load(&container->stance) == TF_NO_SLICE)
        return CUDA_SUCCESS;
    return tf_graphs_check_node(container, tf_device_of_ordinal(container, cuda, parameters->pool.location.id), parameters->bytes);
}

/* --- executable graphs ------------------------------------------------------------------------------------------------------------ */

struct need {
    CUdevice device;
    uint64_t bytes;
    bool is_unsure; /* the driver would not tell all of it */
};

/* A failure may be one of the moment. */
#define INSIST(call) \
    __extension__({ \
        CUresult insist_result = -1; \
        for (int tries = 0; tries < 5 && insist_result != CUDA_SUCCESS; tries++) \
            insist_result = (call); \
        insist_result == CUDA_SUCCESS; \
    })

/* Children may have children; the driver has its own bound, this one keeps a broken answer from being followed for ever. */
enum { DEPTH_MAX = 32 };

static void add_graph(const struct tf_cuda *cuda, CUgraph graph, int depth, struct need *need);

static void add_node(const struct tf_cuda *cuda, CUgraphNode node, int depth, struct need *need)
{
    CUDA_MEM_ALLOC_NODE_PARAMS parameters;
    CUgraph child;
    int type = -1;
    if (!INSIST(cuda->cuGraphNodeGetType(node, &type))) {
        need->is_unsure = true;
    } else if (type == CU_GRAPH_NODE_TYPE_GRAPH && cuda->cuGraphChildGraphNodeGetGraph) {
        if (INSIST(cuda->cuGraphChildGraphNodeGetGraph(node, &child)))
            add_graph(cuda, child, depth + 1, need);
        else
            need->is_unsure = true;
    } else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        if (!INSIST(cuda->cuGraphMemAllocNodeGetParams(node, &parameters))) {
            need->is_unsure = true;
            return;
        }
        if (!need->bytes)
            need->device = parameters.pool.location.id;
        need->bytes += (parameters.bytes + 511) / 512 * 512;
    }
}

static void add_graph(const struct tf_cuda *cuda, CUgraph graph, int depth, struct need *need)
{
    size_t count = 0;
    if (depth == DEPTH_MAX || !INSIST(cuda->cuGraphGetNodes(graph, NULL, &count))) {
        need->is_unsure = true;
        return;
    }
    size_t bytes = count * sizeof(CUgraphNode);
    CUgraphNode *nodes = count ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : NULL;
    if (!nodes)
        return;
    if (nodes == MAP_FAILED || !INSIST(cuda->cuGraphGetNodes(graph, nodes, &count)))
        need->is_unsure = true;
    else
        for (size_t index = 0; index < count; index++)
            add_node(cuda, nodes[index], depth, need);
    if (nodes != MAP_FAILED)
        munmap(nodes, bytes);
}

/* Memory nodes of one graph; all of them on one card in every graph that captures produce, else the first card counts for all. */
static struct need add_up(const struct tf_cuda *cuda, CUgraph graph)
{
    struct need need = {.bytes = 0};
    if (graph && cuda->cuGraphGetNodes && cuda->cuGraphNodeGetType && cuda->cuGraphMemAllocNodeGetParams)
        add_graph(cuda, graph, 0, &need);
    return need;
}

/* An entry's context: the device, above it one more than the number of trims at which its memory was mapped; 0: it is not. */
#define MAPPED_SHIFT 32

static uint64_t mapped_mark(void) { return (uint64_t)(atomic_load(&tf_growth_graph_trims) + 1) << MAPPED_SHIFT; }

static void remember(CUgraphExec executable, const struct need *need, bool is_mapped)
{
    struct tf_entry entry = {.key = (uint64_t)(uintptr_t)executable, .context = (uint64_t)need->device | (is_mapped ? mapped_mark() : 0),
        .extra = need->bytes, .kind = TF_KIND_GRAPH}, replaced;
    tf_ledger_add(&entry, &replaced);
    atomic_store(&has_memory_graphs, true);
}

static bool is_charged(void) { return !tf_is_nested() && atomic_load(&tf_container()->stance) == TF_ENFORCED; }

CUresult tf_graphs_instantiated(const struct tf_cuda *cuda, CUresult result, CUgraphExec *executable, CUgraph graph)
{
    if (result != CUDA_SUCCESS || !is_charged())
        return result;
    struct need need = add_up(cuda, graph);
    if (need.is_unsure) { /* what cannot be counted is not given out */
        if (cuda->cuGraphExecDestroy)
            TF_NESTED(cuda->cuGraphExecDestroy(*executable));
        *executable = NULL;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (need.bytes)
        remember(*executable, &need, false);
    return result;
}

/* A call of the driver that maps memory of a graph. */
struct mapping {
    CUresult (*make)(const struct mapping *mapping);
    CUresult (*real)(CUgraphExec, CUstream);
    CUresult (*real_instantiate)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *);
    CUgraphExec executable;
    CUstream stream;
    CUgraphExec *ret_executable;
    CUgraph graph;
    CUDA_GRAPH_INSTANTIATE_PARAMS *parameters;
};

/* `mark` is that of the executable graph, 0 for one that has never been mapped. */
static CUresult make_room(struct tf_container *container, const struct tf_cuda *cuda, CUdevice device, uint64_t bytes, uint64_t mark,
    const struct mapping *mapping)
{
    int gpu = tf_device_of_ordinal(container, cuda, device);
    struct tf_pool *pool = gpu >= 0 ? tf_pools_enter(container, cuda, NULL, device, gpu) : NULL;
    struct tf_reservation reservation;
    if (!pool)
        return mapping->make(mapping);
    uint64_t room_bytes = mark == mapped_mark() && tf_growth_holds_all_graphs(container, cuda, pool) ? 0 : bytes;
    CUresult result = tf_growth_reserve(container, cuda, pool, room_bytes, &reservation);
    if (result != CUDA_SUCCESS)
        return result;
    if (mark != mapped_mark()) /* asked again: making room may have ended a mapping */
        tf_growth_graph_is_mapped(cuda, pool, bytes);
    result = TF_NESTED(mapping->make(mapping));
    /* a call that failed midway may have taken memory, too */
    if (!tf_growth_settle(cuda, pool, room_bytes, &reservation)) {
        tf_memory_undo(&reservation);
        tf_pools_charge_truth(container, cuda, pool);
    }
    return result;
}

static CUresult make_instantiation(const struct mapping *mapping)
{
    return mapping->real_instantiate(mapping->ret_executable, mapping->graph, mapping->parameters);
}

/* Before the lock. */
static void know_overhead(struct tf_container *container, const struct tf_cuda *cuda, CUdevice device)
{
    int gpu = tf_device_of_ordinal(container, cuda, device);
    if (gpu >= 0)
        tf_overhead_know(container, gpu);
}

/* With the flag for it the driver maps the memory at once. */
static CUresult instantiate_uploaded(const struct tf_cuda *cuda, const struct mapping *mapping, const struct need *need)
{
    know_overhead(tf_container(), cuda, need->device);
    tf_pools_lock();
    CUresult result = make_room(tf_container(), cuda, need->device, need->bytes, 0, mapping);
    tf_pools_unlock();
    if (result == CUDA_SUCCESS)
        remember(*mapping->ret_executable, need, true);
    return result;
}

CUresult tf_graphs_instantiate(const struct tf_cuda *cuda, CUresult (*real)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *),
    CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    bool is_uploaded = parameters && parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    if (is_uploaded && executable && is_charged()) {
        struct need need = add_up(cuda, graph);
        struct mapping mapping = {.make = make_instantiation, .real_instantiate = real, .ret_executable = executable, .graph = graph,
            .parameters = parameters};
        if (need.is_unsure)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (need.bytes)
            return instantiate_uploaded(cuda, &mapping, &need);
    }
    return tf_graphs_instantiated(cuda, TF_NESTED(real(executable, graph, parameters)), executable, graph);
}

CUresult tf_graphs_destroy(const struct tf_cuda *cuda, CUgraphExec executable)
{
    struct tf_entry entry, replaced;
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

static bool mark_mapped(struct tf_entry *entry, void *context)
{
    (void)context;
    entry->context = (uint32_t)entry->context | mapped_mark();
    return true;
}

static CUresult make_run(const struct mapping *mapping) { return mapping->real(mapping->executable, mapping->stream); }

CUresult tf_graphs_launch(struct tf_container *container, const struct tf_cuda *cuda, CUresult (*real)(CUgraphExec, CUstream), CUgraphExec executable,
    CUstream stream)
{
    uint64_t key = (uint64_t)(uintptr_t)executable;
    struct tf_entry need;
    if (TF_LIKELY(!atomic_load_explicit(&has_memory_graphs, memory_order_relaxed)) || tf_is_nested()
        || !tf_ledger_change(TF_KIND_GRAPH, key, copy_entry, &need))
        return real(executable, stream);
    struct mapping mapping = {.make = make_run, .real = real, .executable = executable, .stream = stream};
    know_overhead(container, cuda, (CUdevice)(uint32_t)need.context);
    tf_pools_lock();
    uint64_t mark = need.context >> MAPPED_SHIFT << MAPPED_SHIFT;
    CUresult result = make_room(container, cuda, (CUdevice)(uint32_t)need.context, need.extra, mark, &mapping);
    if (result == CUDA_SUCCESS && mark != mapped_mark())
        tf_ledger_change(TF_KIND_GRAPH, key, mark_mapped, NULL);
    tf_pools_unlock();
    return result;
}
