/* vgpuctl.c - looking at a slice and, on the host, changing it.
 *
 *   vgpuctl show [--json] [DIR]          what the slice may use and uses; DIR is a slot's folder, /run/tenfold by default
 *   vgpuctl set DIR [--gpu UUID] [--memory-mib N] [--cores N] [--mode hard|elastic|off|priority]
 *   vgpuctl verify [DIR]                 are both files whole? exit status 0 or 1
 *
 * Static, because it runs in any image. Reads the state with pread and believes nothing in it; writes the page through config_page.c.
 * A static program cannot load NVML: clocks and compute mode are asked of `nvidia-smi`, and left out where there is none. */
#include "config_page.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_FOLDER "/run/tenfold"

static const char *const mode_names[] = {"hard", "elastic", "off", "priority"};

enum { MODES = sizeof mode_names / sizeof *mode_names };

struct slice {
    struct tenfold_config_copy page;
    struct tenfold_state state;
    bool has_state;
};

static int fail(const char *format, const char *first, const char *second)
{
    fprintf(stderr, "vgpuctl: ");
    fprintf(stderr, format, first, second);
    fputc('\n', stderr);
    return 1;
}

static int open_in(const char *folder, const char *name, int flags)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/* Exactly `bytes`, or -1 with errno. */
static int read_exactly(int descriptor, void *buffer, size_t bytes)
{
    char extra;
    ssize_t length = pread(descriptor, buffer, bytes, 0);
    if (length != (ssize_t)bytes || pread(descriptor, &extra, 1, (off_t)bytes) != 0) {
        errno = length < 0 ? errno : EPROTO;
        return -1;
    }
    return 0;
}

static int read_page(const char *folder, struct tenfold_config_copy *ret_page)
{
    static unsigned char bytes[TENFOLD_CONFIG_BYTES];
    uint32_t abi = 0;
    int descriptor = open_in(folder, "config", O_RDONLY);
    if (descriptor < 0 || read_exactly(descriptor, bytes, sizeof bytes) != 0)
        return fail("cannot read '%s/config': %s", folder, errno == EPROTO ? "it has another size" : strerror(errno));
    close(descriptor);
    int error = tf_config_read(bytes, ret_page, &abi);
    if (error == -EBADMSG)
        return fail("both copies in '%s/config' are damaged%s", folder, "");
    if (error)
        return fail("'%s/config' is no page of this ABI%s", folder, "");
    return 0;
}

static bool read_state(const char *folder, struct tenfold_state *ret_state)
{
    int descriptor = open_in(folder, "state", O_RDONLY);
    if (descriptor < 0)
        return false;
    bool is_read = read_exactly(descriptor, ret_state, sizeof *ret_state) == 0;
    close(descriptor);
    return is_read && ret_state->header.magic == TENFOLD_STATE_MAGIC && ret_state->header.abi_version == TENFOLD_ABI_VERSION;
}

static const struct tenfold_gpu_state *state_of(const struct slice *slice, const char *uuid, uint32_t *ret_index)
{
    for (uint32_t index = 0; slice->has_state && index < TENFOLD_GPUS_MAX; index++)
        if (strncmp(slice->state.gpus[index].uuid, uuid, TENFOLD_UUID_CHARS) == 0) {
            *ret_index = index;
            return &slice->state.gpus[index];
        }
    return NULL;
}

static uint32_t processes_on(const struct slice *slice, uint32_t index)
{
    uint32_t processes = 0;
    for (uint32_t slot = 0; slot < TENFOLD_SLOTS_MAX; slot++)
        processes += (slice->state.slots[slot].identity & 3u) && (slice->state.slots[slot].used[index] & TENFOLD_BYTES_MASK);
    return processes;
}

static const char *mode_name(uint32_t mode) { return mode < MODES ? mode_names[mode] : "?"; }

