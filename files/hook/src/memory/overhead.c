/* overhead.c - what this process holds of a card without having allocated it (contract: overhead.h).
 *
 * Owns: what is charged as overhead per card, and slots[].overhead_bytes, its sum for people.
 * How:  overhead = bytes that NVML says we hold - bytes that our books say. The books run ahead of the driver in both directions (charged before
 *       the allocation, given back after the free), so an operation under way makes a reading too low, never too high; and the tagged word of
 *       our slot tells whether an operation has ended between two reads. A reading counts if two of them agree and the word stood still.
 * Next: nvml_client.c asks NVML, driver_pid.c knows who we are there, account.c charges. */
#include "memory/overhead.h"

#include "base/clock.h"
#include "base/parts.h"
#include "base/sync.h"
#include "driver/helper.h"
#include "memory/pools.h"
#include "slice/account.h"
#include "slice/driver_pid.h"
#include "slice/nvml_client.h"

#include <string.h>
#include <time.h>

#define FIRST_PAUSE_NS 20000000ull
#define LONGEST_PAUSE_NS 10000000000ull
#define DISTURBED_PAUSE_NS 250000000ull /* the longest while readings fail, because the program is at work */
#define SHORT_PAUSE_NS 1000000000ull    /* the longest while the limit leaves no room for all of it, and after a change */
#define AGREE_NS 1000000l                /* between two readings that must agree */
#define AGREE_BUSY_NS 50000l             /* the same where a program is at work, or waits */
#define AGREE_LESS_NS 10000000l          /* the same before anything is given back: an allocation in flight looks like less overhead */
#define PATIENCE_NS 2000000000ull        /* of a refusal, with another thread's measurement: longer than any takes, but a busy host holds some up */
#define LOOK_MOST_NS 50000000ull         /* what counts of a look before a refusal, for the same reason */
#define LOOKS_SAVED_NS 400000000ull      /* time without refusals that counts for the looks to come */

#define FIRST_PATIENCE_NS 2000000000ull  /* of the first that asks: for a library that hangs; else a few looks tell */

enum { CHARGE_TRIES = 8, STANDSTILLS_MAX = 2, SHARE_OF_LOOKING = 4, FIRST_LOOKS = 5 };

struct card {
    struct tf_lock lock; /* of what is charged; held for a moment */
    struct tf_lock looking; /* of all below; held while NVML is asked */
    uint64_t last_bytes, last_own_bytes; /* of the last reading: NVML's word, and the program's part of ours */
    uint64_t last_word;
    uint64_t paid_until_ns; /* looks before refusals have taken their share of the time until then */
    uint32_t standstills;
    uint64_t due_ns, pause_ns; /* the helper's alone */
    uint32_t failed_looks;     /* likewise, in the beginning */
    _Atomic bool has_looked;   /* the overhead is known, or will not be soon */
    _Atomic bool is_urgent;
};

_Atomic uint32_t tf_overhead_watched[TENFOLD_GPUS_MAX];

static struct card cards[TENFOLD_GPUS_MAX];
static _Atomic uint64_t managed_bytes[TENFOLD_GPUS_MAX];

void tf_overhead_managed(int gpu, int64_t bytes) { atomic_fetch_add(&managed_bytes[gpu], (uint64_t)bytes); }

static void page_changed(void)
{
    for (uint32_t gpu = 0; gpu < TENFOLD_GPUS_MAX; gpu++)
        atomic_store_explicit(&tf_overhead_watched[gpu], 0, memory_order_relaxed);
}

/* A child has no context, and what its parent holds is not its own. */
static void forget(void)
{
    page_changed();
    memset((void *)cards, 0, sizeof cards);
    memset((void *)managed_bytes, 0, sizeof managed_bytes);
}

static uint64_t charged(const struct tf_container *container, int gpu)
{
    return atomic_load_explicit(&container->overhead_bytes[gpu], memory_order_relaxed);
}

static void nap(long ns)
{
    const struct timespec length = {.tv_nsec = ns};
    nanosleep(&length, NULL);
}

