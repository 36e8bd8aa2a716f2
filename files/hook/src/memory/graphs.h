/* graphs.h - memory of graphs: what a node may take is checked when it is added, what a launch takes is charged. */
#pragma once

#include "driver/driver.h"
#include "slice/container.h"

/* Would `bytes` more fit? Nothing is charged: a node takes its memory when its graph runs. */
CUresult tf_graphs_check_node(struct tf_container *container, int gpu, uint64_t bytes);
CUresult tf_graphs_check_allocation(const struct tf_cuda *cuda, const CUDA_MEM_ALLOC_NODE_PARAMS *parameters);

/* The driver has instantiated a graph, or not (`result`): remembers what its nodes take. One whose nodes cannot be counted is destroyed again. */
CUresult tf_graphs_instantiated(const struct tf_cuda *cuda, CUresult result, CUgraphExec *executable, CUgraph graph);

/* Instantiates with parameters, which may map the memory at once. `real` is the driver's function. */
CUresult tf_graphs_instantiate(const struct tf_cuda *cuda, CUresult (*real)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *),
    CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters);

CUresult tf_graphs_destroy(const struct tf_cuda *cuda, CUgraphExec executable);

/* Launches an executable graph with room for its nodes reserved. `real` is the driver's function. */
CUresult tf_graphs_launch(struct tf_container *container, const struct tf_cuda *cuda, CUresult (*real)(CUgraphExec, CUstream), CUgraphExec executable,
    CUstream stream);
