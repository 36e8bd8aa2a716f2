/* slots.c - the processes of a container.
 *
 * Owns:    slots[].identity and slots_high_water of the state.
 * Death:   a slot goes LIVE -> REAPING (under the reaper's identity) -> FREE. A reaper that dies is itself found dead by the next one,
 *          which starts over; account_reap() can be repeated.
 * Exec:    a process keeps pid and start time over execve, but not its memory on the card. Attaching gives back what a former program
 *          of this very process left; another process notices that the state file is no longer mapped.
 * Next:    account.c for the bytes, container.c for when to attach. */
#include "slice/slots.h"

#include "base/clock.h"
#include "base/sync.h"
#include "base/words.h"
#include "slice/account.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PID_SHIFT = 2, START_SHIFT = 24, NAMESPACE_SHIFT = 52 };
#define PID_MASK 0x3fffffull
#define START_MASK 0xfffffffull
#define NAMESPACE_MASK 0xfffull
#define LOOK_CLOSER_NS 100000000ull
#define STATE_MASK 3ull

enum { REAPER_TRIES = 1000 }; /* of tf_relax: most of them naps, 50 ms and more in all */

static uint64_t identity_word(const struct tf_identity *identity, uint64_t slot_state)
{
    return slot_state | (identity->pid & PID_MASK) << PID_SHIFT | (identity->start_ticks & START_MASK) << START_SHIFT
        | (identity->pid_namespace & NAMESPACE_MASK) << NAMESPACE_SHIFT;
}

static uint32_t high_water(const struct tenfold_state *state)
{
    uint64_t slots = tf_word_load(&state->slots_high_water);
    return slots > TENFOLD_SLOTS_MAX ? TENFOLD_SLOTS_MAX : (uint32_t)slots;
}

static void raise_high_water(struct tenfold_state *state, uint64_t slots)
{
    uint64_t seen = tf_word_load(&state->slots_high_water);
    while (seen < slots && !tf_word_swap(&state->slots_high_water, seen, slots))
        seen = tf_word_load(&state->slots_high_water);
}

/* --- is it dead? ---------------------------------------------------------------------------------------------------------------- */

/* Behind the file's end: a byte for each slot, locked by the program that holds it. The kernel drops the lock with the program: at exit and
 * (the descriptor is close-on-exec) at execve. A forked child may keep it, and a program may close all its descriptors, so a missing lock is
 * a reason to look closer, and a lock is one not to. */
static struct flock byte_of(uint32_t slot)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)(TENFOLD_STATE_BYTES + slot), .l_len = 1};
}

static void lock_slot(const struct tf_identity *self, uint32_t slot)
{
    struct flock byte = byte_of(slot);
    if (self->lock_descriptor >= 0)
        syscall(SYS_fcntl, self->lock_descriptor, F_OFD_SETLK, &byte);
}

static bool is_slot_locked(const struct tf_identity *self, uint32_t slot)
{
    struct flock byte = byte_of(slot);
    return self->lock_descriptor >= 0 && syscall(SYS_fcntl, self->lock_descriptor, F_OFD_GETLK, &byte) == 0 && byte.l_type != F_UNLCK;
}

/* Is it time for the walk over the mappings of the living? */
static bool may_look_closer(void)
{
    static _Atomic uint64_t looked_ns;
    uint64_t now = tf_now_ns(), before = atomic_load(&looked_ns);
    return now - before >= LOOK_CLOSER_NS && atomic_compare_exchange_strong(&looked_ns, &before, now);
}

/* Of another pid namespace we know nothing: its pids mean other processes here. `mapping_key` is NULL when it is not time to look closer. */
static bool is_holder_dead(uint64_t word, uint32_t slot, const struct tf_identity *self, const char *mapping_key)
{
    uint32_t pid = (uint32_t)(word >> PID_SHIFT & PID_MASK);
    if ((word >> NAMESPACE_SHIFT & NAMESPACE_MASK) != (self->pid_namespace & NAMESPACE_MASK))
        return false;
    if (tf_process_is_gone(pid))
        return true;
    if (is_slot_locked(self, slot) || !mapping_key)
        return false;
    /* another process under its pid, or another program in its process */
    return tf_process_is_dead(pid, word >> START_SHIFT, START_MASK) || (pid != self->pid && tf_process_lacks_mapping(pid, mapping_key));
}