static bool lock_within(struct tf_lock *lock, uint64_t patience_ns)
{
    for (uint64_t began = tf_now_ns(); !tf_lock_try(lock); nap(AGREE_NS / 10))
        if (tf_now_ns() - began > patience_ns)
            return false;
    return true;
}

static uint64_t reserve_of(struct tf_container *container, int gpu)
{
    return atomic_load_explicit(&container->quotas[gpu].overhead_reserve_bytes, memory_order_relaxed);
}

static uint64_t limit_of(struct tf_container *container, int gpu)
{
    return atomic_load_explicit(&container->quotas[gpu].memory_limit_bytes, memory_order_relaxed);
}

static bool is_measured(struct tf_container *container, int gpu)
{
    return limit_of(container, gpu) && atomic_load_explicit(&container->quotas[gpu].overhead, memory_order_relaxed) != TENFOLD_OVERHEAD_RESERVED;
}

/* --- charging; all with the card's lock ------------------------------------------------------------------------------------------ */

/* The sum that people see is never above what is charged. */
static void show(struct tf_container *container, int gpu, uint64_t charged_bytes)
{
    uint64_t *shown = &container->state->slots[container->slot].overhead_bytes;
    __atomic_fetch_add(shown, charged_bytes - charged(container, gpu), __ATOMIC_RELAXED);
    atomic_store_explicit(&container->overhead_bytes[gpu], charged_bytes, memory_order_relaxed);
}

static void give_back(struct tf_container *container, int gpu, uint64_t bytes)
{
    show(container, gpu, charged(container, gpu) - bytes);
    tf_account_release(container->state, container->slot, (uint32_t)gpu, bytes);
}

static int charge(struct tf_container *container, int gpu, uint64_t bytes)
{
    int error = tf_account_charge(container->state, container->slot, (uint32_t)gpu, bytes, limit_of(container, gpu));
    if (!error)
        show(container, gpu, charged(container, gpu) + bytes);
    return error;
}

/* As much of it as fits below the limit. */
static void charge_what_fits(struct tf_container *container, int gpu, uint64_t bytes)
{
    for (int tries = 0; tries < CHARGE_TRIES && bytes; tries++) {
        uint64_t limit_bytes = limit_of(container, gpu), used_bytes = tf_account_used(container->state, (uint32_t)gpu);
        uint64_t room_bytes = !limit_bytes ? bytes : used_bytes < limit_bytes ? limit_bytes - used_bytes : 0;
        uint64_t part_bytes = bytes < room_bytes ? bytes : room_bytes;
        if (!part_bytes)
            return;
        if (charge(container, gpu, part_bytes) == 0)
            bytes -= part_bytes;
    }
}

static void bring_to(struct tf_container *container, int gpu, uint64_t wanted_bytes)
{
    uint64_t charged_bytes = charged(container, gpu);
    if (wanted_bytes < charged_bytes)
        give_back(container, gpu, charged_bytes - wanted_bytes);
    else
        charge_what_fits(container, gpu, wanted_bytes - charged_bytes);
}

/* Charges or gives back, if our books still stand where they stood when `wanted_bytes` was found out. */
static bool bring_to_if_still(struct tf_container *container, int gpu, uint64_t word, uint64_t wanted_bytes)
{
    tf_lock_acquire(&cards[gpu].lock);
    bool is_still = tf_account_is_quiet(container->state, container->slot, (uint32_t)gpu, word);
    if (is_still)
        bring_to(container, gpu, wanted_bytes);
    tf_lock_release(&cards[gpu].lock);
    return is_still;
}

/* --- measuring; with `looking` ----------------------------------------------------------------------------------------------------- */

struct reading {
    uint64_t word;      /* of our books, all the while */
    uint64_t own_bytes; /* the program's part of it */
    uint64_t bytes;     /* NVML's */
    bool is_listed;
};

static struct reading begin_reading(struct tf_container *container, int gpu)
{
    tf_lock_acquire(&cards[gpu].lock);
    struct reading reading = {.word = tf_account_word(container->state, container->slot, (uint32_t)gpu)};
    uint64_t used_bytes = reading.word & TENFOLD_BYTES_MASK, charged_bytes = charged(container, gpu);
    tf_lock_release(&cards[gpu].lock);
    reading.own_bytes = used_bytes > charged_bytes ? used_bytes - charged_bytes : 0;
    return reading;
}

