/* nvml_device.c - cards as NVML shows them: handles, identity, memory, clocks, power, MIG (off). Everything is read from the machine. */
#include "nvml.h"

#include <stdlib.h>
#include <strings.h>

/* The card behind a handle, or return. */
#define CARD(device, card)                               \
    struct sim_card *card;                               \
    do {                                                 \
        nvmlReturn_t missing_ = nvml_card(device, &card); \
        if (missing_ != NVML_SUCCESS)                    \
            return missing_;                             \
    } while (0)
#define GIVE(pointer, value)                               \
    do {                                                   \
        REQUIRE(pointer, NVML_ERROR_INVALID_ARGUMENT);     \
        *(pointer) = (value);                              \
        return NVML_SUCCESS;                               \
    } while (0)

NVML_EXPORT nvmlDeviceGetCount(unsigned *ret_count)
{
    ENTER(nvmlDeviceGetCount);
    GIVE(ret_count, nvml_machine()->visible_count);
}

NVML_EXPORT nvmlDeviceGetCount_v2(unsigned *ret_count)
{
    ENTER(nvmlDeviceGetCount_v2);
    GIVE(ret_count, nvml_machine()->visible_count);
}

static nvmlReturn_t handle_by_index(unsigned index, nvmlDevice_t *ret_device)
{
    REQUIRE(nvml_device(index), NVML_ERROR_INVALID_ARGUMENT);
    GIVE(ret_device, nvml_device(index));
}

NVML_EXPORT nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *ret_device)
{
    ENTER(nvmlDeviceGetHandleByIndex);
    return handle_by_index(index, ret_device);
}

NVML_EXPORT nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *ret_device)
{
    ENTER(nvmlDeviceGetHandleByIndex_v2);
    return handle_by_index(index, ret_device);
}

static const struct sim_card *visible_card(uint32_t index)
{
    return &nvml_machine()->state->cards[nvml_machine()->visible[index]];
}

static nvmlReturn_t handle_by_uuid(const char *uuid, nvmlDevice_t *ret_device)
{
    REQUIRE(uuid && ret_device, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t i = 0; nvml_device(i); i++)
        if (strcasecmp(visible_card(i)->uuid_text, uuid) == 0)
            GIVE(ret_device, nvml_device(i));
    return NVML_ERROR_NOT_FOUND;
}

NVML_EXPORT nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *ret_device)
{
    ENTER(nvmlDeviceGetHandleByUUID);
    return handle_by_uuid(uuid, ret_device);
}

NVML_EXPORT nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *ret_device)
{
    ENTER(nvmlDeviceGetHandleBySerial);
    REQUIRE(serial && ret_device, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t i = 0; nvml_device(i); i++)
        if (strcmp(visible_card(i)->serial, serial) == 0)
            GIVE(ret_device, nvml_device(i));
    return NVML_ERROR_NOT_FOUND;
}

/* "0000:17:00.0", "00000000:17:00.0" and "17:00.0" name the same card. */
static nvmlReturn_t handle_by_bus_id(const char *bus_id, nvmlDevice_t *ret_device)
{
    unsigned domain = 0, bus = 0, device = 0;
    REQUIRE(bus_id && ret_device, NVML_ERROR_INVALID_ARGUMENT);
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &device) != 3) {
        domain = 0;
        REQUIRE(sscanf(bus_id, "%x:%x", &bus, &device) == 2, NVML_ERROR_INVALID_ARGUMENT);
    }
    for (uint32_t i = 0; nvml_device(i); i++)
        if (visible_card(i)->pci_domain == domain && visible_card(i)->pci_bus == bus && visible_card(i)->pci_device == device)
            GIVE(ret_device, nvml_device(i));
    return NVML_ERROR_NOT_FOUND;
}

NVML_EXPORT nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *ret_device)
{
    ENTER(nvmlDeviceGetHandleByPciBusId);
    return handle_by_bus_id(bus_id, ret_device);
}

NVML_EXPORT nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *ret_device)
{
    ENTER(nvmlDeviceGetHandleByPciBusId_v2);
    return handle_by_bus_id(bus_id, ret_device);
}

