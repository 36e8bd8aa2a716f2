/* bench.c - reads cases from standard input, runs each in virtual time, prints one line of JSON per case.
 *
 * Owns:  the clock, NVML's windows, the truth per tenant and window. run.py writes the cases and judges the lines.
 *
 * Input, one word group per line, any order within a case, units in the names:
 *   case <name>            begins a case with defaults
 *   set <name> <number>    a parameter (parameters.json), or seed, warmup_ms, length_ms, window_ms, fifo
 *   tenant <name> <number> ... (begins a tenant), see tenant_option()
 *   change <at_ms> <tenant> <limit>
 *   run                                                                                                                    */
#include "bench.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_LEAST_NS (450 * MS) /* of the device plugin (gpu_times.py) */

static void spread(uint64_t *windows, uint64_t count, uint64_t width_ns, uint64_t from_ns, uint64_t to_ns)
{
    for (uint64_t i = from_ns / width_ns; i < count && i * width_ns < to_ns; i++) {
        uint64_t low = i * width_ns > from_ns ? i * width_ns : from_ns;
        uint64_t high = (i + 1) * width_ns < to_ns ? (i + 1) * width_ns : to_ns;
        windows[i] += high - low;
    }
}

static void on_busy(void *user, uint32_t context, uint64_t from_ns, uint64_t to_ns)
{
    struct bench *bench = user;
    struct process *process = &bench->processes[context];
    struct tenant *tenant = process->tenant;
    tenant->busy_ns += to_ns - from_ns;
    tenant->last_busy_ns = to_ns;
    if (to_ns > bench->warmup_ns) {
        uint64_t counted_from_ns = from_ns > bench->warmup_ns ? from_ns : bench->warmup_ns;
        tenant->counted_busy_ns += to_ns - counted_from_ns;
        process->counted_busy_ns += to_ns - counted_from_ns;
        spread(tenant->window_busy_ns, WINDOWS, bench->window_ns, counted_from_ns - bench->warmup_ns, to_ns - bench->warmup_ns);
    }
    uint64_t late_ns = bench->parameters.nvml_window_ns - bench->parameters.nvml_phase_ns; /* window 0 is the one before the first that begins */
    spread(tenant->nvml_busy_ns, NVML_WINDOWS, bench->parameters.nvml_window_ns, from_ns + late_ns, to_ns + late_ns);
}

/* A reading of NVML: the mean of the whole percents of the samples since *seen. 0: there are no new ones. */
static int read_samples(const struct bench *bench, const struct tenant *tenant, uint64_t *seen, struct tf_limit_observation *ret_observation)
{
    uint64_t window_ns = bench->parameters.nvml_window_ns;
    uint64_t late_ns = window_ns - bench->parameters.nvml_phase_ns;
    uint64_t lag_ns = bench->parameters.nvml_lag_ns, last = bench->now_ns <= lag_ns ? 0 : (bench->now_ns + late_ns - lag_ns) / window_ns; /* incomplete */
    if (*seen == 0 && last > 0)
        *seen = 1; /* window 0 began before time did */
    if (last <= *seen)
        return 0;
    uint64_t samples = last - *seen;
    *seen = last;
    double busy_ns = 0;
    for (uint64_t i = last - samples; i < last && i < NVML_WINDOWS; i++) {
        uint64_t percent = tenant->nvml_busy_ns[i] * 100 / window_ns;
        busy_ns += percent > 0 ? ((double)percent + 0.5) / 100 * (double)window_ns : 0;
    }
    *ret_observation = (struct tf_limit_observation){
        .from_ns = (last - samples) * window_ns - late_ns, .to_ns = last * window_ns - late_ns, .busy_ns = (uint64_t)busy_ns};
    return 1;
}

/* The hook's own, twice a second. */
static void read_nvml(struct bench *bench, struct tenant *tenant, struct process *reader)
{
    struct tf_limit_observation seen;
    if (read_samples(bench, tenant, &tenant->nvml_seen, &seen))
        tf_limit_observe_busy(&tenant->state, reader->limit, seen.from_ns, seen.to_ns, seen.busy_ns, tenant->processes == 1, bench->now_ns);
}

