/* cuda.h - the part of the CUDA driver ABI that the hook touches, declared by us (no NVIDIA header is used or shipped).
 *
 * Owns: types, codes and struct layouts as the driver's binary interface has them on 64-bit Linux; tests/hook/c/abi_test.c holds the sizes.
 * Next: nvml.h for NVML, hooks.def for prototypes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint32_t CUdeviceptr_v1; /* entry points older than CUDA 3.2 */
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef uint64_t CUmemGenericAllocationHandle;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
};

typedef struct { unsigned char bytes[16]; } CUuuid;

/* Array descriptors; _v1 belongs to entry points older than CUDA 3.2. */
typedef struct {
    size_t width, height; /* elements; height 0: one dimension */
    int format;
    unsigned int channels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    unsigned int width, height;
    int format;
    unsigned int channels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned int channels;
    unsigned int flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct {
    unsigned int width, height, depth;
    int format;
    unsigned int channels;
    unsigned int flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

typedef struct {
    int type; /* 1: device */
    int id;
} CUmemLocation;

enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 }; /* above it: places of the host */
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };

typedef struct {
    int type;
    int requested_handle_types;
    CUmemLocation location;
    void *win32_handle_meta_data;
    unsigned char alloc_flags[8];
} CUmemAllocationProp;

/* One tile, or the small levels' tail, of a sparse array. */
typedef struct {
    int resource_type;
    uint64_t resource; /* CUarray or CUmipmappedArray */
    int subresource_type;
    uint64_t subresource[4]; /* level, layer, offsets and extents, or layer, offset and size of the tail */
    int operation;           /* 1: map, 2: unmap */
    int handle_type;
    CUmemGenericAllocationHandle handle; /* 0: unmaps */
    unsigned long long offset;
    unsigned int device_bit_mask;
    unsigned int flags;
    unsigned int reserved[2];
} CUarrayMapInfo;
_Static_assert(sizeof(CUarrayMapInfo) == 96, "CUarrayMapInfo has 96 bytes");

typedef struct {
    int alloc_type;
    int handle_types;
    CUmemLocation location;
    void *win32_security_attributes;
    size_t max_size;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;

typedef struct {
    unsigned int grid_x, grid_y, grid_z;
    unsigned int block_x, block_y, block_z;
    unsigned int shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned int attribute_count;
} CUlaunchConfig;

typedef struct {
    CUfunction function;
    unsigned int grid_x, grid_y, grid_z;
    unsigned int block_x, block_y, block_z;
    unsigned int shared_bytes;
    CUstream stream;
    void **parameters;
} CUDA_LAUNCH_PARAMS;

typedef struct {
    size_t size;
    size_t alignment;
    unsigned int reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

typedef struct {
    CUmemPoolProps pool;
    const void *access;
    size_t access_count;
    size_t bytes;
    CUdeviceptr pointer; /* out */
} CUDA_MEM_ALLOC_NODE_PARAMS;

/* The union of all nodes' parameters, of which we read one member. */
typedef struct {
    int type;
    int reserved0[3];
    union {
        CUDA_MEM_ALLOC_NODE_PARAMS allocation;
        long long reserved1[29];
    };
    long long reserved2;
} CUgraphNodeParams;

typedef struct {
    uint64_t flags;
    CUstream upload_stream;
    CUgraphNode error_node; /* out */
    int result;             /* out */
} CUDA_GRAPH_INSTANTIATE_PARAMS;

enum { CU_GRAPH_NODE_TYPE_GRAPH = 4, CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10 };
enum { CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2 };
enum { CUDA_ARRAY3D_SPARSE = 0x40, CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80 };

/* Attributes by number, as in the driver's enumerations. */
enum {
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
    CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
    CU_EVENT_DEFAULT = 0,
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
};
