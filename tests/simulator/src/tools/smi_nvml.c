/* smi_nvml.c - calls NVML for nvidia-smi and turns answers into text (contract: smi_nvml.h). */
#include "smi_nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void *g_library;
static char g_driver[80] = "N/A";

/* 0 = NVML_SUCCESS; a missing function reads as "not supported". */
#define CALL(name, types, ...)                                                      \
    ({                                                                              \
        nvmlReturn_t(*function_) types = NULL;                                      \
        *(void **)&function_ = dlsym(g_library, #name);                             \
        function_ ? function_(__VA_ARGS__) : (nvmlReturn_t)NVML_ERROR_NOT_SUPPORTED; \
    })

int smi_open(void)
{
    g_library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!g_library) {
        printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver is "
               "properly installed and present in your system.\nPlease also try adding directory that contains libnvidia-ml.so to your "
               "system PATH.\n");
        return 12;
    }
    nvmlReturn_t result = CALL(nvmlInit_v2, (void));
    if (result == NVML_SUCCESS) {
        CALL(nvmlSystemGetDriverVersion, (char *, unsigned), g_driver, sizeof g_driver);
        return 0;
    }
    if (result == NVML_ERROR_DRIVER_NOT_LOADED)
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is "
               "installed and running.\n\n");
    else if (result == NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        printf("Failed to initialize NVML: Driver/library version mismatch\n");
    else
        printf("Failed to initialize NVML: error %d\n", result);
    return result;
}

void smi_close(void)
{
    CALL(nvmlShutdown, (void));
}

const char *smi_driver_version(void)
{
    return g_driver;
}

void smi_cuda_version(char *ret_text, unsigned size_bytes)
{
    int version = 0;
    if (CALL(nvmlSystemGetCudaDriverVersion_v2, (int *), &version) == NVML_SUCCESS ||
        CALL(nvmlSystemGetCudaDriverVersion, (int *), &version) == NVML_SUCCESS)
        snprintf(ret_text, size_bytes, "%d.%d", version / 1000, version % 1000 / 10);
    else
        snprintf(ret_text, size_bytes, "N/A");
}

unsigned smi_count(void)
{
    unsigned count = 0;
    CALL(nvmlDeviceGetCount_v2, (unsigned *), &count);
    return count;
}

static void on_or_off(nvmlReturn_t result, unsigned value, char *ret_text, unsigned size_bytes)
{
    snprintf(ret_text, size_bytes, "%s", result != NVML_SUCCESS ? "[N/A]" : value ? "Enabled" : "Disabled");
}

static void read_memory(struct smi_card *card)
{
    nvmlMemory_v2_t second = {.version = sizeof second | 2u << 24};
    nvmlMemory_t first = {0};
    if (CALL(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, nvmlMemory_v2_t *), card->handle, &second) == NVML_SUCCESS) {
        card->total_mib = second.total >> 20;
        card->used_mib = second.used >> 20;
        card->free_mib = second.free >> 20;
        card->reserved_mib = second.reserved >> 20;
    } else if (CALL(nvmlDeviceGetMemoryInfo, (nvmlDevice_t, nvmlMemory_t *), card->handle, &first) == NVML_SUCCESS) {
        card->total_mib = first.total >> 20;
        card->used_mib = first.used >> 20;
        card->free_mib = first.free >> 20;
    }
}

static void read_modes(struct smi_card *card)
{
    static const char *const compute_modes[] = {"Default", "Exclusive Thread", "Prohibited", "Exclusive Process"};
    unsigned current = 0, pending = 0;
    nvmlReturn_t result = CALL(nvmlDeviceGetComputeMode, (nvmlDevice_t, unsigned *), card->handle, &current);
    snprintf(card->compute_mode, sizeof card->compute_mode, "%s", result == NVML_SUCCESS && current < 4 ? compute_modes[current] : "[N/A]");
    result = CALL(nvmlDeviceGetMigMode, (nvmlDevice_t, unsigned *, unsigned *), card->handle, &current, &pending);
    on_or_off(result, current, card->mig_mode, sizeof card->mig_mode);
    on_or_off(result, pending, card->mig_pending, sizeof card->mig_pending);
    result = CALL(nvmlDeviceGetPersistenceMode, (nvmlDevice_t, unsigned *), card->handle, &current);
    on_or_off(result, current, card->persistence, sizeof card->persistence);
    result = CALL(nvmlDeviceGetEccMode, (nvmlDevice_t, unsigned *, unsigned *), card->handle, &current, &pending);
    on_or_off(result, current, card->ecc, sizeof card->ecc);
    result = CALL(nvmlDeviceGetPerformanceState, (nvmlDevice_t, unsigned *), card->handle, &current);
    snprintf(card->pstate, sizeof card->pstate, "P%u", result == NVML_SUCCESS ? current % 16 : 0);
}

