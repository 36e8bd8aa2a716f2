/* driver_pid.c - which process of NVML's list is this one (contract: driver_pid.h).
 *
 * Owns: the pid, and what was seen on the way to it. A single coincidence proves nothing (tenants that run the same program allocate the same
 *       sizes), so the passive way wants three different changes to match, and a probe several random sizes. A probe is proof; who has found
 *       itself otherwise gives way to a sibling that claims the same pid.
 * Next: neighbours.c and overhead.c ask; account.c has what we hold. */
#include "slice/driver_pid.h"

#include "base/clock.h"
#include "base/parts.h"
#include "slice/account.h"
#include "slice/device.h"
#include "slice/probe.h"
#include "slice/slots.h"

#include <string.h>

enum { PROBES_QUICK = 40, PASSIVE_LOOKS = 3, MATCHES = 3, BLOCKS_MOST = 16, PROOF_BITS = 12 };
#define PROBE_PAUSE_NS 2000000000ull /* between probes, once so many have failed: the program allocates all the time, and may stop doing so */
#define ROOM_FACTOR 2            /* of a probe's size should be left below the limit; where a block is left, it may be that block */
#define CARD_FREE_BYTES (256ull << 20) /* and so much of the card besides: other containers have their quotas, too */

static _Atomic uint32_t own_pid;
static _Atomic bool is_proven;
static _Atomic bool has_misled; /* looking has found the wrong one: only a probe will do */
static uint32_t looks, probes;
static uint64_t probe_due_ns;
static uint64_t random_state;

/* What was seen last, and who has followed us since. */
static struct {
    int gpu; /* number + 1; 0: nothing */
    uint64_t own_bytes;
    int64_t last_change;
    uint32_t matches;
    struct tf_nvml_list before, candidates;
} passive;

uint32_t tf_driver_pid(void) { return atomic_load_explicit(&own_pid, memory_order_relaxed); }

bool tf_driver_pid_is_proven(void) { return atomic_load_explicit(&is_proven, memory_order_relaxed); }

static void forget(void)
{
    atomic_store(&own_pid, 0);
    atomic_store(&has_misled, false);
    atomic_store(&is_proven, false);
    looks = probes = 0;
    probe_due_ns = 0;
    passive.gpu = 0;
}

TF_PART(.forget = forget);

void tf_driver_pid_forget(struct tf_container *container)
{
    atomic_store(&has_misled, true);
    atomic_store(&is_proven, false);
    atomic_store(&own_pid, 0);
    __atomic_store_n(&container->state->slots[container->slot].driver_pid, 0, __ATOMIC_RELAXED);
}

static bool found(struct tf_container *container, uint32_t pid)
{
    atomic_store(&own_pid, pid);
    __atomic_store_n(&container->state->slots[container->slot].driver_pid, pid, __ATOMIC_RELAXED);
    return true;
}

/* Does a living sibling say that it is this one? */
static bool is_claimed(const struct tf_container *container, uint32_t pid)
{
    return tf_slots_claim(container->state, pid, container->slot);
}

static void drop_claimed(const struct tf_container *container, struct tf_nvml_list *list)
{
    unsigned int kept = 0;
    for (unsigned int index = 0; index < list->count; index++)
        if (!is_claimed(container, list->processes[index].pid))
            list->processes[kept++] = list->processes[index];
    list->count = kept;
}

/* Keeps those candidates whose usage changed by exactly so much. */
static void keep_followers(struct tf_nvml_list *candidates, const struct tf_nvml_list *before, const struct tf_nvml_list *after, int64_t change)
{
    unsigned int kept = 0;
    for (unsigned int index = 0; index < candidates->count; index++) {
        uint64_t first, second;
        unsigned int pid = candidates->processes[index].pid;
        if (tf_nvml_list_bytes(before, pid, &first) && tf_nvml_list_bytes(after, pid, &second) && (int64_t)(second - first) == change)
            candidates->processes[kept++] = candidates->processes[index];
    }
    candidates->count = kept;
}

/* --- by looking ------------------------------------------------------------------------------------------------------------------- */

static bool start_over(int gpu, uint64_t own_bytes, const struct tf_nvml_list *now)
{
    passive.gpu = gpu + 1;
    passive.own_bytes = own_bytes;
    passive.last_change = 0;
    passive.matches = 0;
    passive.before = passive.candidates = *now;
    return false;
}

