/* books.c - ledger against truth (contract: books.h). */
#include "books.h"

#include "slice/config_page.h"
#include "host/page_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LEAST_PROBE_BYTES (UINT64_C(2) << 20) /* with less room a process cannot look for itself, and may owe no more than that */

static const void *map_file(const char *folder, const char *name, size_t bytes)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    const void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return map == MAP_FAILED ? NULL : map;
}

static int find_gpu(struct books *books, uint32_t device)
{
    for (uint32_t gpu = 0; gpu < TENFOLD_GPUS_MAX; gpu++)
        if (strcmp(books->ledger->gpus[gpu].uuid, books->machine.state->cards[device].uuid_text) == 0) {
            books->gpu_of_card[device] = gpu;
            return 0;
        }
    snprintf(books->problem, sizeof books->problem, "the slot has no card %s", books->machine.state->cards[device].uuid_text);
    return -1;
}

int books_open(struct books *books, const char *machine_path, const char *slot, uint32_t devices)
{
    memset(books, 0, sizeof *books);
    int error = state_attach(machine_path, &books->machine);
    books->ledger = map_file(slot, "state", sizeof *books->ledger);
    books->page = map_file(slot, "config", TENFOLD_CONFIG_BYTES);
    books->devices = devices;
    if (error || !books->ledger || !books->page || devices > books->machine.state->card_count || devices > DEVICES_MAX) {
        snprintf(books->problem, sizeof books->problem, "cannot open machine '%s' (%s) or slot '%s' with %u cards", machine_path, strerror(-error), slot,
                 devices);
        return -1;
    }
    snprintf(books->slot, sizeof books->slot, "%s", slot);
    for (uint32_t device = 0; device < devices; device++) {
        if (find_gpu(books, device) < 0)
            return -1;
        books->limit_bytes[device] = books_limit_bytes(books, device);
    }
    return 0;
}

int books_set_limits(struct books *books, uint32_t divisor)
{
    char path[1024];
    struct tenfold_config_copy page;
    uint64_t generation;
    uint32_t abi;
    snprintf(path, sizeof path, "%s/config", books->slot);
    int fd = open(path, O_RDWR | O_CLOEXEC), error = fd < 0 ? -errno : tf_config_read(books->page, &page, &abi);
    for (uint32_t index = 0; !error && index < page.gpu_count; index++)
        for (uint32_t device = 0; device < books->devices; device++)
            if (strcmp(page.gpus[index].uuid, books->machine.state->cards[device].uuid_text) == 0)
                page.gpus[index].memory_limit_bytes = books->limit_bytes[device] / divisor;
    if (!error)
        error = tenfold_page_write(fd, &page, sizeof page, 0, TENFOLD_PAGE_WAIT_MS, &generation);
    if (error)
        snprintf(books->problem, sizeof books->problem, "cannot change the page in %.200s: %s", books->slot, strerror(-error));
    if (fd >= 0)
        close(fd);
    return error ? -1 : 0;
}

static uint64_t ledger_word(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST) & TENFOLD_BYTES_MASK; }

uint64_t books_limit_bytes(const struct books *books, uint32_t device)
{
    uint32_t active = __atomic_load_n(&books->page->active, __ATOMIC_ACQUIRE) & 1;
    const struct tenfold_config_copy *copy = (const void *)((const char *)books->page + TENFOLD_CONFIG_COPY_OFFSET(active));
    for (uint32_t index = 0; index < copy->gpu_count; index++)
        if (strcmp(copy->gpus[index].uuid, books->machine.state->cards[device].uuid_text) == 0)
            return copy->gpus[index].memory_limit_bytes;
    return 0;
}

uint64_t books_ledger_bytes(const struct books *books, uint32_t device)
{
    return ledger_word(&books->ledger->gpus[books->gpu_of_card[device]].used);
}

static uint64_t truth_locked(const struct books *books, uint32_t device)
{
    uint64_t bytes = 0;
    for (uint32_t slot = 0; slot < SIM_SLOTS_MAX; slot++)
        if (books->machine.state->slots[slot].live)
            bytes += books->machine.state->slots[slot].usage[device].allocated_bytes;
    return bytes;
}

