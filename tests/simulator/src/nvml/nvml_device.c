/* nvml_device.c - cards as NVML shows them: handles, identity, memory, clocks, power, MIG (off). Everything is read from the machine. */
#include "nvml.h"

#include <stdlib.h>
#include <strings.h>

/* The value, if there is somewhere to put it. */
#define GIVE(pointer, value)                           \
    do {                                               \
        REQUIRE(pointer, NVML_ERROR_INVALID_ARGUMENT); \
        *(pointer) = (value);                          \
        return NVML_SUCCESS;                           \
    } while (0)

/* Calls that give one number, two numbers or a text of a `card`. */
#define NUMBER(symbol, value)                                        \
    NVML_EXPORT symbol(nvmlDevice_t device, unsigned *ret_value)     \
    {                                                                \
        ENTER(symbol);                                               \
        CARD(device, card);                                          \
        (void)card;                                                  \
        GIVE(ret_value, value);                                      \
    }
#define PAIR(symbol, type, first, second)                                                \
    NVML_EXPORT symbol(nvmlDevice_t device, type *ret_first, type *ret_second)           \
    {                                                                                    \
        ENTER(symbol);                                                                   \
        CARD(device, card);                                                              \
        REQUIRE(ret_first && ret_second, NVML_ERROR_INVALID_ARGUMENT);                   \
        *ret_first = (type)(first);                                                      \
        *ret_second = (type)(second);                                                    \
        return NVML_SUCCESS;                                                             \
    }
#define TEXT(symbol, text)                                                            \
    NVML_EXPORT symbol(nvmlDevice_t device, char *ret_text, unsigned size_bytes)      \
    {                                                                                 \
        ENTER(symbol);                                                                \
        CARD(device, card);                                                           \
        return nvml_text(ret_text, size_bytes, text);                                 \
    }

/* --- handles ---------------------------------------------------------------------------------------------------------------------------- */

NVML_EXPORT nvmlDeviceGetCount_v2(unsigned *ret_count)
{
    ENTER(nvmlDeviceGetCount_v2);
    GIVE(ret_count, nvml_machine()->visible_count);
}

NVML_EXPORT nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *ret_device)
{
    ENTER(nvmlDeviceGetHandleByIndex_v2);
    REQUIRE(nvml_device(index), NVML_ERROR_INVALID_ARGUMENT);
    GIVE(ret_device, nvml_device(index));
}

NVML_EXPORT nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *ret_device)
{
    ENTER(nvmlDeviceGetHandleByUUID);
    const struct sim_machine *machine = nvml_machine();
    REQUIRE(uuid && ret_device, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < machine->visible_count; i++)
        if (strcasecmp(machine->state->cards[machine->visible[i]].uuid_text, uuid) == 0)
            GIVE(ret_device, nvml_device(i));
    return NVML_ERROR_NOT_FOUND;
}