/* The host's, once per period for all; what it tells is in the pages a moment later. The first reading of a card tells nothing: it is where
 * the first window begins. */
static void tell_all(struct bench *bench)
{
    const struct parameters *p = &bench->parameters;
    for (uint32_t t = 0; t < bench->tenant_count; t++) {
        struct tenant *tenant = &bench->tenants[t];
        int is_first = tenant->host_seen == 0;
        uint64_t host_seen = tenant->host_seen;
        struct tf_limit_observation seen;
        if (!tenant->host || !read_samples(bench, tenant, &host_seen, &seen))
            continue;
        if (!is_first && seen.to_ns - seen.from_ns < WINDOW_LEAST_NS)
            continue; /* the next reading is asked from the same point on */
        tenant->host_seen = host_seen;
        if (is_first)
            continue;
        tenant->next_told = seen;
        tenant->next_told_ns = bench->now_ns + p->host_delay_ns;
    }
    bench->host_ns += p->host_period_ns + (uint64_t)((double)p->host_jitter_ns * random_unit(&bench->random));
}

/* Who else worked in the last 100 ms, as a node agent would tell the hook. */
static void look_around(struct bench *bench)
{
    for (uint32_t t = 0; t < bench->tenant_count; t++) {
        struct tenant *tenant = &bench->tenants[t];
        uint32_t pressure = TF_LIMIT_PRESSURE_NONE;
        for (uint32_t o = 0; o < bench->tenant_count; o++) {
            struct tenant *other = &bench->tenants[o];
            if (o == t || other->last_busy_ns == 0 || other->last_busy_ns + 100 * MS < bench->now_ns)
                continue;
            uint32_t seen = other->priority < tenant->priority   ? TF_LIMIT_PRESSURE_HIGHER
                            : other->priority > tenant->priority ? TF_LIMIT_PRESSURE_LOWER
                                                                 : TF_LIMIT_PRESSURE_EQUAL;
            if (pressure == TF_LIMIT_PRESSURE_NONE || seen == TF_LIMIT_PRESSURE_HIGHER ||
                (seen == TF_LIMIT_PRESSURE_EQUAL && pressure == TF_LIMIT_PRESSURE_LOWER))
                pressure = seen;
        }
        tenant->policy.pressure = pressure;
    }
}

static void write_garbage(struct bench *bench, struct tenant *tenant)
{
    uint64_t *words = (uint64_t *)(void *)&tenant->state;
    words[random_u64(&bench->random) % (sizeof tenant->state / 8)] = random_u64(&bench->random) >> random_u64(&bench->random) % 64;
}

