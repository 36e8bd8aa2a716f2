/* sim_profile.c - reads profiles/: `key = value` lines, # comments (contract: sim_profile.h). Every key is one row of a table. */
#include "sim_profile.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum unit { UNIT_ONE, UNIT_KIB, UNIT_MIB, UNIT_US_TO_NS, UNIT_W_TO_MW };

struct key {
    const char *name;
    size_t offset;
    size_t size_bytes;
    enum unit unit;
};

#define CARD(name, field, unit) {name, offsetof(struct sim_card, field), sizeof(((struct sim_card *)0)->field), unit}
static const struct key g_card_keys[] = {
    CARD("memory_total_mib", memory_total_bytes, UNIT_MIB),
    CARD("memory_reserved_mib", memory_reserved_bytes, UNIT_MIB),
    CARD("multiprocessors", multiprocessors, UNIT_ONE),
    CARD("threads_per_multiprocessor", threads_per_multiprocessor, UNIT_ONE),
    CARD("registers_per_multiprocessor", registers_per_multiprocessor, UNIT_ONE),
    CARD("shared_memory_per_multiprocessor_kib", shared_memory_per_multiprocessor_bytes, UNIT_KIB),
    CARD("shared_memory_per_block_optin_kib", shared_memory_per_block_optin_bytes, UNIT_KIB),
    CARD("l2_kib", l2_bytes, UNIT_KIB),
    CARD("memory_bus_width_bits", memory_bus_width_bits, UNIT_ONE),
    CARD("copy_engines", copy_engines, UNIT_ONE),
    CARD("sm_clock_max_mhz", sm_clock_max_mhz, UNIT_ONE),
    CARD("sm_clock_idle_mhz", sm_clock_idle_mhz, UNIT_ONE),
    CARD("memory_clock_max_mhz", memory_clock_max_mhz, UNIT_ONE),
    CARD("power_limit_w", power_limit_mw, UNIT_W_TO_MW),
    CARD("power_idle_w", power_idle_mw, UNIT_W_TO_MW),
    CARD("temperature_c", temperature_c, UNIT_ONE),
    CARD("pci_device_id", pci_device_id, UNIT_ONE),
    CARD("pci_subsystem_id", pci_subsystem_id, UNIT_ONE),
    CARD("mig_capable", mig_capable, UNIT_ONE),
    CARD("ecc_enabled", ecc_enabled, UNIT_ONE),
    CARD("compute_mode", compute_mode, UNIT_ONE),
    CARD("lost", lost, UNIT_ONE),
};

#define STATE(name, field, unit) {name, offsetof(struct sim_state, field), sizeof(((struct sim_state *)0)->field), unit}
static const struct key g_state_keys[] = {
    STATE("granule_bytes", memory.granule_bytes, UNIT_ONE),
    STATE("block_bytes", memory.block_bytes, UNIT_ONE),
    STATE("small_limit_bytes", memory.small_limit_bytes, UNIT_ONE),
    STATE("pitch_bytes", memory.pitch_bytes, UNIT_ONE),
    STATE("pool_growth_bytes", memory.pool_growth_bytes, UNIT_ONE),
    STATE("context_bytes", memory.context_bytes, UNIT_ONE),
    STATE("module_bytes", memory.module_bytes, UNIT_ONE),
    STATE("graph_use_is_mapped", memory.graph_use_is_mapped, UNIT_ONE),
    STATE("slice_us", time.slice_ns, UNIT_US_TO_NS),
    STATE("switch_us", time.switch_ns, UNIT_US_TO_NS),
    STATE("window_us", time.window_ns, UNIT_US_TO_NS),
    STATE("window_lag_us", time.window_lag_ns, UNIT_US_TO_NS),
    STATE("other_kernel_ns", time.other_kernel_ns, UNIT_ONE),
    STATE("event_error_ns", time.event_error_ns, UNIT_ONE),
    STATE("copy_bytes_per_us", time.copy_bytes_per_us, UNIT_ONE),
    STATE("sample_noise_percent", time.sample_noise_percent, UNIT_ONE),
    STATE("streams_overlap", time.streams_overlap, UNIT_ONE),
    STATE("queue_depth", time.queue_depth, UNIT_ONE),
    STATE("capture_is_strict", rules.capture_is_strict, UNIT_ONE),
    STATE("sticky_errors", rules.sticky_errors, UNIT_ONE),
    STATE("reset_deactivates", rules.reset_deactivates, UNIT_ONE),
    STATE("free_waits", rules.free_waits, UNIT_ONE),
    STATE("pool_has_pieces", rules.pool_has_pieces, UNIT_ONE),
    STATE("managed_on_touch", rules.managed_on_touch, UNIT_ONE),
    STATE("memory_call_ns", time.memory_call_ns, UNIT_ONE),
    STATE("launch_call_ns", time.launch_call_ns, UNIT_ONE),
    STATE("device_nodes_required", device_nodes_required, UNIT_ONE),
};