static void show_json(const struct slice *slice)
{
    printf("{\"generation\": %llu, \"policy\": \"%s\", \"gpus\": [", (unsigned long long)slice->page.generation,
        slice->page.policy == TENFOLD_POLICY_OPEN ? "open" : "closed");
    for (uint32_t gpu = 0; gpu < slice->page.gpu_count; gpu++) {
        const struct tenfold_gpu_config *config = &slice->page.gpus[gpu];
        uint32_t index = 0;
        const struct tenfold_gpu_state *state = state_of(slice, config->uuid, &index);
        printf("%s{\"uuid\": \"%s\", \"memory_limit_bytes\": %llu, \"memory_used_bytes\": %llu, \"core_limit_percent\": %u, \"mode\": \"%s\", "
               "\"priority\": %d, \"gpu_time_us\": %llu, \"refusals\": %llu, \"processes\": %u}",
            gpu ? ", " : "", config->uuid, (unsigned long long)config->memory_limit_bytes,
            (unsigned long long)(state ? state->used & TENFOLD_BYTES_MASK : 0), config->core_limit_percent, mode_name(config->mode),
            config->priority, (unsigned long long)(state ? state->gpu_time_us : 0), (unsigned long long)(state ? state->refusals : 0),
            state ? processes_on(slice, index) : 0);
    }
    printf("]}\n");
}

static void show_memory(char *buffer, size_t bytes, uint64_t used_bytes, uint64_t limit_bytes)
{
    if (limit_bytes)
        snprintf(buffer, bytes, "%llu / %llu MiB", (unsigned long long)(used_bytes >> 20), (unsigned long long)(limit_bytes >> 20));
    else
        snprintf(buffer, bytes, "%llu MiB, no limit", (unsigned long long)(used_bytes >> 20));
}

static void show_cores(char *buffer, size_t bytes, const struct tenfold_gpu_config *config)
{
    if (config->core_limit_percent % 100 == 0 || config->mode == TENFOLD_MODE_OFF)
        snprintf(buffer, bytes, "no limit");
    else
        snprintf(buffer, bytes, "%u %% %s", config->core_limit_percent, mode_name(config->mode));
}

/* What nvidia-smi knows of a card. */
struct clocks {
    unsigned int max_mhz;
    char compute_mode[32];
};

static bool take_line(char *line, const char *uuid, struct clocks *ret_clocks)
{
    char *rest = NULL, *found = strtok_r(line, ",", &rest), *clock = strtok_r(NULL, ",", &rest), *mode = strtok_r(NULL, "\n", &rest);
    if (!found || !clock || !mode || strcmp(found, uuid) != 0)
        return false;
    ret_clocks->max_mhz = (unsigned int)strtoul(clock, NULL, 10);
    snprintf(ret_clocks->compute_mode, sizeof ret_clocks->compute_mode, "%s", mode + strspn(mode, " "));
    return ret_clocks->max_mhz != 0;
}

static bool ask_clocks(const char *uuid, struct clocks *ret_clocks)
{
    char line[512];
    bool is_found = false;
    FILE *answer = popen("nvidia-smi --query-gpu=uuid,clocks.max.sm,compute_mode --format=csv,noheader,nounits 2>/dev/null", "r");
    while (answer && !is_found && fgets(line, sizeof line, answer))
        is_found = take_line(line, uuid, ret_clocks);
    if (answer)
        pclose(answer);
    return is_found;
}

static void show_clocks(const struct tenfold_gpu_config *config)
{
    struct clocks clocks;
    uint32_t percent = config->core_limit_percent % 100 && config->mode != TENFOLD_MODE_OFF ? config->core_limit_percent : 100;
    if (ask_clocks(config->uuid, &clocks))
        printf("  SM %u/%u MHz (%u %%), compute mode %s\n", clocks.max_mhz * percent / 100, clocks.max_mhz, percent, clocks.compute_mode);
}

static void show_table(const struct slice *slice)
{
    printf("%-42s %-22s %-14s %10s %6s\n", "card", "memory", "compute", "GPU time", "procs");
    for (uint32_t gpu = 0; gpu < slice->page.gpu_count; gpu++) {
        const struct tenfold_gpu_config *config = &slice->page.gpus[gpu];
        uint32_t index = 0;
        const struct tenfold_gpu_state *state = state_of(slice, config->uuid, &index);
        char memory[64], cores[32];
        show_memory(memory, sizeof memory, state ? state->used & TENFOLD_BYTES_MASK : 0, config->memory_limit_bytes);
        show_cores(cores, sizeof cores, config);
        printf("%-42s %-22s %-14s %8.1f s %6u\n", config->uuid, memory, cores, state ? (double)state->gpu_time_us / 1e6 : 0.0,
            state ? processes_on(slice, index) : 0);
        show_clocks(config);
    }
    if (!slice->has_state)
        printf("the state of this slice cannot be read: usage is unknown\n");
}

