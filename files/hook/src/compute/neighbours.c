/* neighbours.c - what the host or NVML knows of this container and of the others on a card (contract: neighbours.h).
 *
 * Owns: whose word counts, and the last sample seen of each card.
 * Next: contention.c weighs what it is told, measure.c calls in each of its rounds, nvml_client.c asks. */
#include "compute/neighbours.h"

#include "base/parts.h"
#include "limiter/contention.h"
#include "slice/config_page.h"
#include "slice/driver_pid.h"
#include "slice/nvml_client.h"
#include "slice/slots.h"

#include <string.h>
#include <time.h>

enum { FIRST_READINGS = 8 };
#define OBSERVE_NS 500000000ull
#define OBSERVE_FIRST_NS 170000000ull /* in the beginning: NVML's shortest window, so that the first word comes as early as it can */
#define WINDOW_LEAST_US 450000ull     /* the limiter compares sums: over less than this, their edges weigh more than their contents */
#define SIBLING_SHARE 8 / 10          /* of the period: another process of the container told the limiter less than this ago */
#define ROUNDING_US 1000ull
#define FRESH_NS 3000000000ull /* a pressure, and the host's word */
#define FIRST_PID_NAMESPACE 0xeffffffcull /* the machine's own: PROC_PID_INIT_INO of Linux */

struct card {
    uint64_t tried_ns;
    uint64_t last_sample_us;
    uint32_t readings;
    _Atomic uint32_t pressure;
    _Atomic uint64_t pressure_ns;
    uint64_t looked_ns;
    bool is_told;
    bool is_named; /* a sample was of us: samples speak of processes in the numbers of the list, which not every driver's do */
};

static struct card cards[TENFOLD_GPUS_MAX];

static void forget(void) { memset((void *)cards, 0, sizeof cards); }

TF_PART(.forget = forget);

uint32_t tf_neighbours_pressure(int gpu, uint64_t now_ns)
{
    uint64_t seen_ns = atomic_load_explicit(&cards[gpu].pressure_ns, memory_order_relaxed);
    if (!seen_ns || now_ns - seen_ns > FRESH_NS)
        return TF_LIMIT_PRESSURE_EQUAL;
    return atomic_load_explicit(&cards[gpu].pressure, memory_order_relaxed);
}

static uint64_t period_ns(const struct card *card) { return card->readings < FIRST_READINGS ? OBSERVE_FIRST_NS : OBSERVE_NS; }

/* --- what did we do? ---------------------------------------------------------------------------------------------------------------- */

struct reading {
    uint64_t newest_us;
    double own_percent; /* half a percent is what NVML cuts off */
    bool others_work;
};

static bool read_utilisation(struct tf_container *container, const struct tf_nvml *nvml, int gpu, struct reading *ret_reading)
{
    nvmlProcessUtilizationSample_t samples[TF_NVML_PROCESSES_MAX];
    unsigned int count = TF_NVML_PROCESSES_MAX;
    nvmlDevice_t device = tf_nvml_card(container, nvml, gpu);
    struct reading reading = {.newest_us = 0};
    /* time stamps are rounded: a moment later than the last one, so that its sample does not come again */
    uint64_t since_us = cards[gpu].last_sample_us ? cards[gpu].last_sample_us + ROUNDING_US : 0;
    if (!device || !nvml->nvmlDeviceGetProcessUtilization)
        return false;
    tf_nvml_enter();
    nvmlReturn_t result = nvml->nvmlDeviceGetProcessUtilization(device, samples, &count, since_us);
    tf_nvml_leave();
    if (result != NVML_SUCCESS)
        return false;
    for (unsigned int index = 0; index < count && index < TF_NVML_PROCESSES_MAX; index++) {
        const nvmlProcessUtilizationSample_t *sample = &samples[index];
        if (sample->time_us > reading.newest_us)
            reading.newest_us = sample->time_us;
        if (tf_slots_claim(container->state, sample->pid, TENFOLD_SLOTS_MAX)) {
            reading.own_percent += sample->sm_percent ? sample->sm_percent + 0.5 : 0;
            cards[gpu].is_named = true;
        } else if (sample->sm_percent) {
            reading.others_work = true;
        }
    }
    *ret_reading = reading;
    /* who has never been in a sample may be in it under another number: then nothing in it is known to be ours, or others' */
    return cards[gpu].is_named && reading.newest_us > cards[gpu].last_sample_us;
}