NVML_EXPORT nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *ret_index)
{
    ENTER(nvmlDeviceGetIndex);
    CARD(device, card);
    (void)card;
    GIVE(ret_index, device->index);
}

NVML_EXPORT nvmlDeviceGetUUID(nvmlDevice_t device, char *ret_uuid, unsigned size_bytes)
{
    ENTER(nvmlDeviceGetUUID);
    CARD(device, card);
    return nvml_text(ret_uuid, size_bytes, card->uuid_text);
}

NVML_EXPORT nvmlDeviceGetName(nvmlDevice_t device, char *ret_name, unsigned size_bytes)
{
    ENTER(nvmlDeviceGetName);
    CARD(device, card);
    return nvml_text(ret_name, size_bytes, card->name);
}

NVML_EXPORT nvmlDeviceGetSerial(nvmlDevice_t device, char *ret_serial, unsigned size_bytes)
{
    ENTER(nvmlDeviceGetSerial);
    CARD(device, card);
    return nvml_text(ret_serial, size_bytes, card->serial);
}

NVML_EXPORT nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *ret_minor)
{
    ENTER(nvmlDeviceGetMinorNumber);
    CARD(device, card);
    GIVE(ret_minor, card->minor_number);
}

NVML_EXPORT nvmlDeviceGetBrand(nvmlDevice_t device, unsigned *ret_brand)
{
    ENTER(nvmlDeviceGetBrand);
    CARD(device, card);
    GIVE(ret_brand, card->brand);
}

NVML_EXPORT nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *ret_architecture)
{
    ENTER(nvmlDeviceGetArchitecture);
    CARD(device, card);
    GIVE(ret_architecture, card->architecture);
}

NVML_EXPORT nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *ret_major, int *ret_minor)
{
    ENTER(nvmlDeviceGetCudaComputeCapability);
    CARD(device, card);
    REQUIRE(ret_major && ret_minor, NVML_ERROR_INVALID_ARGUMENT);
    *ret_major = (int)card->compute_major;
    *ret_minor = (int)card->compute_minor;
    return NVML_SUCCESS;
}

static nvmlReturn_t pci_info(nvmlDevice_t device, nvmlPciInfo_t *ret_info)
{
    CARD(device, card);
    REQUIRE(ret_info, NVML_ERROR_INVALID_ARGUMENT);
    *ret_info = (nvmlPciInfo_t){.domain = card->pci_domain,
                                .bus = card->pci_bus,
                                .device = card->pci_device,
                                .device_id = card->pci_device_id,
                                .subsystem_id = card->pci_subsystem_id};
    snprintf(ret_info->bus_id, sizeof ret_info->bus_id, "%s", card->pci_bus_id);
    snprintf(ret_info->bus_id_legacy, sizeof ret_info->bus_id_legacy, "%04X:%02X:%02X.0", card->pci_domain & 0xffff, card->pci_bus & 0xff,
             card->pci_device & 0xff);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *ret_info)
{
    ENTER(nvmlDeviceGetPciInfo_v3);
    return pci_info(device, ret_info);
}