static int run_case(struct bench *bench)
{
    uint32_t contexts = 0;
    for (uint32_t t = 0; t < bench->tenant_count; t++)
        contexts += bench->tenants[t].processes;
    bench->gpu = (struct gpu){.policy = bench->policy, .slice_ns = bench->parameters.slice_ns, .switch_ns = bench->parameters.switch_ns,
                              .event_stall_ns = bench->parameters.event_stall_ns, .on_busy = on_busy, .on_complete = host_on_complete, .user = bench};
    if (contexts == 0 || contexts > GPU_CONTEXTS || gpu_init(&bench->gpu, contexts) != 0)
        return -1;
    random_seed(&bench->random, bench->seed);
    if (host_start(bench) != 0)
        return -1;
    uint64_t end_ns = bench->warmup_ns + bench->length_ns;
    uint64_t nvml_ns[TENANTS];
    for (uint32_t t = 0; t < bench->tenant_count; t++)
        nvml_ns[t] = bench->tenants[t].nvml ? 500 * MS + t * 7 * MS : NEVER;
    int warm = 0;
    for (;;) {
        uint64_t next_ns = bench->gpu.next_ns, second_ns = NEVER;
        int what = 0;
        uint32_t which = 0;
#define CONSIDER(time, kind, index)                                                                                                                  \
    do {                                                                                                                                             \
        uint64_t t_ = (time);                                                                                                                        \
        if (t_ < next_ns) {                                                                                                                          \
            second_ns = next_ns;                                                                                                                     \
            next_ns = t_, what = (kind), which = (index);                                                                                            \
        } else if (t_ < second_ns) {                                                                                                                 \
            second_ns = t_;                                                                                                                          \
        }                                                                                                                                            \
    } while (0)
        for (uint32_t i = 0; i < bench->process_count; i++) {
            CONSIDER(bench->processes[i].next_ns, 1, i);
            CONSIDER(bench->processes[i].helper_ns, 2, i);
        }
        for (uint32_t t = 0; t < bench->tenant_count; t++)
            CONSIDER(nvml_ns[t], 3, t);
        if (bench->change_next < bench->change_count)
            CONSIDER(bench->changes[bench->change_next].at_ns, 4, 0);
        CONSIDER(bench->pressure_ns, 5, 0);
        CONSIDER(bench->garbage_ns, 6, 0);
        CONSIDER(bench->host_ns, 8, 0);
        if (!warm)
            CONSIDER(bench->warmup_ns, 7, 0);
        if (next_ns >= end_ns)
            break;
        bench->now_ns = next_ns;
        if (what >= 3) /* who looks at the truth sees all of it */
            gpu_account(&bench->gpu, next_ns);
        switch (what) {
        case 0: gpu_advance(&bench->gpu, next_ns); break;
        case 1: host_run_thread(bench, &bench->processes[which], second_ns < end_ns ? second_ns : end_ns); break;
        case 2: host_run_helper(bench, &bench->processes[which]); break;
        case 3:
            for (uint32_t i = 0; i < bench->process_count; i++)
                if (bench->processes[i].tenant == &bench->tenants[which] && bench->processes[i].waiting != DEAD) {
                    read_nvml(bench, &bench->tenants[which], &bench->processes[i]);
                    break;
                }
            nvml_ns[which] += 500 * MS;
            break;
        case 4: {
            struct change *change = &bench->changes[bench->change_next++];
            bench->tenants[change->tenant].policy.limit_percent = change->limit;
            break;
        }
        case 5:
            look_around(bench);
            for (uint32_t i = 0; i < bench->process_count; i++)
                if (bench->processes[i].tenant->kill_ns != 0 && bench->processes[i].tenant->kill_ns <= next_ns) {
                    bench->processes[i].tenant->kill_ns = 0;
                    host_kill(bench, &bench->processes[i]);
                }
            bench->pressure_ns += 50 * MS;
            break;
        case 6:
            for (uint32_t t = 0; t < bench->tenant_count; t++)
                if (bench->tenants[t].garbage)
                    write_garbage(bench, &bench->tenants[t]);
            bench->garbage_ns += 10 * MS;
            break;
        case 8: tell_all(bench); break;
        default:
            warm = 1;
            for (uint32_t t = 0; t < bench->tenant_count; t++)
                bench->tenants[t].used_at_warmup_ns = bench->tenants[t].state.used_ns;
        }
    }
    gpu_account(&bench->gpu, end_ns);
    return 0;
}

static void print_case(const struct bench *bench, const char *name)
{
    printf("{\"case\": \"%s\", \"length_ms\": %" PRIu64 ", \"wasted_ms\": %.3f, \"tenants\": [", name, bench->length_ns / MS,
        (double)bench->gpu.wasted_ns / 1e6);
    for (uint32_t t = 0; t < bench->tenant_count; t++) {
        const struct tenant *tenant = &bench->tenants[t];
        double length_ns = (double)bench->length_ns;
        printf("%s{\"mean\": %.4f, \"used\": %.4f, \"windows\": [", t ? ", " : "", (double)tenant->counted_busy_ns / length_ns * 100,
               (double)(int64_t)(tenant->state.used_ns - tenant->used_at_warmup_ns) / length_ns * 100);
        for (uint64_t i = 0; i < WINDOWS && (i + 1) * bench->window_ns <= bench->length_ns; i++)
            printf("%s%.2f", i ? "," : "", (double)tenant->window_busy_ns[i] / (double)bench->window_ns * 100);
        printf("], \"processes\": [");
        const char *comma = "";
        uint64_t gates = 0, launches = 0, measured = 0, waits = 0;
        for (uint32_t i = 0; i < bench->process_count; i++) {
            const struct process *process = &bench->processes[i];
            if (process->tenant != tenant)
                continue;
            printf("%s%.3f", comma, (double)process->counted_busy_ns / length_ns * 100);
            comma = ",";
            gates += process->gates, launches += process->launches, measured += process->measured, waits += process->waits;
        }
        printf("], \"launches\": %" PRIu64 ", \"gates\": %" PRIu64 ", \"waits\": %" PRIu64 ", \"measured\": %" PRIu64 "}", launches, gates, waits, measured);
    }
    printf("]}\n");
    fflush(stdout);
}