static bool ask_nvml(struct tf_container *container, const struct tf_nvml *nvml, int gpu, struct reading *reading)
{
    struct tf_nvml_list list;
    reading->bytes = 0;
    if (!tf_account_is_quiet(container->state, container->slot, (uint32_t)gpu, reading->word) || !tf_nvml_list(container, nvml, gpu, &list))
        return false;
    reading->is_listed = tf_nvml_list_bytes(&list, tf_driver_pid(), &reading->bytes);
    return reading->bytes <= TENFOLD_BYTES_MASK && tf_account_is_quiet(container->state, container->slot, (uint32_t)gpu, reading->word);
}

static bool read_twice(struct tf_container *container, const struct tf_nvml *nvml, int gpu, long pause_ns, struct reading *ret)
{
    *ret = begin_reading(container, gpu);
    if (!ask_nvml(container, nvml, gpu, ret))
        return false;
    struct reading first = *ret;
    nap(pause_ns);
    return ask_nvml(container, nvml, gpu, ret) && ret->bytes == first.bytes && ret->is_listed == first.is_listed;
}

/* Our books moved, and what we take for ourselves in NVML's list did not: somebody else, if it happens again. */
static bool is_somebody_else(struct card *card, int gpu, const struct reading *reading)
{
    uint64_t change = reading->own_bytes > card->last_own_bytes ? reading->own_bytes - card->last_own_bytes : card->last_own_bytes - reading->own_bytes;
    if (change >= TF_BLOCK_BYTES && !atomic_load(&managed_bytes[gpu]) && !tf_pools_are_any()) /* either of which moves one book alone */
        card->standstills = reading->bytes == card->last_bytes ? card->standstills + 1 : 0;
    card->last_bytes = reading->bytes;
    card->last_own_bytes = reading->own_bytes;
    return card->standstills >= STANDSTILLS_MAX;
}

/* To charge more than half of the slice as overhead wants a proof of who we are, for contexts are smaller as a rule: what belongs to somebody else
 * must never fill our slice, where nothing of ours could change any more and show the error. */
static bool is_doubtful(struct tf_container *container, int gpu, uint64_t overhead_bytes)
{
    return !tf_driver_pid_is_proven() && overhead_bytes > charged(container, gpu) && overhead_bytes > limit_of(container, gpu) / 2;
}

/* What the overhead should be charged with, and the word for bring_to_if_still(). false: nothing can be told. */
static bool measure(struct tf_container *container, const struct tf_nvml *nvml, int gpu, long pause_ns, uint64_t *ret_wanted_bytes, uint64_t *ret_word)
{
    struct card *card = &cards[gpu];
    struct reading reading;
    uint64_t overhead_bytes = 0, reserve_bytes = reserve_of(container, gpu);
    if (!tf_driver_pid() || !read_twice(container, nvml, gpu, pause_ns, &reading))
        return false;
    card->last_word = *ret_word = reading.word;
    if (is_somebody_else(card, gpu, &reading)) {
        card->standstills = 0;
        tf_driver_pid_forget(container);
    } else if (reading.is_listed) { /* if not, no context is left */
        /* managed memory may be there or elsewhere: between the two what is charged stands */
        uint64_t elsewhere_bytes = atomic_load(&managed_bytes[gpu]), most_bytes = reading.bytes + elsewhere_bytes;
        if (most_bytes < reading.own_bytes) /* an allocation in flight */
            return false;
        most_bytes -= reading.own_bytes;
        overhead_bytes = most_bytes > elsewhere_bytes ? most_bytes - elsewhere_bytes : 0;
        if (overhead_bytes < charged(container, gpu))
            overhead_bytes = most_bytes < charged(container, gpu) ? most_bytes : charged(container, gpu);
        if (is_doubtful(container, gpu, overhead_bytes)) {
            tf_driver_pid_forget(container);
            return false;
        }
    }
    *ret_wanted_bytes = overhead_bytes > reserve_bytes ? overhead_bytes : reserve_bytes;
    return true;
}

