/* device.c - cards as CUDA shows them: ordinals, names, attributes. All of it is read from the machine's state. */
#include "driver.h"

#include <stdio.h>

/* The card behind an ordinal, or return; what the call gives is checked first. */
#define CARD(device, ret_value)                       \
    struct sim_card *card = driver_card(device);      \
    REQUIRE(ret_value, CUDA_ERROR_INVALID_VALUE);     \
    REQUIRE(card, CUDA_ERROR_INVALID_DEVICE)

CUDA_EXPORT cuDeviceGetCount(int *ret_count)
{
    ENTER(cuDeviceGetCount);
    REQUIRE(ret_count, CUDA_ERROR_INVALID_VALUE);
    *ret_count = driver_device_count();
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceGet(CUdevice *ret_device, int ordinal)
{
    ENTER(cuDeviceGet);
    REQUIRE(ret_device, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(driver_card(ordinal), CUDA_ERROR_INVALID_DEVICE);
    *ret_device = ordinal;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceGetName(char *ret_name, int size_bytes, CUdevice device)
{
    ENTER(cuDeviceGetName);
    CARD(device, ret_name && size_bytes > 0);
    snprintf(ret_name, (size_t)size_bytes, "%s", card->name);
    return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *ret_uuid, CUdevice device)
{
    CARD(device, ret_uuid);
    memcpy(ret_uuid->bytes, card->uuid, sizeof ret_uuid->bytes);
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetUuid, (CUuuid *ret_uuid, CUdevice device), device_uuid(ret_uuid, device))
ENTRY(cuDeviceGetUuid_v2, (CUuuid *ret_uuid, CUdevice device), device_uuid(ret_uuid, device))

CUDA_EXPORT cuDeviceTotalMem_v2(size_t *ret_bytes, CUdevice device)
{
    ENTER(cuDeviceTotalMem_v2);
    CARD(device, ret_bytes);
    *ret_bytes = memory_total_bytes(card);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceTotalMem(unsigned *ret_bytes, CUdevice device)
{
    ENTER(cuDeviceTotalMem);
    CARD(device, ret_bytes);
    uint64_t total_bytes = memory_total_bytes(card);
    *ret_bytes = total_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)total_bytes;
    return CUDA_SUCCESS;
}

/* By CUdevice_attribute. What depends on the card comes from its profile; the rest holds for every card of compute capability 7.0 and
 * later (CUDA C++ programming guide, "Compute Capabilities"). Unlisted attributes are 0. */
static int attribute_value(const struct sim_card *card, int attribute)
{
    static const int same_for_all[] = {
        [1] = 1024 /* threads per block */, [2] = 1024, [3] = 1024, [4] = 64 /* block */, [5] = 2147483647, [6] = 65535, [7] = 65535 /* grid */,
        [8] = 49152 /* shared memory per block */, [9] = 65536 /* constant memory */, [10] = 32 /* warp */, [11] = 2147483647 /* pitch */,
        [19] = 1 /* maps host memory */, [31] = 1 /* concurrent kernels */, [41] = 1 /* unified addressing */, [78] = 1 /* stream priorities */,
        [83] = 1 /* managed memory */, [95] = 1 /* cooperative launch */, [102] = 1, [103] = 1 /* virtual memory, its file descriptors */,
        [115] = 1 /* memory pools */,
    };
    switch (attribute) {
    case 12: case 82: return (int)card->registers_per_multiprocessor;
    case 13: return (int)card->sm_clock_max_mhz * 1000;
    case 16: return (int)card->multiprocessors;
    case 20: return (int)card->compute_mode;
    case 32: return (int)card->ecc_enabled;
    case 33: return (int)card->pci_bus;
    case 34: return (int)card->pci_device;
    case 36: return (int)card->memory_clock_max_mhz * 1000;
    case 37: return (int)card->memory_bus_width_bits;
    case 38: return (int)card->l2_bytes;
    case 39: return (int)card->threads_per_multiprocessor;
    case 40: return (int)card->copy_engines;
    case 50: return (int)card->pci_domain;
    case 75: return (int)card->compute_major;
    case 76: return (int)card->compute_minor;
    case 81: return (int)card->shared_memory_per_multiprocessor_bytes;
    case 97: return (int)card->shared_memory_per_block_optin_bytes;
    default: return attribute < (int)(sizeof same_for_all / sizeof *same_for_all) ? same_for_all[attribute] : 0;
    }
}

CUDA_EXPORT cuDeviceGetAttribute(int *ret_value, int attribute, CUdevice device)
{
    ENTER(cuDeviceGetAttribute);
    CARD(device, ret_value && attribute > 0 && attribute < 200);
    *ret_value = attribute_value(card, attribute);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceGetPCIBusId(char *ret_id, int size_bytes, CUdevice device)
{
    ENTER(cuDeviceGetPCIBusId);
    CARD(device, ret_id && size_bytes > 12);
    snprintf(ret_id, (size_t)size_bytes, "%04x:%02x:%02x.0", card->pci_domain & 0xffff, card->pci_bus & 0xff, card->pci_device & 0xff);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceGetByPCIBusId(CUdevice *ret_device, const char *id)
{
    ENTER(cuDeviceGetByPCIBusId);
    REQUIRE(ret_device && id, CUDA_ERROR_INVALID_VALUE);
    const int position = state_find_bus_id(&g_driver.machine, id);
    REQUIRE(position != SIM_BAD_BUS_ID, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(position >= 0, CUDA_ERROR_INVALID_DEVICE);
    *ret_device = position;
    return CUDA_SUCCESS;
}
