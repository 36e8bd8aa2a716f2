/* objects.h - one live thing that holds device memory (or, for comparison, does not), of any kind that the driver knows.
 *
 * Owns:  how each kind is made and dropped, in random variants. A failed make leaves nothing behind.
 * Next:  worker.c decides when; the conductor compares the books. */
#ifndef TENFOLD_ORACLE_OBJECTS_H
#define TENFOLD_ORACLE_OBJECTS_H

#include <stdbool.h>

#include "board.h"

enum kind {
    KIND_LINEAR,
    KIND_PITCH,
    KIND_MANAGED,
    KIND_ARRAY,
    KIND_ARRAY3D,
    KIND_MIPMAP,
    KIND_VMM,
    KIND_ASYNC,
    KIND_POOL,
    KIND_GRAPH,
    KIND_CONTEXT,
    KIND_IPC,
    KIND_HOST,
    KIND_EXTERNAL,
    KIND_MODULE,
    KINDS,
};
extern const char *const kind_names[KINDS];

enum { PARTS = 3 };

struct object {
    enum kind kind;
    CUdevice device;
    unsigned variant;
    CUdeviceptr pointers[PARTS];
    void *handles[PARTS]; /* arrays, mipmaps, pools, graphs, contexts, host pages: by kind */
    CUmemGenericAllocationHandle physical[PARTS];
    uint64_t bytes;
};

/* What a thread works with. */
struct hand {
    const struct cuda_api *cuda;
    struct board *board;
    uint32_t seat, thread;
    uint64_t random;
    CUcontext contexts[DEVICES_MAX];
    CUstream streams[DEVICES_MAX];
};

/* Does this driver have the functions of that kind? */
bool object_is_possible(const struct cuda_api *cuda, enum kind kind);

/* 0: made. 1: refused (out of memory, an injected error, or not supported by this driver), nothing is left. -1: the driver said something
 * that it must not say; the seat's failure is filled in. */
int object_make(struct hand *hand, enum kind kind, struct object *ret_object);

/* 0: gone. -1: as above. Injected errors are tried again. */
int object_drop(struct hand *hand, struct object *object);

#endif
