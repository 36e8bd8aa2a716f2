/* account.c - bytes charged against each card's limit.
 *
 * Owns:    gpus[].used, slots[].used and slots[].lanes of the state; nothing else writes them.
 * How:     an operation is announced in a lane of the process's slot, then put into the card's word, then into the slot's word, then
 *          the lane is idle again. Both words carry the tag of the operation that wrote them last, and who replaces a word first marks the
 *          previous operation in its lane. So for each lane of a dead process: tag in the word or mark in the lane = it happened; neither =
 *          it did not. Three compare-and-swaps; the announcement and its end are plain ordered stores, because a swap stands between. A helper
 *          that stalls for 511 operations of one lane could mark a later one; that matters only if that lane's process dies in the same instant.
 * Threads: lock-free between processes. A lane is used by one thread at a time: lanes 0 to 4 by the thread that leased them, for as long as it
 *          lives, so that the usual operation takes no lock at all; 5 and 6 by whoever comes; 7 by whoever reaps the slot. Who holds which
 *          is known to the process alone, so no death and no scribbling in the region can leave one taken.
 * Never:   logs, allocates, or calls the driver. */
#include "slice/account.h"

#include "base/parts.h"
#include "base/sync.h"
#include "base/words.h"
#include "slice/process.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { REAPER_LANE = TENFOLD_LANES_MAX - 1, LEASED_LANES = 5, SEQUENCE_MAX = 511 };
enum { RECLAIM_EVERY = 64 }; /* operations in a shared lane between two looks for lanes of threads that have ended */