static void read_load(struct smi_card *card)
{
    nvmlUtilization_t load = {0};
    CALL(nvmlDeviceGetUtilizationRates, (nvmlDevice_t, nvmlUtilization_t *), card->handle, &load);
    card->gpu_percent = load.gpu_percent;
    card->memory_percent = load.memory_percent;
    CALL(nvmlDeviceGetPowerUsage, (nvmlDevice_t, unsigned *), card->handle, &card->power_mw);
    CALL(nvmlDeviceGetEnforcedPowerLimit, (nvmlDevice_t, unsigned *), card->handle, &card->power_limit_mw);
    CALL(nvmlDeviceGetTemperature, (nvmlDevice_t, unsigned, unsigned *), card->handle, 0, &card->temperature_c);
    CALL(nvmlDeviceGetClockInfo, (nvmlDevice_t, unsigned, unsigned *), card->handle, NVML_CLOCK_SM, &card->sm_mhz);
    CALL(nvmlDeviceGetMaxClockInfo, (nvmlDevice_t, unsigned, unsigned *), card->handle, NVML_CLOCK_SM, &card->sm_max_mhz);
    CALL(nvmlDeviceGetClockInfo, (nvmlDevice_t, unsigned, unsigned *), card->handle, NVML_CLOCK_MEMORY, &card->memory_mhz);
    CALL(nvmlDeviceGetMaxClockInfo, (nvmlDevice_t, unsigned, unsigned *), card->handle, NVML_CLOCK_MEMORY, &card->memory_max_mhz);
}

bool smi_read(unsigned index, struct smi_card *ret_card)
{
    struct smi_card card = {.index = index};
    nvmlPciInfo_t pci = {0};
    int major = 0, minor = 0;
    if (CALL(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *), index, &card.handle) != NVML_SUCCESS ||
        CALL(nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned), card.handle, card.uuid, sizeof card.uuid) != NVML_SUCCESS)
        return false;
    CALL(nvmlDeviceGetName, (nvmlDevice_t, char *, unsigned), card.handle, card.name, sizeof card.name);
    CALL(nvmlDeviceGetSerial, (nvmlDevice_t, char *, unsigned), card.handle, card.serial, sizeof card.serial);
    CALL(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t, nvmlPciInfo_t *), card.handle, &pci);
    snprintf(card.bus_id, sizeof card.bus_id, "%.31s", pci.bus_id);
    CALL(nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t, int *, int *), card.handle, &major, &minor);
    snprintf(card.compute_capability, sizeof card.compute_capability, "%d.%d", major, minor);
    snprintf(card.driver, sizeof card.driver, "%s", g_driver);
    read_memory(&card);
    read_modes(&card);
    read_load(&card);
    *ret_card = card;
    return true;
}

unsigned smi_processes(const struct smi_card *card, struct smi_process *list)
{
    nvmlProcessInfo_v2_t raw[SMI_PROCESSES_MAX];
    unsigned count = SMI_PROCESSES_MAX;
    if (CALL(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *), card->handle, &count, raw) !=
        NVML_SUCCESS)
        return 0;
    for (unsigned i = 0; i < count; i++) {
        list[i] = (struct smi_process){.pid = raw[i].pid, .used_mib = raw[i].used_bytes >> 20};
        if (CALL(nvmlSystemGetProcessName, (unsigned, char *, unsigned), raw[i].pid, list[i].name, sizeof list[i].name) != NVML_SUCCESS)
            snprintf(list[i].name, sizeof list[i].name, "[Not Found]");
    }
    return count;
}

nvmlReturn_t smi_set_mode(const struct smi_card *card, enum smi_mode which, unsigned value)
{
    nvmlReturn_t status = NVML_SUCCESS, result;
    switch (which) {
    case SMI_MODE_COMPUTE:
        return CALL(nvmlDeviceSetComputeMode, (nvmlDevice_t, unsigned), card->handle, value);
    case SMI_MODE_PERSISTENCE:
        return CALL(nvmlDeviceSetPersistenceMode, (nvmlDevice_t, unsigned), card->handle, value);
    default:
        result = CALL(nvmlDeviceSetMigMode, (nvmlDevice_t, unsigned, nvmlReturn_t *), card->handle, value, &status);
        return result != NVML_SUCCESS ? result : status;
    }
}
