/* neighbours.c - what NVML knows of this container and of the others on a card (contract: neighbours.h).
 *
 * Owns: the NVML handle of each card, this process's pid in NVML's eyes (also in its slot, for its siblings), the last sample seen.
 * Next: limit.c weighs what it is told, measure.c calls about twice a second. */
#include "neighbours.h"

#include "device.h"
#include "loader.h"
#include "memory.h"

#include <string.h>
#include <time.h>

enum { PROCESSES_MAX = 256, ROUNDS = 3, ATTEMPTS_MAX = 40, FIRST_READINGS = 8 };
#define OBSERVE_NS 500000000ull
#define OBSERVE_FIRST_NS 170000000ull /* in the beginning: NVML's shortest window, so that the first word comes as early as it can */
#define WINDOW_LEAST_US 450000ull     /* the limiter compares sums: over less than this, their edges weigh more than their contents */
#define SIBLING_SHARE 8 / 10          /* of the period: another process of the container told the limiter less than this ago */
#define ROUNDING_US 1000ull
#define FRESH_NS 3000000000ull
#define BLOCK_BYTES (2ull << 20)

struct card {
    nvmlDevice_t device;
    uint64_t tried_ns;
    uint64_t last_sample_us;
    uint32_t attempts;
    uint32_t readings;
    uint32_t driver_pid; /* 0: not known */
    _Atomic uint32_t pressure;
    _Atomic uint64_t pressure_ns;
};

static struct card cards[TENFOLD_GPUS_MAX];
static bool is_nvml_ready;

void tf_neighbours_reset(void)
{
    memset((void *)cards, 0, sizeof cards);
    is_nvml_ready = false;
}

uint32_t tf_neighbours_pressure(int gpu, uint64_t now_ns)
{
    uint64_t seen_ns = atomic_load_explicit(&cards[gpu].pressure_ns, memory_order_relaxed);
    if (!seen_ns || now_ns - seen_ns > FRESH_NS)
        return TF_LIMIT_PRESSURE_EQUAL;
    return atomic_load_explicit(&cards[gpu].pressure, memory_order_relaxed);
}

static uint64_t period_ns(const struct card *card) { return card->readings < FIRST_READINGS ? OBSERVE_FIRST_NS : OBSERVE_NS; }

static const struct tf_nvml *ready_nvml(void)
{
    const struct tf_nvml *nvml = tf_nvml();
    if (!nvml) {
        tf_loader_open(TF_NVML_SONAME);
        nvml = tf_nvml();
    }
    if (!nvml || !nvml->nvmlInit_v2 || !nvml->nvmlDeviceGetHandleByUUID || !nvml->nvmlDeviceGetComputeRunningProcesses
        || !nvml->nvmlDeviceGetProcessUtilization)
        return NULL;
    if (!is_nvml_ready)
        is_nvml_ready = nvml->nvmlInit_v2() == NVML_SUCCESS; /* counted by NVML: never taken back, so the program's own shutdown leaves us ours */
    return is_nvml_ready ? nvml : NULL;
}

static bool find_device(struct tf_container *container, const struct tf_nvml *nvml, int gpu)
{
    char uuid[TENFOLD_UUID_CHARS];
    if (cards[gpu].device)
        return true;
    memcpy(uuid, container->state->gpus[gpu].uuid, sizeof uuid);
    uuid[sizeof uuid - 1] = '\0';
    return nvml->nvmlDeviceGetHandleByUUID(uuid, &cards[gpu].device) == NVML_SUCCESS;
}

/* --- who am I? -------------------------------------------------------------------------------------------------------------------- */

struct list {
    unsigned int count;
    nvmlProcessInfo_v1_t processes[PROCESSES_MAX];
};

static bool list_processes(const struct tf_nvml *nvml, nvmlDevice_t device, struct list *list)
{
    list->count = PROCESSES_MAX;
    return nvml->nvmlDeviceGetComputeRunningProcesses(device, &list->count, list->processes) == NVML_SUCCESS && list->count <= PROCESSES_MAX;
}

static bool usage_of(const struct list *list, unsigned int pid, uint64_t *ret_bytes)
{
    for (unsigned int index = 0; index < list->count; index++)
        if (list->processes[index].pid == pid) {
            *ret_bytes = list->processes[index].used_bytes;
            return true;
        }
    return false;
}