uint64_t books_truth_bytes(struct books *books, uint32_t device)
{
    state_lock(&books->machine);
    state_reap(&books->machine);
    uint64_t bytes = truth_locked(books, device);
    state_unlock(&books->machine);
    return bytes;
}

/* Gone or a zombie: its threads execute nothing any more. The kernel may still hold its open files for a moment (whoever reads its /proc
 * files keeps its memory map alive), so the machine can be the last to hear of a death. */
static bool is_over(int32_t pid)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return true;
    text[length] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] == ' ' && (name_end[2] == 'Z' || name_end[2] == 'X');
}

static uint64_t truth_of_the_living_locked(const struct books *books, uint32_t device)
{
    uint64_t bytes = 0;
    for (uint32_t slot = 0; slot < SIM_SLOTS_MAX; slot++)
        if (books->machine.state->slots[slot].live && !is_over(books->machine.state->slots[slot].pid))
            bytes += books->machine.state->slots[slot].usage[device].allocated_bytes;
    return bytes;
}

/* Under the machine's lock no driver call completes, so truth can only fall (by a death) between the first reading and the last; the
 * ledger is read first, so a ledger that is behind shows. */
int books_check_order(struct books *books)
{
    int result = 0;
    state_lock(&books->machine);
    for (uint32_t device = 0; device < books->devices && result == 0; device++) {
        uint64_t ledger = books_ledger_bytes(books, device), limit = books->limit_bytes[device];
        state_reap(&books->machine);
        uint64_t truth = truth_locked(books, device);
        if (truth > ledger)
            truth = truth_of_the_living_locked(books, device);
        if (truth > ledger || (limit && ledger > limit)) {
            snprintf(books->problem, sizeof books->problem, "while running, card %u: truth %llu, ledger %llu, limit %llu (expected truth <= ledger <= limit)",
                     device, (unsigned long long)truth, (unsigned long long)ledger, (unsigned long long)limit);
            result = -1;
        }
    }
    state_unlock(&books->machine);
    return result;
}

int books_check_reserve(struct books *books)
{
    int result = 0;
    state_lock(&books->machine);
    state_reap(&books->machine);
    for (uint32_t device = 0; device < books->devices && result == 0; device++) {
        uint64_t reserved = books->machine.state->cards[device].used_bytes;
        if (reserved <= books->limit_bytes[device])
            continue;
        snprintf(books->problem, sizeof books->problem,
                 "while running, card %u: %llu bytes are gone from the card, the limit is %llu, the ledger says %llu", device,
                 (unsigned long long)reserved, (unsigned long long)books->limit_bytes[device], (unsigned long long)books_ledger_bytes(books, device));
        result = -1;
    }
    state_unlock(&books->machine);
    return result;
}

/* A process that uses NVML too has two places at the machine. */
static uint64_t truth_of_pid(const struct books *books, int32_t pid, uint32_t device)
{
    uint64_t bytes = 0;
    for (uint32_t slot = 0; slot < SIM_SLOTS_MAX; slot++)
        if (books->machine.state->slots[slot].live && books->machine.state->slots[slot].pid == pid)
            bytes += books->machine.state->slots[slot].usage[device].allocated_bytes;
    return bytes;
}

static bool is_slot_of(const struct books *books, uint32_t slot, int32_t pid)
{
    uint64_t identity = books->ledger->slots[slot].identity;
    return (identity & 3) == TENFOLD_SLOT_LIVE && (identity >> 2 & 0x3fffff) == (uint64_t)pid;
}

static uint64_t ledger_of_pid(const struct books *books, int32_t pid, uint32_t device)
{
    uint64_t bytes = 0;
    for (uint32_t slot = 0; slot < TENFOLD_SLOTS_MAX; slot++)
        if (is_slot_of(books, slot, pid))
            bytes += ledger_word(&books->ledger->slots[slot].used[books->gpu_of_card[device]]);
    return bytes;
}