static int command_show(int argc, char **argv)
{
    static struct slice slice;
    const char *folder = DEFAULT_FOLDER;
    bool as_json = false;
    for (int index = 0; index < argc; index++) {
        if (strcmp(argv[index], "--json") == 0)
            as_json = true;
        else
            folder = argv[index];
    }
    if (read_page(folder, &slice.page))
        return 1;
    slice.has_state = read_state(folder, &slice.state);
    if (as_json)
        show_json(&slice);
    else
        show_table(&slice);
    return 0;
}

static int command_verify(int argc, char **argv)
{
    static struct slice slice;
    const char *folder = argc ? argv[0] : DEFAULT_FOLDER;
    if (read_page(folder, &slice.page))
        return 1;
    if (!read_state(folder, &slice.state))
        return fail("'%s/state' is missing, of another size or of another ABI%s", folder, "");
    printf("%s: whole, %u cards, generation %llu\n", folder, slice.page.gpu_count, (unsigned long long)slice.page.generation);
    return 0;
}

static bool parse_number(const char *text, uint64_t highest, uint64_t *ret_number)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno || *end || end == text || *text == '-' || number > highest)
        return false;
    *ret_number = number;
    return true;
}

static int change_gpu(struct tenfold_gpu_config *config, const char *option, const char *value)
{
    uint64_t number;
    if (strcmp(option, "--memory-mib") == 0) {
        if (!parse_number(value, TENFOLD_BYTES_MASK >> 20, &number))
            return fail("--memory-mib is '%s', expected 0 (no limit) to 4194303%s", value, "");
        config->memory_limit_bytes = number << 20;
    } else if (strcmp(option, "--cores") == 0) {
        if (!parse_number(value, 100, &number))
            return fail("--cores is '%s', expected 0 to 100 (0 and 100: no limit)%s", value, "");
        config->core_limit_percent = (uint32_t)number;
    } else if (strcmp(option, "--mode") == 0) {
        for (number = 0; number < MODES && strcmp(value, mode_names[number]) != 0;)
            number++;
        if (number == MODES)
            return fail("--mode is '%s', expected hard, elastic, off or priority%s", value, "");
        config->mode = (uint32_t)number;
    } else {
        return fail("unknown option '%s'%s", option, "");
    }
    return 0;
}

static int command_set(int argc, char **argv)
{
    struct tenfold_config_copy page;
    const char *uuid = NULL;
    if (argc < 3 || argc % 2 == 0)
        return fail("set needs a slot's folder and pairs of option and value%s%s", "", "");
    if (read_page(argv[0], &page))
        return 1;
    for (int index = 1; index < argc; index += 2)
        if (strcmp(argv[index], "--gpu") == 0)
            uuid = argv[index + 1];
    bool has_card = false;
    for (uint32_t gpu = 0; gpu < page.gpu_count; gpu++) {
        if (uuid && strcmp(page.gpus[gpu].uuid, uuid) != 0)
            continue;
        has_card = true;
        for (int index = 1; index < argc; index += 2)
            if (strcmp(argv[index], "--gpu") != 0 && change_gpu(&page.gpus[gpu], argv[index], argv[index + 1]))
                return 1;
    }
    if (!has_card)
        return fail("the slot has no card '%s'%s", uuid ? uuid : "", "");
    int descriptor = open_in(argv[0], "config", O_RDWR);
    int error = descriptor < 0 ? -errno : tf_config_write(descriptor, &page);
    return error ? fail("cannot write '%s/config': %s", argv[0], strerror(-error)) : 0;
}

static int usage(void)
{
    fputs("usage: vgpuctl show [--json] [DIR]\n"
          "       vgpuctl set DIR [--gpu UUID] [--memory-mib N] [--cores N] [--mode hard|elastic|off|priority]\n"
          "       vgpuctl verify [DIR]\n"
          "       vgpuctl --version\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "show") == 0)
        return command_show(argc - 2, argv + 2);
    if (argc >= 2 && strcmp(argv[1], "set") == 0)
        return command_set(argc - 2, argv + 2);
    if (argc >= 2 && strcmp(argv[1], "verify") == 0)
        return command_verify(argc - 2, argv + 2);
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("vgpuctl %s, ABI %u\n", TENFOLD_VERSION, TENFOLD_ABI_VERSION);
        return 0;
    }
    return usage();
}
