/* graphs.h - memory of graphs: what a node may take is checked when it is added, what a launch takes is charged. */
#ifndef TENFOLD_GRAPHS_H
#define TENFOLD_GRAPHS_H

#include "slice/container.h"
#include "driver/driver.h"

/* Would `bytes` more fit? Nothing is charged: a node takes its memory when its graph runs. */
CUresult tf_graphs_check_node(struct tf_container *container, int gpu, uint64_t bytes);

/* Launches an executable graph with room for its nodes reserved. `real` is the driver's function. */
CUresult tf_graphs_launch(struct tf_container *container, const struct tf_cuda *cuda, CUresult (*real)(CUgraphExec, CUstream), CUgraphExec executable,
    CUstream stream);

#endif
