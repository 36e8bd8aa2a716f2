/* sim_init.c - `tenfold-sim init` and `set`: from profiles and options to a machine's state file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/old_libc.h"
#include "sim_commands.h"
#include "sim_profile.h"

/* Where cards sit in the two-socket, eight-card servers that these models are sold in. */
static const uint32_t g_buses[SIM_CARDS_MAX] = {0x17, 0x31, 0x4b, 0x65, 0x98, 0xb1, 0xca, 0xe3, 0x18, 0x32, 0x4c, 0x66, 0x99, 0xb2, 0xcb, 0xe4};

/* FNV-1a of the seed and a salt: the same seed gives the same cards on every run. */
static uint64_t seeded(const char *seed, uint32_t index, uint64_t salt)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ salt;
    for (const char *c = seed; *c; c++)
        hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    for (int i = 0; i < 8; i++)
        hash = (hash ^ ((index + 1) >> (i * 4) & 0xf) ^ (uint64_t)i) * UINT64_C(0x100000001b3);
    hash ^= hash >> 32;
    return hash * UINT64_C(0x9e3779b97f4a7c15);
}

static void name_card(struct sim_card *card, const char *seed, uint32_t index, uint32_t count)
{
    const uint64_t high = seeded(seed, index, 1), low = seeded(seed, index, 2);
    for (int i = 0; i < 8; i++) {
        card->uuid[i] = (uint8_t)(high >> (56 - i * 8));
        card->uuid[8 + i] = (uint8_t)(low >> (56 - i * 8));
    }
    const uint8_t *u = card->uuid;
    snprintf(card->uuid_text, sizeof card->uuid_text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    snprintf(card->serial, sizeof card->serial, "%013llu", (unsigned long long)(seeded(seed, index, 3) % UINT64_C(10000000000000)));
    card->pci_bus = g_buses[index];
    snprintf(card->pci_bus_id, sizeof card->pci_bus_id, "%08x:%02X:%02X.0", card->pci_domain, card->pci_bus, card->pci_device);
    card->minor_number = index;
    card->numa_node = count >= 4 ? (int32_t)(index * 2 / count) : 0;
    card->timeline.now_ns = state_now_ns();
}

/* Profiles lie beside the program, in ../share/tenfold-sim, or where --profiles and $TENFOLD_SIM_PROFILES say. */
static const char *find_profiles(struct arguments *arguments, char *buffer, size_t size_bytes)
{
    const char *given = take_option(arguments, "--profiles");
    if (!given)
        given = getenv("TENFOLD_SIM_PROFILES");
    if (given)
        return given;
    char program[3000];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash)
        *slash = '\0';
    snprintf(buffer, size_bytes, "%s/profiles", program);
    if (access(buffer, R_OK) != 0)
        snprintf(buffer, size_bytes, "%s/../share/tenfold-sim/profiles", program);
    return buffer;
}

struct plan {
    const char *profiles, *cards, *model, *driver, *seed;
    long long count;
    bool need_device_nodes;
};

static int fill(struct sim_state *state, const struct plan *plan, struct arguments *arguments)
{
    char cards[512];
    const char *card = NULL, *refused = profile_read_model(plan->profiles, "ideal", state, NULL); /* has every key; others differ from it */
    refused = refused ? refused : profile_read_driver(plan->profiles, plan->driver, state);
    snprintf(cards, sizeof cards, "%s", plan->cards);
    char *cursor = cards;
    for (uint32_t i = 0; !refused && i < plan->count; i++) {
        char *next = strsep(&cursor, ",");
        card = next ? next : card; /* the last one is repeated */
        refused = profile_read_card(plan->profiles, card, &state->cards[i], state);
        refused = refused ? refused : profile_read_model(plan->profiles, plan->model, state, &state->cards[i]);
        name_card(&state->cards[i], plan->seed, i, (uint32_t)plan->count);
    }
    if (refused)
        return fail("%s", refused);
    state->card_count = (uint32_t)plan->count;
    state->device_nodes_required = plan->need_device_nodes;
    for (const char *setting; (setting = take_option(arguments, "--set"));)
        for (uint32_t i = 0; i < state->card_count; i++)
            if ((refused = profile_set(state, &state->cards[i], setting)))
                return fail("--set %s: %s", setting, refused);
    state_count_lost(state);
    return 0;
}

