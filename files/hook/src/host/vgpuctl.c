/* vgpuctl.c - looking at a slice and, on the host, changing it.
 *
 *   vgpuctl show [--json] [DIR]          what the slice may use and uses; DIR is a slot's folder, /run/tenfold by default
 *   vgpuctl set DIR [--gpu UUID] OPTION VALUE ...      the options are the rows of `settings`, all or none of them takes effect
 *   vgpuctl verify [DIR]                 are both files whole? exit status 0 or 1
 *
 * Static, because it runs in any image. Reads the state with pread and believes nothing in it; writes the page through page_writer.c.
 * A static program cannot load NVML: clocks and compute mode are asked of `nvidia-smi`, and left out where there is none. */
#include "base/clock.h"
#include "host/page_writer.h"
#include "slice/config_page.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_FOLDER "/run/tenfold"

/* In the order of their enums (tenfold_region.h), ended by NULL. */
static const char *const mode_names[] = {"hard", "elastic", "off", "priority", NULL};
static const char *const pressure_names[] = {"unknown", "none", "lower", "higher", "equal", NULL};
static const char *const overhead_names[] = {"measured", "reserved", NULL};
static const char *const policy_names[] = {"closed", "open", NULL};
static const char *const view_names[] = {"clocks", "compute_mode", NULL}; /* by bit */

static const char *name_of(const char *const *names, uint32_t value)
{
    for (; *names; names++)
        if (value-- == 0)
            return *names;
    return "?";
}