/* `own_bytes` is what we held all the while that `now` was made; in it are the processes that no sibling claims. */
static bool look(struct tf_container *container, int gpu, uint64_t own_bytes, const struct tf_nvml_list *now)
{
    if (passive.gpu != gpu + 1)
        return start_over(gpu, own_bytes, now);
    int64_t change = (int64_t)(own_bytes - passive.own_bytes);
    if (change == 0)
        return false;
    if (change % (int64_t)TF_BLOCK_BYTES != 0) /* small blocks share what they come from: nobody follows exactly */
        return start_over(gpu, own_bytes, now);
    keep_followers(&passive.candidates, &passive.before, now, change);
    if (passive.candidates.count == 0)
        return start_over(gpu, own_bytes, now);
    passive.matches += change != passive.last_change && change != -passive.last_change;
    passive.last_change = change;
    passive.own_bytes = own_bytes;
    passive.before = *now;
    return passive.candidates.count == 1 && passive.matches >= MATCHES && found(container, passive.candidates.processes[0].pid);
}

/* --- by a probe ------------------------------------------------------------------------------------------------------------------- */

/* Physical memory by handle: unlike cuMemFree, giving it back does not make the driver wait for the card. Nothing is a size, too. */
static bool take_and_look(struct tf_container *container, const struct tf_cuda *cuda, const struct tf_nvml *nvml, int gpu, int ordinal, uint64_t bytes,
    struct tf_nvml_list *candidates)
{
    struct tf_nvml_list before, after;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}};
    if (!tf_nvml_list(container, nvml, gpu, &before) || (bytes && cuda->cuMemCreate(&handle, bytes, &properties, 0) != CUDA_SUCCESS))
        return false;
    bool is_listed = tf_nvml_list(container, nvml, gpu, &after);
    if (bytes)
        cuda->cuMemRelease(handle);
    if (is_listed)
        keep_followers(candidates, &before, &after, (int64_t)bytes);
    return is_listed;
}

/* Charged like any memory, so that the slice never holds more than its limit. */
static bool look_charged(struct tf_container *container, const struct tf_cuda *cuda, const struct tf_nvml *nvml, int gpu, int ordinal, uint64_t bytes,
    struct tf_nvml_list *candidates)
{
    uint64_t limit_bytes = atomic_load_explicit(&container->quotas[gpu].memory_limit_bytes, memory_order_relaxed);
    if (tf_account_charge(container->state, container->slot, (uint32_t)gpu, bytes, limit_bytes) != 0)
        return false;
    bool is_done = take_and_look(container, cuda, nvml, gpu, ordinal, bytes, candidates);
    tf_account_release(container->state, container->slot, (uint32_t)gpu, bytes);
    return is_done;
}

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((random_state >> 33) % limit);
}

static bool has_card_room(struct tf_container *container, const struct tf_nvml *nvml, int gpu)
{
    nvmlDevice_t device = tf_nvml_card(container, nvml, gpu);
    nvmlMemory_t memory = {0, 0, 0};
    if (!device || !nvml->nvmlDeviceGetMemoryInfo)
        return false;
    tf_nvml_enter();
    nvmlReturn_t result = nvml->nvmlDeviceGetMemoryInfo(device, &memory);
    tf_nvml_leave();
    return result == NVML_SUCCESS && memory.free >= CARD_FREE_BYTES;
}

/* The largest that a probe may be, in blocks; 0: there is no room for any. */
static uint32_t most_blocks(struct tf_container *container, const struct tf_nvml *nvml, int gpu)
{
    uint64_t limit_bytes = atomic_load_explicit(&container->quotas[gpu].memory_limit_bytes, memory_order_relaxed);
    uint64_t used_bytes = tf_account_used(container->state, (uint32_t)gpu);
    uint64_t room_bytes = !limit_bytes ? UINT64_MAX : used_bytes < limit_bytes ? limit_bytes - used_bytes : 0;
    uint64_t blocks = room_bytes / (ROOM_FACTOR * TF_BLOCK_BYTES);
    if (room_bytes < TF_BLOCK_BYTES || !has_card_room(container, nvml, gpu))
        return 0;
    return blocks < 1 ? 1 : blocks < BLOCKS_MOST ? (uint32_t)blocks : BLOCKS_MOST;
}