NVML_EXPORT nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *ret_device)
{
    ENTER(nvmlDeviceGetHandleByPciBusId_v2);
    REQUIRE(bus_id && ret_device, NVML_ERROR_INVALID_ARGUMENT);
    const int position = state_find_bus_id(nvml_machine(), bus_id);
    REQUIRE(position != SIM_BAD_BUS_ID, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(position != SIM_NO_CARD, NVML_ERROR_NOT_FOUND);
    GIVE(ret_device, nvml_device((uint32_t)position));
}

/* --- identity --------------------------------------------------------------------------------------------------------------------------- */

NUMBER(nvmlDeviceGetIndex, device->index)
NUMBER(nvmlDeviceGetMinorNumber, card->minor_number)
NUMBER(nvmlDeviceGetBrand, card->brand)
NUMBER(nvmlDeviceGetArchitecture, card->architecture)
NUMBER(nvmlDeviceGetDisplayActive, 0)
NUMBER(nvmlDeviceGetDisplayMode, 0)
PAIR(nvmlDeviceGetCudaComputeCapability, int, card->compute_major, card->compute_minor)
TEXT(nvmlDeviceGetUUID, card->uuid_text)
TEXT(nvmlDeviceGetName, card->name)
TEXT(nvmlDeviceGetSerial, card->serial)

NVML_EXPORT nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *ret_info)
{
    ENTER(nvmlDeviceGetPciInfo_v3);
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

NVML_EXPORT nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *ret_node)
{
    ENTER(nvmlDeviceGetNumaNodeId);
    CARD(device, card);
    REQUIRE(card->numa_node >= 0, NVML_ERROR_NOT_SUPPORTED);
    GIVE(ret_node, (unsigned)card->numa_node);
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

/* What no card here has: a driver model is Windows's, a fan is in the server. */
static nvmlReturn_t not_supported(nvmlDevice_t device, const unsigned *ret_value)
{
    CARD(device, card);
    (void)card;
    return ret_value ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

ENTRY(nvmlDeviceGetFanSpeed, (nvmlDevice_t device, unsigned *ret_percent), not_supported(device, ret_percent))
ENTRY(nvmlDeviceGetDriverModel, (nvmlDevice_t device, unsigned *ret_current, unsigned *ret_pending),
      not_supported(device, ret_current ? ret_current : ret_pending))
ENTRY(nvmlDeviceGetDriverModel_v2, (nvmlDevice_t device, unsigned *ret_current, unsigned *ret_pending),
      not_supported(device, ret_current ? ret_current : ret_pending))

/* No card here is part of a fabric. */
static nvmlReturn_t fabric_info(nvmlDevice_t device, const void *ret_info)
{
    CARD(device, card);
    (void)card;
    return ret_info ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

ENTRY(nvmlDeviceGetGpuFabricInfo, (nvmlDevice_t device, void *ret_info), fabric_info(device, ret_info))
ENTRY(nvmlDeviceGetGpuFabricInfoV, (nvmlDevice_t device, void *ret_info), fabric_info(device, ret_info))

/* --- memory ----------------------------------------------------------------------------------------------------------------------------- */

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

/* --- modes ------------------------------------------------------------------------------------------------------------------------------ */

NUMBER(nvmlDeviceGetComputeMode, card->compute_mode)
NUMBER(nvmlDeviceGetPersistenceMode, card->persistence)
PAIR(nvmlDeviceGetEccMode, unsigned, card->ecc_enabled, card->ecc_enabled)

static nvmlReturn_t set_mode(uint32_t *field, unsigned mode)
{
    state_lock(nvml_machine());
    *field = mode;
    state_unlock(nvml_machine());
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
    ENTER(nvmlDeviceSetComputeMode);
    CARD(device, card);
    REQUIRE(mode == 0 || mode == 2 || mode == 3, NVML_ERROR_INVALID_ARGUMENT);
    return set_mode(&card->compute_mode, mode);
}

NVML_EXPORT nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode)
{
    ENTER(nvmlDeviceSetPersistenceMode);
    CARD(device, card);
    REQUIRE(mode <= 1, NVML_ERROR_INVALID_ARGUMENT);
    return set_mode(&card->persistence, mode);
}

NVML_EXPORT nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter, unsigned long long *ret_count)
{
    ENTER(nvmlDeviceGetTotalEccErrors);
    CARD(device, card);
    REQUIRE(type <= 1 && counter <= 1, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(card->ecc_enabled, NVML_ERROR_NOT_SUPPORTED);
    GIVE(ret_count, 0);
}

/* --- load ------------------------------------------------------------------------------------------------------------------------------- */

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
NUMBER(nvmlDeviceGetPowerUsage, card->power_idle_mw + (card->power_limit_mw - card->power_idle_mw) / 100 * (unsigned)busy_percent(card))
NUMBER(nvmlDeviceGetEnforcedPowerLimit, card->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementLimit, card->power_limit_mw)
NUMBER(nvmlDeviceGetPerformanceState, 0)
PAIR(nvmlDeviceGetEncoderUtilization, unsigned, 0, nvml_machine()->state->time.window_ns / 1000) /* percent, and of how many us */
PAIR(nvmlDeviceGetDecoderUtilization, unsigned, 0, nvml_machine()->state->time.window_ns / 1000)

NVML_EXPORT nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *ret_celsius)
{
    ENTER(nvmlDeviceGetTemperature);
    CARD(device, card);
    REQUIRE(sensor == 0, NVML_ERROR_INVALID_ARGUMENT);
    GIVE(ret_celsius, card->temperature_c);
}

static nvmlReturn_t clock_of(nvmlDevice_t device, unsigned type, bool is_now, unsigned *ret_mhz)
{
    CARD(device, card);
    REQUIRE(type <= NVML_CLOCK_VIDEO, NVML_ERROR_INVALID_ARGUMENT);
    const bool is_full = !is_now || type == NVML_CLOCK_MEMORY || busy_percent(card) > 0;
    GIVE(ret_mhz, type == NVML_CLOCK_MEMORY ? card->memory_clock_max_mhz : is_full ? card->sm_clock_max_mhz : card->sm_clock_idle_mhz);
}

ENTRY(nvmlDeviceGetClockInfo, (nvmlDevice_t device, unsigned type, unsigned *ret_mhz), clock_of(device, type, true, ret_mhz))
ENTRY(nvmlDeviceGetMaxClockInfo, (nvmlDevice_t device, unsigned type, unsigned *ret_mhz), clock_of(device, type, false, ret_mhz))

NVML_EXPORT nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *ret_rates)
{
    ENTER(nvmlDeviceGetUtilizationRates);
    CARD(device, card);
    REQUIRE(ret_rates, NVML_ERROR_INVALID_ARGUMENT);
    ret_rates->gpu_percent = (unsigned)busy_percent(card);
    ret_rates->memory_percent = ret_rates->gpu_percent / 2; /* no model of memory traffic: half of the time, if anything runs */
    return NVML_SUCCESS;
}

/* --- MIG: the mode can be read and switched; instances cannot be made ------------------------------------------------------------------- */

NUMBER(nvmlDeviceGetMaxMigDeviceCount, card->mig_capable ? 7 : 0)
NUMBER(nvmlDeviceIsMigDeviceHandle, 0)

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

NVML_EXPORT nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *ret_instance)
{
    ENTER(nvmlDeviceGetMigDeviceHandleByIndex);
    CARD(device, card);
    (void)index;
    REQUIRE(ret_instance, NVML_ERROR_INVALID_ARGUMENT);
    return card->mig_capable ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED; /* the toolkit takes "not found" as "no instance" */
}
