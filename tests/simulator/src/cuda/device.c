/* device.c - cards as CUDA shows them: ordinals, names, attributes. All of it is read from the machine's state. */
#include "driver.h"

#include <stdio.h>

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
    struct sim_card *card = driver_card(device);
    REQUIRE(ret_name && size_bytes > 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(card, CUDA_ERROR_INVALID_DEVICE);
    snprintf(ret_name, (size_t)size_bytes, "%s", card->name);
    return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *ret_uuid, CUdevice device)
{
    struct sim_card *card = driver_card(device);
    REQUIRE(ret_uuid, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(card, CUDA_ERROR_INVALID_DEVICE);
    memcpy(ret_uuid->bytes, card->uuid, sizeof ret_uuid->bytes);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceGetUuid(CUuuid *ret_uuid, CUdevice device)
{
    ENTER(cuDeviceGetUuid);
    return device_uuid(ret_uuid, device);
}

CUDA_EXPORT cuDeviceGetUuid_v2(CUuuid *ret_uuid, CUdevice device)
{
    ENTER(cuDeviceGetUuid_v2);
    return device_uuid(ret_uuid, device);
}

CUDA_EXPORT cuDeviceTotalMem_v2(size_t *ret_bytes, CUdevice device)
{
    ENTER(cuDeviceTotalMem_v2);
    struct sim_card *card = driver_card(device);
    REQUIRE(ret_bytes, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(card, CUDA_ERROR_INVALID_DEVICE);
    *ret_bytes = memory_total_bytes(card);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceTotalMem(unsigned *ret_bytes, CUdevice device)
{
    ENTER(cuDeviceTotalMem);
    struct sim_card *card = driver_card(device);
    REQUIRE(ret_bytes, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(card, CUDA_ERROR_INVALID_DEVICE);
    uint64_t total_bytes = memory_total_bytes(card);
    *ret_bytes = total_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)total_bytes;
    return CUDA_SUCCESS;
}

/* Numbers are those of CUdevice_attribute. Values that depend on the card come from its profile; the rest holds for every card of
 * compute capability 7.0 and later (CUDA C++ programming guide, "Compute Capabilities"). Unlisted attributes are 0. */
static int attribute_value(const struct sim_card *card, int attribute)
{
    switch (attribute) {
    case 1: return 1024;           /* threads per block */
    case 2: case 3: return 1024;   /* block x, y */
    case 4: return 64;             /* block z */
    case 5: return 2147483647;     /* grid x */
    case 6: case 7: return 65535;  /* grid y, z */
    case 8: return 49152;          /* shared memory per block */
    case 9: return 65536;          /* constant memory */
    case 10: return 32;            /* warp */
    case 11: return 2147483647;    /* pitch */
    case 12: case 82: return (int)card->registers_per_multiprocessor;
    case 13: return (int)card->sm_clock_max_mhz * 1000;
    case 14: return 512;
    case 15: return 1;
    case 16: return (int)card->multiprocessors;
    case 19: return 1;             /* can map host memory */
    case 20: return (int)card->compute_mode;
    case 30: return 512;
    case 31: return 1;             /* concurrent kernels */
    case 32: return (int)card->ecc_enabled;
    case 33: return (int)card->pci_bus;
    case 34: return (int)card->pci_device;
    case 36: return (int)card->memory_clock_max_mhz * 1000;
    case 37: return (int)card->memory_bus_width_bits;
    case 38: return (int)card->l2_bytes;
    case 39: return (int)card->threads_per_multiprocessor;
    case 40: return (int)card->copy_engines;
    case 41: return 1;             /* unified addressing */
    case 50: return (int)card->pci_domain;
    case 51: return 32;
    case 75: return (int)card->compute_major;
    case 76: return (int)card->compute_minor;
    case 78: case 79: case 80: return 1;
    case 81: return (int)card->shared_memory_per_multiprocessor_bytes;
    case 83: return 1;             /* managed memory */
    case 87: return 2;
    case 89: case 90: case 91: return 1;
    case 95: return 1;             /* cooperative launch */
    case 97: return (int)card->shared_memory_per_block_optin_bytes;
    case 99: return 1;
    case 102: case 103: return 1;  /* virtual memory management, file descriptors */
    case 106: return card->compute_major >= 8 ? 32 : 16;
    case 111: return 1024;
    case 113: case 115: return 1;  /* memory pools */
    case 119: return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    case 120: return card->compute_major >= 9;
    case 126: return 1;
    case 129: return 1;
    case 134: return card->numa_node;
    case 139: return (int)card->pci_device_id;
    case 140: return (int)card->pci_subsystem_id;
    default: return 0;
    }
}

CUDA_EXPORT cuDeviceGetAttribute(int *ret_value, int attribute, CUdevice device)
{
    ENTER(cuDeviceGetAttribute);
    struct sim_card *card = driver_card(device);
    REQUIRE(ret_value && attribute > 0 && attribute < 200, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(card, CUDA_ERROR_INVALID_DEVICE);
    *ret_value = attribute_value(card, attribute);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceComputeCapability(int *ret_major, int *ret_minor, CUdevice device)
{
    ENTER(cuDeviceComputeCapability);
    struct sim_card *card = driver_card(device);
    REQUIRE(ret_major && ret_minor, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(card, CUDA_ERROR_INVALID_DEVICE);
    *ret_major = (int)card->compute_major;
    *ret_minor = (int)card->compute_minor;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceGetProperties(CUdevprop *ret_properties, CUdevice device)
{
    ENTER(cuDeviceGetProperties);
    struct sim_card *card = driver_card(device);
    REQUIRE(ret_properties, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(card, CUDA_ERROR_INVALID_DEVICE);
    *ret_properties = (CUdevprop){.max_threads_per_block = attribute_value(card, 1),
                                  .max_threads_dim = {attribute_value(card, 2), attribute_value(card, 3), attribute_value(card, 4)},
                                  .max_grid_size = {attribute_value(card, 5), attribute_value(card, 6), attribute_value(card, 7)},
                                  .shared_bytes_per_block = attribute_value(card, 8),
                                  .total_constant_bytes = attribute_value(card, 9),
                                  .simd_width = attribute_value(card, 10),
                                  .memory_pitch = attribute_value(card, 11),
                                  .registers_per_block = attribute_value(card, 12),
                                  .clock_rate_khz = attribute_value(card, 13),
                                  .texture_alignment = attribute_value(card, 14)};
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceGetPCIBusId(char *ret_id, int size_bytes, CUdevice device)
{
    ENTER(cuDeviceGetPCIBusId);
    struct sim_card *card = driver_card(device);
    REQUIRE(ret_id && size_bytes > 12, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(card, CUDA_ERROR_INVALID_DEVICE);
    snprintf(ret_id, (size_t)size_bytes, "%04x:%02x:%02x.0", card->pci_domain & 0xffff, card->pci_bus & 0xff, card->pci_device & 0xff);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceGetByPCIBusId(CUdevice *ret_device, const char *id)
{
    ENTER(cuDeviceGetByPCIBusId);
    REQUIRE(ret_device && id, CUDA_ERROR_INVALID_VALUE);
    unsigned domain = 0, bus = 0, slot = 0;
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        REQUIRE(sscanf(id, "%x:%x", &bus, &slot) == 2, CUDA_ERROR_INVALID_VALUE);
    }
    for (CUdevice device = 0; device < driver_device_count(); device++) {
        struct sim_card *card = driver_card(device);
        if (card->pci_domain == domain && card->pci_bus == bus && card->pci_device == slot) {
            *ret_device = device;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUDA_EXPORT cuDeviceCanAccessPeer(int *ret_can, CUdevice device, CUdevice peer)
{
    ENTER(cuDeviceCanAccessPeer);
    REQUIRE(ret_can, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(driver_card(device) && driver_card(peer), CUDA_ERROR_INVALID_DEVICE);
    *ret_can = device != peer;
    return CUDA_SUCCESS;
}

/* Attributes: 1 performance rank, 2 access, 3 native atomics, 4 arrays (CUdevice_P2PAttribute). */
CUDA_EXPORT cuDeviceGetP2PAttribute(int *ret_value, int attribute, CUdevice device, CUdevice peer)
{
    ENTER(cuDeviceGetP2PAttribute);
    REQUIRE(ret_value && attribute >= 1 && attribute <= 5, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(driver_card(device) && driver_card(peer) && device != peer, CUDA_ERROR_INVALID_DEVICE);
    *ret_value = attribute == 1 ? 0 : 1;
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceGetExecAffinitySupport(int *ret_supported, int type, CUdevice device)
{
    ENTER(cuDeviceGetExecAffinitySupport);
    REQUIRE(ret_supported && type == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    *ret_supported = 0; /* only under MPS */
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuDeviceGetTexture1DLinearMaxWidth(size_t *ret_width, unsigned format, unsigned channels, CUdevice device)
{
    ENTER(cuDeviceGetTexture1DLinearMaxWidth);
    (void)format;
    REQUIRE(ret_width && channels >= 1 && channels <= 4, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    *ret_width = (size_t)1 << 27;
    return CUDA_SUCCESS;
}