static int set_option(struct bench *bench, const char *name, double value)
{
    struct parameters *p = &bench->parameters;
    if (strcmp(name, "slice_us") == 0) p->slice_ns = (uint64_t)(value * 1e3);
    else if (strcmp(name, "switch_us") == 0) p->switch_ns = (uint64_t)(value * 1e3);
    else if (strcmp(name, "event_bias_us") == 0) p->event_bias_ns = (uint64_t)(value * 1e3);
    else if (strcmp(name, "event_null_percent") == 0) p->event_null = value / 100;
    else if (strcmp(name, "event_noise_percent") == 0) p->event_noise = value / 100;
    else if (strcmp(name, "event_stall_us") == 0) p->event_stall_ns = (uint64_t)(value * 1e3);
    else if (strcmp(name, "nvml_window_ms") == 0) p->nvml_window_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "nvml_lag_ms") == 0) p->nvml_lag_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "nvml_phase_ms") == 0) p->nvml_phase_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "host_period_ms") == 0) p->host_period_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "host_jitter_ms") == 0) p->host_jitter_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "host_delay_ms") == 0) p->host_delay_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "host_look_ms") == 0) p->host_look_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "poll_us") == 0) p->poll_ns = (uint64_t)(value * 1e3);
    else if (strcmp(name, "wake_us") == 0) p->wake_ns = (uint64_t)(value * 1e3);
    else if (strcmp(name, "launch_us") == 0) p->launch_ns = (uint64_t)(value * 1e3);
    else if (strcmp(name, "sync_us") == 0) p->sync_ns = (uint64_t)(value * 1e3);
    else if (strcmp(name, "seed") == 0) bench->seed = (uint64_t)value;
    else if (strcmp(name, "warmup_ms") == 0) bench->warmup_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "length_ms") == 0) bench->length_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "window_ms") == 0) bench->window_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "fifo") == 0) bench->policy = value != 0 ? GPU_FIFO : GPU_ROUND_ROBIN;
    else return -1;
    return 0;
}

static int tenant_option(struct tenant *tenant, const char *name, double value)
{
    if (strcmp(name, "limit") == 0) tenant->policy.limit_percent = (uint32_t)value;
    else if (strcmp(name, "mode") == 0) tenant->policy.mode = (uint32_t)value;
    else if (strcmp(name, "bank_ms") == 0) tenant->policy.bank_ms = (uint32_t)value;
    else if (strcmp(name, "limited") == 0) tenant->limited = value != 0;
    else if (strcmp(name, "priority") == 0) tenant->priority = (int)value;
    else if (strcmp(name, "sync") == 0) tenant->style = value != 0 ? SYNC : ASYNC;
    else if (strcmp(name, "processes") == 0) tenant->processes = (uint32_t)value;
    else if (strcmp(name, "streams") == 0) tenant->streams = (uint32_t)value;
    else if (strcmp(name, "kernel_us") == 0) {
        if (tenant->size_count == SIZES || value <= 0)
            return -1;
        tenant->size_ns[tenant->size_count++] = (uint64_t)(value * 1e3);
    } else if (strcmp(name, "cv") == 0) tenant->cv = value;
    else if (strcmp(name, "on_ms") == 0) tenant->on_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "off_ms") == 0) tenant->off_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "start_ms") == 0) tenant->start_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "stop_ms") == 0) tenant->stop_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "gap_us") == 0) tenant->gap_ns = (uint64_t)(value * 1e3);
    else if (strcmp(name, "launch_us") == 0) tenant->launch_ns = (uint64_t)(value * 1e3);
    else if (strcmp(name, "kill_ms") == 0) tenant->kill_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "nvml") == 0) tenant->nvml = value != 0;
    else if (strcmp(name, "host") == 0) tenant->host = value != 0;
    else if (strcmp(name, "phase_ms") == 0) tenant->phase_ns = (uint64_t)(value * 1e6);
    else if (strcmp(name, "random_phases") == 0) tenant->random_phases = value != 0;
    else if (strcmp(name, "one_key") == 0) tenant->one_key = value != 0;
    else if (strcmp(name, "garbage") == 0) tenant->garbage = value != 0;
    else return -1;
    return 0;
}