static int check_seat(struct books *books, const struct board *board, uint32_t seat, int32_t pid, uint32_t device, uint64_t *sum)
{
    const struct seat *own = &board->seats[seat];
    uint64_t truth = truth_of_pid(books, pid, device) - own->pool_used_bytes[device] + own->pool_reserved_bytes[device];
    uint64_t ledger = ledger_of_pid(books, pid, device);
    *sum += truth;
    if (truth == ledger)
        return 0;
    snprintf(books->problem, sizeof books->problem,
             "at rest, process %u, card %u: truth %llu, ledger %llu (off by %lld; %llu of the truth are pools' reserves of which %llu are in use)",
             seat, device, (unsigned long long)truth, (unsigned long long)ledger, (long long)(ledger - truth),
             (unsigned long long)own->pool_reserved_bytes[device], (unsigned long long)own->pool_used_bytes[device]);
    return -1;
}

int books_check_equal(struct books *books, const struct board *board, const int32_t pids[SEATS])
{
    int result = 0;
    state_lock(&books->machine);
    state_reap(&books->machine);
    for (uint32_t device = 0; device < books->devices && result == 0; device++) {
        uint64_t sum = 0, ledger = books_ledger_bytes(books, device);
        for (uint32_t seat = 0; seat < SEATS && result == 0; seat++)
            if (pids[seat])
                result = check_seat(books, board, seat, pids[seat], device, &sum);
        if (result == 0 && sum != ledger) {
            snprintf(books->problem, sizeof books->problem, "at rest, card %u: truth of all processes %llu, ledger %llu (off by %lld)", device,
                     (unsigned long long)sum, (unsigned long long)ledger, (long long)(ledger - sum));
            result = -1;
        }
    }
    state_unlock(&books->machine);
    return result;
}

/* The machine may hear of a death late, see is_over(): what is too much must go within two seconds. */
static uint64_t calm_truth_bytes(struct books *books, uint32_t device, uint64_t bytes)
{
    uint64_t truth = books_truth_bytes(books, device);
    for (int tries = 0; truth > bytes && tries < 400; tries++) {
        usleep(5000);
        truth = books_truth_bytes(books, device);
    }
    return truth;
}

static uint64_t gone_of_pid(const struct books *books, int32_t pid, uint32_t device)
{
    uint64_t bytes = 0;
    for (uint32_t slot = 0; slot < SIM_SLOTS_MAX; slot++)
        if (books->machine.state->slots[slot].live && (!pid || books->machine.state->slots[slot].pid == pid))
            bytes += books->machine.state->slots[slot].usage[device].reserved_bytes;
    return bytes;
}

static uint64_t overhead_of_pid(const struct books *books, int32_t pid)
{
    uint64_t bytes = 0;
    for (uint32_t slot = 0; slot < TENFOLD_SLOTS_MAX; slot++)
        if (is_slot_of(books, slot, pid))
            bytes += __atomic_load_n(&books->ledger->slots[slot].overhead_bytes, __ATOMIC_SEQ_CST);
    return bytes;
}

static bool knows_itself(const struct books *books, int32_t pid)
{
    for (uint32_t slot = 0; slot < TENFOLD_SLOTS_MAX; slot++)
        if (is_slot_of(books, slot, pid))
            return __atomic_load_n(&books->ledger->slots[slot].driver_pid, __ATOMIC_RELAXED) != 0;
    return false;
}