/* A driver that names us by the number that we have in a pid namespace of our own leaves out who is not in there. */
static bool shows_strangers(const struct tf_container *container)
{
    return tf_driver_pid() != container->self.pid || container->self.pid_namespace == FIRST_PID_NAMESPACE;
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
    uint32_t pressure = reading->others_work || !shows_strangers(container) ? TF_LIMIT_PRESSURE_EQUAL : TF_LIMIT_PRESSURE_NONE;
    atomic_store_explicit(&card->pressure, pressure, memory_order_relaxed);
    atomic_store_explicit(&card->pressure_ns, now_ns, memory_order_relaxed);
    if (before_us && reading->newest_us - before_us < WINDOW_LEAST_US)
        return; /* the next reading is asked from the same point on */
    card->last_sample_us = reading->newest_us;
    if (card->is_told)
        return;
    uint64_t told_ns = atomic_load_explicit(&state->observed_at_ns, memory_order_relaxed);
    if (!before_us || (told_ns <= now_ns && now_ns - told_ns < period_ns(card) * SIBLING_SHARE))
        return;
    uint64_t from_ns = monotonic_of(before_us, now_ns), to_ns = monotonic_of(reading->newest_us, now_ns);
    double busy_ns = reading->own_percent / 100.0 * (double)(to_ns - from_ns);
    /* somebody was seen, so NVML does see; and of this container there is nobody else who may be whom it saw */
    bool is_certain = reading->others_work && tf_driver_pid_is_proven() && tf_slots_is_only(container->state, container->slot);
    tf_limit_observe_busy(state, process, from_ns, to_ns, (uint64_t)busy_ns, is_certain, now_ns);
}

/* --- what the host says that we did ---------------------------------------------------------------------------------------------------- */

/* It comes before NVML's: one call per card for all containers instead of one per process, without the library and without knowing our pid. */
static bool take_told(struct tf_container *container, int gpu, struct tf_limit_process *process, uint64_t now_ns)
{
    struct card *card = &cards[gpu];
    struct tenfold_busy_window window;
    if (now_ns - card->looked_ns < TF_NEIGHBOURS_LOOK_NS)
        return card->is_told;
    card->looked_ns = now_ns;
    card->is_told = container->page && tf_busy_read(container->page, container->uuids[gpu], &window) && window.to_ns <= now_ns
        && now_ns - window.to_ns < FRESH_NS;
    if (card->is_told)
        tf_limit_observe_told((struct tf_limit_state *)container->state->gpus[gpu].limiter, process, window.from_ns, window.to_ns, window.busy_ns,
            now_ns);
    return card->is_told;
}

/* Does the limit depend on who else works, and the page does not say? */
static bool needs_pressure(const struct tf_container *container, int gpu)
{
    const struct tf_quota *quota = &container->quotas[gpu];
    uint32_t mode = atomic_load_explicit(&quota->mode, memory_order_relaxed);
    return (mode == TENFOLD_MODE_ELASTIC || mode == TENFOLD_MODE_PRIORITY)
        && atomic_load_explicit(&quota->pressure, memory_order_relaxed) == TENFOLD_PRESSURE_UNKNOWN;
}

void tf_neighbours_observe(struct tf_container *container, const struct tf_cuda *cuda, int gpu, struct tf_limit_process *process, bool has_work,
    uint64_t now_ns)
{
    struct card *card = &cards[gpu];
    bool is_told = take_told(container, gpu, process, now_ns);
    if ((is_told && !needs_pressure(container, gpu)) || now_ns - card->tried_ns < period_ns(card))
        return;
    card->tried_ns = now_ns;
    const struct tf_nvml *nvml = tf_nvml_open();
    struct reading reading;
    /* without work it may have no context any more, and who else is there would be taken for us */
    bool is_known = nvml && (has_work ? tf_driver_pid_find(container, cuda, nvml, gpu, true) : tf_driver_pid() != 0);
    if (is_known && read_utilisation(container, nvml, gpu, &reading))
        tell_limiter(container, gpu, process, &reading, now_ns);
}