/* Version 2 ends before the long bus id. */
NVML_EXPORT nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, void *ret_info)
{
    ENTER(nvmlDeviceGetPciInfo_v2);
    nvmlPciInfo_t info;
    REQUIRE(ret_info, NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t result = pci_info(device, &info);
    if (result == NVML_SUCCESS)
        memcpy(ret_info, &info, offsetof(nvmlPciInfo_t, bus_id));
    return result;
}

NVML_EXPORT nvmlDeviceGetPciInfo(nvmlDevice_t device, void *ret_info)
{
    ENTER(nvmlDeviceGetPciInfo);
    nvmlPciInfo_t info;
    REQUIRE(ret_info, NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t result = pci_info(device, &info);
    if (result == NVML_SUCCESS)
        memcpy(ret_info, &info, offsetof(nvmlPciInfo_t, subsystem_id));
    return result;
}

NVML_EXPORT nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *ret_memory)
{
    ENTER(nvmlDeviceGetMemoryInfo);
    CARD(device, card);
    REQUIRE(ret_memory, NVML_ERROR_INVALID_ARGUMENT);
    ret_memory->total = card->memory_total_bytes;
    ret_memory->free = memory_free_bytes(card);
    ret_memory->used = ret_memory->total - ret_memory->free; /* version 1 counts the driver's own share as used */
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *ret_memory)
{
    ENTER(nvmlDeviceGetMemoryInfo_v2);
    CARD(device, card);
    REQUIRE(ret_memory, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(ret_memory->version == (sizeof *ret_memory | 2u << 24), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    ret_memory->total = card->memory_total_bytes;
    ret_memory->reserved = card->memory_reserved_bytes;
    ret_memory->free = memory_free_bytes(card);
    ret_memory->used = ret_memory->total - ret_memory->reserved - ret_memory->free;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlMemory_t *ret_memory)
{
    ENTER(nvmlDeviceGetBAR1MemoryInfo);
    CARD(device, card);
    REQUIRE(ret_memory, NVML_ERROR_INVALID_ARGUMENT);
    uint64_t total = UINT64_C(1) << 28; /* total, free, used: the same words as nvmlMemory_t; the window covers the whole card */
    while (total < card->memory_total_bytes)
        total <<= 1;
    *ret_memory = (nvmlMemory_t){.total = total, .free = total - (1 << 20), .used = 1 << 20};
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *ret_mode)
{
    ENTER(nvmlDeviceGetComputeMode);
    CARD(device, card);
    GIVE(ret_mode, card->compute_mode);
}

NVML_EXPORT nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
    ENTER(nvmlDeviceSetComputeMode);
    CARD(device, card);
    REQUIRE(mode == 0 || mode == 2 || mode == 3, NVML_ERROR_INVALID_ARGUMENT);
    state_lock(nvml_machine());
    card->compute_mode = mode;
    state_unlock(nvml_machine());
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *ret_mode)
{
    ENTER(nvmlDeviceGetPersistenceMode);
    CARD(device, card);
    GIVE(ret_mode, card->persistence);
}

NVML_EXPORT nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode)
{
    ENTER(nvmlDeviceSetPersistenceMode);
    CARD(device, card);
    REQUIRE(mode <= 1, NVML_ERROR_INVALID_ARGUMENT);
    state_lock(nvml_machine());
    card->persistence = mode;
    state_unlock(nvml_machine());
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *ret_current, unsigned *ret_pending)
{
    ENTER(nvmlDeviceGetEccMode);
    CARD(device, card);
    REQUIRE(ret_current && ret_pending, NVML_ERROR_INVALID_ARGUMENT);
    *ret_current = *ret_pending = card->ecc_enabled;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter, unsigned long long *ret_count)
{
    ENTER(nvmlDeviceGetTotalEccErrors);
    CARD(device, card);
    REQUIRE(type <= 1 && counter <= 1, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(card->ecc_enabled, NVML_ERROR_NOT_SUPPORTED);
    GIVE(ret_count, 0);
}

NVML_EXPORT nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *ret_celsius)
{
    ENTER(nvmlDeviceGetTemperature);
    CARD(device, card);
    REQUIRE(sensor == 0, NVML_ERROR_INVALID_ARGUMENT);
    GIVE(ret_celsius, card->temperature_c);
}

static int busy_percent(struct sim_card *card)
{
    struct sim_state *state = nvml_machine()->state;
    state_lock(nvml_machine());
    int64_t now_ns = state_now_ns();
    timeline_advance(state, (uint32_t)(card - state->cards), now_ns);
    int percent = timeline_busy_percent(state, &card->timeline.meter, now_ns, 2 * state->time.window_ns + state->time.window_lag_ns);
    state_unlock(nvml_machine());
    return percent < 0 ? 0 : percent;
}

/* Idle and full load from the profile, in between by utilisation. */
NVML_EXPORT nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *ret_mw)
{
    ENTER(nvmlDeviceGetPowerUsage);
    CARD(device, card);
    GIVE(ret_mw, card->power_idle_mw + (card->power_limit_mw - card->power_idle_mw) / 100 * (unsigned)busy_percent(card));
}

NVML_EXPORT nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *ret_mw)
{
    ENTER(nvmlDeviceGetEnforcedPowerLimit);
    CARD(device, card);
    GIVE(ret_mw, card->power_limit_mw);
}

