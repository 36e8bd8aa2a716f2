/* errors.c - names and one-line descriptions of CUDA's error codes. */
#include "driver.h"

struct error_text {
    CUresult code;
    const char *name, *description;
};

#define TEXT(code, description) {code, #code, description}
static const struct error_text g_texts[] = {
    TEXT(CUDA_SUCCESS, "no error"),
    TEXT(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    TEXT(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    TEXT(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    TEXT(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    TEXT(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    TEXT(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    TEXT(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    TEXT(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    TEXT(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    TEXT(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "exclusive-thread device already in use by a different thread"),
    TEXT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    TEXT(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    TEXT(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    TEXT(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    TEXT(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object initialization failed"),
    TEXT(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    TEXT(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    TEXT(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    TEXT(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    TEXT(CUDA_ERROR_NOT_READY, "device not ready"),
    TEXT(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    TEXT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    TEXT(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    TEXT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    TEXT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    TEXT(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    TEXT(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    TEXT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    TEXT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    TEXT(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    TEXT(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    TEXT(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    TEXT(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    TEXT(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
    TEXT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    TEXT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    TEXT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not initiated in this stream"),
    TEXT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing blocking stream"),
    TEXT(CUDA_ERROR_INVALID_RESOURCE_TYPE, "the resource is of a type that the call does not take"),
    TEXT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "the resources cannot be used so or together"),
    TEXT(CUDA_ERROR_STREAM_DETACHED, "the green context of the stream is destroyed"),
    TEXT(CUDA_ERROR_GRAPH_RECAPTURE_FAILURE, "the graph that is captured again differs in its nodes"),
    TEXT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    TEXT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the graph update was not performed because it included changes that an executable graph cannot take"),
    TEXT(CUDA_ERROR_UNKNOWN, "unknown error"),
};

static const struct error_text *find(CUresult code)
{
    for (size_t i = 0; i < sizeof g_texts / sizeof g_texts[0]; i++)
        if (g_texts[i].code == code)
            return &g_texts[i];
    return NULL;
}

CUDA_EXPORT cuGetErrorName(CUresult code, const char **ret_name)
{
    const struct error_text *text = find(code);
    REQUIRE(ret_name, CUDA_ERROR_INVALID_VALUE);
    *ret_name = text ? text->name : NULL;
    return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_EXPORT cuGetErrorString(CUresult code, const char **ret_description)
{
    const struct error_text *text = find(code);
    REQUIRE(ret_description, CUDA_ERROR_INVALID_VALUE);
    *ret_description = text ? text->description : NULL;
    return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
