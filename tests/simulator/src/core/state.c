/* state.c - attaching to a simulated machine, its lock, and the reaping of the dead (contract: state.h).
 *
 * The lock is a futex word that names its owner's slot. A waiter that has waited LOCK_PATIENCE_NS asks the kernel, through the owner's
 * OFD lock, whether that process still lives; if not, it takes the lock over and recomputes every total. No robust futex list is
 * involved, because those know thread ids of one pid namespace only. */
#include "state.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <time.h>

#include "old_libc.h"
#include "timeline.h"

#define LOCK_PATIENCE_NS 5000000L /* 5 ms: far above any critical section, far below what a test notices */
#define LOCK_SPINS 200
#define NVIDIA_MAJOR 195 /* character device major of the NVIDIA driver, Linux Documentation/admin-guide/devices.txt */

int64_t state_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

const char *state_path(void)
{
    const char *path = secure_getenv(SIM_STATE_VARIABLE);
    return path && *path ? path : SIM_DEFAULT_STATE;
}

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

static int slot_lock_command(int fd, int command, short type, uint32_t slot_index, struct flock *ret_lock)
{
    *ret_lock = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = SIM_SLOT_BYTE_OFFSET + slot_index, .l_len = 1};
    return fcntl(fd, command, ret_lock) < 0 ? -errno : 0;
}

bool state_is_slot_alive(const struct sim_machine *machine, uint32_t slot_index)
{
    if (machine->slot && slot_index == machine->slot_index)
        return true;
    struct flock lock;
    if (slot_lock_command(machine->fd, F_OFD_GETLK, F_WRLCK, slot_index, &lock) < 0)
        return true; /* unknown: never reap on a guess */
    return lock.l_type != F_UNLCK;
}

/* Totals that a process killed inside the lock may have left half-written. */
static void recompute_totals(struct sim_state *state)
{
    for (uint32_t card = 0; card < state->card_count; card++) {
        uint64_t used_bytes = 0;
        for (uint32_t i = 0; i < state->slot_ceiling; i++)
            if (state->slots[i].live)
                used_bytes += state->slots[i].usage[card].reserved_bytes;
        state->cards[card].used_bytes = used_bytes;
        timeline_rebuild(state, card);
    }
}

static bool steal_from_dead(struct sim_machine *machine, uint32_t seen)
{
    uint32_t owner = (seen & ~SIM_LOCK_WAITERS) - 1;
    if (owner >= SIM_SLOTS_MAX || state_is_slot_alive(machine, owner))
        return false;
    uint32_t mine = (machine->slot_index + 1) | SIM_LOCK_WAITERS;
    if (!atomic_compare_exchange_strong(&machine->state->lock_word, &seen, mine))
        return false;
    atomic_fetch_add(&machine->state->lock_steals, 1);
    recompute_totals(machine->state);
    state_reap(machine);
    return true;
}

/* The lock may bear the number of our slot because the slot's last owner died with it. Only for a process that has just taken its slot, and so
 * cannot hold it: to everybody, itself included, that owner looks alive from now on. */
static bool inherit_lock(struct sim_machine *machine)
{
    const uint32_t mine = machine->slot_index + 1;
    uint32_t seen = atomic_load(&machine->state->lock_word);
    while ((seen & ~SIM_LOCK_WAITERS) == mine) {
        if (!atomic_compare_exchange_strong(&machine->state->lock_word, &seen, mine | SIM_LOCK_WAITERS))
            continue;
        atomic_fetch_add(&machine->state->lock_steals, 1);
        recompute_totals(machine->state);
        return true;
    }
    return false;
}

static void lock_slowly(struct sim_machine *machine)
{
    _Atomic uint32_t *word = &machine->state->lock_word;
    const uint32_t mine = machine->slot_index + 1;
    int64_t stuck_since_ns = state_now_ns();
    for (uint32_t spin = 0;; spin++) {
        uint32_t seen = 0;
        if (spin < LOCK_SPINS) {
            if (atomic_compare_exchange_weak(word, &seen, mine))
                return;
            continue;
        }
        if (atomic_compare_exchange_strong(word, &seen, mine | SIM_LOCK_WAITERS))
            return;
        if (!(seen & SIM_LOCK_WAITERS) && !atomic_compare_exchange_strong(word, &seen, seen | SIM_LOCK_WAITERS))
            continue;
        const struct timespec patience = {.tv_nsec = LOCK_PATIENCE_NS};
        futex(word, FUTEX_WAIT, seen | SIM_LOCK_WAITERS, &patience);
        if (state_now_ns() - stuck_since_ns > LOCK_PATIENCE_NS) {
            if (steal_from_dead(machine, atomic_load(word)))
                return;
            stuck_since_ns = state_now_ns();
        }
    }
}