static void begin_case(struct bench *bench)
{
    memset(bench, 0, sizeof *bench);
    bench->seed = 1;
    bench->warmup_ns = 1000 * MS;
    bench->length_ns = 6000 * MS;
    bench->window_ns = 200 * MS;
    bench->pressure_ns = 50 * MS;
    bench->garbage_ns = bench->host_ns = NEVER;
}

static int finish_tenants(struct bench *bench)
{
    for (uint32_t t = 0; t < bench->tenant_count; t++) {
        struct tenant *tenant = &bench->tenants[t];
        if (tenant->size_count == 0 || tenant->processes == 0 || tenant->streams == 0 || tenant->streams > GPU_STREAMS)
            return -1;
        if (tenant->launch_ns == 0)
            tenant->launch_ns = bench->parameters.launch_ns;
        if (tenant->garbage)
            bench->garbage_ns = 10 * MS;
        if (tenant->host)
            bench->host_ns = bench->parameters.host_period_ns;
    }
    const struct parameters *p = &bench->parameters;
    int is_usable = bench->tenant_count > 0 && p->slice_ns > 0 && p->nvml_window_ns > p->nvml_phase_ns && p->host_period_ns > 0 && p->poll_ns > 0
        && p->launch_ns > 0 && bench->window_ns > 0;
    return is_usable ? 0 : -1;
}

int main(void)
{
    static struct bench bench;
    static char line[65536];
    char name[128] = "";
    unsigned number = 0;
    begin_case(&bench);
    while (fgets(line, sizeof line, stdin) != NULL) {
        number++;
        int bad = 0;
        char *word = strtok(line, " \n");
        if (word == NULL)
            continue;
        if (strcmp(word, "case") == 0) {
            char *text = strtok(NULL, "\n");
            begin_case(&bench);
            snprintf(name, sizeof name, "%s", text == NULL ? "" : text);
        } else if (strcmp(word, "set") == 0 || strcmp(word, "tenant") == 0) {
            struct tenant *tenant = NULL;
            if (word[0] == 't') {
                if (bench.tenant_count == TENANTS) {
                    fprintf(stderr, "line %u: more than %d tenants\n", number, TENANTS);
                    return 2;
                }
                tenant = &bench.tenants[bench.tenant_count++];
                *tenant = (struct tenant){.limited = 1, .processes = 1, .streams = 1, .stop_ns = NEVER, .nvml = 1};
            }
            char *key;
            while (!bad && (key = strtok(NULL, " \n")) != NULL) {
                char *value = strtok(NULL, " \n");
                bad = value == NULL || (tenant ? tenant_option(tenant, key, atof(value)) : set_option(&bench, key, atof(value))) != 0;
            }
        } else if (strcmp(word, "change") == 0) {
            char *at = strtok(NULL, " \n"), *tenant = strtok(NULL, " \n"), *limit = strtok(NULL, " \n");
            if (limit == NULL || bench.change_count == CHANGES || (uint32_t)atoi(tenant) >= bench.tenant_count)
                bad = 1;
            else
                bench.changes[bench.change_count++] = (struct change){(uint64_t)(atof(at) * 1e6), (uint32_t)atoi(tenant), (uint32_t)atoi(limit)};
        } else if (strcmp(word, "run") == 0) {
            if (finish_tenants(&bench) != 0 || run_case(&bench) != 0)
                bad = 1;
            else
                print_case(&bench, name);
            host_stop(&bench);
            gpu_free(&bench.gpu);
        } else {
            bad = 1;
        }
        if (bad) {
            fprintf(stderr, "case '%s', line %u: cannot use it\n", name, number);
            return 2;
        }
    }
    return 0;
}