/* Keeps those candidates whose usage grew by exactly `bytes`. */
static void keep_followers(struct list *candidates, const struct list *before, const struct list *after, uint64_t bytes)
{
    unsigned int kept = 0;
    for (unsigned int index = 0; index < candidates->count; index++) {
        uint64_t first, second;
        unsigned int pid = candidates->processes[index].pid;
        if (usage_of(before, pid, &first) && usage_of(after, pid, &second) && second - first == bytes)
            candidates->processes[kept++] = candidates->processes[index];
    }
    candidates->count = kept;
}

/* Physical memory by handle: unlike cuMemFree, giving it back does not make the driver wait for the card. */
static bool take_and_look(const struct tf_cuda *cuda, const struct tf_nvml *nvml, int ordinal, nvmlDevice_t device, uint64_t bytes, struct list *candidates)
{
    struct list before, after;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}};
    if (!list_processes(nvml, device, &before) || cuda->cuMemCreate(&handle, bytes, &properties, 0) != CUDA_SUCCESS)
        return false;
    bool is_listed = list_processes(nvml, device, &after);
    cuda->cuMemRelease(handle);
    if (is_listed)
        keep_followers(candidates, &before, &after, bytes);
    return is_listed;
}

/* Within the slice: what the signature takes is charged as long as it is there. */
static bool look_charged(struct tf_container *container, const struct tf_cuda *cuda, const struct tf_nvml *nvml, int gpu, int ordinal, uint64_t bytes,
    struct list *candidates)
{
    struct tf_reservation reservation;
    if (tf_memory_try(container, gpu, bytes, &reservation) != CUDA_SUCCESS)
        return false;
    bool is_done = take_and_look(cuda, nvml, ordinal, cards[gpu].device, bytes, candidates);
    tf_memory_undo(&reservation);
    return is_done;
}

static void find_self(struct tf_container *container, const struct tf_cuda *cuda, const struct tf_nvml *nvml, int gpu, int ordinal, uint64_t now_ns)
{
    struct card *card = &cards[gpu];
    struct list candidates;
    if (card->attempts++ >= ATTEMPTS_MAX || !cuda->cuMemCreate || !cuda->cuMemRelease || !list_processes(nvml, card->device, &candidates))
        return;
    uint64_t random = now_ns ^ (uint64_t)container->self.pid << 20;
    for (int round = 0; round < ROUNDS && candidates.count > 1; round++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        if (!look_charged(container, cuda, nvml, gpu, ordinal, (1 + (random >> 60)) * BLOCK_BYTES, &candidates))
            return;
    }
    if (candidates.count != 1)
        return; /* the program allocates at the same time, or another tenant plays the same game: next time */
    card->driver_pid = candidates.processes[0].pid;
    __atomic_store_n(&container->state->slots[container->slot].driver_pid, card->driver_pid, __ATOMIC_RELAXED);
}

/* --- what did we do? ---------------------------------------------------------------------------------------------------------------- */

static bool is_ours(const struct tf_container *container, unsigned int pid)
{
    const struct tenfold_state *state = container->state;
    uint64_t slots = __atomic_load_n(&state->slots_high_water, __ATOMIC_RELAXED);
    for (uint64_t slot = 0; slot < slots && slot < TENFOLD_SLOTS_MAX; slot++)
        if ((__atomic_load_n(&state->slots[slot].identity, __ATOMIC_RELAXED) & 3u) == TENFOLD_SLOT_LIVE
            && __atomic_load_n(&state->slots[slot].driver_pid, __ATOMIC_RELAXED) == pid)
            return true;
    return false;
}

struct reading {
    uint64_t newest_us;
    double own_percent; /* half a percent is what NVML cuts off */
    bool others_work;
};