struct slice {
    struct tenfold_config_copy page;
    struct told { /* of a card's GPU time, by the host */
        bool is_told;
        double busy_percent;
        uint64_t age_ms; /* of the window's end */
    } told[TENFOLD_GPUS_MAX];
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

/* As read_page() has found it last. */
static unsigned char page_bytes[TENFOLD_CONFIG_BYTES];

static int read_page(const char *folder, struct tenfold_config_copy *ret_page)
{
    unsigned char *bytes = page_bytes;
    uint32_t abi = 0;
    int descriptor = open_in(folder, "config", O_RDONLY);
    if (descriptor < 0 || read_exactly(descriptor, bytes, sizeof page_bytes) != 0)
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

static struct told read_told(const char *uuid_text)
{
    unsigned char uuid[16];
    struct tenfold_busy_window window;
    uint64_t now_ns = tf_now_ns();
    if (!tf_uuid_parse(uuid_text, uuid) || !tf_busy_read(page_bytes, uuid, &window) || window.to_ns > now_ns)
        return (struct told){.is_told = false};
    return (struct told){true, 100.0 * (double)window.busy_ns / (double)(window.to_ns - window.from_ns), (now_ns - window.to_ns) / 1000000u};
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

/* Attached processes; with more cards than one, those of them that hold memory on this one. */
static uint32_t processes_on(const struct slice *slice, uint32_t index)
{
    uint32_t processes = 0, cards = 0;
    for (uint32_t gpu = 0; gpu < TENFOLD_GPUS_MAX; gpu++)
        cards += slice->state.gpus[gpu].uuid[0] != '\0';
    for (uint32_t number = 0; number < TENFOLD_SLOTS_MAX; number++) {
        const struct tenfold_slot *slot = &slice->state.slots[number];
        processes += (slot->identity & 3u) == TENFOLD_SLOT_LIVE && (cards <= 1 || (slot->used[index] & TENFOLD_BYTES_MASK));
    }
    return processes;
}

/* What of the memory in use no program has allocated. A process's word is for people and may say anything. */
static uint64_t overhead_of(const struct slice *slice)
{
    uint64_t bytes = 0;
    for (uint32_t slot = 0; slice->has_state && slot < TENFOLD_SLOTS_MAX; slot++)
        bytes += (slice->state.slots[slot].identity & 3u) == TENFOLD_SLOT_LIVE ? slice->state.slots[slot].overhead_bytes & TENFOLD_BYTES_MASK : 0;
    return bytes;
}

static void show_json(const struct slice *slice)
{
    const char *separator = "";
    printf("{\"generation\": %llu, \"policy\": \"%s\", \"view\": [", (unsigned long long)slice->page.generation,
        name_of(policy_names, slice->page.policy));
    for (uint32_t bit = 0; view_names[bit]; bit++)
        if (slice->page.view >> bit & 1u) {
            printf("%s\"%s\"", separator, view_names[bit]);
            separator = ", ";
        }
    printf("], \"gpus\": [");
    for (uint32_t gpu = 0; gpu < slice->page.gpu_count; gpu++) {
        const struct tenfold_gpu_config *config = &slice->page.gpus[gpu];
        uint32_t index = 0;
        const struct tenfold_gpu_state *state = state_of(slice, config->uuid, &index);
        printf("%s{\"uuid\": \"%s\", \"memory_limit_bytes\": %llu, \"memory_used_bytes\": %llu, \"core_limit_percent\": %u, \"mode\": \"%s\", "
               "\"priority\": %d, \"overhead_reserve_bytes\": %llu, \"overhead\": \"%s\", \"neighbours\": %u, \"pressure\": \"%s\", \"gpu_time_us\": %llu, "
               "\"refusals\": %llu, \"processes\": %u",
            gpu ? ", " : "", config->uuid, (unsigned long long)config->memory_limit_bytes,
            (unsigned long long)(state ? state->used & TENFOLD_BYTES_MASK : 0), config->core_limit_percent,
            name_of(mode_names, config->mode), config->priority, (unsigned long long)config->overhead_reserve_bytes,
            name_of(overhead_names, config->overhead), config->neighbours,
            name_of(pressure_names, config->pressure), (unsigned long long)(state ? state->gpu_time_us : 0),
            (unsigned long long)(state ? state->refusals : 0), state ? processes_on(slice, index) : 0);
        if (slice->told[gpu].is_told)
            printf(", \"host_busy_percent\": %.1f, \"host_busy_age_ms\": %llu", slice->told[gpu].busy_percent,
                (unsigned long long)slice->told[gpu].age_ms);
        putchar('}');
    }
    printf("], \"overhead_bytes\": %llu}\n", (unsigned long long)overhead_of(slice));
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
        snprintf(buffer, bytes, "%u %% %s", config->core_limit_percent, name_of(mode_names, config->mode));
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
        if (slice->told[gpu].is_told)
            printf("  the host saw %.1f %% of the card's time used here, %.1f s ago\n", slice->told[gpu].busy_percent,
                (double)slice->told[gpu].age_ms / 1e3);
    }
    if (overhead_of(slice))
        printf("of the memory in use, %llu MiB are contexts and modules\n", (unsigned long long)(overhead_of(slice) >> 20));
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
    for (uint32_t gpu = 0; gpu < slice.page.gpu_count; gpu++)
        slice.told[gpu] = read_told(slice.page.gpus[gpu].uuid);
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

/* --- set ------------------------------------------------------------------------------------------------------------------------ */

/* What `set` may change: a number between two bounds, one word of a list, or a set of its words. */
static const struct setting {
    const char *option;
    const char *const *words; /* NULL: a number */
    bool is_set;              /* of words, by bit */
    bool is_page;             /* of the whole page, not of a card */
    unsigned char shift;      /* the page counts bytes where people count MiB */
    unsigned char bytes;      /* of the field */
    size_t offset;
    int64_t lowest, highest;
} settings[] = {
#define OF_CARD(field) .offset = offsetof(struct tenfold_gpu_config, field), .bytes = sizeof((struct tenfold_gpu_config *)0)->field
#define OF_PAGE(field) .is_page = true, .offset = offsetof(struct tenfold_config_copy, field), .bytes = sizeof((struct tenfold_config_copy *)0)->field
    {.option = "--memory-mib", OF_CARD(memory_limit_bytes), .shift = 20, .highest = TENFOLD_BYTES_MASK >> 20}, /* 0: no limit */
    {.option = "--cores", OF_CARD(core_limit_percent), .highest = 100},                                        /* 0 and 100: no limit */
    {.option = "--mode", OF_CARD(mode), .words = mode_names},
    {.option = "--priority", OF_CARD(priority), .lowest = INT32_MIN, .highest = INT32_MAX}, /* 0: the highest that a tier can have */
    {.option = "--overhead-reserve-mib", OF_CARD(overhead_reserve_bytes), .shift = 20, .highest = TENFOLD_BYTES_MASK >> 20},
    {.option = "--overhead", OF_CARD(overhead), .words = overhead_names},
    {.option = "--pressure", OF_CARD(pressure), .words = pressure_names},
    {.option = "--neighbours", OF_CARD(neighbours), .highest = UINT16_MAX},
    {.option = "--policy", OF_PAGE(policy), .words = policy_names},
    {.option = "--view", OF_PAGE(view), .words = view_names, .is_set = true},
};

enum { SETTINGS = sizeof settings / sizeof *settings, CHANGES_MAX = 64 };

/* A setting with its value, before anything is touched. */
struct change {
    const struct setting *setting;
    int64_t value;
};

static void print_words(const struct setting *setting, FILE *stream)
{
    const char *separator = "";
    for (const char *const *word = setting->words; *word; word++) {
        fprintf(stream, "%s%s", separator, *word);
        separator = setting->is_set ? "," : "|";
    }
}

static int fail_value(const struct setting *setting, const char *value)
{
    fprintf(stderr, "vgpuctl: %s is '%s', expected ", setting->option, value);
    if (!setting->words) {
        fprintf(stderr, "%lld to %lld", (long long)setting->lowest, (long long)setting->highest);
    } else {
        fputs(setting->is_set ? "none or some of " : "one of ", stderr);
        print_words(setting, stderr);
    }
    fputc('\n', stderr);
    return 1;
}

static bool find_word(const char *const *words, const char *text, size_t chars, int64_t *ret_number)
{
    for (int64_t number = 0; words[number]; number++)
        if (strlen(words[number]) == chars && strncmp(words[number], text, chars) == 0) {
            *ret_number = number;
            return true;
        }
    return false;
}

static bool parse_set(const char *const *words, const char *text, int64_t *ret_bits)
{
    int64_t bits = 0, bit;
    if (strcmp(text, "none") == 0) {
        *ret_bits = 0;
        return true;
    }
    for (;;) {
        size_t chars = strcspn(text, ",");
        if (!find_word(words, text, chars, &bit))
            return false;
        bits |= INT64_C(1) << bit;
        if (!text[chars])
            break;
        text += chars + 1;
    }
    *ret_bits = bits;
    return true;
}

static bool parse_number(const struct setting *setting, const char *text, int64_t *ret_number)
{
    char *end;
    if (strspn(text, "-0123456789") != strlen(text))
        return false; /* strtoll takes blanks and a plus, too */
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || *end || end == text || number < setting->lowest || number > setting->highest)
        return false;
    *ret_number = number;
    return true;
}

static int parse_change(const char *option, const char *value, struct change *ret_change)
{
    for (int index = 0; index < SETTINGS; index++) {
        const struct setting *setting = &settings[index];
        if (strcmp(setting->option, option) != 0)
            continue;
        bool is_good = !setting->words ? parse_number(setting, value, &ret_change->value)
            : setting->is_set          ? parse_set(setting->words, value, &ret_change->value)
                                       : find_word(setting->words, value, strlen(value), &ret_change->value);
        ret_change->setting = setting;
        return is_good ? 0 : fail_value(setting, value);
    }
    return fail("unknown option '%s'%s", option, "");
}

static void apply(const struct change *change, void *holder)
{
    uint64_t number = (uint64_t)change->value << change->setting->shift; /* little-endian: the field is its low bytes */
    memcpy((char *)holder + change->setting->offset, &number, change->setting->bytes);
}

/* False: no card of that name. */
static bool apply_all(const struct change *changes, int count, const char *uuid, struct tenfold_config_copy *page)
{
    bool has_card = false;
    for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) {
        if (uuid && strcmp(page->gpus[gpu].uuid, uuid) != 0)
            continue;
        has_card = true;
        for (int index = 0; index < count; index++)
            apply(&changes[index], changes[index].setting->is_page ? (void *)page : &page->gpus[gpu]);
    }
    return has_card;
}

static int write_page(const char *folder, const struct tenfold_config_copy *page)
{
    uint64_t generation;
    int descriptor = open_in(folder, "config", O_RDWR);
    if (descriptor < 0)
        return -errno;
    int error = tenfold_page_write(descriptor, page, sizeof *page, page->generation, TENFOLD_PAGE_WAIT_MS, &generation);
    close(descriptor);
    return error;
}

static int command_set(int argc, char **argv)
{
    struct change changes[CHANGES_MAX];
    struct tenfold_config_copy page;
    const char *uuid = NULL;
    int count = 0, error;
    if (argc < 3 || argc % 2 == 0 || argc / 2 > CHANGES_MAX)
        return fail("set needs a slot's folder and pairs of option and value%s%s", "", "");
    for (int index = 1; index < argc; index += 2) {
        if (strcmp(argv[index], "--gpu") == 0)
            uuid = argv[index + 1];
        else if (parse_change(argv[index], argv[index + 1], &changes[count++]))
            return 1;
    }
    if (!count)
        return fail("set needs something to change beside the card%s%s", "", "");
    do { /* again, if another writer was faster: its change must not be lost */
        if (read_page(argv[0], &page))
            return 1;
        if (!apply_all(changes, count, uuid, &page))
            return fail("the slot has no card '%s'%s", uuid ? uuid : "", "");
        error = write_page(argv[0], &page);
    } while (error == -ESTALE);
    if (error == -ETIMEDOUT)
        return fail("cannot write '%s/config': another writer has held it for 2 s%s", argv[0], "");
    return error ? fail("cannot write '%s/config': %s", argv[0], strerror(-error)) : 0;
}

static int usage(void)
{
    fputs("usage: vgpuctl show [--json] [DIR]\n"
          "       vgpuctl set DIR [--gpu UUID]", stderr);
    for (int index = 0; index < SETTINGS; index++) {
        fprintf(stderr, " [%s ", settings[index].option);
        if (settings[index].words)
            print_words(&settings[index], stderr);
        else
            fputc('N', stderr);
        fputc(']', stderr);
    }
    fputs("\n"
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
