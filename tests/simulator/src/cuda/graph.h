/* graph.h - CUDA graphs and stream capture: what a capturing stream does instead of running. */
#ifndef TENFOLD_SIM_GRAPH_H
#define TENFOLD_SIM_GRAPH_H

#include "driver.h"

struct CUgraphNode_st {
    struct object head;
    CUgraph graph;
    int type;
    int64_t duration_ns; /* kernel */
    CUgraph child;       /* child graph: an own clone */
    CUDA_HOST_NODE_PARAMS host;
    CUevent event;
    CUdeviceptr address; /* allocation and free */
    uint64_t size_bytes;
    CUdevice device;
    CUgraphNode origin; /* of a clone, and in a graph that is captured again */
    CUgraphNode *dependencies;
    size_t dependency_count;
};

struct CUgraph_st {
    struct object head;
    CUgraphNode *nodes; /* each after those that it depends on: edges come with their later node, and stay */
    size_t node_count;
};

/* Capture state of a stream: which graph it records into, and which nodes its next one comes after. */
struct capture {
    struct object head;
    CUgraph graph;
    uint64_t id;
    CUstream origin;
    int mode;
    const void *thread; /* that began it */
    bool is_broken;
    bool is_for_graphics; /* what is recorded goes to a graphics interface, which this machine has none of: it is dropped at the end */
    CUgraph recaptured;   /* the graph whose nodes must come again, in their order; graph is then the new one */
};

/* capture_mode.c; under driver_lock(). */
void capture_mode_opened(struct capture *capture);
void capture_mode_closed(struct capture *capture);

/* Records a node, for the caller to fill in; *ret_node is NULL if the stream does not capture. */
CUresult graph_capture(CUstream stream, int node_type, CUgraphNode *ret_node);

/* The same for what is more, or less, than a node. *ret_is_captured: the stream captures, and the call is done. */
CUresult graph_capture_allocate(CUstream stream, uint64_t size_bytes, CUdeviceptr *ret_address, bool *ret_is_captured);
CUresult graph_capture_event_record(CUstream stream, CUevent event, bool *ret_is_captured);
CUresult graph_capture_event_wait(CUstream stream, CUevent event);

/* A captured event, or a stream that captures, is asked or waited for: neither ever runs. Breaks the capture where the rules are strict. */
CUresult graph_refuse_event(CUevent event);
CUresult graph_refuse_wait(CUstream stream);

/* launch.c: checks a launch, and how long it would run; nothing is queued. */
CUresult launch_duration(CUfunction function, const unsigned grid[3], const unsigned block[3], void **parameters, void **extra,
                         int64_t *ret_duration_ns);

/* A piece of work of no time and no memory: into the graph of a stream that captures, else into its queue. */
CUresult graph_mark(CUstream stream, int node_type);

/* A stream or event is destroyed: what a capture kept for it goes. */
void graph_forget_stream(CUstream stream);
void graph_forget_event(CUevent event);

/* Building blocks shared by graph.c, capture.c (recording) and graph_exec.c (running). Under driver_lock(). */
CUgraph graph_new(void);
void graph_destroy(CUgraph graph);
CUgraph graph_clone(CUgraph graph);
CUresult graph_add(CUgraph graph, int type, const CUgraphNode *dependencies, size_t count, CUgraphNode *ret_node);

#endif