static bool read_utilisation(const struct tf_container *container, const struct tf_nvml *nvml, int gpu, struct reading *ret_reading)
{
    nvmlProcessUtilizationSample_t samples[PROCESSES_MAX];
    unsigned int count = PROCESSES_MAX;
    struct reading reading = {.newest_us = 0};
    /* time stamps are rounded: a moment later than the last one, so that its sample does not come again */
    uint64_t since_us = cards[gpu].last_sample_us ? cards[gpu].last_sample_us + ROUNDING_US : 0;
    if (nvml->nvmlDeviceGetProcessUtilization(cards[gpu].device, samples, &count, since_us) != NVML_SUCCESS)
        return false;
    for (unsigned int index = 0; index < count && index < PROCESSES_MAX; index++) {
        const nvmlProcessUtilizationSample_t *sample = &samples[index];
        if (sample->time_us > reading.newest_us)
            reading.newest_us = sample->time_us;
        if (!sample->sm_percent)
            continue;
        if (is_ours(container, sample->pid))
            reading.own_percent += sample->sm_percent + 0.5;
        else
            reading.others_work = true;
    }
    *ret_reading = reading;
    return reading.newest_us > cards[gpu].last_sample_us;
}

/* CLOCK_REALTIME microseconds to CLOCK_MONOTONIC nanoseconds, as of now. */
static uint64_t monotonic_of(uint64_t wall_us, uint64_t now_ns)
{
    struct timespec wall = {0, 0};
    clock_gettime(CLOCK_REALTIME, &wall);
    uint64_t wall_now_us = (uint64_t)wall.tv_sec * 1000000u + (uint64_t)wall.tv_nsec / 1000u;
    uint64_t age_ns = wall_now_us > wall_us ? (wall_now_us - wall_us) * 1000u : 0;
    return now_ns > age_ns ? now_ns - age_ns : 0;
}

static void tell_limiter(struct tf_container *container, int gpu, struct tf_limit_process *process, const struct reading *reading, uint64_t now_ns)
{
    struct card *card = &cards[gpu];
    struct tf_limit_state *state = (struct tf_limit_state *)container->state->gpus[gpu].limiter;
    uint64_t before_us = card->last_sample_us;
    card->readings++;
    atomic_store_explicit(&card->pressure, reading->others_work ? TF_LIMIT_PRESSURE_EQUAL : TF_LIMIT_PRESSURE_NONE, memory_order_relaxed);
    atomic_store_explicit(&card->pressure_ns, now_ns, memory_order_relaxed);
    if (before_us && reading->newest_us - before_us < WINDOW_LEAST_US)
        return; /* the next reading is asked from the same point on */
    card->last_sample_us = reading->newest_us;
    uint64_t told_ns = atomic_load_explicit(&state->observed_at_ns, memory_order_relaxed);
    if (!before_us || (told_ns <= now_ns && now_ns - told_ns < period_ns(card) * SIBLING_SHARE))
        return;
    uint64_t from_ns = monotonic_of(before_us, now_ns), to_ns = monotonic_of(reading->newest_us, now_ns);
    double busy_ns = reading->own_percent / 100.0 * (double)(to_ns - from_ns);
    tf_limit_observe_busy(state, process, from_ns, to_ns, (uint64_t)busy_ns, now_ns);
}

/* CUDA's number of the card, which is what cuMemCreate wants. */
static int ordinal_of(struct tf_container *container, const struct tf_cuda *cuda, int gpu)
{
    for (int ordinal = 0; ordinal < (int)TENFOLD_GPUS_MAX; ordinal++)
        if (tf_device_of_ordinal(container, cuda, ordinal) == gpu)
            return ordinal;
    return -1;
}

void tf_neighbours_observe(struct tf_container *container, const struct tf_cuda *cuda, int gpu, struct tf_limit_process *process, uint64_t now_ns)
{
    struct card *card = &cards[gpu];
    if (now_ns - card->tried_ns < period_ns(card))
        return;
    card->tried_ns = now_ns;
    const struct tf_nvml *nvml = ready_nvml();
    int ordinal = nvml && find_device(container, nvml, gpu) ? ordinal_of(container, cuda, gpu) : -1;
    if (ordinal < 0)
        return;
    if (!card->driver_pid)
        find_self(container, cuda, nvml, gpu, ordinal, now_ns);
    struct reading reading;
    if (card->driver_pid && read_utilisation(container, nvml, gpu, &reading))
        tell_limiter(container, gpu, process, &reading, now_ns);
}
