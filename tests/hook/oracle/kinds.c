/* kinds.c - names of the kinds, for reports (contract: objects.h). */
#include "objects.h"

const char *const kind_names[KINDS] = {"linear", "pitch", "managed", "array", "array3d", "mipmap", "vmm", "async", "pool", "graph", "context",
                                       "ipc", "host", "external", "module"};