/* So many that nobody follows them all by chance. */
static int rounds_of(uint32_t sizes)
{
    int bits = 31 - __builtin_clz(sizes);
    return (PROOF_BITS + bits - 1) / bits;
}

static bool may_begin(uint64_t now) { return probes < PROBES_QUICK || now >= probe_due_ns; }

/* CUDA's number of the card, which is what cuMemCreate wants. */
static int ordinal_of(struct tf_container *container, const struct tf_cuda *cuda, int gpu)
{
    for (int ordinal = 0; ordinal < (int)TENFOLD_GPUS_MAX; ordinal++)
        if (tf_device_of_ordinal(container, cuda, ordinal) == gpu)
            return ordinal;
    return -1;
}

/* The context of the CUDA runtime, or of libraries. Who has one is in the list. */
static bool has_primary_context(struct tf_container *container, const struct tf_cuda *cuda, int gpu)
{
    unsigned int flags;
    int active = 0, ordinal = ordinal_of(container, cuda, gpu);
    return ordinal >= 0 && cuda->cuDevicePrimaryCtxGetState && cuda->cuDevicePrimaryCtxGetState(ordinal, &flags, &active) == CUDA_SUCCESS && active;
}

static bool probe(struct tf_container *container, const struct tf_cuda *cuda, const struct tf_nvml *nvml, int gpu, struct tf_nvml_list *candidates)
{
    uint64_t word, began = tf_now_ns();
    int ordinal = ordinal_of(container, cuda, gpu);
    if (ordinal < 0 || !cuda->cuMemCreate || !cuda->cuMemRelease || !may_begin(began))
        return false;
    uint32_t most = most_blocks(container, nvml, gpu);
    if (!most || !tf_probe_begin(container->state, (uint32_t)gpu, &word))
        return false;
    uint32_t least = most > 1, sizes = most - least + 1; /* with room for a single block: it or nothing */
    bool is_done = true;
    probes++;
    probe_due_ns = began + PROBE_PAUSE_NS;
    random_state ^= began ^ (uint64_t)container->self.pid << 20;
    for (int round = 0; round < rounds_of(sizes) && is_done && candidates->count; round++)
        is_done = tf_now_ns() - began < TF_PROBE_BUDGET_NS
            && look_charged(container, cuda, nvml, gpu, ordinal, (least + random_below(sizes)) * TF_BLOCK_BYTES, candidates);
    tf_probe_end(container->state, (uint32_t)gpu, word);
    /* not exactly one: the program allocates at the same time, or another tenant plays the same game: next time */
    if (!is_done || candidates->count != 1)
        return false;
    atomic_store(&is_proven, true);
    return found(container, candidates->processes[0].pid);
}

bool tf_driver_pid_find(struct tf_container *container, const struct tf_cuda *cuda, const struct tf_nvml *nvml, int gpu, bool may_probe)
{
    static struct tf_nvml_list list, unclaimed;
    uint64_t word = tf_account_word(container->state, container->slot, (uint32_t)gpu);
    uint64_t own_bytes = (word & TENFOLD_BYTES_MASK) - atomic_load_explicit(&container->overhead_bytes[gpu], memory_order_relaxed);
    uint32_t known = tf_driver_pid();
    if (known && (atomic_load(&is_proven) || !is_claimed(container, known)))
        return true;
    if (known)
        tf_driver_pid_forget(container);
    if (!tf_nvml_list(container, nvml, gpu, &list))
        return false;
    looks++;
    /* who is alone is us if we hold anything, most likely; a process that has given up its context is in no list */
    if (list.count == 1 && !atomic_load(&has_misled) && list.processes[0].used_bytes >= own_bytes
        && (own_bytes || has_primary_context(container, cuda, gpu)))
        return found(container, list.processes[0].pid);
    unclaimed = list;
    drop_claimed(container, &unclaimed);
    if (!atomic_load(&has_misled) && tf_account_is_quiet(container->state, container->slot, (uint32_t)gpu, word)
        && look(container, gpu, own_bytes, &unclaimed))
        return true;
    return (may_probe || looks > PASSIVE_LOOKS || atomic_load(&has_misled)) && probe(container, cuda, nvml, gpu, &list);
}