/* What people see of the process; nobody reads it without a living identity. */
static void clear_facts(struct tenfold_slot *slot)
{
    __atomic_store_n(&slot->driver_pid, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->overhead_bytes, 0, __ATOMIC_RELAXED);
}

static void reap_slot(struct tenfold_state *state, uint32_t slot, uint64_t word, const struct tf_identity *self)
{
    uint64_t reaping = identity_word(self, TENFOLD_SLOT_REAPING);
    if (!tf_word_swap(&state->slots[slot].identity, word, reaping))
        return;
    tf_account_reap(state, slot);
    clear_facts(&state->slots[slot]);
    if (tf_word_swap(&state->slots[slot].identity, reaping, TENFOLD_SLOT_FREE))
        __atomic_fetch_add(&state->reaped, 1, __ATOMIC_RELAXED);
}

/* Another process, which lives, gives back what a dead one held: its work of microseconds, unless it is held up. */
static void await_reaper(const struct tenfold_state *state, uint32_t slot, uint64_t word)
{
    for (uint32_t tries = 0; tries < REAPER_TRIES && tf_word_load(&state->slots[slot].identity) == word; tries++)
        tf_relax(tries);
}

uint32_t tf_slots_reap(struct tenfold_state *state, const struct tf_identity *self)
{
    char mapping_key[TF_MAPPING_KEY_CHARS];
    const char *key = may_look_closer() && tf_process_mapping_key(state, mapping_key) ? mapping_key : NULL;
    uint32_t found = 0;
    for (uint32_t slot = 0; slot < high_water(state); slot++) {
        uint64_t word = tf_word_load(&state->slots[slot].identity);
        if (word != TENFOLD_SLOT_FREE && is_holder_dead(word, slot, self, key)) {
            reap_slot(state, slot, word, self);
            found++;
        } else if ((word & STATE_MASK) == TENFOLD_SLOT_REAPING) {
            await_reaper(state, slot, word);
        }
    }
    return found;
}

/* What an earlier program of this process (before execve) left, or this process left half-reaped. */
static void reap_former_self(struct tenfold_state *state, const struct tf_identity *self)
{
    uint64_t live = identity_word(self, TENFOLD_SLOT_LIVE), reaping = identity_word(self, TENFOLD_SLOT_REAPING);
    for (uint32_t slot = 0; slot < high_water(state); slot++) {
        uint64_t word = tf_word_load(&state->slots[slot].identity);
        if (word == live || word == reaping)
            reap_slot(state, slot, word, self);
    }
}

static bool take_free_slot(struct tenfold_state *state, const struct tf_identity *self, uint32_t *ret_slot)
{
    for (uint32_t slot = 0; slot < TENFOLD_SLOTS_MAX; slot++) {
        struct tenfold_slot *candidate = &state->slots[slot];
        if (tf_word_load(&candidate->identity) != TENFOLD_SLOT_FREE
            || !tf_word_swap(&candidate->identity, TENFOLD_SLOT_FREE, identity_word(self, TENFOLD_SLOT_LIVE)))
            continue;
        raise_high_water(state, slot + 1);
        lock_slot(self, slot);
        clear_facts(candidate);
        candidate->pid = self->pid;
        candidate->start_ticks = self->start_ticks;
        candidate->pid_namespace = self->pid_namespace;
        candidate->attached_ns = tf_now_ns();
        *ret_slot = slot;
        return true;
    }
    return false;
}

int tf_slots_attach(struct tenfold_state *state, const struct tf_identity *self, uint32_t *ret_slot)
{
    reap_former_self(state, self);
    if (take_free_slot(state, self, ret_slot))
        return 0;
    tf_slots_reap(state, self);
    return take_free_slot(state, self, ret_slot) ? 0 : -ENOSPC;
}

bool tf_slots_claim(const struct tenfold_state *state, uint64_t driver_pid, uint32_t except)
{
    for (uint32_t slot = 0; slot < high_water(state); slot++)
        if (slot != except && (__atomic_load_n(&state->slots[slot].identity, __ATOMIC_RELAXED) & STATE_MASK) == TENFOLD_SLOT_LIVE
            && __atomic_load_n(&state->slots[slot].driver_pid, __ATOMIC_RELAXED) == driver_pid)
            return true;
    return false;
}

bool tf_slots_is_only(const struct tenfold_state *state, uint32_t slot)
{
    for (uint32_t other = 0; other < high_water(state); other++)
        if (other != slot && tf_word_load(&state->slots[other].identity) != TENFOLD_SLOT_FREE)
            return false;
    return true;
}