static void word_store(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

static uint64_t bytes_of(uint64_t word) { return word & TENFOLD_BYTES_MASK; }
static uint64_t tag_of(uint64_t word) { return word & ~TENFOLD_BYTES_MASK; }

static uint32_t lane_gpu(uint64_t lane) { return (uint32_t)(lane >> TENFOLD_LANE_GPU_SHIFT) & (TENFOLD_GPUS_MAX - 1); }
static uint32_t lane_phase(uint64_t lane) { return (uint32_t)(lane >> TENFOLD_LANE_PHASE_SHIFT) & 3u; }
static uint64_t lane_sequence(uint64_t lane) { return lane >> TENFOLD_LANE_SEQUENCE_SHIFT; }

static uint64_t with_phase(uint64_t lane, uint64_t phase)
{
    return (lane & ~(3ull << TENFOLD_LANE_PHASE_SHIFT)) | phase << TENFOLD_LANE_PHASE_SHIFT;
}

static uint64_t tag(uint32_t slot, uint32_t lane, uint64_t sequence)
{
    return (uint64_t)lane << TENFOLD_TAG_LANE_SHIFT | (uint64_t)slot << TENFOLD_TAG_SLOT_SHIFT | sequence << TENFOLD_TAG_SEQUENCE_SHIFT;
}

/* Marks the operation that wrote `word` as having reached `phase` (the card's word, or the slot's behind it), if it is still under way. */
static void help(struct tenfold_state *state, uint64_t word, uint32_t phase)
{
    uint32_t slot = (uint32_t)(word >> TENFOLD_TAG_SLOT_SHIFT) & (TENFOLD_SLOTS_MAX - 1);
    uint32_t lane = (uint32_t)(word >> TENFOLD_TAG_LANE_SHIFT) & (TENFOLD_LANES_MAX - 1);
    uint64_t *journal = &state->slots[slot].lanes[lane];
    uint64_t entry = tf_word_load(journal);
    if (lane_sequence(entry) == word >> TENFOLD_TAG_SEQUENCE_SHIFT && lane_phase(entry) != TENFOLD_LANE_IDLE && lane_phase(entry) < phase)
        tf_word_swap(journal, entry, with_phase(entry, phase));
}

/* New bytes of a word after the operation, or false when the limit forbids it. */
static bool apply(uint64_t used_bytes, uint64_t entry, uint64_t limit_bytes, uint64_t *ret_bytes)
{
    uint64_t bytes = bytes_of(entry);
    if (entry & TENFOLD_LANE_RELEASE_BIT) {
        *ret_bytes = used_bytes > bytes ? used_bytes - bytes : 0;
        return true;
    }
    /* usage may exceed a limit that was lowered while the program runs */
    if (used_bytes > limit_bytes || bytes > limit_bytes - used_bytes)
        return false;
    *ret_bytes = used_bytes + bytes;
    return true;
}

static bool put(struct tenfold_state *state, uint64_t *word, uint64_t own_tag, uint64_t entry, uint64_t limit_bytes, uint32_t phase)
{
    for (;;) {
        uint64_t before = tf_word_load(word), bytes;
        help(state, before, phase);
        if (!apply(bytes_of(before), entry, limit_bytes, &bytes))
            return false;
        if (tf_word_swap(word, before, bytes | own_tag))
            return true;
    }
}

/* The next sequence number, skipping one that an old operation of this lane has left in a word that nobody changed since. */
static uint64_t fresh_sequence(const struct tenfold_state *state, uint32_t slot, uint32_t lane, uint32_t gpu)
{
    uint64_t sequence = lane_sequence(tf_word_load(&state->slots[slot].lanes[lane]));
    uint64_t card_tag = tag_of(tf_word_load(&state->gpus[gpu].used)), slot_tag = tag_of(tf_word_load(&state->slots[slot].used[gpu]));
    do
        sequence = sequence % SEQUENCE_MAX + 1;
    while (tag(slot, lane, sequence) == card_tag || tag(slot, lane, sequence) == slot_tag);
    return sequence;
}

/* Runs one operation in a lane that the caller holds. -ENOMEM: refused, nothing changed. */
static int perform(struct tenfold_state *state, uint32_t slot, uint32_t lane, uint32_t gpu, uint64_t bytes, bool is_release, uint64_t limit_bytes)
{
    struct tenfold_slot *own = &state->slots[slot];
    uint64_t sequence = fresh_sequence(state, slot, lane, gpu);
    uint64_t idle = sequence << TENFOLD_LANE_SEQUENCE_SHIFT;
    uint64_t entry = idle | bytes | (uint64_t)gpu << TENFOLD_LANE_GPU_SHIFT | (is_release ? TENFOLD_LANE_RELEASE_BIT : 0);
    uint64_t own_tag = tag(slot, lane, sequence);
    int result = -ENOMEM;

    word_store(&own->lanes[lane], with_phase(entry, TENFOLD_LANE_PENDING));
    if (put(state, &state->gpus[gpu].used, own_tag, entry, limit_bytes, TENFOLD_LANE_CARD)) {
        put(state, &own->used[gpu], own_tag, entry, TENFOLD_BYTES_MASK, TENFOLD_LANE_DONE);
        result = 0;
    }
    word_store(&own->lanes[lane], idle);
    return result;
}

/* --- lanes ---------------------------------------------------------------------------------------------------------------------- */

static _Atomic int lane_holders[REAPER_LANE]; /* thread ids; 0: free */

static _Thread_local struct {
    uint32_t lease_epoch; /* of the process that leased `lane`: a forked child leases anew */
    uint32_t lane;
    uint32_t thread_epoch;
    int thread;
    uint32_t shared_uses;
} mine;

static bool take_from(uint32_t lane, int expected)
{
    return atomic_compare_exchange_strong_explicit(&lane_holders[lane], &expected, mine.thread, memory_order_acquire, memory_order_relaxed);
}

/* A lease ends with its thread. A new thread under an old one's number finds its lease at once. */
static bool lease(uint32_t epoch)
{
    bool look_closer = mine.shared_uses++ % RECLAIM_EVERY == 0;
    int saved_errno = errno;
    if (mine.thread_epoch != epoch) {
        mine.thread = (int)syscall(SYS_gettid);
        mine.thread_epoch = epoch;
    }
    for (uint32_t lane = 0; lane < LEASED_LANES; lane++) {
        int holder = atomic_load_explicit(&lane_holders[lane], memory_order_acquire);
        bool has_ended = holder && look_closer && holder != mine.thread && syscall(SYS_tgkill, getpid(), holder, 0) != 0 && errno == ESRCH;
        if (holder != mine.thread && !((!holder || has_ended) && take_from(lane, holder)))
            continue;
        mine.lane = lane;
        mine.lease_epoch = epoch;
        break;
    }
    errno = saved_errno;
    return mine.lease_epoch == epoch;
}

static uint32_t take_shared_lane(void)
{
    for (uint32_t tries = 0;; tries++) {
        uint32_t lane = LEASED_LANES + ((uint32_t)mine.thread + tries) % (REAPER_LANE - LEASED_LANES);
        if (take_from(lane, 0))
            return lane;
        tf_relax(tries);
    }
}

static int run(struct tenfold_state *state, uint32_t slot, uint32_t gpu, uint64_t bytes, bool is_release, uint64_t limit_bytes)
{
    uint32_t epoch = tf_process_epoch();
    if (TF_LIKELY(mine.lease_epoch == epoch) || lease(epoch))
        return perform(state, slot, mine.lane, gpu, bytes, is_release, limit_bytes);
    uint32_t lane = take_shared_lane();
    int result = perform(state, slot, lane, gpu, bytes, is_release, limit_bytes);
    atomic_store_explicit(&lane_holders[lane], 0, memory_order_release);
    return result;
}

/* The lanes of a parent's threads are not its child's. */
static void forget(void)
{
    for (uint32_t lane = 0; lane < REAPER_LANE; lane++)
        atomic_store(&lane_holders[lane], 0);
}

TF_PART(.forget = forget);

int tf_account_charge(struct tenfold_state *state, uint32_t slot, uint32_t gpu, uint64_t bytes, uint64_t limit_bytes)
{
    uint64_t limit = limit_bytes && limit_bytes < TENFOLD_BYTES_MASK ? limit_bytes : TENFOLD_BYTES_MASK;
    if (bytes > limit)
        return -ENOMEM;
    return run(state, slot, gpu, bytes, false, limit);
}

void tf_account_release(struct tenfold_state *state, uint32_t slot, uint32_t gpu, uint64_t bytes)
{
    run(state, slot, gpu, bytes & TENFOLD_BYTES_MASK, true, 0);
}

uint64_t tf_account_used(const struct tenfold_state *state, uint32_t gpu)
{
    return bytes_of(tf_word_load(&state->gpus[gpu].used));
}

uint64_t tf_account_slot_used(const struct tenfold_state *state, uint32_t slot, uint32_t gpu)
{
    return bytes_of(tf_word_load(&state->slots[slot].used[gpu]));
}

uint64_t tf_account_word(const struct tenfold_state *state, uint32_t slot, uint32_t gpu) { return tf_word_load(&state->slots[slot].used[gpu]); }

bool tf_account_is_quiet(const struct tenfold_state *state, uint32_t slot, uint32_t gpu, uint64_t word)
{
    for (uint32_t lane = 0; lane < TENFOLD_LANES_MAX; lane++)
        if (lane_phase(tf_word_load(&state->slots[slot].lanes[lane])) != TENFOLD_LANE_IDLE)
            return false;
    return tf_account_word(state, slot, gpu) == word;
}

/* Did the dead process's operation reach `word`? Whoever replaced the word marked the lane before, so the order of reads decides. */
static bool has_reached(const uint64_t *word, uint64_t own_tag, const uint64_t *journal, uint32_t phase)
{
    return tag_of(tf_word_load(word)) == own_tag || lane_phase(tf_word_load(journal)) >= phase;
}

/* Brings one lane of a dead process to idle: an operation that reached the card is completed in the slot, any other is forgotten. */
static void settle_lane(struct tenfold_state *state, uint32_t slot, uint32_t lane)
{
    struct tenfold_slot *dead = &state->slots[slot];
    uint64_t *journal = &dead->lanes[lane];
    uint64_t entry = tf_word_load(journal);
    uint32_t gpu = lane_gpu(entry);
    uint64_t own_tag = tag(slot, lane, lane_sequence(entry));
    uint64_t idle = lane_sequence(entry) << TENFOLD_LANE_SEQUENCE_SHIFT;

    if (lane_phase(entry) == TENFOLD_LANE_PENDING && has_reached(&state->gpus[gpu].used, own_tag, journal, TENFOLD_LANE_CARD)) {
        entry = with_phase(entry, TENFOLD_LANE_CARD);
        word_store(journal, entry);
    }
    if (lane_phase(entry) == TENFOLD_LANE_CARD && !has_reached(&dead->used[gpu], own_tag, journal, TENFOLD_LANE_DONE))
        put(state, &dead->used[gpu], own_tag, entry, TENFOLD_BYTES_MASK, TENFOLD_LANE_DONE);
    word_store(journal, idle);
}

void tf_account_reap(struct tenfold_state *state, uint32_t slot)
{
    for (uint32_t lane = 0; lane < TENFOLD_LANES_MAX; lane++)
        settle_lane(state, slot, lane);
    for (uint32_t gpu = 0; gpu < TENFOLD_GPUS_MAX; gpu++) {
        uint64_t bytes = tf_account_slot_used(state, slot, gpu);
        if (bytes)
            perform(state, slot, REAPER_LANE, gpu, bytes, true, 0);
    }
}