NVML_EXPORT nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *ret_mw)
{
    ENTER(nvmlDeviceGetPowerManagementLimit);
    CARD(device, card);
    GIVE(ret_mw, card->power_limit_mw);
}

NVML_EXPORT nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned *ret_state)
{
    ENTER(nvmlDeviceGetPerformanceState);
    CARD(device, card);
    (void)card;
    GIVE(ret_state, 0);
}

static nvmlReturn_t clock_of(const struct sim_card *card, unsigned type, bool is_running, unsigned *ret_mhz)
{
    REQUIRE(type <= NVML_CLOCK_VIDEO, NVML_ERROR_INVALID_ARGUMENT);
    if (type == NVML_CLOCK_MEMORY)
        GIVE(ret_mhz, card->memory_clock_max_mhz);
    GIVE(ret_mhz, is_running ? card->sm_clock_max_mhz : card->sm_clock_idle_mhz);
}

NVML_EXPORT nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *ret_mhz)
{
    ENTER(nvmlDeviceGetClockInfo);
    CARD(device, card);
    return clock_of(card, type, busy_percent(card) > 0, ret_mhz);
}

NVML_EXPORT nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *ret_mhz)
{
    ENTER(nvmlDeviceGetMaxClockInfo);
    CARD(device, card);
    return clock_of(card, type, true, ret_mhz);
}

NVML_EXPORT nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *ret_mhz)
{
    ENTER(nvmlDeviceGetApplicationsClock);
    CARD(device, card);
    return clock_of(card, type, true, ret_mhz);
}

NVML_EXPORT nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *ret_rates)
{
    ENTER(nvmlDeviceGetUtilizationRates);
    CARD(device, card);
    REQUIRE(ret_rates, NVML_ERROR_INVALID_ARGUMENT);
    ret_rates->gpu_percent = (unsigned)busy_percent(card);
    ret_rates->memory_percent = ret_rates->gpu_percent / 2; /* no model of memory traffic: half of the time, if anything runs */
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *ret_node)
{
    ENTER(nvmlDeviceGetNumaNodeId);
    CARD(device, card);
    REQUIRE(card->numa_node >= 0, NVML_ERROR_NOT_SUPPORTED);
    GIVE(ret_node, (unsigned)card->numa_node);
}

NVML_EXPORT nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *ret_nodes, unsigned scope)
{
    ENTER(nvmlDeviceGetMemoryAffinity);
    CARD(device, card);
    REQUIRE(ret_nodes && words && scope <= 1, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(card->numa_node >= 0, NVML_ERROR_NOT_SUPPORTED);
    memset(ret_nodes, 0, words * sizeof *ret_nodes);
    const unsigned bits = 8 * sizeof *ret_nodes, node = (unsigned)card->numa_node;
    if (node / bits < words)
        ret_nodes[node / bits] |= 1ul << node % bits;
    return NVML_SUCCESS;
}

/* MIG: the mode can be read and switched; instances cannot be made. */
NVML_EXPORT nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *ret_current, unsigned *ret_pending)
{
    ENTER(nvmlDeviceGetMigMode);
    CARD(device, card);
    REQUIRE(ret_current && ret_pending, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(card->mig_capable, NVML_ERROR_NOT_SUPPORTED);
    *ret_current = *ret_pending = card->mig_enabled;
    return NVML_SUCCESS;
}

static bool is_in_use(const struct sim_state *state, uint32_t card)
{
    for (uint32_t i = 0; i < state->slot_ceiling; i++)
        if (state->slots[i].live && state->slots[i].usage[card].contexts)
            return true;
    return false;
}

/* A card at work keeps its mode: *ret_status says so, the call itself succeeds, as the documentation has it. */
NVML_EXPORT nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *ret_status)
{
    ENTER(nvmlDeviceSetMigMode);
    CARD(device, card);
    struct sim_machine *machine = nvml_machine();
    REQUIRE(mode <= 1 && ret_status, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(card->mig_capable, NVML_ERROR_NOT_SUPPORTED);
    state_lock(machine);
    state_reap(machine);
    *ret_status = mode != card->mig_enabled && is_in_use(machine->state, device->card) ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    if (*ret_status == NVML_SUCCESS)
        card->mig_enabled = mode;
    state_unlock(machine);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *ret_count)
{
    ENTER(nvmlDeviceGetMaxMigDeviceCount);
    CARD(device, card);
    GIVE(ret_count, card->mig_capable ? 7 : 0);
}

NVML_EXPORT nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *ret_instance)
{
    ENTER(nvmlDeviceGetMigDeviceHandleByIndex);
    CARD(device, card);
    (void)index;
    REQUIRE(ret_instance, NVML_ERROR_INVALID_ARGUMENT);
    return card->mig_capable ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED; /* the toolkit takes "not found" as "no instance" */
}