enum outcome { UNCHANGED, CHANGED, DISTURBED, SHORT, UNKNOWN /* who we are */ };

/* The helper's measurement. */
static enum outcome look(struct tf_container *container, const struct tf_nvml *nvml, int gpu)
{
    uint64_t before_bytes = charged(container, gpu), wanted_bytes, again_bytes, word;
    if (!measure(container, nvml, gpu, AGREE_NS, &wanted_bytes, &word) && !measure(container, nvml, gpu, AGREE_BUSY_NS, &wanted_bytes, &word))
        return DISTURBED;
    if (wanted_bytes < before_bytes && tf_driver_pid()) {
        if (!measure(container, nvml, gpu, AGREE_LESS_NS, &again_bytes, &word))
            return DISTURBED;
        wanted_bytes = again_bytes > wanted_bytes ? again_bytes : wanted_bytes;
    }
    if (!bring_to_if_still(container, gpu, word, wanted_bytes))
        return DISTURBED;
    return charged(container, gpu) < wanted_bytes ? SHORT : wanted_bytes != before_bytes ? CHANGED : UNCHANGED;
}

/* Who is refused now and then has a look each time; who is refused all day long spends a part in SHARE_OF_LOOKING of it looking. */
static void pay_for_look(struct card *card, uint64_t began)
{
    uint64_t now = tf_now_ns(), took_ns = now - began < LOOK_MOST_NS ? now - began : LOOK_MOST_NS;
    uint64_t from = card->paid_until_ns + LOOKS_SAVED_NS > now ? card->paid_until_ns : now - LOOKS_SAVED_NS;
    card->paid_until_ns = from + SHARE_OF_LOOKING * took_ns;
}

void tf_overhead_look_again(struct tf_container *container, int gpu)
{
    struct card *card = &cards[gpu];
    const struct tf_nvml *nvml = tf_nvml_opened();
    uint64_t wanted_bytes, word;
    if (charged(container, gpu) <= reserve_of(container, gpu) || !nvml || !tf_driver_pid() || !lock_within(&card->looking, PATIENCE_NS))
        return;
    uint64_t began = tf_now_ns();
    bool is_moved = tf_account_word(container->state, container->slot, (uint32_t)gpu) != card->last_word;
    if (is_moved || card->paid_until_ns <= began) {
        if (measure(container, nvml, gpu, AGREE_BUSY_NS, &wanted_bytes, &word) && wanted_bytes < charged(container, gpu))
            bring_to_if_still(container, gpu, word, wanted_bytes);
        pay_for_look(card, began);
    }
    tf_lock_release(&card->looking);
}

/* --- when ------------------------------------------------------------------------------------------------------------------------- */

static int keep_reserve(struct tf_container *container, int gpu)
{
    uint64_t charged_bytes = charged(container, gpu), reserve_bytes = reserve_of(container, gpu);
    if (charged_bytes < reserve_bytes)
        return charge(container, gpu, reserve_bytes - charged_bytes);
    if (charged_bytes > reserve_bytes && !is_measured(container, gpu))
        give_back(container, gpu, charged_bytes - reserve_bytes);
    return 0;
}

/* Charges the reserve and begins to measure. */
static int watch(struct tf_container *container, int gpu)
{
    struct card *card = &cards[gpu];
    tf_lock_acquire(&card->lock);
    bool is_new = atomic_load(&tf_overhead_watched[gpu]) == 0;
    int error = is_new ? keep_reserve(container, gpu) : 0;
    if (is_new && !error)
        atomic_store(&tf_overhead_watched[gpu], TF_OVERHEAD_BEGUN);
    tf_lock_release(&card->lock);
    if (is_new && !error && is_measured(container, gpu))
        atomic_store(&card->is_urgent, true);
    return error;
}