static int write_machine(const char *path, const struct plan *plan, struct arguments *arguments)
{
    char fresh[4096];
    snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid());
    int fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail("cannot create '%s': %s", fresh, strerror(errno));
    if (fchmod(fd, 0666) < 0 || ftruncate(fd, sizeof(struct sim_state)) < 0) { /* sparse: pages come with use */
        int error = errno;
        close(fd);
        unlink(fresh);
        return fail("cannot size '%s' to %zu bytes: %s", fresh, sizeof(struct sim_state), strerror(error));
    }
    struct sim_state *state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int result = state == MAP_FAILED ? fail("cannot map '%s': %s", fresh, strerror(errno)) : fill(state, plan, arguments);
    if (result == 0) {
        struct stat status;
        state->abi = SIM_ABI;
        state->pid_namespace = old_libc_stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
        state->magic = SIM_MAGIC;
        if (rename(fresh, path) < 0)
            result = fail("cannot put the machine at '%s': %s", path, strerror(errno));
    }
    if (result)
        unlink(fresh);
    close(fd);
    return result;
}

static uint32_t users_of(const char *path)
{
    struct sim_machine machine;
    uint32_t users = 0;
    if (state_attach(path, &machine) != 0)
        return 0;
    for (uint32_t i = 0; i < machine.state->slot_ceiling; i++)
        users += machine.state->slots[i].live && i != machine.slot_index;
    state_detach(&machine);
    return users;
}

static void make_parent(const char *path)
{
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash && slash != folder) {
        *slash = '\0';
        mkdir(folder, 0755); /* an error shows when the file is created */
    }
}

int command_init(const char *path, struct arguments *arguments)
{
    char buffer[4096], host[256] = "tenfold";
    gethostname(host, sizeof host - 1);
    struct plan plan = {.profiles = find_profiles(arguments, buffer, sizeof buffer)};
    const char *count = take_option(arguments, "--cards"), *nodes = take_option(arguments, "--device-nodes");
    plan.cards = take_option(arguments, "--card");
    plan.model = take_option(arguments, "--model");
    plan.driver = take_option(arguments, "--driver");
    plan.seed = take_option(arguments, "--uuid-seed");
    if (!plan.cards)
        return fail("init needs --card NAME; cards are the files of %s/cards", plan.profiles);
    if (!parse_number(count ? count : "1", 0, SIM_CARDS_MAX, &plan.count))
        return fail("--cards is \"%s\", expected a number up to %d", count, SIM_CARDS_MAX);
    if (nodes && strcmp(nodes, "required") != 0 && strcmp(nodes, "ignored") != 0)
        return fail("--device-nodes is \"%s\", expected \"required\" or \"ignored\"", nodes);
    plan.model = plan.model ? plan.model : "ideal";
    plan.driver = plan.driver ? plan.driver : "535";
    plan.seed = plan.seed ? plan.seed : host;
    plan.need_device_nodes = nodes ? strcmp(nodes, "required") == 0 : strcmp(path, SIM_DEFAULT_STATE) == 0;
    bool is_forced = take_flag(arguments, "--force");
    uint32_t users = is_forced ? 0 : users_of(path);
    if (users)
        return fail("%u processes use the machine at '%s'; end them, or add --force (they keep the old machine)", users, path);
    make_parent(path);
    int result = write_machine(path, &plan, arguments);
    const char *left = result ? NULL : take_word(arguments);
    return left ? fail("init does not know \"%s\"", left) : result;
}

int command_set(const char *path, struct arguments *arguments)
{
    struct sim_machine machine;
    long long card = -1;
    const char *index = take_option(arguments, "--card");
    int result = attach(path, &machine);
    if (result)
        return result;
    if (index && !parse_number(index, 0, (long long)machine.state->card_count - 1, &card))
        result = fail("--card is \"%s\", expected an index below %u", index, machine.state->card_count);
    for (const char *word; result == 0 && (word = take_word(arguments));) {
        state_lock(&machine);
        const char *refused = profile_set(machine.state, card >= 0 ? &machine.state->cards[card] : NULL, word);
        state_count_lost(machine.state);
        state_unlock(&machine);
        if (refused)
            result = fail("%s", refused);
    }
    state_detach(&machine);
    return result;
}
