/* device.c - cards by UUID.
 *
 * Owns: a cache ordinal -> number. CUDA's ordinals follow CUDA_VISIBLE_DEVICES, NVML's indices do not; neither is ever compared with the
 *       other. The cache is per attach: UUIDs of ordinals do not change in a process, but a forked child may map them anew.
 * Next: the hooks. */
#include "slice/device.h"

#include "slice/config_page.h"
#include "slice/standalone.h"

#include <string.h>

enum { ORDINALS = 64 };

/* 0: not asked yet; number + 3 otherwise (so that UNLISTED and UNKNOWN fit). The epoch in the upper bits makes old entries void. */
static _Atomic uint64_t ordinals[ORDINALS];

static int ask_driver(struct tf_container *container, const struct tf_cuda *cuda, CUdevice device)
{
    CUuuid uuid;
    CUresult (*get_uuid)(CUuuid *, CUdevice) = cuda->cuDeviceGetUuid_v2 ? cuda->cuDeviceGetUuid_v2 : cuda->cuDeviceGetUuid;
    if (!get_uuid || get_uuid(&uuid, device) != CUDA_SUCCESS)
        return TF_DEVICE_UNKNOWN;
    int gpu = container->page ? tf_container_gpu(container, uuid.bytes) : tf_standalone_gpu(container, device, uuid.bytes);
    return gpu < 0 ? TF_DEVICE_UNLISTED : gpu;
}

_Atomic uint64_t tf_only_card;

static void note_only_card(const struct tf_cuda *cuda, uint64_t epoch, int gpu)
{
    int count = 0;
    if (cuda->cuDeviceGetCount && cuda->cuDeviceGetCount(&count) == CUDA_SUCCESS && count == 1)
        atomic_store_explicit(&tf_only_card, epoch << 32 | (uint32_t)(gpu + 3), memory_order_relaxed);
}

int tf_device_of_ordinal(struct tf_container *container, const struct tf_cuda *cuda, CUdevice device)
{
    if (device < 0 || device >= ORDINALS)
        return ask_driver(container, cuda, device);
    uint64_t epoch = tf_process_epoch(), cached = atomic_load_explicit(&ordinals[device], memory_order_relaxed);
    if (cached >> 32 == epoch)
        return (int)(uint32_t)cached - 3;
    int gpu = ask_driver(container, cuda, device);
    if (gpu != TF_DEVICE_UNKNOWN)
        atomic_store_explicit(&ordinals[device], epoch << 32 | (uint32_t)(gpu + 3), memory_order_relaxed);
    if (gpu >= 0 && device == 0)
        note_only_card(cuda, epoch, gpu);
    return gpu;
}

int tf_device_current(struct tf_container *container, const struct tf_cuda *cuda)
{
    CUdevice device;
    return tf_device_ordinal(cuda, &device) ? tf_device_of_ordinal(container, cuda, device) : TF_DEVICE_UNKNOWN;
}

int tf_device_of_context(struct tf_container *container, const struct tf_cuda *cuda, CUcontext *ret_context)
{
    CUcontext context = NULL;
    if (cuda->cuCtxGetCurrent)
        cuda->cuCtxGetCurrent(&context);
    *ret_context = context;
    int only = context ? tf_device_only() : TF_DEVICE_UNKNOWN;
    return TF_LIKELY(only >= 0) ? only : tf_device_current(container, cuda);
}

/* Without a context there is no answer, and asking again does not help; any other failure may be one of the moment. */
bool tf_device_ordinal(const struct tf_cuda *cuda, CUdevice *ret_device)
{
    for (int tries = 0; tries < 3 && cuda->cuCtxGetDevice; tries++) {
        CUresult result = cuda->cuCtxGetDevice(ret_device);
        if (TF_LIKELY(result == CUDA_SUCCESS))
            return true;
        if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED)
            return false;
    }
    return false;
}

int tf_device_of_nvml(struct tf_container *container, const struct tf_nvml *nvml, nvmlDevice_t device)
{
    char text[96] = "";
    unsigned char uuid[16];
    if (!nvml->nvmlDeviceGetUUID || nvml->nvmlDeviceGetUUID(device, text, sizeof text) != NVML_SUCCESS)
        return TF_DEVICE_UNKNOWN;
    text[sizeof text - 1] = '\0';
    if (!tf_uuid_parse(text, uuid))
        return TF_DEVICE_UNKNOWN;
    int gpu = tf_container_gpu(container, uuid);
    return gpu < 0 ? TF_DEVICE_UNLISTED : gpu;
}