int tf_overhead_find_out(struct tf_container *container, int gpu)
{
    struct card *card = &cards[gpu];
    if (!limit_of(container, gpu) && !reserve_of(container, gpu))
        return 0;
    int error = watch(container, gpu);
    if (error)
        return error;
    if (is_measured(container, gpu) && tf_helper_wake())
        for (uint64_t began = tf_now_ns(); !atomic_load(&card->has_looked) && !tf_helper_has_ended(); nap(AGREE_BUSY_NS))
            if (tf_now_ns() - began > FIRST_PATIENCE_NS)
                atomic_store(&card->has_looked, true);
    atomic_store(&tf_overhead_watched[gpu], TF_OVERHEAD_KNOWN);
    return 0;
}

void tf_overhead_begin(struct tf_container *container, int gpu)
{
    if (!reserve_of(container, gpu) && is_measured(container, gpu) && watch(container, gpu) == 0)
        tf_helper_wake();
}

void tf_overhead_hurry(struct tf_container *container)
{
    bool is_needed = false;
    for (int gpu = 0; gpu < (int)TENFOLD_GPUS_MAX; gpu++)
        if (charged(container, gpu)) {
            atomic_store(&cards[gpu].is_urgent, true);
            is_needed = true;
        }
    if (is_needed)
        tf_helper_wake();
}

static enum outcome visit(struct tf_container *container, const struct tf_cuda *cuda, int gpu, bool is_first)
{
    const struct tf_nvml *nvml = tf_nvml_open();
    if (!nvml || !tf_driver_pid_find(container, cuda, nvml, gpu, is_first))
        return UNKNOWN;
    tf_pools_refresh(container, cuda); /* what pools have given back must not hide overhead */
    tf_lock_acquire(&cards[gpu].looking);
    enum outcome outcome = look(container, nvml, gpu);
    tf_lock_release(&cards[gpu].looking);
    return outcome;
}

static uint64_t next_pause(uint64_t pause_ns, enum outcome outcome)
{
    uint64_t longest_ns = outcome == UNCHANGED || outcome == UNKNOWN ? LONGEST_PAUSE_NS : outcome == DISTURBED ? DISTURBED_PAUSE_NS : SHORT_PAUSE_NS;
    uint64_t next_ns = outcome == CHANGED ? pause_ns : 2 * pause_ns; /* modules come in crowds */
    return next_ns < longest_ns ? next_ns : longest_ns;
}

/* Nanoseconds until this card is worth a look. */
static uint64_t poll_card(struct tf_container *container, const struct tf_cuda *cuda, int gpu)
{
    struct card *card = &cards[gpu];
    uint64_t now = tf_now_ns();
    bool is_first = !atomic_load(&card->has_looked);
    if (atomic_exchange(&card->is_urgent, false)) {
        if (!card->pause_ns || card->due_ns > now + FIRST_PAUSE_NS)
            card->due_ns = is_first ? now : now + FIRST_PAUSE_NS;
        card->pause_ns = FIRST_PAUSE_NS;
    }
    if (now >= card->due_ns) {
        enum outcome outcome = visit(container, cuda, gpu, is_first);
        bool has_failed = outcome == DISTURBED || outcome == UNKNOWN;
        if (is_first && (!has_failed || ++card->failed_looks == FIRST_LOOKS))
            atomic_store(&card->has_looked, true);
        card->pause_ns = is_first && has_failed ? FIRST_PAUSE_NS : next_pause(card->pause_ns, outcome);
        now = tf_now_ns();
        card->due_ns = now + card->pause_ns;
    }
    return card->due_ns - now;
}

static uint64_t poll(void)
{
    struct tf_container *container = tf_container();
    const struct tf_cuda *cuda = tf_cuda();
    uint64_t nap_ns = UINT64_MAX;
    if (!cuda || atomic_load(&container->stance) != TF_ENFORCED)
        return nap_ns;
    tf_container_refresh(container);
    for (uint32_t gpu = 0; gpu < container->gpu_count; gpu++) {
        bool is_known = cards[gpu].pause_ns || atomic_load(&cards[gpu].is_urgent);
        if (!is_known || !is_measured(container, (int)gpu))
            continue;
        uint64_t card_nap_ns = poll_card(container, cuda, (int)gpu);
        nap_ns = card_nap_ns < nap_ns ? card_nap_ns : nap_ns;
    }
    return nap_ns;
}

TF_PART(.forget = forget, .page_changed = page_changed, .poll = poll);