struct word {
    const char *text;
    uint32_t value;
};
/* NVML's numbers: nvmlBrandType_t, nvmlDeviceArchitecture_t. */
static const struct word g_brands[] = {{"tesla", 2}, {"quadro", 1}, {"geforce", 5}, {"nvidia", 14}, {NULL, 0}};
static const struct word g_architectures[] = {{"pascal", 4}, {"volta", 5}, {"turing", 6}, {"ampere", 7}, {"ada", 8}, {"hopper", 9}, {NULL, 0}};
static const struct word g_policies[] = {{"fifo", SIM_POLICY_FIFO}, {"round-robin", SIM_POLICY_ROUND_ROBIN}, {NULL, 0}};
static const struct word g_pids[] = {{"machine", SIM_PIDS_MACHINE}, {"caller", SIM_PIDS_CALLER}, {NULL, 0}};

/* The reason for a refusal, good until the next one. */
static const char *reason(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *reason(const char *format, ...)
{
    static char texts[2][5000]; /* a reason may quote the one before */
    static unsigned next;
    char *text = texts[next++ % 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof texts[0], format, arguments);
    va_end(arguments);
    return text;
}

static const char *set_word(const struct word *words, const char *key, const char *value, uint32_t *ret_value)
{
    for (; words->text; words++)
        if (strcmp(words->text, value) == 0) {
            *ret_value = words->value;
            return NULL;
        }
    return reason("%s is \"%s\", which is not one of its words; see the table in sim_profile.c", key, value);
}

static int64_t scaled(int64_t value, enum unit unit)
{
    static const int64_t factor[] = {[UNIT_ONE] = 1, [UNIT_KIB] = 1024, [UNIT_MIB] = 1048576, [UNIT_US_TO_NS] = 1000, [UNIT_W_TO_MW] = 1000};
    return value * factor[unit];
}

static const char *set_number(void *base, const struct key *key, const char *value)
{
    char *end = NULL;
    errno = 0;
    long long number = strtoll(value, &end, 0);
    if (errno || end == value || *end || (key->size_bytes == 4 && (number < 0 || number > UINT32_MAX)))
        return reason("%s is \"%s\", expected a number", key->name, value);
    int64_t result = scaled(number, key->unit);
    if (key->size_bytes == 4)
        *(uint32_t *)((char *)base + key->offset) = (uint32_t)result;
    else
        *(int64_t *)((char *)base + key->offset) = result;
    return NULL;
}

/* One `key = value` of a model or of a card. */
static const char *set(struct sim_state *state, struct sim_card *card, const char *key, const char *value)
{
    if (strcmp(key, "policy") == 0)
        return set_word(g_policies, key, value, &state->time.policy);
    if (strcmp(key, "process_pids") == 0)
        return set_word(g_pids, key, value, &state->rules.process_pids);
    if (strcmp(key, "sample_pids") == 0)
        return set_word(g_pids, key, value, &state->rules.sample_pids);
    if (card && strcmp(key, "product_name") == 0) {
        snprintf(card->name, sizeof card->name, "%s", value);
        return NULL;
    }
    if (card && strcmp(key, "brand") == 0)
        return set_word(g_brands, key, value, &card->brand);
    if (card && strcmp(key, "architecture") == 0)
        return set_word(g_architectures, key, value, &card->architecture);
    if (card && strcmp(key, "compute_capability") == 0)
        return sscanf(value, "%u.%u", &card->compute_major, &card->compute_minor) == 2
                   ? NULL
                   : reason("compute_capability is \"%s\", expected two numbers such as 8.0", value);
    for (size_t i = 0; card && i < sizeof g_card_keys / sizeof g_card_keys[0]; i++)
        if (strcmp(g_card_keys[i].name, key) == 0)
            return set_number(card, &g_card_keys[i], value);
    for (size_t i = 0; i < sizeof g_state_keys / sizeof g_state_keys[0]; i++)
        if (strcmp(g_state_keys[i].name, key) == 0)
            return set_number(state, &g_state_keys[i], value);
    return reason("unknown key \"%s\"; the keys are those of profiles/models/ideal.conf%s", key, card ? " and profiles/cards/*.conf" : "");
}

const char *profile_set(struct sim_state *state, struct sim_card *card, const char *word)
{
    char key[128];
    const char *equals = strchr(word, '=');
    if (!equals || (size_t)(equals - word) >= sizeof key)
        return reason("\"%s\" is not KEY=VALUE", word);
    snprintf(key, sizeof key, "%.*s", (int)(equals - word), word);
    return set(state, card, key, equals + 1);
}

static char *trimmed(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    return text;
}

static const char *read_keys(const char *path, struct sim_state *state, struct sim_card *card)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return reason("cannot read profile '%s': %s", path, strerror(errno));
    char line[512];
    const char *refused = NULL;
    for (int number = 1; !refused && fgets(line, sizeof line, file); number++) {
        char *text = trimmed(line), *equals = strchr(text, '=');
        if (*text == '\0' || *text == '#')
            continue;
        if (equals)
            *equals = '\0';
        refused = equals ? set(state, card, trimmed(text), trimmed(equals + 1)) : reason("\"%.60s\" is not `key = value`", text);
        if (refused)
            refused = reason("%s line %d: %s", path, number, refused);
    }
    fclose(file);
    return refused;
}

