/* launch.c - kernel launches: cuLaunchKernel and its relatives, down to the interface of before CUDA 4. */
#include "graph.h"

/* The first parameter's bytes, from the pointer array or from the packed buffer in `extra`. NULL if neither is given. */
static const void *first_parameter(void **parameters, void **extra)
{
    if (parameters)
        return parameters[0];
    const void *buffer = NULL;
    for (; extra && (uintptr_t)extra[0] != CU_LAUNCH_PARAM_END_VALUE; extra += 2)
        if ((uintptr_t)extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER_VALUE)
            buffer = extra[1];
    return buffer;
}

static int64_t spin_duration_ns(CUfunction function, const void *parameter)
{
    uint64_t us = 0;
    memcpy(&us, parameter, function->first_parameter_bytes); /* little endian */
    return us > INT64_MAX / 4000 ? INT64_MAX / 4 : (int64_t)us * 1000;
}

static bool is_shape_valid(const unsigned grid[3], const unsigned block[3])
{
    for (int axis = 0; axis < 3; axis++)
        if (grid[axis] == 0 || block[axis] == 0)
            return false;
    return grid[1] <= 65535 && grid[2] <= 65535 && block[2] <= 64 && (uint64_t)block[0] * block[1] * block[2] <= 1024;
}

CUresult launch_duration(CUfunction function, const unsigned grid[3], const unsigned block[3], void **parameters, void **extra,
                         int64_t *ret_duration_ns)
{
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(!(parameters && extra) && is_shape_valid(grid, block), CUDA_ERROR_INVALID_VALUE);
    const void *parameter = function->is_spin ? first_parameter(parameters, extra) : NULL;
    REQUIRE(parameter || !function->is_spin, CUDA_ERROR_INVALID_VALUE);
    *ret_duration_ns = parameter ? spin_duration_ns(function, parameter) : g_driver.machine.state->time.other_kernel_ns;
    return CUDA_SUCCESS;
}

/* Into the queue, or into the graph of a stream that captures. */
static CUresult launch(CUfunction function, const unsigned grid[3], const unsigned block[3], CUstream stream, void **parameters, void **extra)
{
    int64_t duration_ns;
    CUgraphNode node;
    TRY(launch_duration(function, grid, block, parameters, extra, &duration_ns));
    TRY(stream_resolve(stream, &stream));
    TRY(graph_capture(stream, CU_GRAPH_NODE_TYPE_KERNEL, &node));
    if (node) {
        node->duration_ns = duration_ns;
        return CUDA_SUCCESS;
    }
    CUresult result = stream_submit(stream, duration_ns, NULL, true);
    driver_spend(g_driver.machine.state->time.launch_call_ns);
    return result;
}

static CUresult launch_kernel(CUfunction function, const unsigned grid[3], const unsigned block[3], CUstream stream, void **parameters, void **extra)
{
    CUcontext context;
    TRY(context_require(&context));
    return launch(function, grid, block, stream, parameters, extra);
}

#define SHAPE_PARAMETERS unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z
#define SHAPE (const unsigned[]){grid_x, grid_y, grid_z}, (const unsigned[]){block_x, block_y, block_z}

STREAM_ENTRY(cuLaunchKernel, (CUfunction function, SHAPE_PARAMETERS, unsigned shared_bytes, CUstream stream, void **parameters, void **extra),
             ((void)shared_bytes, launch_kernel(function, SHAPE, stream, parameters, extra)))
STREAM_ENTRY(cuLaunchCooperativeKernel, (CUfunction function, SHAPE_PARAMETERS, unsigned shared_bytes, CUstream stream, void **parameters),
             ((void)shared_bytes, launch_kernel(function, SHAPE, stream, parameters, NULL)))

/* The shape in a structure, CUlaunchConfig or CUDA_LAUNCH_PARAMS: the fields have the same names. */
#define SHAPE_OF(s) (const unsigned[]){(s)->grid_x, (s)->grid_y, (s)->grid_z}, (const unsigned[]){(s)->block_x, (s)->block_y, (s)->block_z}

CUDA_EXPORT cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    ENTER(cuLaunchKernelEx);
    REQUIRE(config, CUDA_ERROR_INVALID_VALUE);
    return launch_kernel(function, SHAPE_OF(config), config->stream, parameters, extra);
}

CUDA_EXPORT cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    ENTER(cuLaunchKernelEx_ptsz);
    REQUIRE(config, CUDA_ERROR_INVALID_VALUE);
    return launch_kernel(function, SHAPE_OF(config), stream_of_thread(config->stream), parameters, extra);
}

CUDA_EXPORT cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned count, unsigned flags)
{
    ENTER(cuLaunchCooperativeKernelMultiDevice);
    REQUIRE(launches && count > 0 && count <= (unsigned)driver_device_count() && flags <= 3, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++) {
        const CUDA_LAUNCH_PARAMS *one = &launches[i];
        REQUIRE(object_is(one->stream, KIND_STREAM), CUDA_ERROR_INVALID_HANDLE); /* the default streams are not allowed */
        TRY(launch(one->function, SHAPE_OF(one), one->stream, one->kernel_parameters, NULL));
    }
    return CUDA_SUCCESS;
}

/* The interface of before CUDA 4: shape and parameters are set on the function one by one, then it is launched. */

CUDA_EXPORT cuFuncSetBlockShape(CUfunction function, int x, int y, int z)
{
    ENTER(cuFuncSetBlockShape);
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(x > 0 && y > 0 && z > 0, CUDA_ERROR_INVALID_VALUE);
    function->legacy_block[0] = (unsigned)x;
    function->legacy_block[1] = (unsigned)y;
    function->legacy_block[2] = (unsigned)z;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuParamSeti(CUfunction function, int offset, unsigned value)
{
    ENTER(cuParamSeti);
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(offset >= 0, CUDA_ERROR_INVALID_VALUE);
    if (offset == 0)
        function->legacy_parameter = value;
    return CUDA_SUCCESS;
}

static CUresult launch_legacy(CUfunction function, int width, int height, CUstream stream)
{
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(width > 0 && height > 0, CUDA_ERROR_INVALID_VALUE);
    void *parameters[] = {&function->legacy_parameter};
    return launch_kernel(function, (const unsigned[]){(unsigned)width, (unsigned)height, 1}, function->legacy_block, stream, parameters, NULL);
}

ENTRY(cuLaunch, (CUfunction function), launch_legacy(function, 1, 1, NULL))
ENTRY(cuLaunchGrid, (CUfunction function, int width, int height), launch_legacy(function, width, height, NULL))
ENTRY(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream), launch_legacy(function, width, height, stream))
