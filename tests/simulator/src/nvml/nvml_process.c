/* nvml_process.c - who uses a card: process lists and utilisation per process, from the machine's own books.
 *
 * By which number a process is named, nvml_pid.c says. A process appears with its first context on the card. */
#include "nvml.h"

#include <time.h>

static bool is_on_card(const struct sim_slot *slot, uint32_t card)
{
    return slot->live && slot->usage[card].contexts > 0;
}

typedef void (*emit_fn)(void *list, unsigned i, uint32_t pid, uint64_t used_bytes);

/* Calls emit for every process on the card; returns how many there are. */
static unsigned list_processes(nvmlDevice_t device, unsigned room, emit_fn emit, void *list)
{
    struct sim_machine *machine = nvml_machine();
    unsigned count = 0;
    nvml_resolve_pids();
    state_lock(machine);
    state_reap(machine);
    for (uint32_t i = 0; i < machine->state->slot_ceiling; i++) {
        const struct sim_slot *slot = &machine->state->slots[i];
        const uint32_t pid = nvml_pid_of(machine->state, slot, machine->state->rules.process_pids);
        if (!is_on_card(slot, device->card) || !pid)
            continue;
        if (count < room)
            emit(list, count, pid, slot->usage[device->card].reserved_bytes);
        count++;
    }
    state_unlock(machine);
    return count;
}

static nvmlReturn_t give_list(nvmlDevice_t device, unsigned *count, emit_fn emit, void *list)
{
    CARD(device, card);
    (void)card;
    REQUIRE(count && (list || *count == 0), NVML_ERROR_INVALID_ARGUMENT);
    unsigned room = *count;
    *count = list_processes(device, room, emit, list);
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static void emit_v1(void *list, unsigned i, uint32_t pid, uint64_t used_bytes)
{
    ((nvmlProcessInfo_v1_t *)list)[i] = (nvmlProcessInfo_v1_t){.pid = pid, .used_bytes = used_bytes};
}

static void emit_v2(void *list, unsigned i, uint32_t pid, uint64_t used_bytes)
{
    ((nvmlProcessInfo_v2_t *)list)[i] = (nvmlProcessInfo_v2_t){.pid = pid,
                                                               .used_bytes = used_bytes,
                                                               .gpu_instance = NVML_NO_INSTANCE,
                                                               .compute_instance = NVML_NO_INSTANCE};
}

ENTRY(nvmlDeviceGetComputeRunningProcesses, (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *list),
      give_list(device, count, emit_v1, list))
ENTRY(nvmlDeviceGetComputeRunningProcesses_v2, (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *list),
      give_list(device, count, emit_v2, list))
ENTRY(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *list),
      give_list(device, count, emit_v2, list))

/* No graphics and no MPS here. */
static nvmlReturn_t give_nothing(nvmlDevice_t device, unsigned *count)
{
    CARD(device, card);
    (void)card;
    REQUIRE(count, NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    return NVML_SUCCESS;
}

ENTRY(nvmlDeviceGetGraphicsRunningProcesses, (nvmlDevice_t device, unsigned *count, void *list), ((void)list, give_nothing(device, count)))
ENTRY(nvmlDeviceGetGraphicsRunningProcesses_v2, (nvmlDevice_t device, unsigned *count, void *list), ((void)list, give_nothing(device, count)))
ENTRY(nvmlDeviceGetGraphicsRunningProcesses_v3, (nvmlDevice_t device, unsigned *count, void *list), ((void)list, give_nothing(device, count)))
ENTRY(nvmlDeviceGetMPSComputeRunningProcesses, (nvmlDevice_t device, unsigned *count, void *list), ((void)list, give_nothing(device, count)))
ENTRY(nvmlDeviceGetMPSComputeRunningProcesses_v2, (nvmlDevice_t device, unsigned *count, void *list), ((void)list, give_nothing(device, count)))
ENTRY(nvmlDeviceGetMPSComputeRunningProcesses_v3, (nvmlDevice_t device, unsigned *count, void *list), ((void)list, give_nothing(device, count)))

NVML_EXPORT nvmlSystemGetProcessName(unsigned pid, char *ret_name, unsigned size_bytes)
{
    ENTER(nvmlSystemGetProcessName);
    struct sim_machine *machine = nvml_machine();
    char name[SIM_NAME_BYTES] = "";
    REQUIRE(ret_name && size_bytes, NVML_ERROR_INVALID_ARGUMENT);
    nvml_resolve_pids();
    state_lock(machine);
    for (uint32_t i = 0; i < machine->state->slot_ceiling; i++)
        if (machine->state->slots[i].live && nvml_pid_of(machine->state, &machine->state->slots[i], machine->state->rules.process_pids) == pid)
            memcpy(name, machine->state->slots[i].name, sizeof name);
    state_unlock(machine);
    REQUIRE(name[0], NVML_ERROR_NOT_FOUND);
    snprintf(ret_name, size_bytes, "%s", name);
    return NVML_SUCCESS;
}

/* NVML's time stamps are microseconds of the wall clock; the machine's are nanoseconds of CLOCK_MONOTONIC. */
static int64_t wall_clock_offset_ns(void)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    return (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - state_now_ns();
}

/* One entry per process: the mean of its published samples that ended after last_seen_us. *count is the room, then the number found. */
static nvmlReturn_t give_utilisation(nvmlDevice_t device, nvmlProcessUtilizationSample_t *list, unsigned *count, uint64_t last_seen_us)
{
    CARD(device, card);
    (void)card;
    REQUIRE(count, NVML_ERROR_INVALID_ARGUMENT);
    struct sim_machine *machine = nvml_machine();
    struct sim_state *state = machine->state;
    const int64_t now_ns = state_now_ns(), offset_ns = wall_clock_offset_ns();
    const int64_t since_ns = last_seen_us > INT64_MAX / 1000 ? INT64_MAX : (int64_t)last_seen_us * 1000 - offset_ns;
    unsigned found = 0;
    nvml_resolve_pids();
    state_lock(machine);
    timeline_advance(state, device->card, now_ns);
    for (uint32_t i = 0; i < machine->state->slot_ceiling; i++) {
        const struct sim_slot *slot = &state->slots[i];
        const uint32_t pid = nvml_pid_of(state, slot, state->rules.sample_pids);
        if (!is_on_card(slot, device->card) || !slot->usage[device->card].channel || !pid)
            continue;
        int64_t end_ns = 0;
        int percent = timeline_mean_percent(state, &state->channels[slot->usage[device->card].channel - 1].meter, now_ns,
                                            since_ns, &end_ns);
        if (percent < 0)
            continue;
        if (list && found < *count)
            list[found] = (nvmlProcessUtilizationSample_t){
                .pid = pid, .time_us = (unsigned long long)(end_ns + offset_ns) / 1000, .sm_percent = (unsigned)percent};
        found++;
    }
    state_unlock(machine);
    const unsigned room = list ? *count : 0;
    *count = found;
    return found == 0 ? NVML_ERROR_NOT_FOUND : found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

ENTRY(nvmlDeviceGetProcessUtilization,
      (nvmlDevice_t device, nvmlProcessUtilizationSample_t *list, unsigned *count, unsigned long long last_seen_us),
      give_utilisation(device, list, count, last_seen_us))