const char *profile_read_card(const char *folder, const char *name, struct sim_card *card, struct sim_state *state)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/cards/%s.conf", folder, name);
    if (strchr(name, '/'))
        return reason("card model is \"%s\", expected the name of a file in %s/cards without .conf", name, folder);
    return read_keys(path, state, card);
}

const char *profile_read_model(const char *folder, const char *name, struct sim_state *state, struct sim_card *card)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/models/%s.conf", folder, name);
    if (strchr(name, '/'))
        return reason("model is \"%s\", expected the name of a file in %s/models without .conf", name, folder);
    return read_keys(path, state, card);
}

const char *profile_read_driver(const char *folder, const char *wanted, struct sim_state *state)
{
    char path[4096], line[256];
    snprintf(path, sizeof path, "%s/drivers.conf", folder);
    FILE *file = fopen(path, "re");
    if (!file)
        return reason("cannot read '%s': %s", path, strerror(errno));
    char *end = NULL;
    const unsigned long branch = strtoul(wanted, &end, 10);
    const bool is_branch = *end == '\0', is_version = *end == '.' && strspn(end, "0123456789.") == strlen(end);
    bool is_found = false;
    while (!is_found && fgets(line, sizeof line, file)) {
        unsigned long row_branch;
        char version[32];
        int major, minor;
        if (sscanf(line, "%lu %31s %d.%d", &row_branch, version, &major, &minor) != 4 || row_branch != branch)
            continue;
        is_found = is_branch || is_version;
        snprintf(state->driver_version, sizeof state->driver_version, "%.31s", is_branch ? version : wanted);
        state->cuda_version = major * 1000 + minor * 10;
    }
    fclose(file);
    if (is_found)
        return NULL;
    return reason("driver is \"%s\", expected a branch of %s such as 535, or a version of one such as 535.161.08", wanted, path);
}