void state_lock(struct sim_machine *machine)
{
    uint32_t expected = 0;
    if (!atomic_compare_exchange_strong_explicit(&machine->state->lock_word, &expected, machine->slot_index + 1, memory_order_acquire,
                                                 memory_order_relaxed))
        lock_slowly(machine);
}

void state_unlock(struct sim_machine *machine)
{
    uint32_t held = atomic_exchange_explicit(&machine->state->lock_word, 0, memory_order_release);
    if (held & SIM_LOCK_WAITERS)
        futex(&machine->state->lock_word, FUTEX_WAKE, 1, NULL);
}

uint64_t state_pid_namespace(void)
{
    struct stat status;
    return old_libc_stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

static void read_own_name(char *ret_name, size_t size_bytes)
{
    char path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0)
        length = 0;
    path[length] = '\0';
    const char *from = (size_t)length >= size_bytes ? path + length - (size_bytes - 1) : path;
    memcpy(ret_name, from, strlen(from) + 1);
}

static int take_slot(struct sim_machine *machine)
{
    for (uint32_t i = 0; i < SIM_SLOTS_MAX; i++) {
        struct flock lock;
        if (slot_lock_command(machine->fd, F_OFD_SETLK, F_WRLCK, i, &lock) == 0) {
            machine->slot_index = i;
            machine->slot = &machine->state->slots[i];
            return 0;
        }
    }
    return -EAGAIN;
}

static void open_slot(struct sim_machine *machine)
{
    struct sim_state *state = machine->state;
    struct sim_slot *slot = machine->slot;
    if (state->slot_ceiling <= machine->slot_index)
        state->slot_ceiling = machine->slot_index + 1;
    if (slot->live) /* its last owner was killed */
        state_release_slot(state, machine->slot_index, true);
    memset(slot, 0, sizeof *slot);
    slot->generation = ++state->next_generation;
    slot->pid = (int32_t)getpid();
    slot->pid_namespace = state_pid_namespace();
    slot->host_pid =
        slot->pid_namespace == state->pid_namespace ? (uint32_t)slot->pid : SIM_HOST_PID_BASE + state->next_host_pid++;
    read_own_name(slot->name, sizeof slot->name);
    slot->live = 1;
}

/* The device cgroup answers EPERM, an absent node ENOENT; ENXIO means that the kernel would have let us in (it has no such driver). */
static bool may_open_device_node(uint32_t minor_number)
{
    char path[] = "/dev/nvidia\0\0\0\0";
    char *end = path + sizeof "/dev/nvidia" - 1;
    if (minor_number >= 10)
        *end++ = (char)('0' + minor_number / 10);
    *end = (char)('0' + minor_number % 10);
    struct stat status;
    if (old_libc_stat(path, &status) < 0 || !S_ISCHR(status.st_mode) || status.st_rdev != makedev(NVIDIA_MAJOR, minor_number))
        return false;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        close(fd);
        return true;
    }
    return errno == ENXIO || errno == ENODEV;
}

static void find_visible_cards(struct sim_machine *machine)
{
    const struct sim_state *state = machine->state;
    for (uint32_t card = 0; card < state->card_count; card++)
        if (!state->device_nodes_required || may_open_device_node(state->cards[card].minor_number))
            machine->visible[machine->visible_count++] = card;
}

int state_find_bus_id(const struct sim_machine *machine, const char *bus_id)
{
    unsigned domain = 0, bus = 0, device = 0;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &device) != 3) {
        domain = 0;
        if (sscanf(bus_id, "%x:%x", &bus, &device) != 2)
            return SIM_BAD_BUS_ID;
    }
    for (uint32_t i = 0; i < machine->visible_count; i++) {
        const struct sim_card *card = &machine->state->cards[machine->visible[i]];
        if (card->pci_domain == domain && card->pci_bus == bus && card->pci_device == device)
            return (int)i;
    }
    return SIM_NO_CARD;
}

int state_attach(const char *path, struct sim_machine *machine)
{
    struct sim_machine fresh = {.fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY)};
    if (fresh.fd < 0)
        return errno == ENXIO || errno == ENOTDIR ? -ENOENT : -errno; /* ENXIO: a real socket lies there */
    struct stat status;
    if (old_libc_fstat(fresh.fd, &status) < 0 || !S_ISREG(status.st_mode) || (uint64_t)status.st_size < sizeof(struct sim_state)) {
        close(fresh.fd);
        return -EPROTO;
    }
    void *map = mmap(NULL, sizeof(struct sim_state), PROT_READ | PROT_WRITE, MAP_SHARED, fresh.fd, 0);
    if (map == MAP_FAILED) {
        int error = -errno;
        close(fresh.fd);
        return error;
    }
    fresh.state = map;
    int error = fresh.state->magic != SIM_MAGIC || fresh.state->abi != SIM_ABI || fresh.state->card_count > SIM_CARDS_MAX ? -EPROTO
                                                                                                                        : take_slot(&fresh);
    if (error) {
        munmap(map, sizeof(struct sim_state));
        close(fresh.fd);
        return error;
    }
    find_visible_cards(&fresh);
    if (!inherit_lock(&fresh))
        state_lock(&fresh);
    open_slot(&fresh);
    state_reap(&fresh);
    state_unlock(&fresh);
    *machine = fresh;
    return 0;
}

