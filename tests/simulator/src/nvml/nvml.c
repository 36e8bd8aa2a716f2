/* nvml.c - life of the simulated libnvidia-ml in a process: init, shutdown, fork, entry check, error texts (contract: nvml.h). */
#include "nvml.h"

#include <errno.h>
#include <pthread.h>

#define DEVICE_MAGIC 0x4e564d4cu

static struct sim_machine g_machine = {.fd = -1};
static pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned g_users; /* nvmlInit minus nvmlShutdown */
static struct nvmlDevice_st g_devices[SIM_CARDS_MAX];

struct sim_machine *nvml_machine(void)
{
    return &g_machine;
}

static void after_fork_in_child(void)
{
    pthread_mutex_init(&g_mutex, NULL);
    state_forget(&g_machine); /* nvml_enter() attaches the child for itself */
}

/* Under the lock that guards attaching; once per process and its forks. */
static void watch_fork(void)
{
    static bool is_watched;
    if (!is_watched)
        pthread_atfork(NULL, NULL, after_fork_in_child);
    is_watched = true;
}

static nvmlReturn_t attach(void)
{
    switch (state_attach(state_path(), &g_machine)) {
    case 0:
        break;
    case -EPROTO:
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    case -EACCES:
    case -EPERM:
    case -EROFS:
        return NVML_ERROR_NO_PERMISSION;
    default:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    watch_fork();
    for (uint32_t i = 0; i < g_machine.visible_count; i++)
        g_devices[i] = (struct nvmlDevice_st){.magic = DEVICE_MAGIC, .card = g_machine.visible[i], .index = i};
    return NVML_SUCCESS;
}

static nvmlReturn_t init(const char *symbol)
{
    pthread_mutex_lock(&g_mutex);
    nvmlReturn_t result = g_machine.state ? NVML_SUCCESS : attach();
    if (result == NVML_SUCCESS)
        result = state_injected_error(&g_machine, symbol);
    if (result == NVML_SUCCESS)
        g_users++;
    pthread_mutex_unlock(&g_mutex);
    return result;
}

NVML_EXPORT nvmlInit_v2(void)
{
    return init("nvmlInit_v2");
}

NVML_EXPORT nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return init("nvmlInitWithFlags");
}

/* The mapping stays: another thread may still be inside a call. */
NVML_EXPORT nvmlShutdown(void)
{
    pthread_mutex_lock(&g_mutex);
    nvmlReturn_t result = g_users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (g_users)
        g_users--;
    pthread_mutex_unlock(&g_mutex);
    return result;
}

nvmlReturn_t nvml_enter(const char *symbol)
{
    if (__builtin_expect(!g_machine.state || !g_users, 0)) {
        pthread_mutex_lock(&g_mutex);
        nvmlReturn_t result = !g_users ? NVML_ERROR_UNINITIALIZED : g_machine.state ? NVML_SUCCESS : attach();
        pthread_mutex_unlock(&g_mutex);
        if (result != NVML_SUCCESS)
            return result;
    }
    return state_injected_error(&g_machine, symbol);
}

nvmlDevice_t nvml_device(uint32_t index)
{
    return index < g_machine.visible_count ? &g_devices[index] : NULL;
}

nvmlReturn_t nvml_card(nvmlDevice_t device, struct sim_card **ret_card)
{
    REQUIRE(device >= g_devices && device < g_devices + SIM_CARDS_MAX && device->magic == DEVICE_MAGIC, NVML_ERROR_INVALID_ARGUMENT);
    *ret_card = &g_machine.state->cards[device->card];
    return (*ret_card)->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvml_text(char *ret_text, unsigned size_bytes, const char *text)
{
    REQUIRE(ret_text, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(strlen(text) < size_bytes, NVML_ERROR_INSUFFICIENT_SIZE);
    memcpy(ret_text, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t code)
{
    static const struct {
        nvmlReturn_t code;
        const char *text;
    } texts[] = {
        {NVML_SUCCESS, "Success"},
        {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
        {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
        {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
        {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
        {NVML_ERROR_NOT_FOUND, "Not Found"},
        {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
        {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
        {NVML_ERROR_TIMEOUT, "Timeout"},
        {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
        {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
        {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
        {NVML_ERROR_IN_USE, "In use by another client"},
        {NVML_ERROR_MEMORY, "Insufficient Memory"},
        {NVML_ERROR_NO_DATA, "No data"},
        {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].code == code)
            return texts[i].text;
    return "Unknown Error";
}

ENTRY(nvmlSystemGetDriverVersion, (char *ret_version, unsigned size_bytes),
      nvml_text(ret_version, size_bytes, g_machine.state->driver_version))

static nvmlReturn_t cuda_version(int *ret_version)
{
    REQUIRE(ret_version, NVML_ERROR_INVALID_ARGUMENT);
    *ret_version = g_machine.state->cuda_version;
    return NVML_SUCCESS;
}

ENTRY(nvmlSystemGetCudaDriverVersion, (int *ret_version), cuda_version(ret_version))
ENTRY(nvmlSystemGetCudaDriverVersion_v2, (int *ret_version), cuda_version(ret_version))