static int check_measured_seat(struct books *books, const struct board *board, uint32_t seat, int32_t pid, uint64_t sums[DEVICES_MAX])
{
    uint64_t overhead = overhead_of_pid(books, pid), allocated = 0, ledger = 0;
    for (uint32_t device = 0; device < books->devices; device++) {
        uint64_t gone = gone_of_pid(books, pid, device), own = ledger_of_pid(books, pid, device);
        uint64_t room = books->limit_bytes[device] - books_ledger_bytes(books, device);
        bool is_full = room == 0 || (room < LEAST_PROBE_BYTES && !knows_itself(books, pid));
        allocated += truth_of_pid(books, pid, device) - board->seats[seat].pool_used_bytes[device] + board->seats[seat].pool_reserved_bytes[device];
        ledger += own;
        sums[device] += own;
        if (own == gone || (own < gone && is_full))
            continue;
        snprintf(books->problem, sizeof books->problem,
                 "at rest, process %u, card %u: %llu bytes are gone from the card, ledger %llu (off by %lld; it %s itself in NVML's list; "
                 "%llu bytes of overhead on all its cards; of the card %llu bytes are left below the limit)",
                 seat, device, (unsigned long long)gone, (unsigned long long)own, (long long)(own - gone), knows_itself(books, pid) ? "knows" : "does not know",
                 (unsigned long long)overhead, (unsigned long long)room);
        return -1;
    }
    if (ledger - overhead == allocated)
        return 0;
    snprintf(books->problem, sizeof books->problem, "at rest, process %u: allocated %llu, ledger %llu of which %llu are overhead (off by %lld)", seat,
             (unsigned long long)allocated, (unsigned long long)ledger, (unsigned long long)overhead, (long long)(ledger - overhead - allocated));
    return -1;
}

int books_check_measured(struct books *books, const struct board *board, const int32_t pids[SEATS])
{
    uint64_t sums[DEVICES_MAX] = {0};
    int result = 0;
    state_lock(&books->machine);
    state_reap(&books->machine);
    for (uint32_t seat = 0; seat < SEATS && result == 0; seat++)
        if (pids[seat])
            result = check_measured_seat(books, board, seat, pids[seat], sums);
    for (uint32_t device = 0; device < books->devices && result == 0; device++)
        if (sums[device] != books_ledger_bytes(books, device)) {
            snprintf(books->problem, sizeof books->problem, "at rest, card %u: ledger of all processes %llu, of the card %llu", device,
                     (unsigned long long)sums[device], (unsigned long long)books_ledger_bytes(books, device));
            result = -1;
        }
    state_unlock(&books->machine);
    return result;
}

uint64_t books_gone_bytes(struct books *books, uint32_t device)
{
    state_lock(&books->machine);
    state_reap(&books->machine);
    uint64_t bytes = gone_of_pid(books, 0, device);
    state_unlock(&books->machine);
    return bytes;
}

int books_check_total(struct books *books, uint32_t device, uint64_t bytes, uint64_t overhead_bytes)
{
    uint64_t truth = calm_truth_bytes(books, device, bytes), ledger = books_ledger_bytes(books, device);
    if (truth == bytes && ledger == bytes + overhead_bytes)
        return 0;
    snprintf(books->problem, sizeof books->problem, "card %u: expected %llu bytes and %llu of overhead, truth %llu, ledger %llu", device,
             (unsigned long long)bytes, (unsigned long long)overhead_bytes, (unsigned long long)truth, (unsigned long long)ledger);
    return -1;
}

void books_inject(struct books *books, const char *symbol, uint64_t nth, uint64_t repeat, int32_t error)
{
    struct sim_state *state = books->machine.state;
    state_lock(&books->machine);
    for (uint32_t index = 0; index < SIM_INJECTIONS_MAX; index++) {
        struct sim_injection *injection = &state->injections[index];
        if (injection->armed)
            continue;
        memset(injection, 0, sizeof *injection);
        snprintf(injection->symbol, sizeof injection->symbol, "%s", symbol);
        injection->error = error;
        injection->skip = nth;
        injection->repeat = repeat;
        injection->armed = 1;
        atomic_fetch_add(&state->injections_armed, 1);
        break;
    }
    state_unlock(&books->machine);
}

uint64_t books_disarm(struct books *books)
{
    struct sim_state *state = books->machine.state;
    uint64_t fired = 0;
    state_lock(&books->machine);
    for (uint32_t index = 0; index < SIM_INJECTIONS_MAX; index++) {
        fired += state->injections[index].fired;
        if (state->injections[index].armed)
            atomic_fetch_sub(&state->injections_armed, 1);
        memset(&state->injections[index], 0, sizeof state->injections[index]);
    }
    state_unlock(&books->machine);
    return fired;
}