void state_detach(struct sim_machine *machine)
{
    if (!machine->state)
        return;
    state_lock(machine);
    state_release_slot(machine->state, machine->slot_index, false);
    state_unlock(machine);
    munmap(machine->state, sizeof(struct sim_state));
    close(machine->fd); /* frees the slot's byte */
    *machine = (struct sim_machine){.fd = -1};
}

void state_forget(struct sim_machine *machine)
{
    if (!machine->state)
        return;
    close(machine->fd);
    munmap(machine->state, sizeof(struct sim_state));
    *machine = (struct sim_machine){.fd = -1};
}

static void write_obituary(struct sim_state *state, const struct sim_slot *slot, bool found_dead)
{
    bool used_a_card = false;
    for (uint32_t card = 0; card < state->card_count; card++)
        used_a_card = used_a_card || slot->usage[card].peak_reserved_bytes || slot->launches[card] || slot->gpu_time_ns[card];
    if (!used_a_card)
        return;
    struct sim_obituary *obituary = &state->obituaries[state->obituary_count++ % SIM_OBITUARIES_MAX];
    *obituary = (struct sim_obituary){.host_pid = slot->host_pid,
                                      .pid = slot->pid,
                                      .reaped = found_dead,
                                      .cards = state->card_count,
                                      .at_ns = state_now_ns()};
    memcpy(obituary->name, slot->name, sizeof obituary->name);
    memcpy(obituary->gpu_time_ns, slot->gpu_time_ns, sizeof obituary->gpu_time_ns);
    memcpy(obituary->launches, slot->launches, sizeof obituary->launches);
    for (uint32_t card = 0; card < SIM_CARDS_MAX; card++)
        obituary->peak_reserved_bytes[card] = slot->usage[card].peak_reserved_bytes;
}

void state_release_slot(struct sim_state *state, uint32_t slot_index, bool found_dead)
{
    struct sim_slot *slot = &state->slots[slot_index];
    if (!slot->live)
        return;
    for (uint32_t card = 0; card < state->card_count; card++) {
        timeline_advance(state, card, state_now_ns());
        if (slot->usage[card].channel)
            timeline_close_channel(state, slot->usage[card].channel - 1);
        state->cards[card].used_bytes -= slot->usage[card].reserved_bytes;
        slot->usage[card].reserved_bytes = 0;
    }
    write_obituary(state, slot, found_dead);
    memset(slot, 0, sizeof *slot);
}

uint32_t state_reap(struct sim_machine *machine)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < machine->state->slot_ceiling; i++)
        if (machine->state->slots[i].live && !state_is_slot_alive(machine, i)) {
            state_release_slot(machine->state, i, true);
            found++;
        }
    return found;
}

/* With the lock. */
static int32_t fire(struct sim_state *state, const struct sim_slot *slot, const char *symbol)
{
    for (uint32_t i = 0; i < SIM_INJECTIONS_MAX; i++) {
        struct sim_injection *injection = &state->injections[i];
        if (!injection->armed || strcmp(injection->symbol, symbol) != 0 || (injection->pid && injection->pid != slot->pid))
            continue;
        if (injection->skip) {
            injection->skip--;
            continue;
        }
        injection->fired++;
        if (injection->repeat != UINT64_MAX && --injection->repeat == 0) {
            injection->armed = 0;
            atomic_fetch_sub(&state->injections_armed, 1);
        }
        return injection->error;
    }
    return 0;
}

int32_t state_injected_error(struct sim_machine *machine, const char *symbol)
{
    if (!atomic_load_explicit(&machine->state->injections_armed, memory_order_relaxed))
        return 0;
    state_lock(machine);
    int32_t error = fire(machine->state, machine->slot, symbol);
    state_unlock(machine);
    return error;
}

void state_count_lost(struct sim_state *state)
{
    uint32_t lost = 0;
    for (uint32_t card = 0; card < state->card_count; card++)
        lost += state->cards[card].lost != 0;
    atomic_store(&state->cards_lost, lost);
}

void state_raise_xid(struct sim_state *state, uint32_t card_index, uint64_t xid)
{
    struct sim_card *card = &state->cards[card_index];
    uint64_t sequence = ++card->xid_sequence;
    card->xids[sequence % SIM_XID_MAX] = (struct sim_xid){.sequence = sequence, .xid = xid, .at_ns = state_now_ns()};
    atomic_fetch_add(&state->event_word, 1);
    futex(&state->event_word, FUTEX_WAKE, INT32_MAX, NULL);
}