NVML_EXPORT nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *ret_is_instance)
{
    ENTER(nvmlDeviceIsMigDeviceHandle);
    CARD(device, card);
    (void)card;
    GIVE(ret_is_instance, 0);
}

NVML_EXPORT nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, void *ret_info)
{
    ENTER(nvmlDeviceGetGpuFabricInfo);
    CARD(device, card);
    (void)card;
    REQUIRE(ret_info, NVML_ERROR_INVALID_ARGUMENT);
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_EXPORT nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, void *ret_info)
{
    ENTER(nvmlDeviceGetGpuFabricInfoV);
    CARD(device, card);
    (void)card;
    REQUIRE(ret_info, NVML_ERROR_INVALID_ARGUMENT);
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_EXPORT nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *ret_attributes)
{
    ENTER(nvmlDeviceGetAttributes_v2);
    CARD(device, card);
    REQUIRE(ret_attributes, NVML_ERROR_INVALID_ARGUMENT);
    *ret_attributes = (nvmlDeviceAttributes_t){.multiprocessors = card->multiprocessors,
                                               .copy_engines = card->copy_engines,
                                               .gpu_slices = card->mig_capable ? 7 : 0,
                                               .compute_slices = card->mig_capable ? 7 : 0,
                                               .memory_mib = card->memory_total_bytes >> 20};
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned *ret_cores)
{
    ENTER(nvmlDeviceGetNumGpuCores);
    CARD(device, card);
    GIVE(ret_cores, card->multiprocessors * (card->compute_major >= 9 ? 128 : 64));
}

NVML_EXPORT nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned *ret_id)
{
    ENTER(nvmlDeviceGetBoardId);
    CARD(device, card);
    GIVE(ret_id, card->pci_bus << 8);
}

NVML_EXPORT nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned *ret_is_multi)
{
    ENTER(nvmlDeviceGetMultiGpuBoard);
    CARD(device, card);
    (void)card;
    GIVE(ret_is_multi, 0);
}

/* Levels (nvmlGpuTopologyLevel_t): 40 same node, 50 across nodes. */
NVML_EXPORT nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, unsigned *ret_level)
{
    ENTER(nvmlDeviceGetTopologyCommonAncestor);
    CARD(first, card);
    CARD(second, other);
    GIVE(ret_level, card->numa_node == other->numa_node ? 40 : 50);
}

/* NVLink: the links are there on cards that have them in the profile's data sheet; their state is not simulated. */
NVML_EXPORT nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *ret_is_active)
{
    ENTER(nvmlDeviceGetNvLinkState);
    CARD(device, card);
    (void)card, (void)link;
    REQUIRE(ret_is_active, NVML_ERROR_INVALID_ARGUMENT);
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_EXPORT nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned *ret_mode)
{
    ENTER(nvmlDeviceGetDisplayActive);
    CARD(device, card);
    (void)card;
    GIVE(ret_mode, 0);
}

NVML_EXPORT nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned *ret_mode)
{
    ENTER(nvmlDeviceGetDisplayMode);
    CARD(device, card);
    (void)card;
    GIVE(ret_mode, 0);
}

NVML_EXPORT nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *ret_version, unsigned size_bytes)
{
    ENTER(nvmlDeviceGetVbiosVersion);
    CARD(device, card);
    (void)card;
    return nvml_text(ret_version, size_bytes, "92.00.00.00.00");
}
