/* launch.c - kernel launches: cuLaunchKernel and its relatives, down to the interface of before CUDA 4 (contract: launch.h). */
#include "launch.h"

#include "graph.h"
#include "library.h"

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

CUresult launch_prepare(CUfunction function, const unsigned grid[3], const unsigned block[3], void **parameters, void **extra,
                        struct launch *ret_launch)
{
    function = library_function(function);
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(!(parameters && extra) && is_shape_valid(grid, block), CUDA_ERROR_INVALID_VALUE);
    int64_t duration_ns = g_driver.machine.state->time.other_kernel_ns;
    if (function->is_spin) {
        const void *parameter = first_parameter(parameters, extra);
        REQUIRE(parameter, CUDA_ERROR_INVALID_VALUE);
        duration_ns = spin_duration_ns(function, parameter);
    }
    *ret_launch = (struct launch){.function = function, .duration_ns = duration_ns};
    return CUDA_SUCCESS;
}

CUresult launch_submit(const struct launch *launch, CUstream handle)
{
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    bool is_captured = false;
    result = graph_capture_kernel(stream, launch, &is_captured);
    if (is_captured || result != CUDA_SUCCESS)
        return result;
    result = stream_submit(stream, launch->duration_ns, NULL, true);
    driver_spend(g_driver.machine.state->time.launch_call_ns);
    return result;
}

static CUresult launch_kernel(CUfunction function, const unsigned grid[3], const unsigned block[3], CUstream stream, void **parameters,
                              void **extra)
{
    struct launch launch;
    CUcontext context;
    CUresult result = context_require(&context);
    if (result == CUDA_SUCCESS)
        result = launch_prepare(function, grid, block, parameters, extra, &launch);
    return result == CUDA_SUCCESS ? launch_submit(&launch, stream) : result;
}

#define SHAPE_PARAMETERS unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z
#define SHAPE (const unsigned[]){grid_x, grid_y, grid_z}, (const unsigned[]){block_x, block_y, block_z}

CUDA_EXPORT cuLaunchKernel(CUfunction function, SHAPE_PARAMETERS, unsigned shared_bytes, CUstream stream, void **parameters, void **extra)
{
    ENTER(cuLaunchKernel);
    (void)shared_bytes;
    return launch_kernel(function, SHAPE, stream, parameters, extra);
}

CUDA_EXPORT cuLaunchKernel_ptsz(CUfunction function, SHAPE_PARAMETERS, unsigned shared_bytes, CUstream stream, void **parameters,
                                void **extra)
{
    ENTER(cuLaunchKernel_ptsz);
    (void)shared_bytes;
    return launch_kernel(function, SHAPE, stream_of_thread(stream), parameters, extra);
}

CUDA_EXPORT cuLaunchCooperativeKernel(CUfunction function, SHAPE_PARAMETERS, unsigned shared_bytes, CUstream stream, void **parameters)
{
    ENTER(cuLaunchCooperativeKernel);
    (void)shared_bytes;
    return launch_kernel(function, SHAPE, stream, parameters, NULL);
}

CUDA_EXPORT cuLaunchCooperativeKernel_ptsz(CUfunction function, SHAPE_PARAMETERS, unsigned shared_bytes, CUstream stream,
                                           void **parameters)
{
    ENTER(cuLaunchCooperativeKernel_ptsz);
    (void)shared_bytes;
    return launch_kernel(function, SHAPE, stream_of_thread(stream), parameters, NULL);
}

static CUresult launch_config(const CUlaunchConfig *config, CUstream stream, CUfunction function, void **parameters, void **extra)
{
    return launch_kernel(function, (const unsigned[]){config->grid_x, config->grid_y, config->grid_z},
                         (const unsigned[]){config->block_x, config->block_y, config->block_z}, stream, parameters, extra);
}

CUDA_EXPORT cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    ENTER(cuLaunchKernelEx);
    REQUIRE(config, CUDA_ERROR_INVALID_VALUE);
    return launch_config(config, config->stream, function, parameters, extra);
}

CUDA_EXPORT cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    ENTER(cuLaunchKernelEx_ptsz);
    REQUIRE(config, CUDA_ERROR_INVALID_VALUE);
    return launch_config(config, stream_of_thread(config->stream), function, parameters, extra);
}

CUDA_EXPORT cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned count, unsigned flags)
{
    ENTER(cuLaunchCooperativeKernelMultiDevice);
    REQUIRE(launches && count > 0 && count <= (unsigned)driver_device_count() && flags <= 3, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++) {
        const CUDA_LAUNCH_PARAMS *one = &launches[i];
        REQUIRE(object_is(one->stream, KIND_STREAM), CUDA_ERROR_INVALID_HANDLE); /* the default streams are not allowed */
        struct launch launch;
        CUresult result = launch_prepare(one->function, (const unsigned[]){one->grid_x, one->grid_y, one->grid_z},
                                         (const unsigned[]){one->block_x, one->block_y, one->block_z}, one->kernel_parameters, NULL, &launch);
        if (result == CUDA_SUCCESS)
            result = launch_submit(&launch, one->stream);
        if (result != CUDA_SUCCESS)
            return result;
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

CUDA_EXPORT cuFuncSetSharedSize(CUfunction function, unsigned bytes)
{
    ENTER(cuFuncSetSharedSize);
    (void)bytes;
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuParamSetSize(CUfunction function, unsigned bytes)
{
    ENTER(cuParamSetSize);
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(bytes <= 4096, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

static CUresult set_legacy_parameter(CUfunction function, int offset, const void *value, unsigned bytes)
{
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(offset >= 0 && value, CUDA_ERROR_INVALID_VALUE);
    if ((size_t)offset + bytes <= sizeof function->legacy_parameters) /* later parameters are nobody's business here */
        memcpy(function->legacy_parameters + offset, value, bytes);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuParamSeti(CUfunction function, int offset, unsigned value)
{
    ENTER(cuParamSeti);
    return set_legacy_parameter(function, offset, &value, sizeof value);
}

CUDA_EXPORT cuParamSetf(CUfunction function, int offset, float value)
{
    ENTER(cuParamSetf);
    return set_legacy_parameter(function, offset, &value, sizeof value);
}

CUDA_EXPORT cuParamSetv(CUfunction function, int offset, void *value, unsigned bytes)
{
    ENTER(cuParamSetv);
    return set_legacy_parameter(function, offset, value, bytes);
}

static CUresult launch_legacy(CUfunction function, int width, int height, CUstream stream)
{
    REQUIRE(object_is(function, KIND_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(width > 0 && height > 0, CUDA_ERROR_INVALID_VALUE);
    void *parameters[] = {function->legacy_parameters};
    return launch_kernel(function, (const unsigned[]){(unsigned)width, (unsigned)height, 1}, function->legacy_block, stream, parameters, NULL);
}

CUDA_EXPORT cuLaunch(CUfunction function)
{
    ENTER(cuLaunch);
    return launch_legacy(function, 1, 1, NULL);
}

CUDA_EXPORT cuLaunchGrid(CUfunction function, int width, int height)
{
    ENTER(cuLaunchGrid);
    return launch_legacy(function, width, height, NULL);
}

CUDA_EXPORT cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    ENTER(cuLaunchGridAsync);
    return launch_legacy(function, width, height, stream);
}
